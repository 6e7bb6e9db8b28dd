"""The ablation on the landing step: its methods, what they do at tiny scale, and its verdicts."""

from pathlib import Path

from typer.testing import CliRunner

from orthoptim_experiments.cli import commands
from orthoptim_experiments.harness import methods
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.problems import EXPERIMENTS
from orthoptim_experiments.report import describe
from orthoptim_experiments.report.styles import styles_of

STEPSIZE = EXPERIMENTS["stepsize"]
OFFERED = STEPSIZE.methods(configuration(STEPSIZE, "laptop"))


def test_a_sweep_over_learning_rates_for_each_landing():
    assert OFFERED["POGO-root:base=SGD:lr=0.01"] == {"lr": 0.01, "base": "SGD"}
    assert methods.find("POGO:base=SGD:lr=0.025").fixed == {"landing": "half"}
    for name, options in OFFERED.items():
        methods.check(name, options)
    swept = [name for name in OFFERED if ":" in name]
    assert len(swept) == 15
    assert len({(style.colour, style.dash, style.marker) for style in styles_of(swept).values()}) == 15


def test_run_and_verdict(tmp_path):
    small = ["--scale", "tiny", "--threads", "1", "--train-images", "200", "--epochs", "2", "--out", str(tmp_path)]
    names = "POGO-root:base=SGD:lr=0.001,POGO:base=SGD:lr=0.001"
    result = CliRunner().invoke(commands.app, ["run", "stepsize", *small, "--methods", names])
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("*.jsonl")
    verdicts = [verdict.verdict for _, verdict in describe(load(path)).findings]
    assert verdicts == ["holds", *["not measured"] * 4]


def made(diverged=(), bpd=None, far=None):
    trials = [
        Trial(
            name,
            0,
            status="diverged" if name in diverged else "budget",
            records={
                "step": [0, 1],
                "time": [0.0, 1.0],
                "bpd": [8.0, (bpd or {}).get(name, 1.5)],
                "max_distance": [0.0, (far or {}).get(name, 1e-6)],
            },
        )
        for name in OFFERED
    ]
    return Run(Path("made-up.jsonl"), "0", "stepsize", {}, environment={}, started="", trials=trials)


def verdicts(run):
    return [claim.judge(run).verdict for claim in STEPSIZE.claims]


def test_verdicts():
    half, safe, root = (f"{name}:base=SGD:lr=0.025" for name in ("POGO", "POGO-safe", "POGO-root"))
    assert verdicts(made((half,), {"POGO": 1.3}, {root: 3.0})) == ["holds"] * 5
    assert verdicts(made((half, safe), {"POGO": 1.3, "POGO-root:base=SGD:lr=0.001": 1.49})) == [
        "fails",
        "holds",
        "fails",
        "holds",
        "fails",
    ]
    assert verdicts(made((root,), {"POGO": 1.3, "POGO:base=SGD:lr=0.005": 1.2})) == [
        "holds",
        "fails",
        "holds",
        "fails",
        "holds",
    ]
