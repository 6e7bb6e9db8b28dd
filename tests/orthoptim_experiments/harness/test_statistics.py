"""Means over seeds: what must hold for any trials."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from orthoptim_experiments.harness import statistics
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.records import Trial

POSITIVE = st.floats(1e-12, 1e6)
STATUS = st.sampled_from(["converged", "budget", "timeout", None])


def make(times, values, *, seed=0, status="converged", method="POGO"):
    steps = [float(step) for step in range(len(times))]
    return Trial(method, seed, status=status, records={"step": steps, "time": list(times), "gap": list(values)})


@st.composite
def trials(draw, values=POSITIVE, least=1, status=STATUS):
    count = draw(st.integers(least, 5))
    made = []
    for seed in range(count):
        gains = draw(st.lists(st.floats(1e-3, 10), min_size=1, max_size=12))
        times = np.concatenate([[0.0], np.cumsum(gains)])
        made.append(make(times, [draw(values) for _ in times], seed=seed, status=draw(status)))
    return made


@given(trials(), st.booleans(), st.sampled_from(["time", "step"]))
def test_the_axis_ascends_and_spans_all_trials(group, log, x):
    curve = statistics.average(group, x, "gap", log=log)
    assert (np.diff(curve.x) > 0).all()
    assert curve.x[0] == min(trial.records[x][0] for trial in group)
    assert curve.x[-1] == max(trial.records[x][-1] for trial in group)
    assert len(curve.x) == len(curve.mean) == len(curve.low) == len(curve.high) == len(curve.trials)


@given(POSITIVE, st.data(), st.booleans())
def test_constant_curves_stay_constant_with_an_empty_band(value, data, log):
    group = data.draw(trials(values=st.just(value), least=3, status=st.just("budget")))
    curve = statistics.average(group, "time", "gap", log=log)
    for line in (curve.mean, curve.low, curve.high):
        np.testing.assert_allclose(line, value, rtol=1e-9)


@given(trials(), st.booleans())
def test_a_single_trial_is_its_own_mean_and_has_no_band(group, log):
    trial = group[0]
    curve = statistics.average([trial], "time", "gap", log=log)
    np.testing.assert_array_equal(curve.x, trial.records["time"])
    np.testing.assert_allclose(curve.mean, trial.records["gap"], rtol=1e-9)
    assert not curve.banded
    assert np.isnan(curve.low).all()
    assert np.isnan(curve.high).all()


@given(trials(least=2), st.randoms(), st.booleans())
def test_the_order_of_trials_is_irrelevant(group, random, log):
    shuffled = random.sample(group, len(group))
    one, other = (statistics.average(some, "time", "gap", log=log) for some in (group, shuffled))
    np.testing.assert_array_equal(one.x, other.x)
    for name in ("mean", "low", "high", "trials"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-6, atol=1e-9)


@given(trials(least=2), st.booleans())
def test_the_mean_lies_between_the_trials_and_inside_its_band(group, log):
    curve = statistics.average(group, "time", "gap", log=log)
    every = np.concatenate([trial.records["gap"] for trial in group])
    assert (curve.mean >= every.min() * (1 - 1e-9)).all()
    assert (curve.mean <= every.max() * (1 + 1e-9)).all()
    banded = curve.trials >= statistics.LEAST
    assert (curve.low[banded] <= curve.mean[banded]).all()
    assert (curve.mean[banded] <= curve.high[banded]).all()
    assert np.isnan(curve.low[~banded]).all()
    if log:
        assert (curve.low[banded] >= 0).all()


@given(trials(least=2), st.floats(1e-3, 1e3))
def test_in_log_space_the_curve_scales_with_the_values(group, factor):
    scaled = [make(t.records["time"], np.array(t.records["gap"]) * factor, status=t.status) for t in group]
    one, other = (statistics.average(some, "time", "gap", log=True) for some in (group, scaled))
    np.testing.assert_allclose(other.mean, one.mean * factor, rtol=1e-9)


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=8), st.floats(0.5, 0.99))
def test_the_interval_is_students(values, level):
    interval = statistics.estimate(values, log=False, level=level)
    mean, error = np.mean(values), stats.sem(values)
    assert interval.mean == pytest.approx(mean, abs=1e-9)
    low, high = stats.t.interval(level, len(values) - 1, loc=mean, scale=error) if error > 0 else (mean, mean)
    assert (interval.low, interval.high) == (
        pytest.approx(low, rel=1e-6, abs=1e-9),
        pytest.approx(high, rel=1e-6, abs=1e-9),
    )


def test_interpolation_is_linear_in_the_logarithm():
    group = [make([0, 2], [1, 1e-4], seed=0), make([0, 1, 2], [1, 1e-2, 1e-4], seed=1)]
    curve = statistics.average(group, "time", "gap", log=True)
    np.testing.assert_allclose(curve.mean, [1, 1e-2, 1e-4])


def test_of_two_trials_there_is_a_mean_and_no_band():
    curve = statistics.average([make([0, 1], [1, 1]), make([0, 1], [3, 3], seed=1)], "time", "gap", log=False)
    assert curve.mean.tolist() == [2, 2]
    assert not curve.banded


@pytest.mark.parametrize(("status", "mean", "count"), [("converged", 2.0, 2), ("timeout", 3.0, 1), (None, 3.0, 1)])
def test_a_trial_that_ended_keeps_its_value_and_one_cut_off_stops_counting(status, mean, count):
    group = [make([0, 1], [1, 1], seed=0, status=status), make([0, 2], [3, 3], seed=1)]
    curve = statistics.average(group, "time", "gap", log=False)
    assert (curve.mean[-1], curve.trials[-1]) == (mean, count)
    assert (curve.mean[0], curve.trials[0]) == (2.0, 2)


def test_lost_trials_count_nowhere_even_if_there_are_no_others():
    good, bad = make([0, 1], [1, 1]), make([0, 1], [9, 99], seed=1, status="diverged")
    assert statistics.average([good, bad], "time", "gap", log=False).mean.tolist() == [1, 1]
    assert statistics.average([bad], "time", "gap", log=False) is None
    assert statistics.finished([bad]) == []
    assert statistics.lost_words(bad) == "diverged at step 1"


def test_missing_values_and_values_without_a_logarithm_are_left_out():
    trial = make([0, 1, 2, 3], [1.0, np.nan, 0.0, 1e-3])
    curve = statistics.average([trial], "time", "gap", log=True)
    assert curve.x.tolist() == [0, 3]
    assert statistics.average([make([0, 1], [np.nan, np.nan])], "time", "gap", log=False) is None
    assert statistics.average([trial], "time", "accuracy", log=False) is None
    assert statistics.average([make([], [])], "time", "gap", log=False) is None


def test_of_records_at_one_time_the_last_counts():
    curve = statistics.average([make([0, 1, 1, 2], [4, 3, 2, 1])], "time", "gap", log=False)
    assert curve.x.tolist() == [0, 1, 2]
    assert curve.mean.tolist() == [4, 2, 1]


@given(st.integers(2, 4), st.integers(500, 3000), st.booleans())
def test_long_trials_are_thinned_and_keep_their_ends(count, length, log):
    group = [
        make(np.arange(length) * (1 + seed / 7), np.geomspace(1, 1e-6, length), seed=seed) for seed in range(count)
    ]
    curve = statistics.average(group, "time", "gap", log=log)
    assert len(curve.x) <= statistics.POINTS
    assert (np.diff(curve.x) > 0).all()
    assert (curve.x[0], curve.x[-1]) == (0, (length - 1) * (1 + (count - 1) / 7))
    assert (curve.mean[0], curve.mean[-1]) == (pytest.approx(1), pytest.approx(1e-6))
    assert (np.diff(curve.mean) <= 1e-12).all()
    assert (curve.x[1:] < curve.x[-1] / 100).sum() > 15  # a log axis shows the start


def test_time_to_a_target_and_last_values():
    trial = make([0, 1, 2, 3], [1e-1, np.nan, 1e-6, 1e-7])
    assert statistics.time_to(trial, Target("gap", 1e-6), "time") == 2
    assert statistics.time_to(trial, Target("gap", 10**-6.5), "time") == pytest.approx(2.5)  # between two records
    assert np.isinf(statistics.time_to(trial, Target("gap", 1e-9), "time"))
    assert statistics.time_to(trial, Target("gap", 0.05, below=False), "time") == 0
    assert statistics.last(make([0, 1, 2], [3, 2, np.nan]), "gap") == 2
    assert np.isnan(statistics.last(trial, "accuracy"))


def test_estimates_of_nothing_one_and_zero():
    assert statistics.estimate([np.nan], log=True) is None
    assert statistics.estimate([2.0, np.nan], log=True).trials == 1
    assert statistics.estimate([0.0, 1.0], log=True).mean == 0
    assert statistics.estimate([1e-2, 1e-4], log=True).mean == pytest.approx(1e-3)


def test_the_start_may_be_left_out():
    group = [make([0, 1, 2], [8, 2, 1], seed=seed) for seed in range(2)]
    curve = statistics.average(group, "time", "gap", log=False, start=False)
    assert (curve.x.tolist(), curve.mean.tolist()) == ([1, 2], [2, 1])
    assert statistics.average([make([0], [8])], "time", "gap", log=False, start=False) is None
