"""What a GPU computes per matrix, and how it gathers, in Triton's interpreter, see :mod:`tests.interpreter`."""

from pathlib import Path

import pytest

from tests.interpreter import run_checks

pytest.importorskip("triton")

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["check_moves.py", "check_pointwise.py"])
def test_in_the_interpreter(name):
    run_checks(HERE / name)
