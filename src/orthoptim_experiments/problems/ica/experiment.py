"""Independent component analysis: the classic use of the orthogonal group, against its own solvers."""

import importlib.util
from typing import ClassVar

from orthoptim_experiments.harness.claims import Claim
from orthoptim_experiments.harness.experiment import Config, Experiment, Scale
from orthoptim_experiments.harness.methods import Options
from orthoptim_experiments.harness.panels import Panel, Target
from orthoptim_experiments.problems.ica.contenders import PEERS
from orthoptim_experiments.problems.ica.problem import Unmixing
from orthoptim_experiments.problems.solvers.claims import ahead
from orthoptim_experiments.problems.solvers.contenders import OURS, installed
from orthoptim_experiments.problems.stepwise import limit_threads, searches

_NORM = "gradient_norm"


class ICA(Experiment):
    """See the module."""

    name = "ica"
    title = "Independent components"
    about = """
Orthogonal ICA of real signals: minimise the mean of Σ log cosh(WZ) over orthogonal W, for whitened signals Z, in
float64, until the gradient norm ‖Skew(E[tanh(y)yᵀ])‖ is below 1e-8. Digits: the leading principal components of
handwritten digits, whose sources nobody knows. Pictures: crops of scikit-learn's two photographs, filtered and mixed by
a random matrix; Amari's distance tells how well they are separated.

POGO with each base for deterministic problems, with and without a line search, against scikit-learn's FastICA and
Picard-O, from the same start. Evaluations are points at which the contrast or its gradient was computed.
"""
    scales: ClassVar = {
        "tiny": Scale(
            "4 signals of 1024 samples, for tests",
            seeds=2,
            sizes={"n": 4, "side": 32, "budget": 300, "stride": 10, "tolerance": 1e-8},
        ),
        "laptop": Scale(
            "16 signals of 16384 samples; 16 components of 1797 digits",
            seeds=3,
            sizes={"n": 16, "side": 128, "budget": 3000, "stride": 10, "tolerance": 1e-8},
        ),
        "paper": Scale(
            "24 signals of 16384 samples",
            seeds=3,
            sizes={"n": 24, "side": 128, "budget": 10000, "stride": 20, "tolerance": 1e-8},
        ),
    }
    variants: ClassVar = {"digits": "handwritten digits", "pictures": "mixed crops of photographs (of scikit-learn)"}
    dtypes = ("float64",)
    default_methods = (*OURS, *installed(PEERS))
    claims = (
        Claim("POGO with BB reaches 1e-8 sooner than FastICA", ahead("POGO-BB", ("FastICA",), _NORM)),
        Claim("POGO with LBFGS reaches 1e-8 sooner than FastICA", ahead("POGO-LBFGS", ("FastICA",), _NORM)),
        Claim("POGO with LBFGS reaches 1e-8 sooner than Picard", ahead("POGO-LBFGS", ("Picard",), _NORM)),
    )
    panels = (
        Panel("step", _NORM, log_y=True, label="gradient norm"),
        Panel("processor_time", _NORM, log_y=True, label="gradient norm"),
        Panel("processor_time", "amari", log_y=True, label="Amari distance"),
    )
    columns = (_NORM, "amari", "loss", "evaluations", "processor_time")

    def methods(self, config: Config) -> dict[str, Options]:
        """No contender has a rate to tune."""
        return {name: {} for name in (*OURS, *PEERS)}

    def prepare(self, config: Config) -> None:
        """Look for the pictures; let numpy use as many threads as torch."""
        if config["variant"] == "pictures" and importlib.util.find_spec("sklearn") is None:
            raise ValueError(
                "the pictures of ica are scikit-learn's, which is missing; run: pip install 'orthoptim[peers]'"
            )
        limit_threads(config["threads"])

    def problem(self, config: Config, method: str, seed: int) -> Unmixing:
        """See :meth:`Experiment.problem`."""
        return Unmixing(config, seed, searches(method))

    def target(self, config: Config) -> Target | None:
        """See :meth:`Experiment.target`."""
        return Target(_NORM, config["tolerance"]) if "tolerance" in config else None
