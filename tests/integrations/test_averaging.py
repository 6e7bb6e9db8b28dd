"""Averages of weights on the manifold."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import orthoptim as oo

ORTHOGONAL = {"conv.weight": "kernels", "wide.weight": "matrix", "unitary": "matrix"}


def build():
    torch.manual_seed(0)
    model = nn.Module()
    model.conv, model.wide, model.free = nn.Conv2d(2, 3, 3), nn.Linear(6, 4), nn.Linear(4, 4)
    model.norm = nn.BatchNorm1d(4)
    model.unitary = nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))
    return oo.orthogonalize_(model, ORTHOGONAL)


def move(model):
    oo.orthogonalize_(model, ORTHOGONAL, init="random")
    with torch.no_grad():
        model.free.weight.normal_()
        model.norm.running_mean.normal_()
        model.norm.num_batches_tracked += 1


@pytest.mark.parametrize("use_buffers", [False, True])
def test_the_average_is_the_projection_of_that_of_torch(use_buffers):
    model = build()
    ema = AveragedModel(model, multi_avg_fn=oo.ema_multi_avg_fn(model, ORTHOGONAL, 0.7), use_buffers=use_buffers)
    ema.update_parameters(model)
    start = {name: value.detach().clone() for name, value in ema.module.named_parameters()}
    move(model)
    ema.update_parameters(model)
    for name, value in ema.module.named_parameters():
        expected = 0.7 * start[name] + 0.3 * model.get_parameter(name).detach()
        if name in ORTHOGONAL:
            oo.project_(expected, view=ORTHOGONAL[name])
            assert oo.distance(value, view=ORTHOGONAL[name]).max() < 1e-5
        torch.testing.assert_close(value.detach(), expected, rtol=0, atol=1e-5)
    assert ema.module.norm.num_batches_tracked == 1


def test_torchs_average_leaves_the_manifold():
    model = build()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7))
    ema.update_parameters(model)
    move(model)
    ema.update_parameters(model)
    assert oo.distance(ema.module.wide.weight) > 0.1


def test_another_model_is_refused():
    model, other = build(), build()
    ema = AveragedModel(model, multi_avg_fn=oo.ema_multi_avg_fn(other, ORTHOGONAL))
    ema.update_parameters(model)
    with pytest.raises(ValueError, match=r"'conv\.weight' is not among those that are averaged"):
        ema.update_parameters(model)


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan")])
def test_a_decay_outside_of_its_range_is_refused(decay):
    with pytest.raises(ValueError, match="Invalid decay value"):
        oo.ema_multi_avg_fn(build(), ORTHOGONAL, decay)


def test_schedule_free_optimizers_are_refused():
    schedulefree = pytest.importorskip("schedulefree", reason="schedulefree is not installed: make test-integrations")
    model = build()
    opt = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="cannot wrap AdamWScheduleFree: its eval"):
        oo.wrap(opt, ORTHOGONAL, model=model)
