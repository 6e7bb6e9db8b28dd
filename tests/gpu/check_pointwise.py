"""Functions of numbers per matrix as kernels: run by Triton's interpreter, against the functions themselves."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim import pointwise as module
from orthoptim.stiefel import batches
from orthoptim.stiefel.batches import pointwise
from tests.conformance.methods import point, set_gradients

triton = pytest.importorskip("triton")

SPECIAL = [0.0, 1.0, -1.0, 1e-30, 1e30, 3e38, float("inf"), -float("inf"), float("nan")]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """Kernels of CPU tensors, run by the interpreter."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(module, "DEVICES", {"cpu"})
    monkeypatch.setattr(module, "_kernels", {})
    monkeypatch.setattr(module, "_failed", set())


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The plan for a GPU, and nobody looks at values."""
    monkeypatch.setattr(batches, "CPUS", frozenset())
    for name, loaded in list(sys.modules.items()):
        if name.startswith("orthoptim."):
            for look in ("can_look", "_can_look"):
                if hasattr(loaded, look):
                    monkeypatch.setattr(loaded, look, lambda *_: False)


OPERATIONS = {
    "signs": lambda a, b: (a + b, a - b, a * b, -a, a / b, 2 / a, 1 - a, torch.add(a, b, alpha=0.5)),
    "bounds": lambda a, b: (
        a.clamp_min(0.5),
        a.clamp_max(b),
        torch.clamp(a, -b, b),
        torch.maximum(a, b),
        a.clamp(-1, 2),
    ),
    "roots": lambda a, b: (a.sqrt(), a.rsqrt(), a.square(), a**3, a.reciprocal(), a.abs()),
    "choice": lambda a, b: (
        torch.where(a > b, a, b),
        torch.where(a <= b, 1.0, a),
        (a < b) & (b != 0),
        ~(a >= b) | (a == b),
    ),
    "blends": lambda a, b: (a.lerp(b, 0.25), torch.addcmul(a, b, b, value=-1), (a > b).to(a.dtype), a + (a > b)),
}


@settings(max_examples=20)
@given(
    values=st.lists(st.tuples(st.sampled_from(SPECIAL), st.floats(-1e6, 1e6, width=32)), min_size=1, max_size=9),
    name=st.sampled_from(sorted(OPERATIONS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    swap=st.booleans(),
)
def test_every_operation_is_torchs(values, name, dtype, swap):
    a, b = (torch.tensor(column, dtype=dtype) for column in zip(*values, strict=True))
    if swap:
        a, b = b, a
    function = pointwise(OPERATIONS[name])
    for found, expected in zip(function(a, b), OPERATIONS[name](a, b), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(
            found, expected, rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=0, equal_nan=True
        )
    assert module._kernels


def test_small_bias_corrections_keep_their_digits():
    x = -torch.logspace(-7, 1, 50)
    found = pointwise(lambda a: torch.expm1(a))(x)
    torch.testing.assert_close(found.double(), torch.expm1(x.double()), rtol=2e-7, atol=0)


def test_strides_single_numbers_and_integers():
    @pointwise
    def function(count, lr, value):
        return (count + 1).to(lr.dtype), lr + 0 * value, value * lr

    count, value = torch.arange(6, dtype=torch.int32)[::2], torch.arange(12.0).reshape(3, 4)[:, 1]
    for lr in (torch.tensor(0.5), torch.tensor(0.5).expand(3)):
        found = function(count, lr, value)
        assert [each.tolist() for each in found] == [[1.0, 3.0, 5.0], [0.5] * 3, [0.5, 2.5, 4.5]]


def test_what_has_no_translation_is_computed_by_torch():
    function = pointwise(lambda a: torch.cos(a))
    assert torch.equal(function(torch.ones(3)), torch.ones(3).cos())
    assert not module._kernels
    assert len(module._failed) == 1


def test_results_may_be_written_over_arguments():
    a, b = torch.arange(3.0), torch.ones(3)
    module.write_([a, b], lambda a, b: (a + b, a - b), a, b)
    assert (a.tolist(), b.tolist()) == ([1.0, 2.0, 3.0], [-1.0, 0.0, 1.0])


SHAPES = [(3, 3), (5, 2, 2), (6, 6), (4, 9), (9, 4), (2, 5, 5), (3, 60)]
LANDINGS = ["safe", "strict", "half", "newton-schulz", "argmin"]


@pytest.mark.filterwarnings("ignore:.*far from orthonormal")
@pytest.mark.parametrize(
    ("base", "dtype"),
    [(oo.VAdam(), torch.complex128), (oo.SGD(momentum=0.9), torch.float64)],
    ids=["vadam-complex", "sgd-real"],
)
@pytest.mark.parametrize("landing", LANDINGS)
def test_the_plan_and_the_kernels_of_a_gpu_do_not_show(landing, base, dtype, request):
    """One step after another, with matrices that are clipped, frozen and rescued, as on a CPU."""
    runs = []
    for gpu in (False, True):
        if gpu:
            request.getfixturevalue("as_on_a_gpu")
        else:
            module.DEVICES.clear()
        params = [point(*shape, dtype=dtype, seed=i) for i, shape in enumerate(SHAPES)]
        opt = oo.POGO(params, 0.3, base, landing=landing)
        for t in range(4):
            set_gradients(params, t, 10.0 if t == 2 and landing in ("safe", "strict") else 0.3)
            if t == 1:
                params[1].grad[3, 0, 1] = float("nan")
                params[5].grad[1, 2, 2] = float("inf")
            if t == 3:
                params[2].data.mul_(3)
            opt.step()
        runs.append((params, opt))
        module.DEVICES.add("cpu")
    (params, opt), (others, other) = runs
    assert module._kernels
    assert max(bucket.blocks for bucket in other.plan()) == 2  # wide and tall ones of one shape
    for one, two in zip(params, others, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)
        for name, value in opt.state[one].items():
            torch.testing.assert_close(value, other.state[two][name], rtol=1e-9, atol=1e-10)


def test_kernels_compile_for_nvidia_without_a_gpu():
    """Offline, for sm_80 and sm_90: no spills, few registers."""
    code = """
