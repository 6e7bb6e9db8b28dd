"""What is claimed about recurrent networks."""

from orthoptim_experiments.harness.claims import (
    Verdict,
    below_zero,
    decide,
    difference,
    difference_words,
    ended,
    figures,
    only,
    ratio_words,
    ratios,
    requires,
    verdict,
)
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import last, time_to

TARGET = Target("excess", 0.5)
"""Half the loss of a network that remembers nothing."""
_PARAMETRIZED = ("exp-Adam", "cayley-Adam")


def _losses(run: Run, method: str) -> list[float]:
    return [last(trial, "excess") for trial in ended(run, method)]


def _remembers(run: Run) -> Verdict:
    worst = {method: max(_losses(run, method)) for method in ("POGO", "POGO-complex")}
    return verdict(
        max(worst.values()) <= TARGET.value, f"largest loss, in units of that without memory: {figures(worst, '.2f')}"
    )


def _lstm_forgets(run: Run) -> Verdict:
    least = min(_losses(run, "LSTM"))
    return verdict(least > 0.9, f"least loss of the LSTM, in units of that without memory: {least:.2f}")


def _sooner(run: Run) -> Verdict:
    clock = clock_of(run.config)
    found = ratios(run, "POGO", _PARAMETRIZED, lambda trial: time_to(trial, TARGET, clock))
    return verdict(
        decide(found, 1.0) if found else False, f"time to half of the loss without memory, {ratio_words(found, 'POGO')}"
    )


def _cheaper(run: Run) -> Verdict:
    clock = clock_of(run.config)
    found = ratios(run, "POGO", _PARAMETRIZED, lambda trial: last(trial, clock))
    return verdict(decide(found, 1.0), f"time of training, {ratio_words(found, 'POGO')}")


def _reads_better(run: Run) -> Verdict:
    found = difference(run, "LSTM", "POGO", "accuracy")
    return verdict(below_zero(found), f"accuracy, LSTM − POGO: {difference_words(found, 3)}")


remembers = only("variant", "copying", requires("POGO", "POGO-complex")(_remembers))
"""Whether both fall to half of the loss without memory, on every seed."""

lstm_forgets = only("variant", "copying", requires("LSTM")(_lstm_forgets))
"""Whether the LSTM stays above nine tenths of it, on every seed."""

sooner = only("variant", "copying", requires("POGO", *_PARAMETRIZED)(_sooner))
"""Whether POGO is at half of it before torch's parametrizations, with the interval over seeds."""

cheaper = requires("POGO", *_PARAMETRIZED)(_cheaper)
"""Whether as many steps take torch's parametrizations longer, with the interval over seeds."""

reads_better = only("variant", "digits", requires("POGO", "LSTM")(_reads_better))
"""Whether the interval of LSTM minus POGO lies below zero."""
