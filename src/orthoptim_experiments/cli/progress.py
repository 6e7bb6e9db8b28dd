"""How a run is watched: live in a terminal, in plain lines elsewhere."""

import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from orthoptim_experiments.harness import methods
from orthoptim_experiments.harness.experiment import Outcome
from orthoptim_experiments.harness.runner import Watcher

_STATUS = {"converged": "green", "budget": "yellow", "diverged": "red", "timeout": "yellow", "failed": "red"}

# Seconds between two lines about one trial.
_LINES_EVERY = 10.0


class Display(Watcher, Protocol):
    """A watcher that is opened and closed."""

    def __enter__(self) -> "Display":
        """Begin to show."""

    def __exit__(self, *_: object) -> None:
        """Leave what is shown."""


def display(console: Console, names: Sequence[str], seeds: Sequence[int]) -> Display:
    """The display that suits where output goes."""
    return Live(console, names, seeds) if console.is_terminal else Lines(names, seeds)


class Estimate:
    """How long the rest will take, in seconds on the wall.

    A method's further seeds take as long as its earlier ones; before there is one, a trial is taken to use its whole
    budget, and a method that has not begun to take as long as the mean of the others.
    """

    def __init__(self, names: Sequence[str], seeds: Sequence[int]) -> None:
        self._left = {name: len(seeds) for name in names}
        self._took: dict[str, list[float]] = {}
        self.total = len(names) * len(seeds)
        self.done = 0
        self._begin("", 0, 0)

    def _begin(self, method: str, step: int, budget: int) -> None:
        self._method, self._since, self._from, self._step, self._budget = method, time.monotonic(), step, step, budget

    def begin(self, method: str, step: int, budget: int) -> None:
        """A trial begins."""
        self._begin(method, step, budget)

    def progress(self, step: int) -> None:
        """It has come to a step."""
        self._step = step

    def end(self, method: str, known: bool) -> None:
        """It has ended."""
        self.done += 1
        self._left[method] -= 1
        if not known:
            self._took.setdefault(method, []).append(time.monotonic() - self._since)
        self._begin("", 0, 0)

    def left(self) -> float | None:
        """Seconds; None if nothing is known yet."""
        now = time.monotonic() - self._since
        means = {name: statistics.mean(took) for name, took in self._took.items()}
        current = 0.0
        if self._method and self._method in means:
            current = max(means[self._method] - now, 0.0)
        elif self._method:
            if self._step <= self._from:
                return None
            current = now * (self._budget - self._step) / (self._step - self._from)
            means[self._method] = now + current
        if not means:
            return None
        others = statistics.mean(means.values())
        waiting = {name: count - (name == self._method) for name, count in self._left.items()}
        return current + sum(count * means.get(name, others) for name, count in waiting.items())


def duration(seconds: float | None) -> str:
    """For people.

    Example:
        >>> duration(3.2), duration(75), duration(None)
        ('3 s', '1 min 15 s', '')
    """
    if seconds is None or not math.isfinite(seconds):
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _values(values: Mapping[str, float]) -> str:
    """The figures to watch: a gap or whatever the experiment has instead, and the distance."""
    names = [*[name for name in ("gap", "bpd", "accuracy", "loss") if name in values][:1], "distance"]
    return "  ".join(f"{name} {figure(name, values[name])}" for name in names if name in values)


def figure(name: str, value: float) -> str:
    """A value of a column, as it is read best."""
    return format(value, {"accuracy": ".1%", "bpd": ".3f"}.get(name, ".1e"))


class Lines:
    """One line for each trial that ends, and now and then one about a long one."""

    def __init__(self, names: Sequence[str], seeds: Sequence[int]) -> None:
        self._estimate = Estimate(names, seeds)
        self._trial, self._budget, self._spoke = "", 0, 0.0
        self._last: Mapping[str, float] = {}

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def begin(self, method: str, seed: int, step: int, budget: int) -> None:
        """See :meth:`Watcher.begin`."""
        self._estimate.begin(method, step, budget)
        self._trial, self._budget, self._spoke, self._last = f"{method}, seed {seed}", budget, time.monotonic(), {}
        if step:
            self._say(f"{self._trial}: goes on at step {step}")

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """See :meth:`Watcher.progress`."""
        self._estimate.progress(step)
        self._last = values or self._last
        if time.monotonic() - self._spoke >= _LINES_EVERY:
            self._say(f"{self._trial}: step {step} of {self._budget}  {_values(self._last)}")
            self._spoke = time.monotonic()

    def end(self, method: str, seed: int, outcome: Outcome, step: int, seconds: float, known: bool) -> None:
        """See :meth:`Watcher.end`."""
        self._estimate.end(method, known)
        figures = "" if known else f"  {_values(self._last)}"
        message = f" ({outcome.message})" if outcome.message else ""
        before = ", known from before" if known else ""
        text = f"{method}, seed {seed}: {outcome.status}{message} after {step} steps, {seconds:.2f} s{before}{figures}"
        left = duration(self._estimate.left()) if self._estimate.done < self._estimate.total else ""
        self._say(f"[{self._estimate.done}/{self._estimate.total}] {text}" + (f"  (about {left} left)" if left else ""))
        self._last = {}

    @staticmethod
    def _say(text: str) -> None:
        print(text, flush=True)


