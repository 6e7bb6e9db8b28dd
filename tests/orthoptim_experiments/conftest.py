"""Real images where there are some, else the embedded ones."""

import os
from pathlib import Path

import pytest
import torch

from orthoptim_experiments.problems.datasets import Dataset, load

_ROOT = Path(__file__).parents[2]


def _data_directory() -> Path | None:
    directory = Path(os.environ.get("ORTHOPTIM_DATA") or _ROOT.parent / "shared" / "data")
    return directory if (directory / "cifar-10-batches-bin").is_dir() else None


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of the real data sets."""
    directory = _data_directory()
    if directory is None:
        pytest.skip("no real data: set ORTHOPTIM_DATA")
    return directory


@pytest.fixture
def images(monkeypatch) -> Dataset:
    """CIFAR-10 where it is, else the digits, which have the same interface; experiments find it, too."""
    directory = _data_directory()
    if directory is None:
        return load("digits")
    monkeypatch.setenv("ORTHOPTIM_DATA", str(directory))
    return load("cifar10")


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """What commands change for the whole process: torch's threads, and where the data sets are."""
    monkeypatch.setenv("ORTHOPTIM_DATA", os.environ.get("ORTHOPTIM_DATA", ""))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
