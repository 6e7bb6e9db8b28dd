"""Kernels in Triton's interpreter, see :mod:`tests.interpreter`: one process for all, it takes seconds to start."""

import pytest

from tests.interpreter import ROOT, run_checks

pytest.importorskip("triton")

KERNELS = [ROOT / "tests" / "engine" / "kernels" / name for name in ("check_tiny.py", "check_small.py")]
MOVES = [ROOT / "tests" / "gpu" / name for name in ("check_moves.py", "check_pointwise.py")]


def test_in_the_interpreter():
    run_checks(*KERNELS, *MOVES)


@pytest.mark.soak
def test_in_the_interpreter_at_length():
    run_checks(*KERNELS, "-m", "soak")
