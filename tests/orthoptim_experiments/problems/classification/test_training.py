"""Training of both networks with every method: it learns, stays feasible, and is resumed exactly."""

import io

import pytest
import torch
from torch import nn
from torch.nn import functional

from orthoptim_experiments.harness import methods
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.methods import PAPER
from orthoptim_experiments.problems.cnn import experiment as cnn
from orthoptim_experiments.problems.vit import experiment as vit

SIZES = {
    "cnn": {"train_images": 240, "test_images": 100, "widths": [8, 8, 8], "batch_size": 60, "epochs": 3},
    "vit": {"train_images": 192, "test_images": 50, "epochs": 3},
}

# SLPG has no safeguard, and with the paper's learning rate it diverges on so small a network
SMALLER = {("filters", "SLPG"): {"lr": 1e-4}}

COMPARED = (*PAPER, "POGO-strict", "Adam")
TABLES = {**cnn.OPTIONS, "vit": vit.OPTIONS}
CASES = [(variant, method) for variant, table in TABLES.items() for method in COMPARED if method in table]
PEERS = [("filters", "torch-orthogonal"), ("kernels", "geoopt"), ("filters", "geotorch"), ("kernels", "geotorch")]
CASES += [(variant, method) for variant, method in PEERS if methods.find(method).installed]

# steps of length ξ ≤ 0.05 leave a distance of at most ¾ξ⁴ = 5e-6
SHORT = {"lr": 0.05, "base": "VAdam"}

# the largest distance/√p at the end of a training
FEASIBLE = {"POGO": 1e-5, "RGD": 1e-5, "RSDM": 1e-5, "SLPG": 1e-3, "Landing": 0.5, "LandingPC": 0.5}
FEASIBLE |= dict.fromkeys(("POGO-strict", "geoopt", "geotorch", "torch-orthogonal"), 1e-5)


def make(images, variant, method, options=None, seed=0, **sizes):
    """A training as the runner makes it: variants of the CNN, or "vit"."""
    name = "vit" if variant == "vit" else "cnn"
    experiment = vit.ViT() if name == "vit" else cnn.CNN()
    config = configuration(experiment, "tiny", variant=variant) | {"dataset": images.name} | SIZES[name] | sizes
    options = options or SMALLER.get((variant, method)) or experiment.methods(config)[method]
    training = experiment.problem(config, method, seed)
    training.begin(methods.find(method).build(training.parameters(), options))
    return training


def advance(training, steps):
    for _ in range(steps):
        training.advance()
    return training


def weights(training):
    return {name: tensor.clone() for name, tensor in training.model.state_dict().items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize(("constraint", "method"), CASES)
def test_it_learns_and_stays_feasible(images, constraint, method):
    training = make(images, constraint, method)
    first = advance(training, training.loader.steps_per_epoch).evaluate()
    assert training.outcome() is None
    advance(training, training.budget - training.step)
    assert training.outcome().status == "budget"
    last = training.evaluate()
    assert last["train_loss"] < first["train_loss"]
    assert last["epoch"] == 3
    assert 0 < last["optimizer_share"] < 1
    if method == "Adam":
        assert "distance" not in last
    else:
        assert last["distance"] <= last["max_distance"] <= FEASIBLE[method]


@pytest.mark.parametrize(
    ("constraint", "method"),
    [("filters", "POGO"), ("filters", "RSDM"), ("kernels", "LandingPC"), ("none", "Adam"), ("vit", "POGO")],
)
def test_resuming_is_exact(images, constraint, method):
    straight = advance(make(images, constraint, method), 3)
    saved = io.BytesIO()
    torch.save(straight.state_dict(), saved)
    advance(straight, 4)
    saved.seek(0)
    resumed = make(images, constraint, method)
    resumed.load_state_dict(torch.load(saved, weights_only=True))
    advance(resumed, 4)
    assert_equal(weights(straight), weights(resumed))
    one, other = straight.evaluate(), resumed.evaluate()
    for name in ("loss", "accuracy", "train_loss", "epoch", *(("distance",) if method != "Adam" else ())):
        assert one[name] == other[name]


@pytest.mark.parametrize("constraint", ["filters", "vit"])
def test_neither_evaluation_nor_the_global_generator_changes_the_training(images, constraint):
    plain = advance(make(images, constraint, "POGO"), 4)
    watched = make(images, constraint, "POGO")
    for _ in range(4):
        torch.rand(7)
        watched.evaluate()
        watched.advance()
    assert_equal(weights(plain), weights(watched))


def test_training_leaves_the_global_generator_alone(images):
    torch.manual_seed(3)
    advance(make(images, "vit", "RSDM"), 2).evaluate()
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))


def test_seeds_differ(images):
    one, other = (weights(make(images, "kernels", "POGO", seed=seed)) for seed in (0, 1))
    name = "groups.0.conv1.weight"
    assert not torch.equal(one[name], other[name])


