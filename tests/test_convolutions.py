"""Convolutions: what a view constrains is what its name says, or is refused with what it would be."""

import re

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


LAYERS = [
    nn.Conv1d(8, 32, 3, groups=4),
    nn.Conv2d(16, 16, 3, groups=16),
    nn.Conv2d(32, 16, 3, groups=2),
    nn.Conv3d(4, 8, 2, groups=2),
    nn.ConvTranspose1d(16, 2, 3),
    nn.ConvTranspose2d(4, 8, 3, groups=2),
    nn.ConvTranspose3d(2, 4, 2),
]
every_layer = pytest.mark.parametrize("layer", LAYERS, ids=str)


def operators(layer):
    """What each output channel of a convolution reads of its input: a matrix for each group, by its definition.

    An output channel reads the input where the window meets it: through its filter, entry by entry.
    """
    weight = layer.weight.detach()
    matrices = []
    for group in range(layer.groups):
        inputs, outputs = (
            range(group * (c // layer.groups), (group + 1) * (c // layer.groups)) for c in channels(layer)
        )
        if isinstance(layer, nn.modules.conv._ConvTransposeNd):
            rows = [torch.cat([weight[i, o - outputs[0]].flatten() for i in inputs]) for o in outputs]
        else:
            rows = [weight[o].flatten() for o in outputs]
        matrices.append(torch.stack(rows))
    return matrices


def channels(layer):
    return layer.in_channels, layer.out_channels


@every_call
@every_layer
def test_a_view_of_groups_constrains_what_output_channels_read(call, layer):
    transposed = isinstance(layer, nn.modules.conv._ConvTransposeNd)
    view = oo.View("filters", groups=layer.groups, transposed=transposed)
    call(layer, {"weight": view})
    oo.orthogonalize_(layer, {"weight": view})
    for matrix in operators(layer):
        short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
        torch.testing.assert_close(short @ short.T, torch.eye(len(short)), rtol=0, atol=1e-5)


@every_call
@every_layer
def test_the_view_that_a_refusal_suggests_is_accepted(call, layer):
    try:
        call(layer, {"weight": "filters"})
    except ValueError as error:
        (suggested,) = re.findall(r"use (View\(.*?\)) for", str(error))
        call(layer, {"weight": eval(suggested, {"View": oo.View})})
    else:
        assert not isinstance(layer, nn.modules.conv._ConvTransposeNd)


@every_call
@pytest.mark.parametrize(
    ("layer", "view"),
    [
        (nn.Conv2d(8, 8, 3, groups=4), oo.View("filters", groups=2)),
        (nn.Conv2d(8, 8, 3), oo.View("filters", transposed=True)),
        (nn.ConvTranspose2d(8, 8, 3), oo.View("filters", groups=2)),
        (nn.ConvTranspose2d(8, 8, 3, groups=2), oo.View("filters", transposed=True)),
    ],
    ids=str,
)
def test_a_view_of_another_convolution_is_refused(call, layer, view):
    with pytest.raises(
        ValueError, match=r"'weight' is the weight of a Conv.* with groups=.*, which is not View.*: use "
    ):
        call(layer, {"weight": view})


@pytest.mark.parametrize("layer", [nn.Conv1d(4, 8, 3), nn.Conv3d(4, 8, 2), nn.Conv3d(4, 8, (1, 3, 3))], ids=str)
def test_kernels_of_other_dims_are_their_first_dim_against_the_rest(layer):
    oo.orthogonalize_(layer, {"weight": "kernels"})
    opt = oo.POGO([layer.weight], lr=0.1, view="kernels")
    layer(torch.randn(2, 4, *[5] * len(layer.kernel_size))).sin().sum().backward()
    opt.step()
    matrices = layer.weight.detach().reshape(32, layer.kernel_size[0], -1)
    short = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    identity = torch.eye(short.shape[1]).expand(32, -1, -1)
    torch.testing.assert_close(short @ short.mT, identity, rtol=0, atol=1e-3)


def test_1x1_kernels_of_other_dims_are_refused():
    for layer in (nn.Conv1d(4, 8, 1), nn.Conv3d(4, 8, 1)):
        with pytest.raises(ValueError, match="would keep every single weight at modulus 1"):
            oo.orthogonalize_(layer, {"weight": "kernels"})


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
