"""Every file of examples/ runs at tiny size; each asserts a lower loss and a distance of at most 1e-5 itself."""

import re
import runpy
import sys
import warnings
from pathlib import Path

import pytest

from tests.integrations.needs import needs

EXAMPLES = Path(__file__).parents[2] / "examples"

# file, what it needs, arguments
RUNS = [
    ("quickstart.py", (), []),
    ("adopt_parametrized.py", (), ["--steps", "20"]),
    ("averaged_weights.py", (), ["--steps", "40"]),
    ("lightning_digits.py", ("lightning",), ["--epochs", "2"]),
    ("transformers_trainer.py", ("transformers", "accelerate"), ["--steps", "20"]),
    ("accelerate_fsdp2.py", ("accelerate",), ["--steps", "20"]),
    ("peft_lora.py", ("peft",), ["--steps", "20"]),
    ("peft_lora.py", ("peft",), ["--steps", "20", "--core"]),
    ("peft_oft.py", ("peft",), ["--steps", "20"]),
]


@pytest.mark.integrations
@pytest.mark.parametrize(("name", "packages", "arguments"), RUNS, ids=[" ".join((run[0], *run[2])) for run in RUNS])
def test_an_example_runs(name, packages, arguments, monkeypatch, capsys):
    for package in packages:
        needs(package)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other packages, about themselves
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    if name != "accelerate_fsdp2.py":  # whose processes print for themselves
        distances = [float(text) for text in re.findall(r"largest distance (\S+)", capsys.readouterr().out)]
        assert distances[-1] <= 1e-5


def test_every_example_is_run():
    named = {run[0] for run in RUNS} | {"elastic.py"}  # tests/distributed runs that one
    assert {path.name for path in EXAMPLES.glob("*.py")} <= named
