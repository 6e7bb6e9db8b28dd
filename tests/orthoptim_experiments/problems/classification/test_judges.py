"""Verdicts on networks, from made-up runs."""

from pathlib import Path

import pytest

from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.problems.classification import judges


def made(status=None, **methods):
    """A run of methods with these columns."""
    steps = {"step": [0, 1], "time": [0.0, 1.0], "processor_time": [0.0, 1.0]}
    trials = [
        Trial(name, 0, status=(status or {}).get(name, "budget"), records=steps | columns)
        for name, columns in methods.items()
    ]
    return Run(Path("made-up.jsonl"), id="0", experiment="cnn", config={}, environment={}, started="", trials=trials)


NAN = float("nan")


@pytest.mark.parametrize(("pogo", "verdict"), [(0.89, "holds"), (0.87, "fails")])
def test_as_accurate(pogo, verdict):
    run = made(POGO={"accuracy": [0.1, pogo]}, Adam={"accuracy": [0.1, 0.9]}, RGD={"accuracy": [0.1, 0.95]})
    assert judges.as_accurate("Adam", 0.02)(run).verdict == verdict
    assert judges.as_accurate("best", 0.02)(run).verdict == "fails"
    assert "RGD 95.0%, Adam 90.0%, POGO" in judges.as_accurate("best", 0.02)(run).measured


@pytest.mark.parametrize(("worst", "verdict"), [(1e-3, "holds"), (2e-3, "fails")])
def test_feasible_throughout(worst, verdict):
    run = made(POGO={"distance": [1e-7, 1e-7], "max_distance": [worst, 1e-7]})
    assert judges.feasible("POGO", 1e-3)(run).verdict == verdict


@pytest.mark.parametrize(("pogo", "verdict"), [(1e-7, "holds"), (1e-5, "fails")])
def test_as_near(pogo, verdict):
    run = made(POGO={"distance": [pogo, 1e-9]}, RGD={"distance": [1e-6, 1e-9]})
    assert judges.as_near("POGO", "RGD", 1)(run).verdict == verdict
    assert judges.as_near("POGO", "RGD", 20)(run).verdict == "holds"


@pytest.mark.parametrize(("seconds", "verdict"), [(1.0, "holds"), (3.0, "fails")])
def test_slower_by_the_processor_not_by_the_wall(seconds, verdict):
    times = {"POGO": seconds, "RGD": 2.0, "RSDM": 4.0}
    run = made(**{name: {"processor_time": [0.0, used], "time": [0.0, 9 / used]} for name, used in times.items()})
    assert judges.slower("POGO", ("RGD", "RSDM"), 1)(run).verdict == verdict
    assert judges.as_fast(("POGO",), "RGD", 1)(run).verdict == verdict


@pytest.mark.parametrize("bad", ["diverged", "failed"])
def test_a_lost_opponent_is_no_victory_and_a_lost_subject_a_defeat(bad):
    columns = {"POGO": {"accuracy": [0.1, 0.9]}, "Adam": {"accuracy": [0.1, 0.2]}}
    judge = judges.as_accurate("Adam", 0.02)
    assert judge(made(**columns)).verdict == "holds"
    assert judge(made({"Adam": bad}, **columns)).verdict == "not measured"
    assert judge(made({"POGO": "diverged"}, **columns)) == ("fails", "POGO, seed 0: diverged at step 1")


def test_slpg_matches_or_not_and_the_pace_of_adam():
    run = made(POGO={"accuracy": [0.1, 0.9]}, SLPG={"accuracy": [0.1, 0.85]}, Adam={"accuracy": [0.1, 0.9]})
    assert judges.alike(("POGO", "SLPG"), 0.02)(run).verdict == "fails"
    assert judges.alike(("POGO", "SLPG"), 0.02, differ=True)(run).verdict == "holds"
    assert judges.same_pace("POGO", "Adam", 1.25)(run).verdict == "holds"
    assert judges.same_pace("SLPG", "Adam", 1.25)(run).verdict == "fails"


def test_mirrored_distances():
    run = made(Landing={"distance": [1e-2, 1e-4]}, LandingPC={"distance": [1e-4, 1e-2]})
    assert judges.mirrored(run).verdict == "fails"
    steps = {"step": [0, 1, 2], "time": [0.0, 1.0, 2.0]}
    run = made(Landing={"distance": [1e-2, 1e-4, 1e-3], **steps}, LandingPC={"distance": [1e-4, 1e-2, 1e-3], **steps})
    assert judges.mirrored(run).verdict == "holds"


@pytest.mark.parametrize(("share", "verdict"), [(0.1, "holds"), (0.2, "fails")])
def test_cheap(share, verdict):
    assert judges.cheap("POGO", 0.15)(made(POGO={"optimizer_share": [NAN, share]})).verdict == verdict


@pytest.mark.parametrize(
    "judge",
    [
        judges.as_accurate("Adam", 0.02),
        judges.feasible("POGO", 1),
        judges.as_near("POGO", "RGD", 1),
        judges.slower("POGO", ("RGD",), 1),
        judges.cheap("POGO", 1),
    ],
)
def test_what_was_not_run_is_not_judged(judge):
    assert judge(made(SLPG={"accuracy": [0.1, 0.2]})).verdict == "not measured"
