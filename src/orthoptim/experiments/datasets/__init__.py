"""Images to learn from: CIFAR-10 and MNIST, fetched with checksums, and a small embedded set."""

from orthoptim.experiments.datasets.augment import normalize
from orthoptim.experiments.datasets.draws import derive_seed, generator
from orthoptim.experiments.datasets.fetch import fetch, is_complete
from orthoptim.experiments.datasets.files import VARIABLE, DataError, data_directory
from orthoptim.experiments.datasets.images import Dataset, Images
from orthoptim.experiments.datasets.load import load
from orthoptim.experiments.datasets.loader import BatchLoader
from orthoptim.experiments.datasets.sources import SOURCES

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
