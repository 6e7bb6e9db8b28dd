"""The progress of a run: live in a terminal, in plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from orthoptim_experiments.harness import methods
from orthoptim_experiments.harness.experiment import Outcome
from orthoptim_experiments.harness.numbers import figure
from orthoptim_experiments.harness.runner import Watcher

_COLOURS = {"converged": "green", "budget": "yellow", "diverged": "red", "timeout": "yellow", "failed": "red"}

_LINE_EVERY = 10.0
"""Seconds between two lines about one trial."""


class Display(Watcher):
    """A watcher that is opened and closed."""

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what is shown."""


def display(console: Console, names: Sequence[str], seeds: Sequence[int]) -> Display:
    """The display that suits where output goes."""
    return Live(console, names, seeds) if console.is_terminal else Lines(len(names) * len(seeds))


def _figures(values: Mapping[str, float]) -> str:
    """The figures to watch: a gap or whatever the experiment has instead, and the distance."""
    names = [*[name for name in ("projected_gap", "bpd", "accuracy", "loss") if name in values][:1], "distance"]
    return "  ".join(
        f"{name.removeprefix('projected_')} {figure(name, values[name])}" for name in names if name in values
    )


class Lines(Display):
    """One line for each trial that ends, and now and then one about a long one."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._trial, self._budget, self._printed = "", 0, 0.0
        self._last: Mapping[str, float] = {}

    def begin(self, method: str, seed: int, step: int, budget: int) -> None:
        """See :meth:`Watcher.begin`."""
        self._trial, self._budget, self._printed, self._last = f"{method}, seed {seed}", budget, time.monotonic(), {}
        if step:
            print(f"{self._trial}: goes on at step {step}", flush=True)

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """See :meth:`Watcher.progress`."""
        self._last = values or self._last
        if time.monotonic() - self._printed >= _LINE_EVERY:
            print(f"{self._trial}: step {step} of {self._budget}  {_figures(self._last)}", flush=True)
            self._printed = time.monotonic()

    def end(self, method: str, seed: int, outcome: Outcome, step: int, seconds: float, known: bool) -> None:
        """See :meth:`Watcher.end`."""
        self._done += 1
        message = f" ({outcome.message})" if outcome.message else ""
        rest = ", known from before" if known else f"  {_figures(self._last)}"
        text = f"{method}, seed {seed}: {outcome.status}{message} after {step} steps, {seconds:.2f} s{rest}"
        print(f"[{self._done}/{self._total}] {text}", flush=True)
        self._last = {}


class Live(Display):
    """A line for each method, with the progress of its present seed, and one for the whole."""

    def __init__(self, console: Console, names: Sequence[str], seeds: Sequence[int]) -> None:
        # only the last column gives way where room is short: left to themselves all do, and bars vanish first
        widths = {"name": max(map(len, names), default=0) + 2, "seeds": len(seeds), "bar": 16, "left": 8, "steps": 18}
        widths["figures"] = max(20, console.width - sum(widths.values()) - len(widths))
        columns = {name: Column(width=width, no_wrap=True, overflow="ellipsis") for name, width in widths.items()}
        self._progress = Progress(
            TextColumn("{task.description}", table_column=columns["name"]),
            TextColumn("{task.fields[seeds]}", table_column=columns["seeds"]),
            BarColumn(bar_width=widths["bar"], table_column=columns["bar"]),
            TimeRemainingColumn(table_column=columns["left"]),
            TextColumn("{task.fields[steps]}", table_column=columns["steps"]),
            TextColumn("{task.fields[figures]}", table_column=columns["figures"]),
            console=console,
            refresh_per_second=8,
        )
        self._waiting = {name: len(seeds) for name in names}
        self._marks = dict.fromkeys(names, "")
        fields = {"seeds": "·" * len(seeds), "steps": "", "figures": ""}
        self._tasks = {
            name: self._progress.add_task(f"[{methods.find(name).colour}]●[/] {name}", total=1, **fields)  # type: ignore[arg-type]
            for name in names
        }
        self._total, self._done = len(names) * len(seeds), 0
        self._whole = self._progress.add_task("all", total=self._total, seeds="", steps="", figures="")
        self._method, self._seed, self._budget = "", 0, 1

    def __enter__(self) -> "Live":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, method: str, seed: int, step: int, budget: int) -> None:
        """See :meth:`Watcher.begin`."""
        self._method, self._seed, self._budget = method, seed, budget
        seeds = self._seeds_of(method)  # a reset forgets all fields
        self._progress.reset(self._tasks[method], total=budget, completed=step, seeds=seeds, steps="", figures="")

    def progress(self, step: int, values: Mapping[str, float]) -> None:
        """See :meth:`Watcher.progress`."""
        fields = {"steps": f"seed {self._seed}  {step}/{self._budget}"}
        if values:
            fields["figures"] = _figures(values)
        self._progress.update(self._tasks[self._method], completed=step, **fields)  # type: ignore[arg-type]

    def end(self, method: str, seed: int, outcome: Outcome, step: int, seconds: float, known: bool) -> None:
        """See :meth:`Watcher.end`."""
        colour, done = _COLOURS[outcome.status], {"converged": "●", "failed": "✗", "diverged": "✗"}
        self._marks[method] += f"[{colour}]{done.get(outcome.status, '◐')}[/]"
        self._waiting[method] -= 1
        self._done += 1
        text = f"[{colour}]{outcome.status}[/] after {step} steps, {seconds:.2f} s"
        if outcome.message:
            text += f": {escape(outcome.message)}"
        ended = {"total": 1, "completed": 1, "seeds": self._seeds_of(method), "steps": f"seed {seed}", "figures": text}
        self._progress.update(self._tasks[method], **ended)  # type: ignore[arg-type]
        self._progress.update(self._whole, completed=self._done, steps=f"{self._done}/{self._total} trials")

    def _seeds_of(self, method: str) -> str:
        """A mark for each seed: how its trial ended, or a dot."""
        return self._marks[method] + "·" * self._waiting[method]
