"""Heads, fused projections and gates as DTensors: cut between matrices nothing is sent, cut inside all is the same."""

import copy

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode

import orthoptim as oo
from orthoptim_experiments.bench.scale.tally import Tally
from tests.distributed.cases import Case, Setting, place, set_gradients, start, target, train
from tests.distributed.comparison import DEFAULT, HEAVY_BALL, TOLERANCE, differences, lengths
from tests.worked.view import make_attention, make_optimizer

GROUPED = oo.View(split=(8, 4, 4))
GROUPED_HEADS = oo.View(split=(8, 4, 4), heads=(4, 2, 2))
GATES = oo.View(split=4)
OUTPUT = oo.View(heads=4, dim=1)

BETWEEN = {
    2: [
        Case((16, 8), (2,), "0", GROUPED_HEADS),
        Case((12, 40), (2,), "0", oo.View(heads=6)),
        Case((24, 6), (2,), "0", GATES),
        Case((8, 12), (2,), "1", OUTPUT),
        Case((8, 3, 3, 3), (2,), "0", oo.View("filters", groups=4)),
        Case((8, 3, 3, 3), (2,), "0", oo.View("filters", groups=4, transposed=True)),
        Case((3, 16, 8), (2,), "0", oo.View(split=(8, 4, 4), dim=1)),  # between experts
    ],
    4: [
        Case((16, 8), (4,), "0", GROUPED_HEADS),
        Case((24, 6), (4,), "0", GATES),
        Case((8, 12), (4,), "1", OUTPUT),
        Case((6, 8), (4,), "0", oo.View(heads=3)),  # no head for the last rank
        Case((16, 8), (2, 2), "0 0", GROUPED_HEADS),
        Case((16, 8), (2, 2), "s0 0", GROUPED_HEADS),  # FSDP2 over tensor parallelism
        Case((16, 8), (2, 2), "r 0", GROUPED_HEADS),
        Case((4, 8, 12), (2, 2), "0 2", oo.View(heads=4, dim=2)),  # experts and heads
    ],
}
INSIDE = {
    2: [
        Case((16, 8), (2,), "0", GROUPED),
        Case((16, 8), (2,), "1", GROUPED),
        Case((12, 80), (2,), "0", oo.View(heads=3)),  # one head of three is cut
        Case((12, 80), (2,), "1", oo.View(heads=3)),
        Case((80, 12), (2,), "1", oo.View(heads=3, dim=1)),
        Case((24, 6), (2,), "1", GATES),
        Case((6, 4, 3, 3), (2,), "0", oo.View("filters", transposed=True)),
        Case((6, 4, 3, 3), (2,), "1", oo.View("filters", transposed=True, groups=2)),
        Case((6, 4, 3, 3), (2,), "2", oo.View("filters", groups=3)),
        Case((3, 16, 8), (2,), "1", oo.View(split=(8, 4, 4), dim=1)),
    ],
    4: [
        Case((16, 8), (4,), "0", GROUPED),  # 4 rows each: the first matrix is cut, the others are not
        Case((20, 6), (4,), "0", oo.View(split=(10, 6, 4))),  # 5 rows each
        Case((18, 6), (4,), "0", oo.View(split=3)),  # the gates of a GRU: 5, 5, 5 and 3 rows
        Case((24, 6), (2, 2), "0 1", GATES),  # between gates, and inside
        Case((12, 8), (4,), "0", oo.View(heads=2)),
        Case((8, 12), (4,), "1", oo.View(heads=2, dim=1)),
        Case((16, 8), (2, 2), "0 1", GROUPED_HEADS),
        Case((16, 8), (2, 2), "0 1", GROUPED),
        Case((16, 8), (2, 2), "s0 0", GROUPED),
        Case((2, 16, 8), (2, 2), "0 1", oo.View(split=(8, 4, 4), dim=1)),
        Case((3, 97), (4,), "0", oo.View(split=(2, 1))),  # an empty shard
    ],
}


@lengths
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
@pytest.mark.parametrize("size", [2, 4])
def test_steps_equal_those_of_one_process(worlds, size, dtype, steps):
    cases = BETWEEN[size] + INSIDE[size]
    for found, _ in worlds(size).run(differences, [DEFAULT, HEAVY_BALL], cases, dtype, steps):
        assert not [(name, error) for name, error in found if not error <= TOLERANCE[dtype]]


OTHERS = {
    "muon": Setting("POGO", {"lr": 0.02}, "Muon"),
    "rgd": Setting("RGD", {"lr": 0.05}),
    "landing": Setting("Landing", {"lr": 0.01}, "SGD", {"momentum": 0.1}),
}


