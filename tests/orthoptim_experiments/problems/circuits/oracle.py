"""Slow and obvious: one example and one node at a time, with the whole Kronecker vector; and all images there are."""

import torch

from orthoptim_experiments.problems.circuits import SquaredUnitaryCircuit


def amplitude(circuit, image):
    """c(x) of one image, straight from the definition: blocks of 2×2 of the grid below, children in raster order."""
    leaves = circuit.leaves.detach().view(circuit.height, circuit.width, circuit.units, circuit.states)
    grid = [[leaves[r, c, :, image[r, c]] for c in range(circuit.width)] for r in range(circuit.height)]
    weights = iter(circuit.weights)
    while len(grid) * len(grid[0]) > 1:
        blocks = [
            [[y for line in grid[r : r + 2] for y in line[c : c + 2]] for c in range(0, len(grid[0]), 2)]
            for r in range(0, len(grid), 2)
        ]
        matrices = {
            arity: iter(next(weights).detach())
            for arity in (4, 2)
            if any(len(block) == arity for line in blocks for block in line)
        }
        grid = [[node(block, matrices) for block in line] for line in blocks]
    return grid[0][0][0]


def node(children, matrices):
    if len(children) == 1:
        return children[0]
    kronecker = children[0]
    for child in children[1:]:
        kronecker = torch.kron(kronecker, child)
    return next(matrices[len(children)]) @ kronecker


def all_images(circuit):
    count = circuit.height * circuit.width
    values = torch.cartesian_prod(*[torch.arange(circuit.states)] * count)
    return values.view(-1, circuit.height, circuit.width)


def number(circuit, images):
    """The place of each image in all_images."""
    place = circuit.states ** torch.arange(circuit.height * circuit.width - 1, -1, -1)
    return (images.flatten(1) * place).sum(1)


def tiny(height, width, units, states, *, unitary, seed=0, dtype=torch.complex128):
    generator = torch.Generator().manual_seed(seed)
    circuit = SquaredUnitaryCircuit(height, width, units, states, dtype=dtype, generator=generator)
    if not unitary:
        with torch.no_grad():
            for parameter in circuit.parameters():
                parameter.copy_(torch.randn(parameter.shape, dtype=dtype, generator=generator))
    return circuit


def chi_square_quantile(freedom):
    """Exceeded once in 100 000 times (Wilson–Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.265 * (2 / (9 * freedom)) ** 0.5) ** 3


def assert_distributed(counts, probabilities):
    """A χ² test; cells expected fewer than five times are taken together."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    assert expected[-1] > 0 or counts[-1] == 0
    if expected[-1] < 1:  # too little even together: with its neighbour
        counts[-2] += counts[-1]
        expected[-2] += expected[-1]
        counts, expected = counts[:-1], expected[:-1]
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert statistic < chi_square_quantile(max(freedom, 1)), (float(statistic), freedom)
