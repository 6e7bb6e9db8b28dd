"""The quad-tree."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orthoptim_experiments.problems.circuits import SquaredUnitaryCircuit
from orthoptim_experiments.problems.circuits.structure import quad_tree


def test_the_papers_model_has_the_papers_matrices():
    circuit = SquaredUnitaryCircuit(28, 28, units=10, device="meta")
    root = circuit.weights[-1]
    shapes = [tuple(parameter.shape) for parameter in circuit.parameters() if parameter is not root]
    count = {}
    for matrices, p, n in shapes:
        count[p, n] = count.get((p, n), 0) + matrices
    assert count == {(10, 256): 784, (10, 10_000): 258, (10, 100): 6}
    assert sum(count.values()) == 1048
    assert tuple(root.shape) == (1, 1, 10_000)
    assert sum(parameter.numel() for parameter in circuit.parameters()) == 27_823_040
    assert all(parameter.dtype == torch.complex64 for parameter in circuit.parameters())


def test_the_papers_tree():
    levels = quad_tree(28, 28)
    inner = [{fold.arity: len(fold.children) for fold in level.folds} for level in levels]
    assert inner == [{4: 196}, {4: 49}, {4: 9, 2: 6}, {4: 4}, {4: 1}]
    assert [len(level.passing) for level in levels] == [0, 0, 1, 0, 0]


@given(st.integers(1, 20), st.integers(1, 20))
def test_every_node_has_one_parent_and_the_root_covers_the_image(height, width):
    if height * width == 1:
        return
    below = [{pixel} for pixel in range(height * width)]
    for level in quad_tree(height, width):
        origins = list(level.origins())
        used = [child for _, _, children in origins for child in children]
        assert sorted(used) == list(range(len(below)))
        assert len(level) == len(origins)
        below = [set().union(*(below[child] for child in children)) for _, _, children in origins]
    assert below == [set(range(height * width))]


@given(st.integers(2, 20), st.integers(2, 20))
def test_a_first_node_holds_a_square_of_pixels_in_raster_order(height, width):
    for _, _, children in quad_tree(height, width)[0].origins():
        row, column = divmod(children[0], width)
        square = [(r, c) for r in (row, row + 1) for c in (column, column + 1) if r < height and c < width]
        assert (row % 2, column % 2) == (0, 0)
        assert children == tuple(r * width + c for r, c in square)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (0, 3), (3, -1)])
def test_no_tree_over_less_than_two_pixels(height, width):
    with pytest.raises(ValueError, match="at least two pixels"):
        quad_tree(height, width)
