"""The kernels of matrices with few rows in Triton's interpreter. Run by test_interpreted.py."""

import pytest
import torch

import orthoptim as oo
from orthoptim.engine.kernels import coverage as kernel_coverage
from orthoptim.engine.kernels import observe_launches
from orthoptim.engine.kernels import step as kernel_step
from orthoptim.engine.kernels.coverage import RESIDENT_BYTES
from tests import reference
from tests.engine.kernels.twins import Twins, check_against_reference, difference, gradients, orthonormal, with_hostile

DTYPES = [torch.float32, torch.complex64]


@pytest.fixture(autouse=True)
def _wide_tiles(request, monkeypatch):
    """The interpreter takes as long for a tile of 16 columns as for one of 1024."""
    if "narrow" not in request.node.name:
        monkeypatch.setattr(kernel_step, "TILE", 1024)


def relative_gradient(x, g):
    """R without the n×n matrix XᴴG, which has 10⁸ entries."""
    return (x @ reference.adjoint(x) @ g - x @ reference.adjoint(g) @ x) / 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("base", [oo.VAdam(), oo.SGD(0.9)])
@pytest.mark.parametrize(("p", "n"), [(1, 5), (10, 256)])
def test_shapes_against_the_formulas(p, n, base, dtype):
    check_against_reference([orthonormal(2, p, n, dtype=dtype)], base, "safe")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "base"), [((2, 3, 5), oo.SGD(0.9)), ((2, 1600), oo.VAdam())], ids=["direct", "gram"])
def test_scaled_matrices_against_the_formulas(shape, base, dtype, monkeypatch):
    monkeypatch.setattr(kernel_coverage, "RESIDENT_BYTES", 16 << 10)  # for a short gram
    check_against_reference([orthonormal(*shape, dtype=dtype)], base, "safe", sigma=0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16])
def test_scaled_matrices_with_hostile_gradients(dtype):
    """Tall and wide ones have another σ each; those that are skipped keep their bits, in their masters, too."""
    tensors = [oo.orthogonalize_(orthonormal(4, *shape), scale="rms") for shape in ((3, 5), (5, 3))]
    twins = Twins([x.to(dtype) for x in tensors], "direct-p", scale="rms")
    for step in range(3):
        twins.step(with_hostile(gradients(twins.kernel, step), step))
    twins.check(2e-6 if dtype != torch.bfloat16 else 8e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("p", "n"), [(17, 40), (32, 33)])
def test_more_rows_against_the_formulas(p, n, dtype):
    check_against_reference([orthonormal(1, p, n, dtype=dtype)], oo.VAdam(), "safe")


@pytest.mark.parametrize(
    ("p", "n", "dtype", "landing"),
    [
        (10, 10_000, torch.complex64, "safe"),
        (3, 2100, torch.complex64, "strict"),
        (2, 6200, torch.complex64, "half"),
        (32, 1537, torch.float32, "strict"),
        (24, 1100, torch.complex64, "strict"),
    ],
)
def test_long_rows_against_the_formulas(p, n, dtype, landing, monkeypatch):
    monkeypatch.setattr(reference, "relative_gradient", relative_gradient)
    check_against_reference([orthonormal(p, n, dtype=dtype)], oo.VAdam(), landing, steps=2)


def test_long_rows_and_sgd(monkeypatch):
    monkeypatch.setattr(reference, "relative_gradient", relative_gradient)
    check_against_reference([orthonormal(3, 5000)], oo.SGD(0.5), "safe", steps=2)


@pytest.mark.parametrize("landing", ["strict", "half"])
def test_landings_against_the_formulas(landing):
    check_against_reference([orthonormal(2, 3, 7, dtype=torch.complex64)], oo.VAdam(), landing)


