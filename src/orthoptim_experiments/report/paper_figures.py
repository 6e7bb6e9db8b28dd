"""The figures of the paper, each combined from the runs that it shows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orthoptim_experiments.harness.filenames import refuse_link
from orthoptim_experiments.harness.methods import PAPER, RATES
from orthoptim_experiments.harness.panels import Panel
from orthoptim_experiments.harness.records import ResultsError, Run, Trial
from orthoptim_experiments.report.figures import save_figure
from orthoptim_experiments.report.section import describe, shaded, timed

Drawn = tuple[Sequence[Trial], Panel]


@dataclass(frozen=True)
class Source:
    """A run that a figure needs: an experiment, one of its variants if it matters, and how to make it."""

    experiment: str
    variant: str = ""

    def matches(self, run: Run) -> bool:
        """Whether a run is such a one."""
        return run.experiment == self.experiment and self.variant in ("", run.config.get("variant"))

    @property
    def command(self) -> str:
        """What makes such a run."""
        return f"orthoptim run {self.experiment}" + (f" --constraint {self.variant}" if self.variant else "")


@dataclass(frozen=True)
class PaperFigure:
    """A figure: what it shows, the runs it needs, and its panels from them."""

    about: str
    sources: tuple[Source, ...]
    panels: Callable[[Sequence[Run]], Iterator[Drawn]]


def make_figure(name: str, runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draw a figure from runs, of each kind the largest, as PNG and PDF.

    Raises:
        ResultsError: if a run that it needs is not there; the message says how to make it.
        OSError: if a file cannot be written.
    """
    figure = FIGURES[name]
    chosen = []
    for source in figure.sources:
        fitting = [run for run in runs if source.matches(run) and run.trials]
        if not fitting:
            raise ResultsError(f"the figure {name} needs a run of {source.experiment}; make one: {source.command}")
        chosen.append(max(fitting, key=lambda run: (describe(run).paper_scale, len(run.trials))))
    return save_figure(refuse_link(folder) / f"paper-{name}", list(figure.panels(chosen)))


def _shown(run: Run, panel: Panel, keep: Callable[[str], bool] = lambda method: True, title: str = "") -> Drawn:
    trials = [trial for trial in run.trials if keep(trial.method)]
    panel = timed(shaded(panel, run.config), describe(run).clock)
    return trials, replace(panel, title=title or panel.title)


def _overview(runs: Sequence[Run]) -> Iterator[Drawn]:
    for run in runs:
        yield _shown(
            run, Panel("time", "accuracy", log_x=True, points=True), title=f"orthogonal {run.config['variant']}"
        )


def _matrices(runs: Sequence[Run]) -> Iterator[Drawn]:
    for run in runs:
        for panel in (Panel("time", "projected_gap"), Panel("time", "distance")):
            yield _shown(run, panel, title=describe(run).title)


def _vit(runs: Sequence[Run]) -> Iterator[Drawn]:
    yield _shown(runs[0], Panel("time", "accuracy", start=False))
    yield _shown(runs[0], Panel("time", "distance"), lambda method: method != "Adam")


def _cnn_distance(runs: Sequence[Run]) -> Iterator[Drawn]:
    for run in runs:
        variant = run.config["variant"]
        yield _shown(run, Panel("step", "distance"), lambda method: method != "Adam", f"orthogonal {variant}")


def _cnn_curve(runs: Sequence[Run]) -> Iterator[Drawn]:
    yield _shown(runs[0], Panel("step", "accuracy", start=False))
    yield _shown(runs[0], Panel("time", "accuracy", start=False))


def _circuits(runs: Sequence[Run]) -> Iterator[Drawn]:
    compared = (*PAPER, "POGO-strict")
    yield _shown(runs[0], Panel("time", "bpd", start=False), lambda method: method in compared and method != "RSDM")
    distance = Panel("time", "distance", inset="Landing")
    yield _shown(runs[0], distance, lambda method: method in compared and method != "RSDM")


def _precision(runs: Sequence[Run]) -> Iterator[Drawn]:
    for ending, title in (("-fp16", "16-bit products"), ("-fp64", "64 bits")):
        names = {method for method in runs[0].methods if method.endswith(ending)}
        yield _shown(runs[0], Panel("time", "distance"), names.__contains__, title)


def _stepsize(runs: Sequence[Run]) -> Iterator[Drawn]:
    for landing, title in (("POGO-root", "λ from the root"), ("POGO", "λ = ½")):
        for panel in (Panel("time", "bpd", start=False), Panel("time", "distance")):
            names = {"POGO", *(f"{landing}:base=SGD:lr={rate}" for rate in RATES)}
            yield _shown(runs[0], panel, names.__contains__, title)


def _stepsize_pairs(runs: Sequence[Run]) -> Iterator[Drawn]:
    names = {f"{landing}:base=SGD:lr={rate}" for landing in ("POGO-root", "POGO") for rate in RATES[:2]}
    for panel in (Panel("time", "bpd", start=False), Panel("time", "distance")):
        yield _shown(runs[0], panel, lambda method: method in names)


FILTERS, KERNELS = Source("cnn", "filters"), Source("cnn", "kernels")
FIGURES: dict[str, PaperFigure] = {
    "overview": PaperFigure("Fig. 1: time against accuracy, a point for each method", (FILTERS, KERNELS), _overview),
    "matrices": PaperFigure(
        "Fig. 3: PCA and Procrustes, gap and distance", (Source("pca"), Source("procrustes")), _matrices
    ),
    "vit": PaperFigure("Fig. 4: the O-ViT, accuracy and distance", (Source("vit"),), _vit),
    "cnn-distance": PaperFigure("Distance of the CNN, filters and kernels", (FILTERS, KERNELS), _cnn_distance),
    "cnn-curve": PaperFigure("Accuracy of the CNN with orthogonal kernels", (KERNELS,), _cnn_curve),
    "circuits": PaperFigure("Circuits: bits per dimension, distance, Landing inset", (Source("circuits"),), _circuits),
    "precision": PaperFigure("Precision: distance in 16 and in 64 bits", (Source("precision"),), _precision),
    "stepsize": PaperFigure("The landing step: root on the left, ½ on the right", (Source("stepsize"),), _stepsize),
    "stepsize-pairs": PaperFigure("Root and ½ at η = 0.001 and 0.005", (Source("stepsize"),), _stepsize_pairs),
}
