"""Every file of examples/ runs at tiny size, saves and resumes, and ends with a lower loss and a small distance."""

import re
import runpy
import subprocess
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
    ("lightning_digits.py", ("lightning",), ["--epochs", "2", "--devices", "2"]),
    ("transformers_trainer.py", ("transformers", "accelerate"), ["--steps", "20"]),
    ("accelerate_fsdp2.py", ("accelerate",), ["--steps", "20"]),
    ("peft_lora.py", ("peft",), ["--steps", "20"]),
    ("peft_lora.py", ("peft",), ["--steps", "20", "--core"]),
    ("peft_oft.py", ("peft",), ["--steps", "20"]),
]


@pytest.mark.integrations
@pytest.mark.parametrize(("name", "packages", "arguments"), RUNS, ids=[" ".join((run[0], *run[2])) for run in RUNS])
def test_an_example_runs(name, packages, arguments, monkeypatch, capfd):
    for package in packages:
        needs(package)
    command = [str(EXAMPLES / name), *arguments]
    if "--devices" in arguments:  # Lightning leaves its process group behind, which the next trainer would join
        subprocess.run([sys.executable, *command], check=True)
    else:
        monkeypatch.setattr(sys, "argv", command)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the other packages, about themselves
            runpy.run_path(command[0], run_name="__main__")
    ends = re.findall(r"loss (\S+) -> (\S+?),.*largest distance (\S+)", capfd.readouterr().out)
    first, last, distance = map(float, ends[-1])
    assert last < first
    assert distance <= 1e-5


def test_every_example_is_run():
    named = {run[0] for run in RUNS} | {"elastic.py"}  # tests/distributed runs that one
    assert {path.name for path in EXAMPLES.glob("*.py")} <= named
