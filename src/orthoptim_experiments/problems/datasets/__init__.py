"""Images to learn from: CIFAR-10 and MNIST, fetched with checksums, and a small embedded set."""

from orthoptim_experiments.problems.datasets.augment import normalize
from orthoptim_experiments.problems.datasets.draws import derive_seed, generator
from orthoptim_experiments.problems.datasets.files import VARIABLE, DataError, data_directory, fetch, is_complete
from orthoptim_experiments.problems.datasets.images import Dataset, Images
from orthoptim_experiments.problems.datasets.load import load
from orthoptim_experiments.problems.datasets.loader import BatchLoader
from orthoptim_experiments.problems.datasets.sources import SOURCES

__all__ = [
    "SOURCES",
    "VARIABLE",
    "BatchLoader",
    "DataError",
    "Dataset",
    "Images",
    "data_directory",
    "derive_seed",
    "fetch",
    "generator",
    "is_complete",
    "load",
    "normalize",
]
