"""Convolutions: what a view constrains is what its name says, or is refused with what it would be."""

import pytest
import torch
from torch import nn

import orthoptim as oo

CALLS = {
    "param_groups": lambda layer, patterns: oo.param_groups(layer, patterns, rest=None),
    "orthogonalize_": lambda layer, patterns: oo.orthogonalize_(layer, patterns),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@every_call
@pytest.mark.parametrize("view", ["kernels", "matrix"])
@pytest.mark.parametrize("layer", [nn.Conv2d(4, 8, 1), nn.ConvTranspose2d(4, 8, 1), nn.Conv2d(4, 4, 1, groups=4)])
def test_1x1_kernels_are_refused(call, view, layer):
    before = layer.weight.detach().clone()
    with pytest.raises(
        ValueError, match=r"parameter 'weight' .*1×1: view '\w+' would keep every single weight at modulus 1"
    ):
        call(layer, {"weight": view})
    assert torch.equal(layer.weight, before)


@every_call
def test_filters_of_1x1_kernels_are_a_matrix(call):
    layer = nn.Conv2d(8, 4, 1)
    call(layer, {"weight": "filters"})
    oo.orthogonalize_(layer, {"weight": "filters"})
    assert oo.is_orthogonal(layer.weight.flatten(1))


@every_call
@pytest.mark.parametrize("layer", [nn.Conv2d(16, 16, 3, groups=16), nn.Conv1d(8, 32, 3, groups=4)])
def test_filters_of_too_many_groups_are_refused(call, layer):
    filters, entries = layer.weight.shape[0], layer.weight[0].numel()
    message = rf"'weight' is the weight of a Conv.d with groups=.*, {filters} filters of {entries} numbers"
    with pytest.raises(ValueError, match=message):
        call(layer, {"weight": "filters"})
    call(layer, {"weight": {"view": "filters", "side": "columns"}})
    with pytest.raises(ValueError, match="too many to be orthonormal"):
        call(layer, {"weight": {"view": "filters", "side": "rows"}})


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(32, 16, 3, groups=2)])
def test_few_filters_of_groups_are_orthonormal(layer):
    oo.orthogonalize_(layer, {"weight": "filters"})
    for filters in layer.weight.flatten(1).chunk(layer.groups):
        torch.testing.assert_close(filters @ filters.T, torch.eye(len(filters)), rtol=0, atol=1e-5)


@every_call
@pytest.mark.parametrize(
    ("layer", "side"),
    [
        (nn.ConvTranspose2d(4, 8, 3), "rows"),
        (nn.ConvTranspose1d(16, 2, 3), "columns"),
        (nn.ConvTranspose3d(2, 4, 2), "rows"),
    ],
)
def test_filters_of_transposed_convolutions_need_a_side(call, layer, side):
    message = rf"'weight' is the weight of a ConvTranspose.d, whose first dim is its {layer.in_channels} input channels"
    with pytest.raises(ValueError, match=rf"{message}.*side='{side}'"):
        call(layer, {"weight": "filters"})
    call(layer, {"weight": {"view": "filters", "side": side}})


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(8, 8, 3, groups=8), nn.ConvTranspose2d(4, 8, 3), nn.Conv2d(4, 8, 3, groups=2)]
)
def test_kernels_of_every_convolution_are_orthogonal(layer):
    oo.orthogonalize_(layer, {"weight": "kernels"})
    torch.testing.assert_close(layer.weight @ layer.weight.mT, torch.eye(3).expand_as(layer.weight), rtol=0, atol=1e-5)


def test_the_side_of_the_call_counts_where_the_pattern_has_none():
    layer = nn.ConvTranspose2d(4, 8, 3)
    oo.param_groups(layer, {"weight": "filters"}, side="rows", rest=None)
    oo.orthogonalize_(layer, {"weight": "filters"}, side="rows")
    with pytest.raises(ValueError, match="input channels"):
        oo.param_groups(layer, {"weight": {}}, view="filters", rest=None)


def test_wide_ordinary_convolutions_take_the_shorter_side():
    layer = oo.orthogonalize_(nn.Conv2d(3, 64, 3), {"weight": "filters"})
    columns = layer.weight.flatten(1)
    torch.testing.assert_close(columns.T @ columns, torch.eye(27), rtol=0, atol=1e-5)


def test_a_parametrized_convolution_is_not_computed():
    layer = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3))
    oo.param_groups(layer, {"parametrizations.weight.original1": "kernels"}, rest=None)
