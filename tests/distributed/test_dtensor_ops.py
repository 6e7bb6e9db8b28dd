"""orthogonalize_, project_, distance and the rest of what one does to parameters outside of a step, on DTensors."""

import pytest
import torch
from torch.distributed.tensor import DTensor, Partial

import orthoptim as oo
from tests.distributed.cases import FOUR, Case, mesh_of, place, start, target


def points(rank, case):
    raw = target(case, 0, torch.float64)
    how = {"view": case.view, "side": case.side}
    placed, plain = place(raw, case), raw.clone()
    far = float((oo.distance(placed, **how) - oo.distance(plain, **how)).abs().max())
    before = oo.is_orthogonal(placed, **how)
    oo.project_(placed, **how)
    oo.project_(plain, **how)
    projected = float((placed.full_tensor() - plain).abs().max())
    orthogonal = oo.is_orthogonal(placed, **how)
    # by seeds of their own: the first rank's counts
    oo.orthogonalize_(placed, **how, init="random", generator=torch.Generator().manual_seed(rank))
    oo.orthogonalize_(plain, **how, init="random", generator=torch.Generator().manual_seed(0))
    drawn = torch.equal(placed.full_tensor(), plain)
    return (
        far,
        before,
        projected,
        orthogonal,
        drawn,
        oo.distance(placed, **how).shape == oo.distance(plain, **how).shape,
    )


@pytest.mark.parametrize("case", FOUR, ids=Case.name)
def test_points_of_every_placement(four, case):
    for far, before, projected, orthogonal, drawn, same_shape in four.run(points, case):
        assert far < 1e-10
        assert not before
        assert projected < 1e-12
        assert orthogonal
        assert drawn
        assert same_shape


def not_finite(rank):
    case = Case((6, 8), (4,), "0")
    x = place(target(case, 0, torch.float32), case)
    if rank == 2:
        x.to_local()[0, 0] = torch.inf
    oo.project_(x)


def test_what_is_not_finite_on_one_rank_is_refused_on_all(four):
    answers = four.attempt(not_finite)
    assert [message for _, (message, _) in answers] == ["ValueError: cannot project a tensor that is not finite"] * 4


def pending_sum(rank):
    oo.distance(DTensor.from_local(torch.eye(4) / 4, mesh_of((4,)), [Partial()]))


def test_a_pending_sum_is_refused(four):
    for done, answer in four.attempt(pending_sum):
        assert not done
        assert "a parameter that is a pending sum cannot be orthogonal" in answer[0]


def repaired(rank):
    """A parameter that is a little off is moved to the nearest point, and back by load_state_dict."""
    case = Case((6, 40), (4,), "1")
    exact = start(case, 0, torch.float64)
    param = torch.nn.Parameter(place(exact * 1.00005, case))
    opt = oo.POGO([param], lr=0.1)
    moved = float((param.detach().full_tensor() - exact).abs().max())
    opt.load_state_dict(opt.state_dict())
    back = float((param.detach().full_tensor() - exact * 1.00005).abs().max())
    return moved, back


def test_construction_repairs_and_takes_it_back(four):
    for moved, back in four.run(repaired):
        assert moved < 1e-12
        assert back == 0


def thawed(rank):
    case = Case((4, 40), (4,), "1")
    params = [torch.nn.Parameter(place(start(case, i, torch.float64), case)) for i in range(2)]
    params[1].requires_grad_(False)
    opt = oo.POGO(params, lr=0.1)
    params[0].grad = place(target(case, 0, torch.float64), case)
    opt.step()
    before = [plan.matrices for plan in opt.plan()]
    params[1].requires_grad_(True)
    params[1].grad = place(target(case, 1, torch.float64), case)
    opt.step()
    return before, [plan.matrices for plan in opt.plan()], [int(opt.state[p]["num_updates"]) for p in params]


def test_frozen_parameters_are_left_out_until_they_are_thawed(four):
    for before, after, taken in four.run(thawed):
        assert (before, after, taken) == ([1], [2], [2, 1])


def plans(rank):
    params = [torch.nn.Parameter(place(start(case, i, torch.float32), case)) for i, case in enumerate(FOUR)]
    found = []
    for case, param in zip(FOUR, params, strict=True):
        opt = oo.POGO([param], lr=0.1, view=case.view, side=case.side)
        found.append([(plan.strategy, plan.form) for plan in opt.plan()])
    return found


def test_the_plan_shows_the_strategy(four):
    for found in four.run(plans):
        for case, mine in zip(FOUR, found, strict=True):
            if mine:  # not where a rank has no part of the batch
                assert mine[0][0] == case.strategy
                assert case.strategy not in ("two-phase", "exchange") or mine[0][1] == "direct-p"


def wrapped(rank):
    case = Case((4, 40), (4,), "1")
    placed = torch.nn.Parameter(place(start(case, 0, torch.float64), case))
    plain = torch.nn.Parameter(start(case, 0, torch.float64))
    for param, goal in ((placed, place(target(case, 0, torch.float64), case)), (plain, target(case, 0, torch.float64))):
        opt = oo.wrap(torch.optim.NAdam([param], lr=0.05), [param])
        for _ in range(5):
            param.grad = goal.clone()
            opt.step()
    return float((placed.detach().full_tensor() - plain.detach()).abs().max())


def test_wrap(four):
    assert max(four.run(wrapped)) < 1e-12
