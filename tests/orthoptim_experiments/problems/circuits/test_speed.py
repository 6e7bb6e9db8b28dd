"""The measurement measures what it says."""

import torch

from orthoptim_experiments.problems.circuits import SquaredUnitaryCircuit
from orthoptim_experiments.problems.circuits.speed import bare_products, minima, training_step


def test_the_bare_products_are_those_of_the_step():
    circuit = SquaredUnitaryCircuit(7, 7, 3, 8)
    images = torch.randint(0, 8, (5, 7, 7))
    counted = []
    for step in (training_step(circuit, images), bare_products(circuit, 5)):
        with torch.profiler.profile(record_shapes=True) as profile:
            step()
        products = [event for event in profile.events() if event.name == "aten::bmm"]
        shapes = [event.input_shapes[:2] for event in products]
        counted.append(sum(n * p * k * q for (n, p, k), (_, _, q) in shapes))
    assert counted[0] == counted[1] > 0


def test_minima_take_turns():
    calls = []
    least = minima([lambda: calls.append("a"), lambda: calls.append("b")], rounds=3)
    assert calls == ["a", "b"] * 4
    assert len(least) == 2
    assert all(time.clock > 0 for time in least)
