"""The kernel of tiny matrices in Triton's interpreter. Run by test_interpreted.py."""

import pytest
import torch

import orthoptim as oo
from orthoptim.engine.kernels import observe_launches
from tests.engine.kernels.twins import (
    Twins,
    check_against_reference,
    difference,
    gradients,
    orthonormal,
    with_hostile,
)

SHAPES = [(p, n) for n in range(1, 5) for p in range(1, n + 1)]
BASES = [oo.VAdam(), oo.SGD(), oo.SGD(0.9, nesterov=True), oo.SGD(0.9, dampening=0.5)]


@pytest.mark.parametrize(("p", "n"), SHAPES)
@pytest.mark.parametrize("base", [oo.VAdam(), oo.SGD(0.9)])
def test_every_shape_against_the_formulas(p, n, base):
    check_against_reference([orthonormal(5, p, n)], base, "safe", steps=2)


@pytest.mark.parametrize("landing", ["strict", "half"])
def test_every_landing_against_the_formulas(landing):
    check_against_reference([orthonormal(7, 2, 3)], oo.VAdam(), landing)


@pytest.mark.parametrize("base", [oo.VAdam(), oo.SGD(0.9)])
def test_scaled_matrices_against_the_formulas(base):
    check_against_reference([orthonormal(3, 2, 3)], base, "safe", sigma=0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_scaled_matrices_with_hostile_gradients(dtype):
    twins = Twins([(0.7 * orthonormal(4, 3, 3)).to(dtype)], scale=0.7)
    for step in range(3):
        twins.step(with_hostile(gradients(twins.kernel, step), step))
    twins.check(2e-6 if dtype.itemsize > 2 else 8e-3)


@pytest.mark.parametrize("scale", [1e-12, 1e9])
def test_small_and_large_gradients_against_the_formulas(scale):
    check_against_reference([orthonormal(3, 3, 3)], oo.VAdam(eps=0.0), "safe", scale=scale)
    check_against_reference([orthonormal(3, 3, 3)], oo.SGD(), "safe", lr=0.3 / scale, scale=scale)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("landing", ["safe", "strict"])
def test_hostile_gradients_are_treated_as_by_torch(base, landing):
    tensors = [orthonormal(131, 3, 3), orthonormal(3, 3)]
    twins = Twins(tensors, base=base, landing=landing, lr=1.6)
    for step in range(3):
        grads = gradients(tensors, step, 10.0 ** (step - 1))
        twins.step([*with_hostile(grads[:1], step), grads[1]])
    twins.check()
    state = twins.fast.state[twins.kernel[0]]
    assert 0 < state["num_updates"].min() < state["num_updates"].max() == 3
    assert state["clipped"].sum() > 0


def test_many_steps_do_not_lose_the_bias_correction():
    """1 − βᵗ of a loaded count, near 0 and where βᵗ underflows."""
    tensors = [orthonormal(9, 2, 2)]
    twins = Twins(tensors)
    twins.step(gradients(tensors, 0))
    for optimizer, params in ((twins.fast, twins.kernel), (twins.slow, twins.eager)):
        counts = torch.tensor([0, 1, 5, 50, 500, 5000, 10**6, 10**7, 10**9], dtype=torch.int32)
        optimizer.state[params[0]]["num_updates"].copy_(counts)
    twins.step(gradients(tensors, 1))
    twins.check(5e-7)


@pytest.mark.parametrize("betas", [(0.0, 0.999), (0.9, 0.0), (0.4, 0.3)])
def test_small_betas(betas):
    tensors = [orthonormal(4, 2, 2)]
    twins = Twins(tensors, base=oo.VAdam(betas=betas))
    for step in range(2):
        twins.step(gradients(tensors, step))
    twins.check(5e-7)


def test_double_precision():
    tensors = [orthonormal(5, 2, 3, dtype=torch.float64)]
    twins = Twins(tensors, landing="strict", lr=torch.tensor(1.1))
    for step in range(3):
        twins.step(gradients(tensors, step))
    twins.check(1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_a_master(dtype):
    tensors = [orthonormal(5, 3, 3).to(dtype)]
    twins = Twins(tensors)
    for step in range(3):
        if step == 2 and dtype == torch.float16:  # somebody writes to it; a skipped matrix takes that over, too
            for params in (twins.kernel, twins.eager):
                params[0].data[1:3] *= -1
        twins.step(with_hostile(gradients(tensors, step), step))
    # the interpreter rounds to bfloat16 by cutting off, a GPU to nearest
    twins.check(2e-6 if dtype == torch.float16 else torch.finfo(dtype).eps)
    first, second = twins.fast.state[twins.kernel[0]]["master"], twins.slow.state[twins.eager[0]]["master"]
    assert difference(first, second) <= 2e-6


@pytest.mark.parametrize(
    ("landing", "factors", "lr"), [("safe", (3.0, 30.0, 3e4), 0.05), ("half", (1.0, 11.0, 50.0), 1e-6)]
)
def test_a_rescue(landing, factors, lr):
    tensors = [orthonormal(6, 3, 3)]
    twins = Twins(tensors, landing=landing, lr=lr)
    for params in (twins.kernel, twins.eager):
        params[0].data[1:4] *= torch.tensor(factors)[:, None, None]
    for step in range(3):
        twins.step(gradients(tensors, step))
    twins.check(1e-5)  # a rescue loses u/ρ, and ρ ≥ 1/100
    assert twins.fast.state[twins.kernel[0]]["rescued"].sum() > 0


def strided():
    x = orthonormal(4, 6, 3, 3, view="kernels")
    yield "contiguous", x, "kernels"
    yield "channels-last", x.to(memory_format=torch.channels_last), "kernels"
    yield "by columns", x.mT.contiguous().mT, "kernels"
    room = torch.zeros(4, 6, 5, 7)
    room[:, :, 1:4, 2:5] = x
    yield "a slice", room[:, :, 1:4, 2:5], "kernels"
    yield "vectors", orthonormal(4, 5, 3, view="kernels"), "kernels"
    yield "columns", orthonormal(7, 4, 2), "matrix"
    yield "heads", torch.cat(list(orthonormal(5, 4, 3))), oo.View("matrix", heads=5)
    yield "parts", torch.cat([*orthonormal(2, 3, 3), orthonormal(2, 3)]), oo.View("matrix", split=(3, 3, 2))


@pytest.mark.parametrize(("x", "view"), [case[1:] for case in strided()], ids=[case[0] for case in strided()])
def test_strided_parameters(x, view):
    twins = Twins([x], view=view, lr=1.1)
    assert twins.kernel[0].stride() == x.stride()
    for step in range(2):
        grads = gradients([x], step)
        twins.step([grads[0] if step else torch.empty_like(x).copy_(grads[0])])
    twins.check()


def test_all_parameters_in_one_launch():
    tensors = [orthonormal(2, 3, 3, 3), orthonormal(130, 3, 3), orthonormal(1, 3, 3), orthonormal(3, 3)]
    twins = Twins(tensors)
    launches = []
    with observe_launches(lambda name, grid, moved: launches.append((name, grid))):
        for step in range(2):
            twins.step(gradients(tensors, step))
    assert launches == [("tiny_step", (5,))] * 2
    assert [(bucket.matrices, bucket.blocks) for bucket in twins.fast.plan()] == [(138, 1)]
    twins.check()


def test_missing_gradients_and_a_resumed_state():
    tensors = [orthonormal(4, 2, 3), orthonormal(2, 3), orthonormal(3, 3, 2)]
    twins = Twins(tensors, base=oo.SGD(0.9, dampening=0.5), maximize=True)
    for step in range(4):
        grads = gradients(tensors, step)
        twins.step([None if step in (1, 2) and i == step - 1 else grad for i, grad in enumerate(grads)])
    twins.check()
    resumed = oo.POGO(twins.kernel, 0.3, base=oo.SGD(0.9, dampening=0.5), maximize=True)
    resumed.plan()
    resumed.load_state_dict(twins.fast.state_dict())
    twins.fast = resumed
    twins.step(gradients(tensors, 9))
    twins.fast.load_state_dict(twins.fast.state_dict())  # the plan must not keep addresses of the former state
    twins.step(gradients(tensors, 10))
    twins.check()


def test_moved_parameters_and_other_hyperparameters():
    tensors = [orthonormal(4, 2, 3)]
    twins = Twins(tensors)
    twins.step(gradients(tensors, 0))
    for optimizer, params in ((twins.fast, twins.kernel), (twins.slow, twins.eager)):
        params[0].data = params[0].data.clone()
        optimizer.param_groups[0]["lr"] = 0.7
        optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    twins.step(gradients(tensors, 1))
    twins.check()


def test_what_is_not_covered_is_stepped_by_torch():
    param = torch.nn.Parameter(orthonormal(4, 3, 3))
    for options in ({"landing": "root"}, {"base": oo.Adam()}):
        assert {bucket.form for bucket in oo.POGO([param], 0.1, **options).plan()} == {"tiny"}
    assert {bucket.form for bucket in oo.RGD([param], 0.1).plan()} == {"rgd"}


@pytest.mark.soak
@pytest.mark.parametrize(("p", "n"), SHAPES)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("landing", ["safe", "strict", "half", "newton-schulz"])
def test_every_combination(p, n, base, landing):
    tensors = [orthonormal(2, 5, p, n), orthonormal(133, p, n), orthonormal(p, n)]
    twins = Twins(tensors, base=base, landing=landing, lr=0.1 if landing in ("half", "newton-schulz") else 1.6)
    for step in range(5):
        grads = gradients(tensors, step)
        twins.step([grads[0], *with_hostile(grads[1:2], step), grads[2]] if landing in ("safe", "strict") else grads)
    twins.check()
