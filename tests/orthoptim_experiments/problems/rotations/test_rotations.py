"""The rotated language model, its rounding, and a run of the experiment."""

import pytest
import torch

import orthoptim as oo
from orthoptim_experiments.harness.claims import difference
from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.problems.rotations import text
from orthoptim_experiments.problems.rotations.experiment import LEARNED, RotationExperiment
from orthoptim_experiments.problems.rotations.model import LanguageModel, Rotations, Sizes, quantize
from orthoptim_experiments.problems.rotations.training import FIXED
from tests.orthoptim_experiments.helpers import begin, whole_and_resumed

EXPERIMENT = RotationExperiment()


@pytest.fixture
def _models(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("ORTHOPTIM_DATA", str(tmp_path_factory.getbasetemp() / "models"))


def test_rotations_change_nothing_without_rounding():
    torch.manual_seed(0)
    model = LanguageModel(Sizes(16, 2, 4, 24), 8).double()
    symbols = torch.randint(0, text.SYMBOLS, (3, 8))
    rotations = Rotations(
        oo.orthogonalize_(torch.empty(16, 16, dtype=torch.float64), init="random"),
        oo.orthogonalize_(torch.empty(2, 4, 4, 4, dtype=torch.float64), init="random"),
    )
    torch.testing.assert_close(model(symbols, rotations), model(symbols), rtol=0, atol=1e-11)
    assert not torch.allclose(model(symbols, rotations, 4), model(symbols, None, 4), atol=1e-3)


def test_quantize_rounds_each_row_to_fifteen_levels():
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rounded = quantize(x, 4)
    assert max(len(row.unique()) for row in rounded) <= 15
    largest = x.abs().amax(-1, keepdim=True)
    assert ((rounded - x).abs() <= largest / 14 * (1 + 1e-5)).all()
    torch.testing.assert_close(rounded.abs().amax(-1, keepdim=True), largest)
    (gradient,) = torch.autograd.grad(rounded.sum(), x)
    assert torch.isfinite(gradient).all()
    assert gradient.any()


def test_the_text_is_split_without_overlap():
    data = text.corpus()
    parts = text.split(data)
    assert len(data) > 300_000
    assert sum(map(len, parts)) == len(data)
    assert text.windows(parts[2], 7, 16).shape == (7, 17)


def test_a_sweep_sees_neither_the_test_text_nor_what_it_learns_from():
    reported, sweep = text.split(torch.arange(1000)), text.split(torch.arange(1000), validation=True)
    assert torch.equal(sweep.train, reported.train)
    assert torch.equal(torch.cat((sweep.calibration, sweep.test)), reported.calibration)
    assert EXPERIMENT.sweep_sizes({}) == {"validation": True}


@pytest.mark.usefixtures("_models")
@pytest.mark.parametrize("method", [*FIXED, *LEARNED])
def test_every_contender_runs_and_learners_move(method):
    problem = begin(EXPERIMENT, method)
    start = problem.stream.detach().clone()
    while problem.outcome() is None:
        problem.advance()
    values = problem.evaluate()
    assert torch.equal(problem.stream, start) == (method in FIXED)
    assert values["perplexity"] > 1
    assert values["max_distance"] < 0.1
    assert values["determinant"] == pytest.approx(1, abs=0.05)


@pytest.mark.usefixtures("_models")
def test_a_trial_resumes_to_the_same_bits():
    whole, resumed = whole_and_resumed(EXPERIMENT, "POGO", 4)
    assert torch.equal(whole.stream, resumed.stream)
    assert torch.equal(whole.values, resumed.values)


def test_paired_differences_have_students_interval():
    trials = []
    for seed, (one, two) in enumerate(((1.0, 2.0), (2.0, 3.5), (3.0, 3.0))):
        for method, value in (("a", one), ("b", two)):
            trial = Trial(method, seed, status="budget")
            trial.add({"step": 1, "time": 0.0, "perplexity": value})
            trials.append(trial)
    run = Run(path=None, id="", experiment="", config={}, environment={}, started="", trials=trials)
    found = difference(run, "a", "b", "perplexity")
    assert (found.mean, found.trials) == (pytest.approx(-2.5 / 3), 3)
    assert found.high - found.mean == pytest.approx(4.303 * 0.763763 / 3**0.5, rel=1e-3)
