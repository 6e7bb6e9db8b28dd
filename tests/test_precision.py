"""Products are exact inside, and every switch is outside as it was before."""

import itertools
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import orthoptim as oo
from orthoptim.precision import full_precision
from tests.conformance.methods import METHODS, point, set_gradients

CPU = torch.device("cpu")
NEWER = [("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("mkldnn", "all"), ("mkldnn", "matmul")]
SETTINGS = {"generic": ["none", "ieee", "tf32"], "cuda": ["none", "ieee", "tf32"], "mkldnn": ["none", "ieee", "bf16"]}


def get(switch):
    return torch._C._get_fp32_precision_getter(*switch)


def reset():
    torch.set_float32_matmul_precision("highest")
    for switch in NEWER:
        torch._C._set_fp32_precision_setter(*switch, "none")


@pytest.fixture(autouse=True)
def _as_before():
    yield
    reset()


def older_setting():
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "disagrees with the newer interface"


def behaviour():
    """All that can be seen: what is in force, and what is when a setting changes that others inherit."""
    seen = [older_setting(), *map(get, NEWER)]
    before = get(NEWER[0])
    for setting in SETTINGS["generic"]:
        torch._C._set_fp32_precision_setter(*NEWER[0], setting)
        seen += map(get, NEWER)
    torch._C._set_fp32_precision_setter(*NEWER[0], before)
    return seen


def exact():
    in_force = {get(switch) for switch in NEWER[2::2]}
    return torch.get_float32_matmul_precision() == "highest" and in_force <= {"ieee", "none"}


@given(
    older=st.sampled_from(["highest", "high", "medium"]),
    newer=st.tuples(*(st.sampled_from(SETTINGS[backend]) for backend, _ in NEWER)),
    older_last=st.booleans(),
)
def test_every_combination_of_switches_is_off_inside_and_restored(older, newer, older_last):
    reset()
    if not older_last:
        torch.set_float32_matmul_precision(older)
    for switch, setting in zip(NEWER, newer, strict=True):
        torch._C._set_fp32_precision_setter(*switch, setting)
    if older_last:
        torch.set_float32_matmul_precision(older)
    before = behaviour()
    with full_precision(CPU):
        assert exact()
        assert torch.backends.cuda.matmul.allow_tf32 is False  # raises where the two interfaces disagree
    assert behaviour() == before


def test_switches_are_restored_when_a_step_raises(monkeypatch):
    param = point(4, 6)
    opt = oo.POGO([param], 0.1)
    set_gradients([param], 0)
    torch.set_float32_matmul_precision("medium")

    def failing(*args):
        assert exact()
        raise MemoryError

    monkeypatch.setattr(oo.POGO, "update_whole", staticmethod(failing))
    with torch.autocast("cpu"), pytest.raises(MemoryError):
        opt.step()
    assert torch.get_float32_matmul_precision() == "medium"


class ReducedProducts(TorchDispatchMode):
    """Rounds the factors of products to the bits that the switches allow at that moment, as TF32 units do."""

    PRODUCTS: ClassVar = {
        torch.ops.aten.mm.default: (0, 1),
        torch.ops.aten.bmm.default: (0, 1),
        torch.ops.aten.baddbmm.default: (1, 2),
        torch.ops.aten.addmm.default: (1, 2),
        torch.ops.aten.bmm.out: (0, 1),
    }

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        factors = self.PRODUCTS.get(func, ())
        reduced = older_setting() != "highest" or get(("cuda", "matmul")) == "tf32"
        if factors and reduced:
            args = [self.rounded(a) if i in factors else a for i, a in enumerate(args)]
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(a):
        if a.dtype == torch.complex64:
            return torch.view_as_complex(ReducedProducts.rounded(torch.view_as_real(a.resolve_conj())))
        if a.dtype != torch.float32:
            return a
        bits = a.contiguous().view(torch.int32)
        return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def switch_on(interface):
    if interface == "older":
        torch.set_float32_matmul_precision("high")
    else:
        torch.backends.fp32_precision = "tf32"


INTERFACES = pytest.mark.parametrize("interface", ["older", "newer"])


@INTERFACES
def test_emulated_products_are_reduced_outside(interface):
    a = torch.randn(64, 64)
    switch_on(interface)
    with ReducedProducts():
        assert 1e-4 < (a @ a - (a.double() @ a.double())).abs().max() < 0.1


@INTERFACES
def test_construction_leaves_orthonormal_parameters_as_they_are(interface):
    x = point(512, 512)
    before = x.detach().clone()
    switch_on(interface)
    with ReducedProducts():
        oo.POGO([x], 0.1)
        assert oo.distance(x) < 1e-4
        assert oo.is_orthogonal(x)
        again = oo.project_(x.detach().clone())
    assert torch.equal(x, before)
    assert oo.distance(again) < 1e-4


@INTERFACES
@pytest.mark.parametrize("method", sorted(METHODS))
def test_steps_take_the_same_bits_whatever_the_switches_say(interface, method):
    shapes = [(64, 64), (16, 90), (3, 50), (5, 3, 3)]
    params, others = ([point(*shape, seed=i) for i, shape in enumerate(shapes)] for _ in range(2))
    opt, other = METHODS[method](params), METHODS[method](others)
    for t in range(3):
        set_gradients(params, t)
        set_gradients(others, t)
        opt.step()
        switch_on(interface)
        with ReducedProducts(), torch.autocast("cpu"):
            other.step()
        reset()
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("landing", ["safe", "strict"])
@pytest.mark.parametrize("shape", [(64, 64), (32, 200), (10, 400)])
def test_a_thousand_steps_stay_where_they_stay_in_float32(shape, landing):
    torch.set_float32_matmul_precision("high")
    x = point(*shape)
    opt = oo.POGO([x], 0.1, landing=landing)
    generator = torch.Generator().manual_seed(0)
    with ReducedProducts():
        for _ in range(1000):
            x.grad = torch.randn(x.shape, generator=generator)
            opt.step()
    assert oo.distance(x.double()) < (1.2e-4 if landing == "safe" else 1e-5)


def test_the_real_switch_of_this_processor():
    """oneDNN multiplies in bfloat16 where the processor can; the step does not."""
    a = torch.randn(256, 256)
    torch.set_float32_matmul_precision("medium")
    outside = float((a @ a - a.double() @ a.double()).abs().max())
    with full_precision(CPU):
        inside = float((a @ a - a.double() @ a.double()).abs().max())
    assert inside < 1e-3
    assert outside >= inside


def test_the_combinations_that_disagree_were_there():
    """The newer switches may contradict the older one: the case in which torch raises."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    with pytest.raises(RuntimeError, match="mix of"):
        _ = torch.backends.cuda.matmul.allow_tf32
    assert len(list(itertools.product(["highest", "high", "medium"], *(SETTINGS[b] for b, _ in NEWER)))) == 729