@lengths
@pytest.mark.parametrize("setting", OTHERS.values(), ids=OTHERS.keys())
def test_other_methods_equal_those_of_one_process(two, setting, steps):
    for found, _ in two.run(differences, [setting], BETWEEN[2] + INSIDE[2], torch.float64, steps):
        assert not [(name, error) for name, error in found if not error <= TOLERANCE[torch.float64]]


def collectives(rank, case, dtype):
    """The number of collectives of a step, the strategies, and how many steps and updates were counted."""
    param = torch.nn.Parameter(place(start(case, 0, torch.float32).to(dtype), case))
    opt = oo.POGO([param], lr=0.1, view=case.view, side=case.side)
    for t in range(3):
        param.grad = place(target(case, t, dtype), case)
        with CommDebugMode() as mode:
            opt.step()
    updates = opt.state[param]["num_updates"]
    updates = updates.full_tensor() if isinstance(updates, DTensor) else updates
    counts = updates.shape == case.view.batch_shape(case.shape), bool((updates == 3).all())
    return mode.get_total_counts(), {row.strategy for row in opt.plan()}, float(opt.state[param]["step"]), counts


BETWEEN_CASES = [(size, case) for size, cases in BETWEEN.items() for case in cases]
INSIDE_CASES = [(size, case) for size, cases in INSIDE.items() for case in cases]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("size", "case"), BETWEEN_CASES, ids=lambda value: value.name() if isinstance(value, Case) else ""
)
def test_cuts_between_matrices_send_nothing(worlds, size, case, dtype):
    for sent, strategies, steps, counts in worlds(size).run(collectives, case, dtype):
        assert sent == 0
        assert strategies <= {"local"}
        assert steps == 3
        assert counts == (True, True)


@pytest.mark.parametrize(
    ("size", "case"), INSIDE_CASES, ids=lambda value: value.name() if isinstance(value, Case) else ""
)
def test_cuts_inside_of_matrices_share_their_collectives(worlds, size, case):
    for sent, strategies, steps, counts in worlds(size).run(collectives, case, torch.bfloat16):
        assert 0 < sent <= 5  # with the comparison of what ranks are about to do
        assert "local" not in strategies
        assert steps == 3
        assert counts == (True, True)


def points(rank, case):
    """What distance, project_ and orthogonalize_ make of a DTensor and of a plain tensor, and the rows of drift()."""
    raw = target(case, 0, torch.float64)
    placed, plain = place(raw, case), raw.clone()
    far = (oo.distance(placed, view=case.view) - oo.distance(plain, view=case.view)).abs().max()
    oo.project_(placed, view=case.view)
    oo.project_(plain, view=case.view)
    projected = (placed.full_tensor() - plain).abs().max()
    drifts = []
    for tensor in (placed, plain):
        opt = oo.POGO([torch.nn.Parameter(tensor.clone())], lr=0.1, view=case.view)
        drifts.append((opt.drift()[0].matrices, opt.drift()[0].max_distance))
    oo.orthogonalize_(placed, view=case.view, init="random", generator=torch.Generator().manual_seed(rank))
    oo.orthogonalize_(plain, view=case.view, init="random", generator=torch.Generator().manual_seed(0))
    return float(far), float(projected), drifts, torch.equal(placed.full_tensor(), plain)


@pytest.mark.parametrize(
    ("size", "case"), BETWEEN_CASES + INSIDE_CASES, ids=lambda value: value.name() if isinstance(value, Case) else ""
)
def test_functions_see_all_matrices(worlds, size, case):
    for far, projected, (placed, plain), drawn in worlds(size).run(points, case):
        assert far < 1e-10
        assert projected < 1e-12
        assert placed[0] == plain[0]
        assert placed[1] < 1e-12
        assert drawn