class Live:
    """A line for each method, with the progress of its present seed, and one for the whole."""

    def __init__(self, console: Console, names: Sequence[str], seeds: Sequence[int]) -> None:
        self._estimate = Estimate(names, seeds)
        self._seeds = len(seeds)
        # only the last column gives way where room is short: left to themselves all do, and bars vanish first
        widths = {"name": max(map(len, names), default=0) + 2, "seeds": len(seeds), "bar": 16, "steps": 18}
        widths["figures"] = max(20, console.width - sum(widths.values()) - len(widths))
        columns = {name: Column(width=width, no_wrap=True, overflow="ellipsis") for name, width in widths.items()}
        self._progress = Progress(
            TextColumn("{task.description}", table_column=columns["name"]),
            TextColumn("{task.fields[seeds]}", table_column=columns["seeds"]),
            BarColumn(bar_width=widths["bar"], table_column=columns["bar"]),
            TextColumn("{task.fields[steps]}", table_column=columns["steps"]),
            TextColumn("{task.fields[figures]}", table_column=columns["figures"]),
            console=console,
            refresh_per_second=8,
        )
        self._tasks: dict[str, TaskID] = {}
        self._marks: dict[str, str] = dict.fromkeys(names, "")
        for name in names:
            label = f"[{methods.find(name).colour}]●[/] {name}"
            self._tasks[name] = self._progress.add_task(label, total=1, seeds="·" * len(seeds), steps="", figures="")
        self._whole = self._progress.add_task("all", total=self._estimate.total, seeds="", steps="", figures="")
        self._method, self._seed, self._budget = "", 0, 1
        self._shown = 0.0

    def __enter__(self) -> "Live":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, method: str, seed: int, step: int, budget: int) -> None:
        """See :meth:`Watcher.begin`."""
        self._estimate.begin(method, step, budget)
        self._method, self._seed, self._budget = method, seed, budget
        self._progress.update(self._tasks[method], total=budget, completed=step, steps="", figures="")

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """See :meth:`Watcher.progress`."""
        self._estimate.progress(step)
        if time.monotonic() - self._shown < 0.1:  # the run is what takes the time, not the display
            return
        self._shown = time.monotonic()
        steps = f"seed {self._seed}  {step}/{self._budget}"
        shown = {"figures": _values(values)} if values else {}
        self._progress.update(self._tasks[self._method], completed=step, steps=steps, **shown)  # type: ignore[arg-type]
        self._show_left()

    def end(self, method: str, seed: int, outcome: Outcome, step: int, seconds: float, known: bool) -> None:
        """See :meth:`Watcher.end`."""
        self._estimate.end(method, known)
        mark = "●" if outcome.status == "converged" else "✗" if outcome.status in ("failed", "diverged") else "◐"
        self._marks[method] += f"[{_STATUS[outcome.status]}]{mark}[/]"
        waiting = "·" * (self._seeds - self._marks[method].count("[/]"))
        text = f"[{_STATUS[outcome.status]}]{outcome.status}[/] after {step} steps, {seconds:.2f} s"
        if outcome.message:
            text += f": {escape(outcome.message)}"
        self._progress.update(
            self._tasks[method],
            total=1,
            completed=1,
            seeds=self._marks[method] + waiting,
            steps=f"seed {seed}",
            figures=text,
        )
        self._show_left()

    def _show_left(self) -> None:
        left = duration(self._estimate.left())
        count = f"{self._estimate.done}/{self._estimate.total} trials"
        text = f"about {left} left" if left and self._estimate.done < self._estimate.total else ""
        self._progress.update(self._whole, completed=self._estimate.done, steps=count, figures=text)