@pytest.mark.parametrize("constraint", ["filters", "kernels", "vit"])
def test_mixed_precision_keeps_weights_feasible_in_float32(images, constraint):
    mixed, plain = (advance(make(images, constraint, "POGO", SHORT, amp=amp), 5) for amp in (True, False))
    assert {param.dtype for param in mixed.model.parameters()} == {torch.float32}
    record = mixed.evaluate()
    assert record["max_distance"] < 1e-5
    name = next(name for name, param in mixed.model.named_parameters() if param.ndim > 1 and "whiten" not in name)
    assert not torch.equal(weights(mixed)[name], weights(plain)[name])  # 16 bits were at work


def test_distance_is_that_of_all_matrices_over_the_root_of_p(images):
    training = make(images, "filters", "POGO")
    with torch.no_grad():
        training.model.get_parameter("groups.0.conv1.weight").mul_(2)  # XXᵀ − I = 3I, of norm 3√p
    record = training.evaluate()
    assert record["max_distance"] == pytest.approx(3, rel=1e-5)
    assert record["distance"] == pytest.approx(3 / 6, rel=1e-4)


def test_learning_rates_fall_to_zero_and_the_whitening_bias_is_frozen(images):
    training = make(images, "kernels", "POGO", epochs=5)
    rates, biases = [], []
    while training.outcome() is None:
        training.advance()
        rates.append([group["lr"] for optimizer in training.optimizers for group in optimizer.param_groups])
        biases.append(training.whitening_bias.detach().clone())
    convolutions, whitening, norms, head = zip(*rates, strict=True)
    left = torch.linspace(1, 0, training.budget + 1)[:-1]
    for found, start in ((convolutions, 0.5), (norms, 0.053), (head, 0.67)):
        assert list(found) == pytest.approx((start * left).tolist())
    assert list(whitening[:12]) == pytest.approx((0.053 * torch.linspace(1, 0, 13)[:-1]).tolist())
    assert not torch.equal(biases[10], biases[11])
    assert all(torch.equal(bias, biases[11]) for bias in biases[12:])


def test_a_loss_that_is_not_finite_ends_the_training(images):
    training = advance(make(images, "filters", "POGO"), 1)
    with torch.no_grad():
        training.model.head.weight.fill_(torch.nan)
    assert advance(training, 1).outcome().status == "diverged"


@pytest.mark.parametrize(("evaluations", "due"), [(1, [0, 4, 8]), (2, [0, 2, 4, 6, 8]), (9, list(range(9)))])
def test_evaluations_of_an_epoch(images, evaluations, due):
    training = make(images, "none", "Adam", evaluations=evaluations, epochs=2)
    found = []
    for step in range(training.budget + 1):
        training.step = step
        found += [step] * training.due()
    assert found == due


def test_what_is_frozen_stays(images):
    training = make(images, "filters", "POGO")
    before = weights(training)
    after = weights(advance(training, 3))
    frozen = {name for name in before if name == "whiten.weight" or (".norm" in name and name.endswith(".weight"))}
    assert len(frozen) == 7
    assert_equal({name: before[name] for name in frozen}, {name: after[name] for name in frozen})


def test_dirac_initialisation_is_kept_where_filters_are_orthonormal(images):
    training = make(images, "filters", "POGO")
    square = training.model.get_parameter("groups.1.conv2.weight")
    dirac = nn.init.dirac_(torch.empty_like(square))
    torch.testing.assert_close(square.detach(), dirac, atol=1e-6, rtol=0)


def test_test_time_augmentation(images):
    class Corner(nn.Module):
        def forward(self, x):
            return x[:, :1, 0, 0]

    training = make(images, "none", "Adam")
    training.model = Corner()
    x = torch.randn(4, 3, 6, 6)
    padded = functional.pad(x, (1, 1, 1, 1), mode="reflect")[:, :1]
    plain = (padded[..., 1, 1] + padded[..., 1, -2]) / 2
    up_left = (padded[..., 0, 0] + padded[..., 0, -3]) / 2
    down_right = (padded[..., 2, 2] + padded[..., 2, -1]) / 2
    torch.testing.assert_close(training.augmented(x), plain / 2 + up_left / 4 + down_right / 4)


@pytest.mark.parametrize("constraint", ["filters", "kernels"])
def test_a_step_at_the_width_of_the_paper(images, constraint):
    sizes = {"widths": cnn.PAPER_SIZES["widths"], "train_images": 40, "test_images": 10, "batch_size": 20}
    training = make(images, constraint, "POGO", SHORT, **sizes)
    record = advance(training, 2).evaluate()
    assert record["max_distance"] < 1e-5
    matrices = training.optimizers[0].drift()[0].matrices
    assert matrices == (218_624 if constraint == "kernels" else 6)
