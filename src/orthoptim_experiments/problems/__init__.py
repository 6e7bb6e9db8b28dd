"""The experiments of the paper and beyond it, by name."""

from orthoptim_experiments.harness.experiment import Experiment
from orthoptim_experiments.problems.circuits.experiment import Circuits
from orthoptim_experiments.problems.cnn.experiment import CNN
from orthoptim_experiments.problems.copying.experiment import CopyingExperiment
from orthoptim_experiments.problems.experts.experiment import ExpertExperiment
from orthoptim_experiments.problems.ica.experiment import ICA
from orthoptim_experiments.problems.pca.experiment import PCA
from orthoptim_experiments.problems.precision.experiment import Precision
from orthoptim_experiments.problems.procrustes.experiment import Procrustes
from orthoptim_experiments.problems.rotations.experiment import RotationExperiment
from orthoptim_experiments.problems.solvers.experiment import Solvers
from orthoptim_experiments.problems.spectral.experiment import Spectral
from orthoptim_experiments.problems.stepsize.experiment import StepSize
from orthoptim_experiments.problems.vit.experiment import ViT

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        CNN(),
        PCA(),
        Precision(),
        Procrustes(),
        Circuits(),
        StepSize(),
        ViT(),
        RotationExperiment(),
        Spectral(),
        CopyingExperiment(),
        ExpertExperiment(),
        Solvers(),
        ICA(),
    )
}