import linecache, torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from orthoptim.base.vadam import _scale
from orthoptim.engine.step import _masked
from orthoptim.pointwise import translate
from orthoptim.stiefel.policies import _clipped, _half_landing, _scaled_landing
f, i, b = torch.float32, torch.int32, torch.bool
FUNCTIONS = [
    (lambda *a: _scale(*a, beta1=0.9, beta2=0.999, eps=1e-8), [f, f, f]),
    (lambda *a: _clipped(*a, most=1.0, dtype=torch.float32), [f, f]),
    (lambda *a: _half_landing(*a, p=64, reach=2.1), [f, f, f]),
    (lambda *a: _scaled_landing(*a, p=64, reach=2.1), [f, f, f]),
    (lambda *a: _masked(*a, flags=2), [f, i, i, i, f, b, b, f]),
]
names = {f: "fp32", i: "i32", b: "i1"}
for k, (function, dtypes) in enumerate(FUNCTIONS):
    source, results, _ = translate(function, [(dtype, 1) for dtype in dtypes], f"kernel_{k}")
    linecache.cache[f"<{k}>"] = (len(source), None, source.splitlines(keepends=True), f"<{k}>")
    scope = {"triton": triton, "tl": tl}
    exec(compile(source, f"<{k}>", "exec"), scope)
    signature = {f"a{j}": "*" + names[dtype] for j, dtype in enumerate(dtypes)}
    signature |= {f"s{j}": "i64" for j in range(len(dtypes))}
    signature |= {f"o{j}": "*" + names[dtype] for j, dtype in enumerate(results)}
    signature |= {f"r{j}": "i64" for j in range(len(results))} | {"count": "i64", "BLOCK": "constexpr"}
    for capability in (80, 90):
        ast = ASTSource(fn=scope[f"kernel_{k}"], signature=signature, constexprs={"BLOCK": 128})
        compiled = triton.compile(ast, target=GPUTarget("cuda", capability, 32))
        assert ".local" not in compiled.asm["ptx"], k
print("compiled")
"""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert found.stdout == "compiled\n", found.stderr[-2000:]
