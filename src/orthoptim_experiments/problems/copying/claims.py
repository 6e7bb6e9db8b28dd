"""What is claimed about recurrent networks."""

from orthoptim_experiments.harness.claims import (
    Verdict,
    decide,
    ended,
    figures,
    lower,
    only,
    ratio_words,
    ratios,
    requires,
    shorter,
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


@requires("POGO", "POGO-complex")
def _remembers(run: Run) -> Verdict:
    worst = {method: max(_losses(run, method)) for method in ("POGO", "POGO-complex")}
    return verdict(
        max(worst.values()) <= TARGET.value, f"largest loss, in units of that without memory: {figures(worst, '.2f')}"
    )


@requires("LSTM")
def _lstm_forgets(run: Run) -> Verdict:
    least = min(_losses(run, "LSTM"))
    return verdict(least > 0.9, f"least loss of the LSTM, in units of that without memory: {least:.2f}")


@requires("POGO", *_PARAMETRIZED)
def _sooner(run: Run) -> Verdict:
    clock = clock_of(run.config)
    found = ratios(run, "POGO", _PARAMETRIZED, lambda trial: time_to(trial, TARGET, clock))
    return verdict(
        decide(found, 1) if found else False, f"time to half of the loss without memory, {ratio_words(found, 'POGO')}"
    )


remembers = only("variant", "copying", _remembers)
"""Whether both fall to half of the loss without memory, on every seed."""

lstm_forgets = only("variant", "copying", _lstm_forgets)
"""Whether the LSTM stays above nine tenths of it, on every seed."""

sooner = only("variant", "copying", _sooner)
"""Whether POGO is at half of it before torch's parametrizations, with the interval over seeds."""

cheaper = shorter("POGO", *_PARAMETRIZED)

reads_better = only("variant", "digits", lower("accuracy", ["LSTM"], "POGO"))
