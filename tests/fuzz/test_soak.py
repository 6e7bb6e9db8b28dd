"""Long runs, with restarts: a short one always, a million steps by ``make soak``."""

import json

import pytest

from tests.fuzz import soak


def test_a_short_soak_of_every_case_is_recorded(tmp_path, capsys):
    steps = 1000 * len(soak.CASES)
    command = ["--steps", str(steps), "--restart-every", "300", "--output", str(tmp_path / "soak.json")]
    assert soak.main(command) == 0
    record = json.loads((tmp_path / "soak.json").read_text())
    assert (record["steps"], record["defects"]) == (steps, [])
    assert [row["case"] for row in record["rows"]] == [case.name for case in soak.CASES]
    # checks: two after each of two spikes, and the first step
    assert all((row["steps"], row["restarts"], row["checks"]) == (1000, 3, 5) for row in record["rows"])
    assert f"{steps} steps, 0 defects" in capsys.readouterr().out


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
