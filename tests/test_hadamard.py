"""Hadamard matrices and determinants as starting points."""

import pytest
import torch

import orthoptim as oo
from orthoptim import stiefel
from tests.conformance.methods import set_gradients


@pytest.mark.parametrize("n", [1, 2, 4, 12, 16, 20, 24, 28, 36, 40, 128, 768])
def test_hadamard_matrices_are_orthogonal_with_entries_of_one_size(n):
    h = stiefel.hadamard(n, dtype=torch.float64)
    torch.testing.assert_close(h @ h.mT, torch.eye(n, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(h.abs(), torch.full_like(h, n**-0.5), rtol=1e-12, atol=0)


@pytest.mark.parametrize("n", [3, 6, 7, 14, 22, 92])
def test_other_orders_are_refused_in_one_line(n):
    with pytest.raises(ValueError, match=f"no Hadamard matrix of order {n} is known here"):
        oo.orthogonalize_(torch.empty(n, n), init="hadamard")


def test_a_module_is_checked_before_it_is_changed():
    model = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(6, 6)])
    before = model[0].weight.detach().clone()
    with pytest.raises(ValueError, match=r"'1.weight' no Hadamard matrix of order 6"):
        oo.orthogonalize_(model, {"*.weight": "matrix"}, init="hadamard")
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("init", ["hadamard", "random-hadamard"])
def test_rows_of_a_hadamard_matrix(init):
    x = oo.orthogonalize_(torch.empty(3, 5, 12), init=init, generator=torch.Generator().manual_seed(0))
    assert oo.is_orthogonal(x)
    assert torch.allclose(x.abs(), torch.full_like(x, 12**-0.5))
    assert torch.equal(x[0], x[1]) == (init == "hadamard")


def test_random_signs_come_from_the_generator():
    draws = [
        oo.orthogonalize_(torch.empty(8, 8), init="random-hadamard", generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("init", ["project", "random", "hadamard", "random-hadamard"])
@pytest.mark.parametrize("det", [1, -1])
def test_the_determinant_is_chosen(init, det):
    x = torch.randn(6, 8, 8, generator=torch.Generator().manual_seed(0))
    oo.orthogonalize_(x, init=init, det=det)
    assert oo.is_orthogonal(x)
    torch.testing.assert_close(torch.linalg.det(x), torch.full((6,), float(det)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("tensor", "options", "message"),
    [
        (torch.empty(4, 8), {"init": "random", "det": 1}, "real and square"),
        (torch.empty(4, 4, dtype=torch.complex64), {"init": "random", "det": 1}, "real and square"),
        (torch.empty(4, 4), {"init": "random", "det": 2}, "Invalid det: 2"),
    ],
)
def test_a_determinant_that_there_is_not(tensor, options, message):
    with pytest.raises(ValueError, match=message):
        oo.orthogonalize_(tensor, **options)


@pytest.mark.parametrize("det", [1, -1])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: oo.POGO([x], 0.5),
        lambda x: oo.POGO([x], 1e6, base=oo.SGD()),
        lambda x: oo.StiefelMuon([x], 1.0),
        lambda x: oo.RGD([x], 10.0, retraction="cayley"),
    ],
    ids=["pogo", "pogo-clipped", "stiefelmuon", "cayley"],
)
def test_steps_keep_the_determinant(make, det):
    x = torch.nn.Parameter(oo.orthogonalize_(torch.empty(5, 8, 8), init="random", det=det))
    opt = make(x)
    for t in range(50):
        set_gradients([x], t)
        opt.step()
        assert torch.equal(torch.linalg.det(x.detach()).sign(), torch.full((5,), float(det)))
