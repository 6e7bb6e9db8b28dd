"""The ablation on the landing step: its methods, what they do at tiny scale, and its verdicts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orthoptim_experiments.cli import commands
from orthoptim_experiments.harness import methods
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.problems import EXPERIMENTS
from orthoptim_experiments.report import describe
from orthoptim_experiments.report.styles import style_of

STEPSIZE = EXPERIMENTS["stepsize"]
OFFERED = STEPSIZE.methods(configuration(STEPSIZE, "laptop"))


def test_a_sweep_over_learning_rates_for_each_landing():
    assert len(OFFERED) == 16
    assert OFFERED["POGO-root η=.010"] == {"lr": 0.01, "base": "SGD"}
    assert methods.find("POGO-half η=.025").fixed == {"landing": "half"}
    for name, options in OFFERED.items():
        methods.check(name, options)
    styles = {(style.colour, style.dash) for style in map(style_of, OFFERED)}
    assert len(styles) == 16
    with pytest.raises(methods.UnknownMethodError):
        methods.find("POGO-root η=.5")


def test_run_and_verdict(tmp_path):
    small = ["--scale", "tiny", "--threads", "1", "--train-images", "200", "--epochs", "2", "--out", str(tmp_path)]
    names = "POGO-root η=.001,POGO-half η=.001"
    result = CliRunner().invoke(commands.app, ["run", "stepsize", *small, "--methods", names])
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("*.jsonl")
    verdicts = [verdict.verdict for _, verdict in describe(load(path)).findings]
    assert verdicts == ["confirmed", "not measured", "not measured"]


def made(diverged=(), bpd=None):
    records = {"step": [0, 1], "time": [0.0, 1.0]}
    trials = [
        Trial(
            name,
            0,
            status="diverged" if name in diverged else "budget",
            records=records | {"bpd": [8.0, (bpd or {}).get(name, 1.5)]},
        )
        for name in OFFERED
    ]
    return Run(Path("made-up.jsonl"), "0", "stepsize", {}, environment={}, started="", trials=trials)


def verdicts(run):
    return [claim.judge(run).verdict for claim in STEPSIZE.claims]


def test_verdicts():
    lost = ("POGO-half η=.025",)
    assert verdicts(made(lost, {"POGO": 1.3})) == ["confirmed"] * 3
    assert verdicts(made((*lost, "POGO-safe η=.025"), {"POGO": 1.3, "POGO-root η=.001": 1.49})) == [
        "refuted",
        "refuted",
        "confirmed",
    ]
    assert verdicts(made((), {"POGO": 1.3, "POGO-safe η=.025": 1.2, "POGO-half η=.005": 1.2})) == [
        "confirmed",
        "refuted",
        "refuted",
    ]
