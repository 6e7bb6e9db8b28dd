"""Kernels in Triton's interpreter, on CPU tensors.

The interpreter must be chosen before triton is imported, and then a whole process has it: so the checks run in a
process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def run(name, *options):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, HERE / name]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


@pytest.mark.parametrize("name", ["check_tiny.py", "check_small.py"])
def test_in_the_interpreter(name):
    run(name)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["check_tiny.py", "check_small.py"])
def test_in_the_interpreter_at_length(name):
    run(name, "-m", "soak")
