"""Recurrent networks: the pass by hand, the sequences, equal starts, and a run of the experiment."""

import math

import pytest
import torch

import orthoptim as oo
from orthoptim_experiments.harness.methods import find
from orthoptim_experiments.problems.copying import timing
from orthoptim_experiments.problems.copying.contenders import NETWORKS
from orthoptim_experiments.problems.copying.data import BLANK, COPIED, MARKER, Copying, PermutedDigits
from orthoptim_experiments.problems.copying.experiment import CopyingExperiment
from orthoptim_experiments.problems.copying.model import Recurrence, initial
from orthoptim_experiments.problems.copying.recurrence import modrelu, recur
from tests.orthoptim_experiments.helpers import begin, whole_and_resumed

EXPERIMENT = CopyingExperiment()


def step_by_step(driven, weight, bias):
    h, states = torch.zeros_like(driven[0]), []
    for drive in driven:
        h = modrelu(drive + h @ weight.mT, bias)
        states.append(h)
    return torch.stack(states)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_the_recurrence_and_its_gradients_are_those_of_autograd(dtype):
    generator = torch.Generator().manual_seed(0)
    driven = torch.randn(6, 3, 5, dtype=dtype, generator=generator)
    weight = oo.orthogonalize_(torch.empty(5, 5, dtype=dtype), init="random", generator=generator)
    bias = 0.5 * torch.randn(5, dtype=torch.float64, generator=generator)
    outer = torch.randn(6, 3, 5, dtype=dtype, generator=generator)
    found = []
    for function in (step_by_step, recur):
        inputs = [x.clone().requires_grad_() for x in (driven, weight, bias)]
        states = function(*inputs)
        assert (states == 0).any()  # where modReLU is off
        found.append([states.detach(), *torch.autograd.grad(states, inputs, outer)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("units", [6, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_networks_begin_orthogonal(units, dtype):
    assert oo.is_orthogonal(initial(units, dtype, torch.Generator().manual_seed(0)))


def test_copying_asks_for_the_symbols_at_the_end():
    data = Copying({"delay": 7, "batch": 3})
    inputs, targets = data.batch(torch.Generator().manual_seed(0))
    symbols = inputs.argmax(-1)
    assert inputs.shape == (27, 3, 10)
    assert torch.equal(symbols[:COPIED], targets[-COPIED:])
    assert (symbols[COPIED : COPIED + 6] == BLANK).all()
    assert (symbols[COPIED + 6] == MARKER).all()  # then ten more blanks, in which to answer
    assert (symbols[COPIED + 7 :] == BLANK).all()
    assert (targets[:-COPIED] == BLANK).all()
    chance = torch.full((27, 3, 9), -math.inf)
    chance[:-COPIED, :, BLANK] = 0
    chance[-COPIED:, :, :8] = 0
    loss = torch.nn.functional.cross_entropy(chance.flatten(0, 1), targets.flatten())
    assert float(loss) == pytest.approx(data.baseline, rel=1e-6)


def test_digits_of_a_sweep_are_neither_tested_nor_trained_on():
    config = {"images": "digits8", "batch": 3}
    report, sweep = PermutedDigits(config), PermutedDigits({**config, "validation": True})
    assert (len(report.train.labels), len(sweep.train.labels), len(sweep.test.labels)) == (1500, 1350, 150)
    inputs, targets = report.batch(torch.Generator().manual_seed(0))
    assert (inputs.shape, targets.shape) == ((64, 3, 1), (1, 3))
    assert 0 <= inputs.min() < inputs.max() <= 1


@pytest.mark.parametrize("variant", EXPERIMENT.variants)
@pytest.mark.parametrize("method", [name for name in NETWORKS if find(name).installed])
def test_every_contender_trains_resumes_and_stays_orthogonal(variant, method):
    start = [param.detach().clone() for param in begin(EXPERIMENT, method, variant=variant).parameters()]
    whole, resumed = whole_and_resumed(EXPERIMENT, method, 6, variant=variant)
    assert not any(torch.equal(one, two) for one, two in zip(start, whole.parameters(), strict=True))
    assert whole.outcome().status == "budget"
    values = whole.evaluate()
    assert values == resumed.evaluate()
    assert values.get("distance", 0) <= 0.75 * 0.2**4  # ¾ξ⁴ of a normalised step: POGO's rate is 0.2, and λ = ½


def test_real_networks_begin_with_the_same_outputs():
    losses = [begin(EXPERIMENT, name).evaluate()["loss"] for name in ("POGO", "exp-Adam", "cayley-Adam")]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def test_a_parametrization_is_computed_once_for_a_batch(monkeypatch):
    calls = []
    compute = torch.linalg.matrix_exp
    monkeypatch.setattr(torch, "matrix_exp", lambda x: calls.append(1) or compute(x))
    model = Recurrence(3, 4, 2, "matrix_exp", torch.float32, torch.Generator().manual_seed(0))
    calls.clear()
    model(torch.randn(20, 2, 3), 5)
    assert len(calls) == 1


def test_the_table_of_times_has_a_column_for_each_contender(monkeypatch, tmp_path):
    sizes = EXPERIMENT.scales["tiny"].sizes
    monkeypatch.setitem(EXPERIMENT.scales, "laptop", EXPERIMENT.scales["tiny"])
    found = timing.figures(seconds=0.0, sizes=((8, 3),))
    assert found["rows"][0]["batch"] == sizes["batch"]
    lines = timing.table(found).splitlines()
    assert lines[0].count("|") == lines[2].count("|") == len(found["rows"][0]["steps"]) + 2
    assert "ms (1.00)" in lines[2]
    timing.draw(found, tmp_path / "times.png")
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
