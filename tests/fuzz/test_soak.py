"""Long runs, with restarts: a short one always, a million steps by ``make soak``."""

import json

import pytest

from tests.fuzz import soak


@pytest.mark.parametrize("case", soak.CASES, ids=lambda case: case.name)
def test_a_short_soak(case):
    found = soak.soak(case, 1000, restart_every=300)
    assert found.defects == ()
    assert found.restarts == 3
    assert found.checks == 5  # two after each of two spikes, and the first step


@pytest.mark.soak
def test_a_million_steps():
    assert soak.main(["--steps", "1000000"]) == 0


def test_what_a_soak_must_see(monkeypatch):
    """A bound that is not kept, and memory that grows."""
    monkeypatch.setattr(soak, "distances", lambda *args: soak.torch.ones(1))
    sizes = iter([1.0, 100.0])
    monkeypatch.setattr(soak, "allocated_megabytes", lambda: next(sizes))
    found = soak.soak(soak.CASES[0], 500)
    assert [defect.split()[0] for defect in found.defects] == ["distance", "memory"]


def test_the_command_records(tmp_path, capsys):
    assert soak.main(["--steps", "2000", "--restart-every", "100", "--output", str(tmp_path / "soak.json")]) == 0
    record = json.loads((tmp_path / "soak.json").read_text())
    assert record["steps"] == 2000
    assert record["defects"] == []
    assert len(record["rows"]) == len(soak.CASES)
    assert "2000 steps, 0 defects" in capsys.readouterr().out