@pytest.mark.parametrize(("p", "n", "form"), [(3, 20, "direct-p"), (4, 3100, "gram")], ids=["narrow", "gram"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_hostile_gradients(p, n, form, dtype):
    tensors = [orthonormal(4, p, n, dtype=dtype)]
    twins = Twins(tensors, form, lr=1.6)
    for step in range(2):
        twins.step(with_hostile(gradients(tensors, step), step))
    twins.check()
    updates = twins.fast.state[twins.kernel[0]]["num_updates"]
    assert updates.min() < updates.max() == 2


@pytest.mark.parametrize("base", [oo.SGD(), oo.SGD(0.9, nesterov=True), oo.SGD(0.9, dampening=0.5)])
def test_hostile_gradients_and_momentum(base):
    tensors = [orthonormal(5, 3, 6, dtype=torch.complex64)]
    twins = Twins(tensors, "direct-p", lr=1.6, base=base, maximize=True)
    for step in range(2):
        twins.step(with_hostile(gradients(tensors, step), step))
    twins.check()
    assert twins.fast.state[twins.kernel[0]]["clipped"].sum() > 0


def strided():
    filters = orthonormal(4, 6, 3, 3, view="filters")
    yield "channels-last", filters.to(memory_format=torch.channels_last), "filters"
    yield "by columns", orthonormal(2, 9, 4).mT, "matrix"
    yield "side by side", torch.cat([orthonormal(5, 12), orthonormal(5, 12)]), oo.View("matrix", split=2)
    yield "complex kernels", orthonormal(2, 3, 3, 3, dtype=torch.complex64, view="kernels"), "kernels"


@pytest.mark.parametrize(("x", "view"), [case[1:] for case in strided()], ids=[case[0] for case in strided()])
def test_strided_parameters(x, view):
    twins = Twins([x], "direct-p", view=view, lr=1.1)
    for step in range(2):
        twins.step(gradients([x], step))  # contiguous, whatever the parameter is
    twins.check()


def test_lazily_conjugated_gradients():
    x = orthonormal(2, 3, 6, dtype=torch.complex64)
    twins = Twins([x], "direct-p")
    for params, optimizer in ((twins.kernel, twins.fast), (twins.eager, twins.slow)):
        params[0].grad = gradients([x], 0)[0].conj()
        optimizer.step()
    twins.check()


def test_bfloat16_has_a_master():
    tensors = [orthonormal(2, 3, 6).bfloat16()]
    twins = Twins(tensors, "direct-p")
    for step in range(2):
        twins.step(gradients(tensors, step))
    first, second = twins.fast.state[twins.kernel[0]]["master"], twins.slow.state[twins.eager[0]]["master"]
    assert difference(first, second) <= 2e-6


@pytest.mark.parametrize(("n", "form", "count"), [(6, "direct-p", 1), (6200, "gram", 2)])
def test_a_rescue_in_few_launches(n, form, count):
    tensors = [orthonormal(2, n), orthonormal(1, 2, n)]
    twins = Twins(tensors, form, lr=0.05)
    for params in (twins.kernel, twins.eager):
        params[0].data *= 30
    launches = []
    with observe_launches(lambda name, grid, moved: launches.append(name)):
        for step in range(2):
            twins.step(gradients(tensors, step))
    assert len(launches) == 2 * count
    twins.check(1e-5)  # a rescue loses u/ρ, and ρ ≥ 1/100
    assert twins.fast.state[twins.kernel[0]]["rescued"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("base", [oo.VAdam(), oo.SGD(), oo.SGD(0.9, nesterov=True)])
@pytest.mark.parametrize("landing", ["safe", "strict", "half"])
@pytest.mark.parametrize(("p", "n"), [(1, 5), (2, 9), (7, 16), (10, 100), (16, 16), (16, 300), (10, 10_000)])
def test_every_combination(p, n, base, landing, dtype):
    gram = isinstance(base, oo.VAdam) and 2 * p * n * dtype.itemsize > RESIDENT_BYTES
    tensors = [orthonormal(3, p, n, dtype=dtype), orthonormal(p, n, dtype=dtype)]
    twins = Twins(tensors, "gram" if gram else "direct-p", base=base, landing=landing,
                  lr=0.02 if landing == "half" else 1.6)  # fmt: skip
    for step in range(3):
        grads = gradients(tensors, step)
        twins.step([*with_hostile(grads[:1], step), grads[1]] if landing != "half" else grads)
    twins.check()


@pytest.mark.soak
@pytest.mark.parametrize(("p", "n"), [(17, 17), (24, 100), (32, 32), (32, 2000), (20, 10_000)])
@pytest.mark.parametrize("landing", ["safe", "strict"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_tiles_of_many_rows(p, n, landing, dtype, monkeypatch):
    monkeypatch.setattr(reference, "relative_gradient", relative_gradient)
    check_against_reference([orthonormal(p, n, dtype=dtype)], oo.VAdam(), landing)
