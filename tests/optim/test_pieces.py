"""Every method that steps columns takes the same step in pieces as on whole matrices."""

import pytest
import torch

from orthoptim.base import Base
from orthoptim.stiefel import Direction
from tests.conformance.methods import COMPILED, METHODS, point
from tests.pieces import in_pieces
from tests.strategies import gaussian

OPTIMIZERS = {name: make([point(2, 4)]) for name, make in METHODS.items()}
STEPPING_COLUMNS = [name for name, opt in OPTIMIZERS.items() if opt.steps_columns(opt.param_groups[0])]


def arguments(name, x):
    group = OPTIMIZERS[name].param_groups[0]
    return torch.tensor(group["lr"], dtype=x.real.dtype), {}, torch.ones(len(x)), group


def test_these_step_columns():
    others = {"rgd", "rsdm", "rsdm-permutation", "landing", "slpg-bb"}  # QR, draws, relative gradients, buffers
    others |= {"rgd-cayley", "rgd-cayley-iterative"}  # n×n systems
    assert set(STEPPING_COLUMNS) == set(OPTIMIZERS) - others


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", STEPPING_COLUMNS)
def test_pieces_together_take_the_step_of_the_whole(name, scaled, dtype):
    """Also from far away, from where there is no full rank, and along what is not finite."""
    x, g = point(6, 3, 7, dtype=dtype).detach(), gaussian((6, 3, 7), dtype, 1)
    x[1] *= 3
    x[2, 1] = x[2, 0]
    g[3, 0, -1] = torch.nan
    g[4] *= 1e5
    scale = torch.linspace(0.1, 1, 6, dtype=x.real.dtype) if scaled else None
    method, common = type(OPTIMIZERS[name]), arguments(name, x)
    normalized = Base.named(common[-1]["base"]).normalized
    pieces = in_pieces(
        lambda x, direction: method.update(x, direction, *common), x.clone(), g, scale, normalized=normalized
    )
    if scaled:
        g = g * scale[:, None, None]
    (whole,) = in_pieces(lambda x, direction: method.update(x, direction, *common), x.clone(), g, None, [7], normalized)
    new = torch.cat([piece.x for piece in pieces], -1)
    torch.testing.assert_close(new, whole.x, rtol=1e-8, atol=1e-10, equal_nan=True)
    finite = torch.isfinite(new).all(-1).all(-1)
    assert not finite[3]
    for piece in pieces:
        for name in ("clipped", "rescued"):
            flags = getattr(piece, name)
            assert flags is getattr(whole, name) is None or torch.equal(flags[finite], getattr(whole, name)[finite])
        if piece.finiteness_probe is not None:
            assert torch.equal(torch.isfinite(piece.finiteness_probe), finite)
            assert torch.equal(piece.finiteness_probe[finite], pieces[0].finiteness_probe[finite])
    fast = method.update_whole(x.clone(), Direction(g, normalized=normalized), *common)
    torch.testing.assert_close(fast.x[[0, 5]], whole.x[[0, 5]], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in COMPILED])
def test_an_update_is_one_graph(name):
    """A compiler traces the generators, without a break; a whole step of the others is traced by the contract."""
    param = point(3, 4, 6)
    opt = METHODS[name]([param])
    param.grad = torch.ones_like(param)
    opt.step()
    state = {key: value.detach().clone() for key, value in opt.state[param].items()}
    x, g, group = param.detach().clone(), torch.randn(3, 4, 6), opt.param_groups[0]

    def update(x, g, lr, t):
        return type(opt).update_whole(x, Direction(g), lr, state, t, group).x

    torch._dynamo.reset()
    lr, t = torch.tensor(group["lr"]), torch.full((3,), 2.0)
    compiled = torch.compile(update, fullgraph=True, backend="eager")(x.clone(), g, lr, t)
    torch.testing.assert_close(compiled, update(x.clone(), g, lr, t), rtol=0, atol=1e-5)
