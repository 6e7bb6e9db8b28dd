"""What pyproject.toml promises is what is tested."""

import re
import tomllib
from pathlib import Path

import pytest

import orthoptim as oo

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


def test_the_changelog_and_the_citation_name_the_version():
    latest, *older = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert latest == oo.__version__
    assert latest not in older
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == oo.__version__


def test_workflows_call_targets_of_the_makefile():
    """CI and developers run the same commands."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        commands = re.findall(r"- run: (.+)", workflow.read_text())
        assert commands
        for command in commands:
            make, *called = command.split()
            assert make == "make"
            assert set(called) <= targets


def test_workflows_test_every_python_that_is_declared():
    declared = {line.rpartition(":: ")[2] for line in PROJECT["project"]["classifiers"] if "Python :: 3." in line}
    matrix = re.search(r"python: \[(.+)\]", (ROOT / ".github/workflows/test.yml").read_text())[1]
    assert {version.strip(' "') for version in matrix.split(",")} == declared
