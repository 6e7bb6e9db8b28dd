"""The training of circuits: what is measured, how it ends, and that resuming is exact."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

import orthoptim as oo
from orthoptim_experiments.harness import runner
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.methods import find
from orthoptim_experiments.harness.records import ResultsError
from orthoptim_experiments.problems import EXPERIMENTS
from orthoptim_experiments.problems.circuits.experiment import OPTIONS
from orthoptim_experiments.problems.circuits.pictures import grid
from orthoptim_experiments.problems.circuits.training import CircuitTraining, split
from orthoptim_experiments.problems.datasets import load
from orthoptim_experiments.report import describe
from tests.orthoptim_experiments.helpers import Quiet, Raising

CIRCUITS = EXPERIMENTS["circuits"]
MEASURED_ANEW = ("time", "processor_time", "optimizer_time", "memory")
SMALL = {"train_images": 80, "test_images": 30, "batch_size": 25, "epochs": 2.0}  # 3 steps an epoch


def configured(**sizes):
    return configuration(CIRCUITS, "tiny", sizes=SMALL | sizes)


def trained(method="POGO", steps=0, seed=0, **sizes):
    problem = CircuitTraining(configured(**sizes), seed)
    problem.begin(find(method).build(problem.parameters(), OPTIONS[method]))
    for _ in range(steps):
        problem.advance()
    return problem


def run(out, config, names=("POGO",), watcher=None, **options):
    return runner.run(runner.Job(CIRCUITS, config, names, (0,), out, **options), watcher or Quiet())


def assert_same(one, other):
    assert [(t.method, t.status, t.message) for t in one.trials] == [
        (t.method, t.status, t.message) for t in other.trials
    ]
    for a, b in zip(one.trials, other.trials, strict=True):
        assert a.records.keys() == b.records.keys()
        for column in a.records.keys() - set(MEASURED_ANEW):
            assert a.records[column] == pytest.approx(b.records[column], rel=0, abs=0, nan_ok=True), column
        assert a.pictures == b.pictures


def test_the_split_loses_no_image_and_depends_on_the_seed_alone():
    images = load("digits8").train.first(200)
    train, validation = split(images, seed=3)
    assert (len(train.labels), len(validation.labels)) == (190, 10)

    def rows(*parts):
        return sorted(tuple(row) for part in parts for row in part.pixels.flatten(1).tolist())

    assert rows(train, validation) == rows(images)
    assert torch.equal(split(images, seed=3)[1].pixels, validation.pixels)
    assert not torch.equal(split(images, seed=4)[1].pixels, validation.pixels)


def test_bits_per_dimension_take_log_z_into_account():
    problem = trained("POGO-strict", steps=2)
    before = problem.evaluate()
    with torch.no_grad():
        problem.model.leaves.mul_(1.1)  # p is the same, but for Z
    problem.step += 1  # or what was measured would be returned
    after = problem.evaluate()
    assert before["log_z"] == pytest.approx(0, abs=1e-5)
    assert after["log_z"] == pytest.approx(2 * 64 * math.log(1.1), rel=1e-4)
    assert after["bpd"] == pytest.approx(before["bpd"], abs=1e-5)
    assert after["max_distance"] == pytest.approx(float(oo.distance(problem.model.leaves, side="rows").max()))
    assert after["max_distance"] > after["distance"] > before["max_distance"]


@pytest.mark.parametrize("method", ["POGO", "RGD", "LandingPC", "RSDM"])
def test_evaluating_and_drawing_change_nothing(method):
    plain, watched = trained(method, steps=2), trained(method, steps=2)
    watched.outcome()
    watched.evaluate()
    watched.pictures()
    torch.rand(3)
    for problem in (plain, watched):
        problem.advance()
        problem.advance()
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)


def test_training_lowers_bits_and_stays_normalised(tmp_path):
    found = run(tmp_path, configuration(CIRCUITS, "tiny", sizes={"epochs": 1.0}), ("POGO", "RGD"))
    for trial in found.trials:
        first, last = trial.records["bpd"]
        assert trial.status == "budget"
        assert last < 0.7 * first
        assert max(trial.records["abs_log_z"]) < 1e-4
        assert math.isnan(trial.records["test_bpd"][0])
        assert trial.records["test_bpd"][-1] == pytest.approx(last, abs=0.3)
        assert trial.records["train_bpd"][-1] == pytest.approx(last, abs=0.6)
    pictures = describe(found).attachments
    assert [picture.title for picture in pictures] == [
        "Samples, POGO",
        "In-paintings, POGO",
        "Samples, RGD",
        "In-paintings, RGD",
    ]


STALLED = ("POGO:lr=1e-9",)


# With no progress, the learning rate is halved and the training ends early; the cuts lie before, between and after.
@pytest.fixture(scope="module")
def stalled(tmp_path_factory):
    config = configured(epochs=30.0)
    return config, run(tmp_path_factory.mktemp("whole"), config, STALLED)


@pytest.mark.parametrize("at", [33, 34])
def test_a_training_that_was_cut_goes_on_exactly(tmp_path, stalled, at):
    config, whole = stalled
    trial = whole.trials[0]
    assert (trial.status, trial.message) == ("converged", "no better for 20 epochs")
    assert trial.records["epoch"][-1] == 21
    assert trial.records["lr"][9:13] == [1e-9, 1e-9, 5e-10, 5e-10]
    assert trial.pictures.keys() == {"samples", "inpaintings"}
    with pytest.raises(ResultsError):
        run(tmp_path / "cut", config, STALLED, Raising(at, ResultsError("stop")), checkpoint_every=0.0)
    watcher = Quiet()
    assert_same(run(tmp_path / "cut", config, STALLED, watcher), whole)
    assert watcher.begun == [(*STALLED, 0, at - 1)]


@pytest.mark.parametrize("method", ["POGO", "LandingPC"])
def test_a_learning_training_goes_on_exactly(tmp_path, method):
    config = configured(evaluations=3)
    whole = run(tmp_path / "whole", config, (method,))
    assert whole.trials[0].records["step"] == list(range(7))
    with pytest.raises(ResultsError):
        run(tmp_path / "cut", config, (method,), Raising(5, ResultsError("stop")), checkpoint_every=0.0)
    assert_same(run(tmp_path / "cut", config, (method,)), whole)


@pytest.mark.parametrize(
    ("factor", "message"), [(1e3, "had to be rescued"), (1e30, "a matrix is"), (math.nan, "the loss is")]
)
def test_what_is_no_model_any_more_has_diverged(factor, message):
    problem = trained(steps=2)
    assert problem.outcome() is None
    with torch.no_grad():
        problem.model.weights[-1].mul_(factor)
    problem.advance()  # to the end of an epoch
    assert problem.outcome().status == "diverged"
    assert message in problem.outcome().message


def test_a_diverged_training_draws_nothing(tmp_path):
    found = run(tmp_path, configured(), ("SLPG:lr=10000.0",))
    assert found.trials[0].status == "diverged"
    assert found.trials[0].pictures == {}
    assert describe(found).attachments == []


def test_a_grid_shows_each_image_in_its_place():
    images = torch.arange(6).view(2, 3, 1, 1).expand(2, 3, 8, 8) * 3
    sheet = np.asarray(Image.open(io.BytesIO(grid(images, states=17))))
    height, width = (side // count for side, count in zip(sheet.shape, (2, 3), strict=True))
    middles = sheet[height // 2 :: height, width // 2 :: width]
    assert middles.tolist() == [[0, 48, 96], [143, 191, 239]]


def test_double_precision():
    problem = CircuitTraining(configuration(CIRCUITS, "tiny", sizes=SMALL, dtype="float64"), 0)
    assert {param.dtype for param in problem.parameters()} == {torch.complex128}
