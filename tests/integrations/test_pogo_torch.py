"""A run of pogo-torch goes on with orthoptim where it was."""

import pytest
import torch
from torch import nn

import orthoptim as oo
from orthoptim.integrations.pogo_torch import convert_state_dict
from tests.integrations.needs import needs

pogo = needs("pogo")
pogo_base = needs("pogo.base")


def gradient(x, t):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(t), dtype=x.dtype)


def step(opt, param, t):
    param.grad = gradient(param.detach(), t)
    opt.step()


@pytest.mark.parametrize("name", ["sgd", "vadam"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_next_steps_are_those_that_pogo_torch_would_take(name, dtype):
    one = nn.Parameter(oo.orthogonalize_(torch.empty(3, 4, 6, dtype=dtype), init="random"))
    peer = pogo.POGO([one], pogo_base.SGD(momentum=0.5) if name == "sgd" else pogo_base.VectorAdam(), lr=0.05)
    for t in range(4):
        step(peer, one, t)
    two = nn.Parameter(one.detach().clone())
    # the values of the hyperparameters come with the checkpoint
    opt = oo.POGO([two], 1.0, oo.SGD(momentum=0.1) if name == "sgd" else oo.VAdam((0.5, 0.5)), landing="half")
    opt.load_state_dict(convert_state_dict(peer.state_dict(), opt))
    assert opt.param_groups[0]["lr"] == 0.05
    for t in range(4, 8):
        step(peer, one, t)
        step(opt, two, t)
    torch.testing.assert_close(two, one, rtol=0, atol=1e-10)


def test_another_base_is_refused():
    x = nn.Parameter(torch.eye(3)[None])
    peer = pogo.POGO([x], pogo_base.SGD(momentum=0.5), lr=0.05)
    step(peer, x, 0)
    opt = oo.POGO([nn.Parameter(torch.eye(3)[None])], 0.1, oo.VAdam())
    with pytest.raises(ValueError, match="group 0 of the pogo-torch state dict has no options of base 'vadam'"):
        convert_state_dict(peer.state_dict(), opt)


def test_other_groups_are_refused():
    x = nn.Parameter(torch.eye(3)[None])
    peer = pogo.POGO([x], pogo_base.SGD(), lr=0.05)
    opt = oo.POGO([nn.Parameter(torch.eye(3)), nn.Parameter(torch.eye(3))], 0.1, oo.SGD())
    with pytest.raises(ValueError, match="other param groups"):
        convert_state_dict(peer.state_dict(), opt)