def resumed(rank, cases, dtype):
    """Whether a run goes on to the same bits from its state, and about the same from that of one process."""
    (params,), opt = train([DEFAULT], cases, dtype, 3, sharded=True)
    (plain,), alone = train([DEFAULT], cases, dtype, 3, sharded=False)
    targets = [target(case, i, dtype) for i, case in enumerate(cases)]
    placed_targets = [place(goal, case) for goal, case in zip(targets, cases, strict=True)]

    def build(values, state):
        copies = [torch.nn.Parameter(value.detach().clone()) for value in values]
        groups = [
            {**group, "params": [copies[i] for i, case in enumerate(cases) if case.view == oo.View.of(group["view"])]}
            for group in ({"view": view, "lr": 0.1} for view in dict.fromkeys(case.view for case in cases))
        ]
        other = oo.POGO(groups)
        other.load_state_dict(state)
        return copies, other

    same, same_opt = build(params, copy.deepcopy(opt.state_dict()))
    placed = [place(value.detach(), case) for value, case in zip(plain, cases, strict=True)]
    moved, moved_opt = build(placed, copy.deepcopy(alone.state_dict()))
    for t in range(3, 6):
        for each, own in ((params, opt), (same, same_opt), (moved, moved_opt)):
            set_gradients([each], placed_targets, t)
            own.step()
        set_gradients([plain], targets, t)
        alone.step()
    bits = all(torch.equal(a.to_local(), b.to_local()) for a, b in zip(params, same, strict=True))
    errors = [(a.detach().full_tensor() - b.detach()).abs().max() for a, b in zip(moved, plain, strict=True)]
    steps = {float(state["step"]) for state in moved_opt.state.values()}
    return bits, float(max(errors)), steps


@pytest.mark.parametrize("size", [2, 4])
def test_a_run_resumes_from_its_state_and_from_that_of_one_process(worlds, size):
    for bits, error, steps in worlds(size).run(resumed, BETWEEN[size] + INSIDE[size], torch.float64):
        assert bits
        assert error < TOLERANCE[torch.float64]
        assert steps == {6}


def far_away(rank, case):
    """The drift of a parameter whose matrices were scaled after the optimizer was built."""
    param = torch.nn.Parameter(place(start(case, 0, torch.float32), case))
    opt = oo.POGO([param], lr=0.1, view=case.view)
    with torch.no_grad():
        param.mul_(3)
    for t in range(30):
        param.grad = place(target(case, t, torch.float32), case)
        opt.step()
    return opt.drift()[0]


@pytest.mark.parametrize("case", [BETWEEN[2][0], INSIDE[2][0]], ids=Case.name)
@pytest.mark.filterwarnings("ignore:parameter 0 of group 0")
def test_matrices_that_are_far_away_come_back(two, case):
    for drift in two.run(far_away, case):
        assert drift.rescued > 0
        assert drift.max_distance < 1e-3


def attention(rank):
    """The worked example under FSDP2, and in one process."""
    models = []
    for sharded in (True, False):
        torch.manual_seed(0)
        model = make_attention()
        if sharded:
            fully_shard(model, shard_placement_fn=lambda param: Shard(1 if param.shape == (16, 16) else 0))
        opt = make_optimizer(model)
        for t in range(5):
            opt.zero_grad()
            x = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(t))
            model(x, x, x)[0].square().sin().mean().backward()
            with CommDebugMode() as mode:
                opt.step()
            assert mode.get_total_counts() == 0
        models.append([p.detach().full_tensor() if sharded else p.detach() for p in model.parameters()])
    return max(float((a - b).abs().max()) for a, b in zip(*models, strict=True)), opt.drift()[0].max_distance


def test_per_head_attention_under_fsdp2_sends_nothing(two):
    for difference, distance in two.run(attention):
        assert difference < 1e-6
        assert distance < 1e-4


def placements(rank):
    wide, heads = torch.empty(16, 40), oo.View(heads=4)
    return [
        oo.long_dim_placement(wide, view=heads, world_size=4).dim,
        oo.long_dim_placement(wide, view=oo.View(heads=2), world_size=4).dim,
        oo.long_dim_placement(wide.mT, view=oo.View(heads=4, dim=1), world_size=4).dim,
        oo.long_dim_placement(torch.empty(8, 4, 40), view=oo.View(heads=2, dim=1), world_size=4).dim,
    ]


def test_the_best_placement_is_between_heads(two):
    assert two.run(placements) == [[0, 1, 1, 0]] * 2


def bytes_of_a_step(rank, case):
    param = torch.nn.Parameter(place(start(case, 0, torch.float32), case))
    opt = oo.POGO([param], lr=0.1, view=case.view)
    for _ in range(2):
        param.grad = place(target(case, 0, torch.float32), case)
        with Tally() as tally:
            opt.step()
    return tally.sent


def test_matrices_of_several_sizes_stay_where_they_are_whole(two):
    """Numbers per matrix are sent, so that all ranks know them: a few bytes."""
    for view in (oo.View(split=(32, 16, 16)), oo.View(split=(32, 32), heads=(2, 4))):
        assert max(two.run(bytes_of_a_step, Case((64, 40), (2,), "0", view))) < 1024
    cut_inside = Case((64, 40), (2,), "0", oo.View(split=(40, 24)))
    assert max(two.run(bytes_of_a_step, cut_inside)) > 8 * 40 * 4  # the rows of G, or of X⁺, beyond the cut
