"""What a type checker says to code that uses this library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import orthoptim as oo
from orthoptim import literals, stiefel

ROOT = Path(__file__).parent.parent

# With --strict, a line that is told to ignore an error must have it.
PROGRAM = """
from typing import assert_type

import torch
from torch import nn

import orthoptim as oo

assert_type(oo.orthogonalize_(nn.Linear(3, 3), {"weight": "matrix"}), nn.Linear)
assert_type(oo.orthogonalize_(nn.Parameter(torch.eye(3))), nn.Parameter)
assert_type(oo.orthogonalize_(torch.eye(3), view="matrix", side="rows", init="random"), torch.Tensor)
assert_type(oo.project_(nn.Parameter(torch.eye(3))), nn.Parameter)
assert_type(oo.distance(torch.eye(3)), torch.Tensor)
assert_type(oo.is_orthogonal(torch.eye(3)), bool)

model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
patterns = {"*.weight": "matrix"}
oo.orthogonalize_(model, patterns)
excluding = oo.param_groups(model, {"0.weight": {"view": "matrix", "lr": 0.1}, "1.*": None}, rest={"lr": 1e-3})
opt = oo.POGO(oo.param_groups(model, patterns, lr=0.5, base=oo.VAdam(), rest=None), landing="strict")
opt.step()
assert_type(opt.step(lambda: 0.0), float)
oo.RGD(model.parameters(), 0.1, metric="canonical", retraction="polar")
oo.StiefelMuon(model.parameters(), 0.02, momentum=0.9, ns_steps=5, ns_dtype="full")
oo.RSDM(model.named_parameters(), 0.1, r=2, sampling="permutation")
oo.wrap(torch.optim.NAdam(model.parameters()), patterns, model=model, landing="strict")
per_head = {"0.weight": oo.View("matrix", heads=3), "1.weight": oo.View("matrix", heads=3)}
oo.orthogonalize_(model, per_head)
oo.POGO(model.parameters(), 0.1, view=oo.View("matrix", heads=3))
oo.POGO(oo.param_groups(model, {"0.*": oo.View(heads=3), "1.*": {"view": oo.View(split=3)}}, rest=None), 0.1)
assert_type(oo.distance(torch.eye(3), view=oo.View(split=3, heads=1)), torch.Tensor)

oo.orthogonalize_(model, patterns, init="haar")  # type: ignore[arg-type]
oo.orthogonalize_(torch.eye(3), view="kernel")  # type: ignore[arg-type]
oo.project_(torch.eye(3), side="row")  # type: ignore[arg-type]
oo.POGO(model.parameters(), 0.1, landing="sfae")  # type: ignore[arg-type]
oo.POGO(model.parameters(), 0.1, view="square")  # type: ignore[arg-type]
oo.View("square")  # type: ignore[arg-type]
oo.View("matrix", 3)  # type: ignore[call-arg]
oo.View("matrix", heads="all")  # type: ignore[arg-type]
oo.RGD(model.parameters(), 0.1, metric="flat")  # type: ignore[arg-type]
oo.RSDM(model.parameters(), 0.1, r=2, sampling="none")  # type: ignore[arg-type]
oo.POGO(model.parameters(), 0.1, betas=(0.9, 0.99))  # type: ignore[call-arg]
oo.param_groups(model, patterns, rest="adamw")  # type: ignore[arg-type]
"""


def test_mypy_on_code_of_users(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # the cache that `make lint` has filled: without, torch is read anew, which takes a minute
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={ROOT / '.mypy_cache'}"]
    source = Path(oo.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", *options, str(program)],
        env={**os.environ, "MYPYPATH": str(source)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_itself_runs_up_to_its_errors():
    good = PROGRAM.split("oo.orthogonalize_(model, patterns, init=")[0]
    exec(good, {})
    assert "type: ignore" not in good


def test_the_types_name_what_there_is():
    from typing import get_args

    assert get_args(literals.LandingPolicy) == stiefel.POLICIES
    assert get_args(literals.Metric) == stiefel.METRICS
    assert get_args(literals.Retraction) == (*stiefel.RETRACTIONS, *stiefel.CAYLEY)
    for sampling in get_args(literals.Sampling):
        oo.RSDM([torch.nn.Parameter(torch.eye(3))], 0.1, r=2, sampling=sampling)
