"""A few seconds of the search for the worst gradients."""

import json

import pytest
import torch

from orthoptim.stiefel import steps
from tests.fuzz import adversary


@pytest.mark.parametrize("target", adversary.TARGETS)
@pytest.mark.parametrize("policy", adversary.BOUNDS)
def test_no_gradients_break_the_bound(target, policy):
    for seed, dtype in enumerate(adversary.dtypes_of(target)):
        found = adversary.search(target, dtype, policy, trials=adversary.MATRICES, seed=seed)
        assert found.holds, adversary.table([found])


def test_spectral_steps_in_complex64_keep_half():
    """This search found 0.50018: rounding in the matrix sign had made the step longer than its clip."""
    found = adversary.search("StiefelMuon, square", torch.complex64, "safe", 1792, 44)
    assert found.holds, adversary.table([found])


def test_a_search_can_be_repeated():
    one, two = (adversary.search("tiny", torch.float32, "safe", 600, seed=3) for _ in range(2))
    assert one == two


def test_the_bound_is_nearly_reached():
    """A search that came nowhere near would say nothing."""
    found = adversary.search("direct-p", torch.float64, "safe", 3 * adversary.MATRICES, seed=0)
    assert found.worst > 0.49


def test_a_landing_that_does_not_clip_is_found(monkeypatch):
    monkeypatch.setitem(steps.FORMS, "direct-n", lambda leap, policy: steps.direct_n(leap, policy._replace(clip=None)))
    found = adversary.search("direct-n", torch.float32, "safe", adversary.MATRICES, seed=0)
    assert not found.holds
    assert "broken" in adversary.table([found])


def test_the_command_counts_and_records(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(adversary, "DTYPES", (torch.float32,))
    assert adversary.main(["--trials", "1", "--output", str(tmp_path / "table.json")]) == 0
    assert capsys.readouterr().out.count("\n|") == 1 + len(adversary.TARGETS) * len(adversary.BOUNDS)
    record = json.loads((tmp_path / "table.json").read_text())
    assert record["trials"] == 16 * adversary.MATRICES
    assert record["broken"] == 0
    assert record["rows"][0]["dtype"] == "float32"


def test_the_command_fails_where_a_bound_is_broken(monkeypatch, capsys):
    monkeypatch.setattr(adversary, "searches", lambda trials, seed: [_found(worst=0.6)])
    assert adversary.main([]) == 1
    assert "| broken |" in capsys.readouterr().out


def _found(worst):
    return adversary.Found("tiny", torch.float32, "safe", 1, worst, 0.5, 1e-6)
