"""Orthogonal parameters of other libraries are taken over with their values."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm

import orthoptim as oo
from tests.integrations.needs import needs


def train_a_step(model, patterns):
    opt = oo.POGO(oo.param_groups(model, patterns, lr=0.1, rest={"lr": 1e-3}))
    model(torch.ones(2, model[0].in_features)).square().sum().backward()
    opt.step()
    return max(row.max_distance for row in opt.drift())


@pytest.mark.parametrize("orthogonal_map", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (6, 3)])
def test_parametrizations_of_torch(shape, orthogonal_map):
    columns, rows = shape
    model = nn.Sequential(orthogonal(nn.Linear(columns, rows), orthogonal_map=orthogonal_map), nn.Linear(rows, 2))
    x = torch.randn(5, columns)
    before = model(x).detach()
    assert oo.adopt_(model) == {"0.weight": "matrix"}
    assert torch.equal(model(x), before)
    assert type(model[0]) is nn.Linear
    assert train_a_step(model, {"0.weight": "matrix"}) < 1e-5


def test_parametrizations_of_geotorch():
    geotorch = needs("geotorch")
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6))
    geotorch.orthogonal(model[0], "weight")
    geotorch.orthogonal(model[1], "weight")
    geotorch.skew(model[2], "weight")
    x = torch.randn(5, 4)
    before = model(x).detach()
    patterns = oo.adopt_(model)
    assert patterns == {"0.weight": "matrix", "1.weight": "matrix"}  # not the skew one
    torch.testing.assert_close(model(x), before, rtol=0, atol=1e-6)
    assert train_a_step(model, patterns) < 1e-5


def test_manifold_parameters_of_geoopt():
    geoopt = needs("geoopt")
    model = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 6))
    manifold = geoopt.Stiefel()
    model[0].weight = geoopt.ManifoldParameter(manifold.projx(torch.randn(6, 3)), manifold=manifold)
    model[1].weight = geoopt.ManifoldParameter(torch.randn(6, 6), manifold=geoopt.Euclidean())
    x = torch.randn(5, 3)
    before = model(x).detach()
    patterns = oo.adopt_(model)
    assert patterns == {"0.weight": "matrix"}
    assert type(model[0].weight) is nn.Parameter
    assert torch.equal(model(x), before)
    assert train_a_step(model, patterns) < 1e-5


def test_other_parametrizations_are_left_alone():
    model = nn.Sequential(spectral_norm(nn.Linear(4, 4)))
    assert oo.adopt_(model) == {}
    assert nn.utils.parametrize.is_parametrized(model[0])


def test_one_of_several_parametrizations_is_refused_and_nothing_changes():
    model = nn.Sequential(orthogonal(nn.Linear(4, 4)), spectral_norm(orthogonal(nn.Linear(4, 4))))
    with pytest.raises(ValueError, match=r"'1\.weight' has several parametrizations \(_Orthogonal, _SpectralNorm\)"):
        oo.adopt_(model)
    assert nn.utils.parametrize.is_parametrized(model[0])


def test_names_with_brackets_are_matched_as_they_are():
    model = nn.Module()
    model.register_module("a[0]", orthogonal(nn.Linear(3, 3)))
    patterns = oo.adopt_(model)
    (group,) = oo.param_groups(model, patterns, lr=0.1, rest=None)
    assert group["param_names"] == ["a[0].weight"]


def test_a_tensor_is_no_module():
    with pytest.raises(TypeError, match="adopt_ takes a module, but got Tensor"):
        oo.adopt_(torch.eye(3))
