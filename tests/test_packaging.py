"""What pyproject.toml promises is what is tested."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(name):
    """The versions a constraints file holds, by package."""
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_the_declared_floor_is_the_oldest_version_that_is_tested():
    floors = dict(dependency.split(">=") for dependency in PROJECT["project"]["dependencies"])
    assert floors == pins("constraints-floor.txt")
    readme = (ROOT / "README.md").read_text()
    assert re.search(r"torch ≥ ([\d.]+\d)", readme)[1] == floors["torch"].removesuffix(".0")


@pytest.mark.parametrize("extra", ["test", "experiments", "peers", "integrations", "docs", "release"])
def test_everything_that_is_installed_is_pinned(extra):
    extras = PROJECT["project"]["optional-dependencies"][extra]
    names = {name.split(";")[0] for name in extras} - {"orthoptim[experiments]"}
    assert names <= pins("constraints.txt").keys()
