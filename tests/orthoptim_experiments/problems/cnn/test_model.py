"""The convolutional network: its sizes, its whitening layer."""

import pytest
import torch
from torch.nn import functional

import orthoptim as oo
from orthoptim.views import View
from orthoptim_experiments.problems.cnn.model import ConvNet
from orthoptim_experiments.problems.cnn.training import CONVOLUTIONS
from orthoptim_experiments.problems.datasets import normalize


@pytest.fixture
def paper_size():
    with torch.device("meta"):
        return ConvNet()


def shapes(model, view):
    (group,) = oo.param_groups(model, {CONVOLUTIONS: view}, rest=None)
    return [part[:3] for param in group["params"] for part in View(view).parts(param.shape)]


def test_filters_of_the_paper(paper_size):
    wide = [(64, 216), (64, 576), (256, 576), (256, 2304), (256, 2304), (256, 2304)]
    assert [(p, n) for _, p, n in shapes(paper_size, "filters")] == wide


def test_kernels_of_the_paper(paper_size):
    found = shapes(paper_size, "kernels")
    assert {(p, n) for _, p, n in found} == {(3, 3)}
    assert sum(torch.Size(batch).numel() for batch, _, _ in found) == 218_624


def test_what_is_trained(paper_size):
    trained = {name: param.numel() for name, param in paper_size.named_parameters() if param.requires_grad}
    biases = sum(size for name, size in trained.items() if "norm" in name)
    assert biases == 2 * (64 + 256 + 256)
    assert trained["whiten.bias"] == 24
    assert trained["head.weight"] == 2560
    assert sum(trained.values()) == 9 * 218_624 + biases + 24 + 2560


def test_normalisation_has_no_scale_to_train():
    norms = [module for module in ConvNet((4, 4, 4)).modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert len(norms) == 6
    for norm in norms:
        assert not norm.weight.requires_grad
        assert norm.bias.requires_grad
        assert bool((norm.weight == 1).all())
        assert (norm.momentum, norm.eps) == (0.4, 1e-12)


def test_the_whitening_layer_whitens(images):
    pixels = normalize(images.train.pixels[:1000], images.mean, images.std)
    net = ConvNet((4, 4, 4))
    net.whiten_by_(pixels)
    whitened = functional.conv2d(pixels, net.whiten.weight).transpose(0, 1).flatten(1).double()
    assert torch.equal(whitened[:12], -whitened[12:])
    moments = whitened[:12] @ whitened[:12].T / whitened.shape[1]
    patches = functional.unfold(pixels.double(), 2).transpose(1, 2).flatten(0, 1)
    variances = torch.linalg.eigvalsh(patches.T @ patches / len(patches)).clamp(min=0)
    torch.testing.assert_close(moments, torch.diag(variances / (variances + 5e-4)), atol=1e-3, rtol=0)


def test_without_eps_whitening_is_complete():
    pixels = torch.randn(200, 3, 16, 16)
    pixels[:, 1] += 0.9 * pixels[:, 0]
    net = ConvNet((4, 4, 4))
    net.whiten_by_(pixels, eps=0.0)
    whitened = functional.conv2d(pixels, net.whiten.weight)[:, :12].transpose(0, 1).flatten(1)
    torch.testing.assert_close(whitened @ whitened.T / whitened.shape[1], torch.eye(12), atol=1e-4, rtol=0)


def test_layers_start_as_the_identity_where_they_can():
    net = ConvNet((8, 8, 8)).groups[0]
    x = torch.randn(2, 8, 6, 6)
    torch.testing.assert_close(net.conv2(x), x)


def test_the_order_of_layers():
    """Against the definition, layer by layer."""
    net = ConvNet((4, 6, 8)).eval()
    x = images = torch.randn(3, 3, 32, 32)
    x = functional.gelu(functional.conv2d(x, net.whiten.weight, net.whiten.bias))
    for group in net.groups[:3]:
        x = functional.conv2d(x, group.conv1.weight, padding=1)
        x = functional.gelu(group.norm1(functional.max_pool2d(x, 2)))
        x = functional.gelu(group.norm2(functional.conv2d(x, group.conv2.weight, padding=1)))
    x = functional.max_pool2d(x, 3).flatten(1)
    assert x.shape == (3, 8)
    torch.testing.assert_close(net(images), x @ net.head.weight.T / 8)
