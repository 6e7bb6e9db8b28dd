"""The section of the report on one run, as its experiment describes it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orthoptim.functional import rounding
from orthoptim_experiments.harness.attachments import Picture
from orthoptim_experiments.harness.claims import Claim, Verdict
from orthoptim_experiments.harness.experiment import DTYPES, Config
from orthoptim_experiments.harness.filenames import distinct_stems, file_stem
from orthoptim_experiments.harness.panels import PAPER, Panel, Target
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.problems import EXPERIMENTS


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
    anchor: str = ""

    def __post_init__(self) -> None:
        if not self.anchor:
            object.__setattr__(self, "anchor", file_stem(_name(self.run)))


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
            dict.fromkeys(name for trial in run.trials for name in trial.records if name not in ("step", "time"))
        )
        return Section(run, run.experiment, "", [Panel("time", name) for name in columns], columns)
    return Section(
        run,
        experiment.title,
        experiment.about.strip().partition("\n\n")[0].replace("\n", " "),
        [shaded(panel, run.config) for panel in experiment.panels],
        experiment.columns,
        experiment.target(run.config),
        [(claim, judge(claim, run)) for claim in experiment.claims],
        experiment.attachments(run),
    )


def judge(claim: Claim, run: Run) -> Verdict:
    """The verdict on a claim; "not measured" where an interrupted run has too few data."""
    try:
        return claim.judge(run)
    except (LookupError, ValueError, ArithmeticError) as error:
        return Verdict("not measured", f"the data do not suffice ({type(error).__name__}: {error})")


def shaded(panel: Panel, config: Config) -> Panel:
    """The panel, with distances that rounding alone explains shaded."""
    dtype, p = DTYPES.get(config.get("dtype", "")), config.get("p")
    if panel.y != "distance" or dtype is None or not isinstance(p, int):
        return panel
    return replace(panel, shade=rounding(dtype, p))
