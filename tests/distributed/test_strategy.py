"""The strategy is the one that sends the fewest bytes."""

import pytest

from orthoptim.distributed import step
from orthoptim.distributed.strategies import choose
from orthoptim_experiments.bench.scale import study
from orthoptim_experiments.bench.scale.models import Case


def sent(monkeypatch, strategy, shape, world=8):
    """Bytes that a rank sends for as many matrices as there are ranks, which are all cut along their long side."""
    monkeypatch.setattr(step, "choose", lambda layout, by_columns: strategy)
    strategies, figures, _ = study.measure("orthoptim", Case([shape], world, "long dim", world), 0)
    assert strategies == {strategy: world}
    return figures.sent


@pytest.mark.parametrize(("ratio", "strategy"), [(12, "whole"), (15, "whole"), (17, "two-phase"), (24, "two-phase")])
def test_a_long_side_that_is_cut_takes_the_fewest_bytes(monkeypatch, ratio, strategy):
    shape = (64, 64 * ratio)
    counted = {way: sent(monkeypatch, way, shape) for way in ("whole", "two-phase")}
    assert min(counted, key=counted.get) == strategy
    monkeypatch.setattr(step, "choose", choose)
    assert study.measure("orthoptim", Case([shape], 8, "long dim", 8), 0)[0] == {strategy: 8}
