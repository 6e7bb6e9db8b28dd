"""The section of the report on one run, as its experiment describes it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orthoptim.functional import rounding
from orthoptim_experiments.harness.attachments import Picture
from orthoptim_experiments.harness.claims import Claim, Verdict
from orthoptim_experiments.harness.clock import clock_of
from orthoptim_experiments.harness.experiment import DTYPES, Config, is_paper_scale
from orthoptim_experiments.harness.filenames import distinct_stems, file_stem
from orthoptim_experiments.harness.panels import PAPER, Panel, Target
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import LEAST, LOST, column, time_to
from orthoptim_experiments.harness.summary import Summary, summarise
from orthoptim_experiments.problems import EXPERIMENTS

CLOCKS = ("time", "processor_time", "optimizer_time")


@dataclass(frozen=True)
class Section:
    """One run and how to show it.

    Attributes:
        run: The results.
        title: Of the experiment.
        about: A paragraph on the problem.
        panels: Of the figure; on the page each quantity is a chart.
        columns: Whose last values are in the table.
        target: What trials aim at; None if nothing.
        findings: The claims, and what the data say to each.
        attachments: Further images.
        clock: The column of the time that counts.
        paper_scale: Whether the sizes are the paper's.
        notes: What else the data say, in sentences.
        anchor: Its place on the page, and the stem of its figures' names; made of the names in the run, and safe.
    """

    run: Run
    title: str
    about: str = ""
    panels: Sequence[Panel] = PAPER
    columns: Sequence[str] = ()
    target: Target | None = None
    findings: Sequence[tuple[Claim, Verdict]] = ()
    attachments: Sequence[Picture] = ()
    clock: str = "time"
    paper_scale: bool = False
    notes: Sequence[str] = ()
    anchor: str = ""

    def __post_init__(self) -> None:
        if not self.anchor:
            object.__setattr__(self, "anchor", file_stem(_name(self.run)))

    def summaries(self) -> list[Summary]:
        """The results by method: what every table shows."""
        return summarise(self.run.trials, self.columns, self.target, self.clock)


def distinct(sections: Sequence[Section]) -> list[Section]:
    """The sections, each with an anchor of its own: the same run may lie in two folders."""
    anchors = distinct_stems(_name(section.run) for section in sections)
    return [replace(section, anchor=anchor) for section, anchor in zip(sections, anchors, strict=True)]


def _name(run: Run) -> str:
    return f"{run.experiment}-{run.id}"


def describe(run: Run) -> Section:
    """The section on a run; all columns of it, if its experiment is not known here."""
    experiment = EXPERIMENTS.get(run.experiment)
    if experiment is None:
        columns = list(
            dict.fromkeys(name for trial in run.trials for name in trial.records if name not in ("step", *CLOCKS))
        )
        return Section(run, run.experiment, "", [Panel("time", name) for name in columns], columns)
    clock = clock_of(run.config)
    clock = clock if any(clock in trial.records for trial in run.trials) else "time"
    target = experiment.target(run.config)
    return Section(
        run,
        experiment.title,
        experiment.description(run.config).partition("\n\n")[0].replace("\n", " "),
        [timed(shaded(panel, run.config), clock) for panel in experiment.panels],
        experiment.columns,
        target,
        [(claim, judge(claim, run)) for claim in experiment.claims],
        experiment.attachments(run),
        clock=clock,
        paper_scale=is_paper_scale(experiment, run.config),
        notes=list(off_manifold(run, target)) if target is not None else (),
    )


def off_manifold(run: Run, target: Target) -> Iterator[str]:
    """A sentence on each method whose own gap reaches the target long before that of its projection."""
    if target.column != "projected_gap":
        return
    for method in run.methods:
        parts = []
        for trial in run.of(method):
            reached = np.flatnonzero(column(trial, "gap") <= target.value)
            if trial.status in LOST or not len(reached):
                continue
            projected = float(column(trial, "projected_gap")[reached[0]])
            if projected > 3 * target.value:
                later = time_to(trial, target, "step")
                there = f"gets there at step {later:.0f}" if math.isfinite(later) else "does not get there in this run"
                step = column(trial, "step")[reached[0]]
                parts.append(f"at step {step:.0f} (seed {trial.seed}) with {projected:.1e}, which {there}")
        if parts:
            yield (
                f"{method} seems to converge: its own gap is below {target.value:.0e} {'; '.join(parts)}. Its iterates "
                "leave the manifold, where a point may lie on the level of the optimum or below it: the second number "
                "is the gap of the nearest orthogonal matrix. The sharp descent of the raw gap is an artefact."
            )


def timed(panel: Panel, clock: str) -> Panel:
    """The panel, with the clock that counts on its horizontal axis where that is a time."""
    return replace(panel, x=clock) if panel.x == "time" else panel


def judge(claim: Claim, run: Run) -> Verdict:
    """The verdict on a claim, with a word on seeds where these are few; "not measured" if data do not suffice."""
    try:
        verdict = claim.judge(run)
        seeds = len({trial.seed for trial in run.trials})
        if verdict.verdict == "not measured" or seeds >= LEAST:
            return verdict
        return verdict._replace(measured=f"{verdict.measured} ({seeds} {'seed' if seeds == 1 else 'seeds'} only)")
    except (LookupError, ValueError, ArithmeticError) as error:
        return Verdict("not measured", f"the data do not suffice ({type(error).__name__}: {error})")


def shaded(panel: Panel, config: Config) -> Panel:
    """The panel, with distances that rounding alone explains shaded."""
    dtype, p = DTYPES.get(config.get("dtype", "")), config.get("p")
    if panel.y != "distance" or dtype is None or not isinstance(p, int):
        return panel
    return replace(panel, shade=rounding(dtype, p))
