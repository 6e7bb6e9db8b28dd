"""Verdicts on networks, from made-up runs."""

from pathlib import Path

import pytest

from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.problems.classification import judges


def made(**methods):
    """A run of methods with these columns."""
    trials = [
        Trial(name, 0, status="budget", records={"step": [0, 1], "time": [0.0, 1.0], **columns})
        for name, columns in methods.items()
    ]
    return Run(Path("made-up.jsonl"), id="0", experiment="cnn", config={}, environment={}, started="", trials=trials)


NAN = float("nan")


@pytest.mark.parametrize(("pogo", "verdict"), [(0.89, "confirmed"), (0.87, "refuted")])
def test_as_accurate(pogo, verdict):
    run = made(POGO={"accuracy": [0.1, pogo]}, Adam={"accuracy": [0.1, 0.9]}, RGD={"accuracy": [0.1, 0.95]})
    assert judges.as_accurate("Adam", 0.02)(run).verdict == verdict
    assert judges.as_accurate("best", 0.02)(run).verdict == "refuted"
    assert "RGD 95.0%, Adam 90.0%, POGO" in judges.as_accurate("best", 0.02)(run).measured


@pytest.mark.parametrize(("worst", "verdict"), [(1e-3, "confirmed"), (2e-3, "refuted")])
def test_feasible_throughout(worst, verdict):
    run = made(POGO={"distance": [1e-7, 1e-7], "max_distance": [worst, 1e-7]})
    assert judges.feasible("POGO", 1e-3)(run).verdict == verdict


@pytest.mark.parametrize(("pogo", "verdict"), [(1e-7, "confirmed"), (1e-5, "refuted")])
def test_as_near(pogo, verdict):
    run = made(POGO={"distance": [pogo, 1e-9]}, RGD={"distance": [1e-6, 1e-9]})
    assert judges.as_near("POGO", "RGD", 1)(run).verdict == verdict
    assert judges.as_near("POGO", "RGD", 20)(run).verdict == "confirmed"


@pytest.mark.parametrize(("seconds", "verdict"), [(1.0, "confirmed"), (3.0, "refuted")])
def test_faster(seconds, verdict):
    run = made(POGO={"time": [0.0, seconds]}, RGD={"time": [0.0, 2.0]}, RSDM={"time": [0.0, 4.0]})
    assert judges.faster("POGO", "RGD", "RSDM")(run).verdict == verdict


@pytest.mark.parametrize(("share", "verdict"), [(0.1, "confirmed"), (0.2, "refuted")])
def test_cheap(share, verdict):
    assert judges.cheap("POGO", 0.15)(made(POGO={"optimizer_share": [NAN, share]})).verdict == verdict


@pytest.mark.parametrize(
    "judge",
    [
        judges.as_accurate("Adam", 0.02),
        judges.feasible("POGO", 1),
        judges.as_near("POGO", "RGD", 1),
        judges.faster("POGO", "RGD"),
        judges.cheap("POGO", 1),
    ],
)
def test_what_was_not_run_is_not_judged(judge):
    assert judge(made(SLPG={"accuracy": [0.1, 0.2]})).verdict == "not measured"
