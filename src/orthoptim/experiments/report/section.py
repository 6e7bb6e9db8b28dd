"""What the report says about one run; it is the experiment that knows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from orthoptim.experiments.panels import PAPER, Panel
from orthoptim.experiments.report.exhibits import Exhibit
from orthoptim.experiments.results import Run
from orthoptim.experiments.summary import Target

Verdict = Literal["confirmed", "refuted", "not measured"]


@dataclass(frozen=True)
class Finding:
    """What the paper says, what was measured, and whether the two agree."""

    says: str
    measured: str
    verdict: Verdict


@dataclass(frozen=True)
class Section:
    """One run and how to show it.

    Attributes:
        run: The results.
        title: Of the experiment.
        about: A sentence or two on the problem.
        panels: Of the figure; on the page each quantity is a chart.
        columns: Whose last values are in the table.
        target: What trials aim at; None if nothing.
        findings: The paper's claims against the data.
        exhibits: Further tables and images.
    """

    run: Run
    title: str
    about: str = ""
    panels: Sequence[Panel] = PAPER
    columns: Sequence[str] = ("gap", "projected_gap", "distance")
    target: Target | None = field(default_factory=Target)
    findings: Sequence[Finding] = ()
    exhibits: Sequence[Exhibit] = ()

    @property
    def anchor(self) -> str:
        """Its place on the page, and the stem of its figures' names."""
        return f"{self.run.experiment}-{self.run.id}"
