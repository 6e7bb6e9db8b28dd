"""What is claimed about recurrent networks."""

from orthoptim_experiments.harness.claims import Verdict, decide, figures, only, ratio_words, ratios, requires, verdict
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.panels import Target
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import last as last_value
from orthoptim_experiments.harness.statistics import time_to
from orthoptim_experiments.problems.rotations.claims import difference, is_below, last

TARGET = Target("excess", 0.5)
"""Half the loss of a network that remembers nothing."""
_PARAMETRIZED = ("exp-Adam", "cayley-Adam")


def _remembers(run: Run) -> Verdict:
    worst = {
        method: max(values) for method in ("POGO", "POGO-complex") if (values := last(run, method, "excess").values())
    }
    return verdict(
        max(worst.values()) <= TARGET.value, f"largest loss, in units of that without memory: {figures(worst, '.2f')}"
    )


def _lstm_forgets(run: Run) -> Verdict:
    least = min(last(run, "LSTM", "excess").values())
    return verdict(least > 0.9, f"least loss of the LSTM, in units of that without memory: {least:.2f}")


def _sooner(run: Run) -> Verdict:
    clock = clock_of(run.config)
    found = ratios(run, "POGO", _PARAMETRIZED, lambda trial: time_to(trial, TARGET, clock))
    return verdict(
        decide(found, 1.0) if found else False, f"time to half of the loss without memory, {ratio_words(found, 'POGO')}"
    )


def _cheaper(run: Run) -> Verdict:
    clock = clock_of(run.config)
    found = ratios(run, "POGO", _PARAMETRIZED, lambda trial: last_value(trial, clock))
    return verdict(decide(found, 1.0), f"time of training, {ratio_words(found, 'POGO')}")


def _reads_better(run: Run) -> Verdict:
    below = is_below(run, "LSTM", "POGO", "accuracy")
    return verdict(below, f"accuracy, {difference(run, 'LSTM', 'POGO', 'accuracy')}")


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
