"""Kernels in Triton's interpreter, see :mod:`tests.interpreter`."""

from pathlib import Path

import pytest

from tests.interpreter import run_checks

pytest.importorskip("triton")

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["check_tiny.py", "check_small.py"])
def test_in_the_interpreter(name):
    run_checks(HERE / name)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["check_tiny.py", "check_small.py"])
def test_in_the_interpreter_at_length(name):
    run_checks(HERE / name, "-m", "soak")
