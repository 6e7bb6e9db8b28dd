"""The numbers of the report's table."""

import math

import pytest

from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.records import Trial
from orthoptim_experiments.harness.summary import fastest, summarise


def make(method, seed, times, gaps, status="converged"):
    records = {"step": list(range(len(times))), "time": times, "gap": gaps, "distance": [1e-6 * 10**seed] * len(times)}
    records["processor_time"] = times
    return Trial(method, seed, status=status, records=records)


RGD = [make("RGD", 0, [0, 4, 8], [1, 1e-3, 1e-6]), make("RGD", 1, [0, 6, 12], [1, 1e-3, 1e-7])]
POGO = [make("POGO", 0, [0, 1, 2], [1, 1e-6, 1e-8]), make("POGO", 1, [0, 3, 5], [1, 1e-6, 1e-8])]
TARGET = Target("gap", 1e-6)


def of(method, trials, target=TARGET):
    return next(
        each for each in summarise(trials, ["gap", "distance"], target, "processor_time") if each.method == method
    )


def test_finals_times_and_speed_up():
    pogo = of("POGO", POGO + RGD)
    assert pogo.finals["gap"].mean == pytest.approx(1e-8)
    assert pogo.finals["distance"].mean == pytest.approx(math.sqrt(1e-6 * 1e-5))  # geometric
    assert pogo.times["time"].mean == pytest.approx(math.sqrt(2 * 5))
    assert (pogo.arrival.estimate.mean, pogo.arrival.reached) == (pytest.approx(math.sqrt(1 * 3)), 2)
    # between two records the gap falls as an exponential: on seed 1 RGD is there after three quarters of its last step
    assert pogo.speed_up.estimate.mean == pytest.approx(math.sqrt(8 * 10.5 / 3))
    assert not pogo.speed_up.least
    assert of("RGD", POGO + RGD).speed_up.estimate.mean == pytest.approx(1)
    assert fastest(summarise(POGO + RGD, [], TARGET, "time")) == "POGO"


def test_a_reference_that_ran_out_of_budget_gives_a_lower_bound():
    slow = [make("RGD", 0, [0, 10], [1, 1e-2], status="budget")]
    speed_up = of("POGO", POGO + slow).speed_up
    assert (speed_up.estimate.mean, speed_up.least) == (pytest.approx(10), True)  # the pair on seed 0


@pytest.mark.parametrize("status", [None, "failed", "diverged", "timeout"])
def test_no_speed_up_against_a_reference_that_was_cut_off(status):
    assert of("POGO", [*POGO, make("RGD", 0, [0, 10], [1, 1e-2], status=status)]).speed_up is None


def test_no_speed_up_unless_all_trials_reach_the_target():
    half = [POGO[0], make("POGO", 1, [0, 1], [1, 1e-3], status="budget")]
    pogo = of("POGO", half + RGD)
    assert (pogo.arrival.reached, pogo.arrival.estimate.mean, pogo.speed_up) == (1, 1, None)
    assert of("POGO", POGO).speed_up is None  # no reference


def test_lost_trials_never_count_and_unfinished_ones_only_if_none_has_ended():
    bad = make("POGO", 2, [0, 50], [1, 1e3], status="diverged")
    unfinished = make("POGO", 3, [0, 0.1], [1, 0.9], status=None)
    assert of("POGO", [*POGO, bad, unfinished]).finals["gap"].mean == pytest.approx(1e-8)
    assert of("POGO", [bad]).finals["gap"] is None
    assert of("POGO", [bad]).lost == "diverged at step 1"
    assert of("POGO", [unfinished]).finals["gap"].mean == pytest.approx(0.9)


def test_an_accuracy_is_reached_from_below_and_there_may_be_no_target():
    trial = Trial("POGO", 0, status="budget", records={"step": [0, 1], "time": [0, 1], "accuracy": [0.1, 0.95]})
    (summary,) = summarise([trial], ["accuracy"], Target("accuracy", 0.95, below=False), "time")
    assert summary.arrival.estimate.mean == 1
    (summary,) = summarise([trial], ["accuracy"], None, "time")
    assert (summary.arrival, summary.speed_up) == (None, None)


def test_a_trial_without_records():
    (summary,) = summarise([Trial("POGO", 0)], ["gap"], TARGET, "time")
    assert (summary.finals["gap"], summary.times["time"], summary.arrival.reached) == (None, None, 0)
