"""Verdicts on circuits, from made-up runs."""

from pathlib import Path

import pytest

from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.problems.circuits import judges

NAN = float("nan")


def made(config=None, status="budget", **methods):
    trials = []
    for name, columns in methods.items():
        count = len(next(iter(columns.values())))
        times = [float(step) for step in range(count)]
        records = {"step": list(range(count)), "time": times, "processor_time": times, **columns}
        trials.append(Trial(name, 0, status=status, records=records))
    return Run(Path("made-up.jsonl"), "0", "circuits", config or {}, environment={}, started="", trials=trials)


@pytest.mark.parametrize(
    ("pogo", "verdict"),
    [([8.0, 1.4, 1.6, 1.3], "holds"), ([8.0, 1.6, 1.55, 1.3], "fails"), ([8.0, NAN, 1.6, 1.3], "fails")],
)
def test_better_when_the_first_of_two_has_ended(pogo, verdict):
    run = made(POGO={"bpd": pogo}, RGD={"bpd": [8.0, 1.5, 1.6]}, LandingPC={"bpd": [8.0, 1.7, 1.5, 1.5]})
    found = judges.better_at_equal_time("POGO", "LandingPC", "RGD")(run)
    assert found.verdict == verdict
    assert "within 2 s" in found.measured
    assert "RGD 1.500" in found.measured


def test_what_was_not_run_is_not_measured():
    run = made(POGO={"bpd": [8.0, 1.3]})
    assert judges.better_at_equal_time("POGO", "RGD")(run).verdict == "not measured"
    assert judges.as_good_and_faster("POGO", "RGD", 2)(run).verdict == "not measured"


@pytest.mark.parametrize(
    ("log_z", "verdict"), [([1e-5, -9e-4], "holds"), ([1e-5, -2e-3], "fails"), ([NAN, 0.0], "fails")]
)
def test_normalised_throughout(log_z, verdict):
    assert judges.normalised("POGO", 1e-3)(made(POGO={"log_z": log_z})).verdict == verdict


@pytest.mark.parametrize(("pogo", "verdict"), [([8, 1.5, 1.4], "holds"), ([8, 6, 5, 1.4], "fails"), ([8, 7], "fails")])
def test_as_good_and_faster(pogo, verdict):
    run = made(POGO={"bpd": pogo}, RGD={"bpd": [8.0, 3.0, 2.0, 1.8, 1.6]})
    assert judges.as_good_and_faster("POGO", "RGD", 2)(run).verdict == verdict


@pytest.mark.parametrize(
    ("config", "status", "test_bpd", "verdict"),
    [
        ({"dataset": "mnist", "units": 4}, "converged", 1.305, "holds"),
        ({"dataset": "mnist", "units": 4}, "converged", 1.32, "fails"),
        ({"dataset": "mnist", "units": 4}, "budget", 1.305, "not measured"),
        ({"dataset": "mnist", "units": 5}, "converged", 1.2, "not measured"),
        ({"dataset": "digits8", "units": 4}, "converged", 1.2, "not measured"),
    ],
)
def test_as_published(config, status, test_bpd, verdict):
    run = made(config, status, POGO={"epoch": [0.0, 30.0], "test_bpd": [NAN, test_bpd]})
    assert judges.as_published("POGO", 0.01)(run).verdict == verdict


def test_landing_is_stuck_and_landingpc_comes_near():
    far = {"epoch": [0.0, 1.0, 2.0], "distance": [0.0, 0.4, 0.3]}
    run = made(Landing={"max_distance": [0.0, 0.5, 0.48], **far}, LandingPC={"max_distance": [0, 1, 1], **far})
    assert judges.stuck("Landing", 0.5)(run).verdict == "holds"
    assert judges.stuck("LandingPC", 0.5)(run).verdict == "fails"
    assert judges.nears("LandingPC")(run).verdict == "fails"
    near = made(LandingPC={"distance": [0.0, 0.4, 0.01]})
    assert judges.nears("LandingPC")(near).verdict == "holds"
    assert judges.worse("RSDM", "POGO", 0.3)(made(RSDM={"bpd": [8, 3.0]}, POGO={"bpd": [8, 1.3]})).verdict == "holds"
