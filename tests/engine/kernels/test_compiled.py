"""Kernels compiled offline, for GPUs that need not be there: registers are not spilled.

Run with ``-s`` to see how many each takes.
"""

import os
import re
import subprocess

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from orthoptim.engine.kernels import step as kernel_step
from orthoptim.engine.kernels.device.arithmetic import NUMBERS
from orthoptim.engine.kernels.device.direct import direct_step
from orthoptim.engine.kernels.device.gram import gram_step, gram_sums
from orthoptim.engine.kernels.device.tiny import tiny_step

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
POINTERS = {"table": "*i64", "grads": "*i64", "work": "*i32", "scratch": "*fp32"}


def constants(p, n, *, dtype=tl.float32, stored=None, vadam=True, landing="safe", is_complex=False, scaled=False):
    """What kernel_step passes on."""
    double = dtype == tl.float64
    return {
        "P": p, "N": n, "T": dtype, "XT": stored or dtype, "GT": stored or dtype, "HALF": stored is not None,
        "SCALED": scaled, "LARGEST": 0.0, "LR_TENSOR": False, "MAXIMIZE": False, "VADAM": vadam, "MOMENTUM": not vadam,
        "NESTEROV": not vadam, "DAMPENED": False, "CLIP": {"safe": 1.0, "strict": 0.5, "half": 0.0}[landing],
        "STEPS": 3 if landing == "strict" else 1, "REACH": 100.0 if landing == "half" else 2.1,
        "MAX": 1.7e308 if double else 3.4e38, "TINY": 2.2e-308 if double else 1.2e-38,
        "FLOOR": 1e-292 if double else 1e-31, "TERMS": 18 if double else 10, "MOST": 1.0, "ROUNDOFF": 6e-8,
        "COMPLEX": is_complex, "ROWS": 16 if p <= 16 else 32, "TILE": kernel_step.TILE, "BLOCK": kernel_step.BLOCK,
        "STRETCH": kernel_step.STRETCH,
    }  # fmt: skip


def compile_for(target, kernel, values):
    """Registers and spilled bytes (NVIDIA) or registers (AMD) of a kernel."""
    values = {name: value for name, value in values.items() if name in kernel.arg_names}
    number = "i64" if values["T"] == tl.float64 else "fp32"
    kinds = POINTERS | dict.fromkeys(NUMBERS, number) | dict.fromkeys(values, "constexpr")
    signature = {name: kinds[name] for name in kernel.arg_names}
    options = {} if kernel is tiny_step else {"num_warps": kernel_step.WARPS, "num_stages": 1}
    source = ASTSource(kernel, signature=signature, constexprs=values)
    compiled = triton.compile(source, target=TARGETS[target], options=options)
    if target.startswith("gfx"):
        text = compiled.asm["amdgcn"]
        registers = re.search(r"\.vgpr_count:\s+(\d+)", text)[1]
        # scalar registers are spilled to lanes of vector registers, not to memory
        spilled = re.findall(r"\.(?:vgpr_spill_count|private_segment_fixed_size):\s+(\d+)", text)
        assert len(spilled) == 2
    else:
        text = resource_usage(compiled.asm["cubin"], kernel.__name__)
        registers = re.search(r"REG:(\d+)", text)[1]
        spilled = re.findall(r"(?:STACK|LOCAL):(\d+)", text)
        assert len(spilled) == 2
    return int(registers), sum(map(int, spilled))


def resource_usage(cubin, name):
    """What cuobjdump, which triton brings along, says of the kernel; spilled registers lie on the stack."""
    command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage"]
    path = os.path.join(os.environ["PYTEST_TMP"], f"{name}.cubin")
    with open(path, "wb") as file:
        file.write(cubin)
    return subprocess.run([*command, path], capture_output=True, text=True, check=True).stdout


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path))


CASES = {
    "tiny 3×3": (tiny_step, constants(3, 3)),
    "direct 10×256 complex": (direct_step, constants(10, 256, is_complex=True)),
    "gram sums 10×10⁴ complex": (gram_sums, constants(10, 10_000, is_complex=True)),
    "gram 10×10⁴ complex": (gram_step, constants(10, 10_000, is_complex=True)),
}
MORE = {
    "tiny 4×4": (tiny_step, constants(4, 4)),
    "tiny 4×4 strict": (tiny_step, constants(4, 4, landing="strict")),
    "tiny 4×4 SGD half": (tiny_step, constants(4, 4, vadam=False, landing="half")),
    "tiny 4×4 bfloat16": (tiny_step, constants(4, 4, stored=tl.bfloat16)),
    "tiny 4×4 double": (tiny_step, constants(4, 4, dtype=tl.float64)),
    "direct 16×256 complex strict SGD": (
        direct_step,
        constants(16, 256, is_complex=True, vadam=False, landing="strict"),
    ),
    "direct 32×256 complex": (direct_step, constants(32, 256, is_complex=True)),
    "direct 32×256 complex strict SGD": (
        direct_step,
        constants(32, 256, is_complex=True, vadam=False, landing="strict"),
    ),
    "direct 32×256 complex half": (direct_step, constants(32, 256, is_complex=True, landing="half")),
    "direct 32×256 strict": (direct_step, constants(32, 256, landing="strict")),
    "direct 32×256 SGD bfloat16": (direct_step, constants(32, 256, vadam=False, stored=tl.bfloat16)),
    "tiny 4×4 bfloat16 scaled": (tiny_step, constants(4, 4, stored=tl.bfloat16, scaled=True)),
    "direct 16×256 complex scaled": (direct_step, constants(16, 256, is_complex=True, scaled=True)),
    "direct 32×256 complex strict SGD scaled": (
        direct_step,
        constants(32, 256, is_complex=True, vadam=False, landing="strict", scaled=True),
    ),
    "direct 32×256 SGD bfloat16 scaled": (
        direct_step,
        constants(32, 256, vadam=False, stored=tl.bfloat16, scaled=True),
    ),
    "gram sums 16×10⁴ complex scaled": (gram_sums, constants(16, 10_000, is_complex=True, scaled=True)),
    "gram 16×10⁴ complex strict scaled": (
        gram_step,
        constants(16, 10_000, is_complex=True, landing="strict", scaled=True),
    ),
    "gram 32×10⁴ strict scaled": (gram_step, constants(32, 10_000, landing="strict", scaled=True)),
    "gram sums 32×10⁴": (gram_sums, constants(32, 10_000)),
    "gram 32×10⁴ strict": (gram_step, constants(32, 10_000, landing="strict")),
    "gram 16×10⁴ complex strict": (gram_step, constants(16, 10_000, is_complex=True, landing="strict")),
}


def check(case, target):
    if target.startswith("gfx") and "32×256 complex" in case:
        pytest.skip("left to torch on ROCm: 34 to 294 bytes are spilled")
    registers, spilled = compile_for(target, *(CASES | MORE)[case])
    print(f"{case}, {target}: {registers} registers, {spilled} bytes spilled")
    assert spilled == 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_no_register_is_spilled(case, target):
    check(case, target)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES | MORE)
@pytest.mark.parametrize("target", TARGETS)
def test_no_register_is_spilled_by_any_kernel(case, target):
    check(case, target)


@pytest.mark.soak
def test_spilled_registers_are_seen():
    """Tiles of 256 columns do not fit."""
    kernel, values = CASES["direct 10×256 complex"]
    assert compile_for("sm_80", kernel, values | {"TILE": 256})[1] > 0
