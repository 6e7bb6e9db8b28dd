"""The worked examples, beside what conformance and the distributed tests run them through."""

import inspect
from pathlib import Path

import pytest
import torch

import orthoptim as oo
from tests.conformance.methods import clones, point, set_gradients, steps
from tests.worked.base import AdaGradNorm
from tests.worked.method import LeapAndPolish
from tests.worked.view import make_attention, make_optimizer


@pytest.mark.parametrize(("name", "most"), [("base", 30), ("method", 60), ("view", 20)])
def test_an_extension_is_short(name, most):
    assert len((Path(__file__).parent / f"{name}.py").read_text().splitlines()) < most


def test_a_base_of_ones_own_takes_the_directions_of_its_formula():
    param, x = point(2, 4, 6, dtype=torch.float64), point(2, 4, 6, dtype=torch.float64).detach()
    opt = oo.RGD([param], 0.1, base=AdaGradNorm(momentum=0.5))
    buffer, total = torch.zeros_like(x), torch.zeros(2, dtype=torch.float64)
    for t in range(5):
        set_gradients([param], t)
        buffer, total = 0.5 * buffer + param.grad, total + torch.linalg.matrix_norm(param.grad) ** 2
        g = buffer / total.sqrt()[:, None, None]
        d = g - 0.5 * (g @ x.mT + x @ g.mT) @ x
        x = oo.stiefel.row_qr(x - 0.1 * d)
        opt.step()
        torch.testing.assert_close(param.detach(), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [oo.POGO, LeapAndPolish])
def test_a_base_of_ones_own_is_compiled_entry_by_entry_and_as_a_whole(make):
    params = [point(40, 3, 3), point(2, 6, 6, seed=2)]
    others = clones(params)
    opt, eager = make(params, 0.1, AdaGradNorm(), compile=True), make(others, 0.1, AdaGradNorm())
    steps(opt, params, 4)
    steps(eager, others, 4)
    for one, two in zip(params, others, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=2e-6)
        for name in ("momentum_buffer", "sum_of_squares"):
            torch.testing.assert_close(opt.state[one][name], eager.state[two][name])


def test_a_method_of_ones_own_descends_and_stays_on_the_manifold():
    target = point(4, 6, seed=1).detach()
    param = point(4, 6)
    opt = LeapAndPolish([param], 0.5, polish=3)
    losses = []
    for _ in range(100):
        loss = (param - target).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 1e-3 * losses[0]
    assert oo.distance(param) < 1e-5
    assert "polish: the number of Newton–Schulz steps.\n    view: how" in inspect.getdoc(LeapAndPolish)


def train(attention, opt, steps):
    for t in steps:
        opt.zero_grad()
        x = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(t))
        attention(x, x, x)[0].square().sin().mean().backward()
        opt.step()


def test_a_view_of_ones_own_keeps_every_head_orthogonal_and_resumes(tmp_path):
    attention = make_attention()
    opt = make_optimizer(attention)
    train(attention, opt, range(5))
    query_of_head_2 = attention.in_proj_weight[4 * 2 : 4 * 3]
    torch.testing.assert_close(query_of_head_2 @ query_of_head_2.T, torch.eye(4), rtol=0, atol=1e-4)
    output_of_head_2 = attention.out_proj.weight[:, 4 * 2 : 4 * 3]
    torch.testing.assert_close(output_of_head_2.T @ output_of_head_2, torch.eye(4), rtol=0, atol=1e-4)
    assert [row.matrices for row in opt.drift()] == [12, 4]
    torch.save({"model": attention.state_dict(), "optimizer": opt.state_dict()}, tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    other = make_attention()
    other.load_state_dict(saved["model"])
    resumed = make_optimizer(other)
    resumed.load_state_dict(saved["optimizer"])
    for model, optimizer in ((attention, opt), (other, resumed)):
        train(model, optimizer, range(5, 8))
    assert all(torch.equal(a, b) for a, b in zip(attention.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    "functions",
    [{}, {"direction": None}, {"whole_matrix": True}, {"whole_matrix": True, "advance": None}],
    ids=lambda functions: ", ".join(functions) or "nothing",
)
def test_a_base_says_whether_it_needs_whole_matrices(functions):
    with pytest.raises(TypeError, match="Halfway must define advance; or direction, and set whole_matrix = True"):
        type("Halfway", (oo.Base,), {"name": "halfway", **functions})
    assert "halfway" not in {base.name for base in oo.Base.all()}
