"""compile=True: the same step, compiled once for each kind of matrices."""

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import metrics
from torch.optim import lr_scheduler

import orthoptim as oo
from orthoptim import stiefel
from orthoptim.engine import compiled
from orthoptim_experiments.bench.measure import extra_bytes
from tests.conformance.methods import clones, point, set_gradients, steps


def compare_with_eager(params):
    """Steps at a falling lr, compiled and not; the compiled optimizer."""
    others = clones(params)
    opt, eager = oo.POGO(params, 0.1, compile=True), oo.POGO(others, 0.1)
    schedules = [lr_scheduler.StepLR(o, 1, gamma=0.7) for o in (opt, eager)]
    torch._dynamo.reset()
    counters.clear()
    for t in range(4):
        steps(opt, params, 1, t)
        steps(eager, others, 1, t)
        for schedule in schedules:
            schedule.step()
    for one, two in zip(params, others, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=2e-6)
    assert opt.drift()[0].skipped == 0
    return opt


# Each kind of matrices takes the C++ compiler ten seconds.
KINDS = [[(2, 6, 6)], pytest.param([(40, 3, 3), (30, 2, 4), (2, 6, 6), (4, 40)], marks=pytest.mark.soak)]


@pytest.mark.parametrize("shapes", KINDS, ids=["one kind", "several kinds"])
def test_compiled_equals_eager_and_a_changing_lr_compiles_nothing_again(shapes):
    compare_with_eager([point(*shape, seed=k) for k, shape in enumerate(shapes)])
    assert counters["stats"]["unique_graphs"] == len(shapes)  # as many kinds of matrices


def test_more_kinds_than_the_compilers_limit(eager_backend):
    """torch.compile makes eight versions of one function and then gives up; each kind has a function of its own."""
    params = [point(2, n, seed=n) for n in range(2, 13)]
    opt = oo.POGO(params, 0.1, compile=True)
    torch._dynamo.reset()
    counters.clear()
    for t in range(3):
        steps(opt, params, 1, t)
    assert counters["stats"]["unique_graphs"] == len(params)


def test_without_a_compiler_it_warns_once_and_steps(monkeypatch):
    def broken(function, **options):
        def fail(*args):
            raise RuntimeError("no C++ compiler found\nlook here and there")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(compiled, "_warned", False)
    params, others = [point(4, 6), point(3, 3, seed=1)], [point(4, 6), point(3, 3, seed=1)]
    opt, eager = oo.POGO(params, 0.1, compile=True), oo.POGO(others, 0.1)
    with pytest.warns(UserWarning, match="torch.compile failed: no C") as caught:
        steps(opt, params, 3)
    assert len(caught) == 1
    steps(eager, others, 3)
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)


def test_what_the_update_raises_is_raised(monkeypatch, eager_backend):

    def failing(*args):
        raise MemoryError("of the update itself")

    monkeypatch.setattr(oo.POGO, "update_whole", staticmethod(failing))
    param = point(4, 6)
    opt = oo.POGO([param], 0.1, compile=True)
    before = param.detach().clone()
    set_gradients([param])
    with pytest.raises(MemoryError, match="of the update itself"):
        opt.step()
    assert torch.equal(param, before)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("landing", stiefel.POLICIES)
@pytest.mark.parametrize("shape", [(1, 3), (2, 3), (3, 3), (4, 4)])
def test_the_unrolled_form_is_the_tiny_one(shape, landing, normalized):
    x = point(5, *shape, dtype=torch.float64).detach()
    g = 3 * torch.randn(5, *shape, dtype=torch.float64)
    lr, policy = torch.tensor(0.4, dtype=torch.float64), stiefel.policy(landing)
    step = stiefel.pogo_step(x, g, lr, policy, "tiny", normalized=normalized)
    scale = 1.0 if normalized or policy.clip is None else 1 / g.abs().amax((-2, -1))[:, None]
    new, clipped, rescued, *_ = stiefel.unrolled(_entries(x), _entries(g), lr / scale, scale, policy)
    torch.testing.assert_close(torch.stack([torch.cat(row, 1) for row in new], 1), step.x, rtol=0, atol=1e-13)
    assert (clipped is None) == (step.clipped is None)
    if clipped is not None:
        assert torch.equal(clipped[:, 0], step.clipped)
    assert (rescued is None) == (step.rescued is None)
    assert rescued is None or torch.equal(rescued[:, 0], step.rescued)


@pytest.mark.parametrize(
    ("base", "layout"),
    [
        *[(oo.VAdam(), layout) for layout in ("rows", "columns", "channels_last", "bfloat16", "many", "large")],
        *[(base, "rows") for base in (oo.SGD(), oo.SGD(momentum=0.9, dampening=0.1), oo.Adam())],
    ],
)
def test_the_fused_step_is_the_eager_one_whatever_the_layout(base, layout, eager_backend):
    """Also where a gradient is not finite: that matrix keeps its value and its state."""
    params = _tiny_parameters(layout)
    others = clones(params)
    options = {"view": "kernels"} if params[0].ndim == 4 else {}
    if layout == "large":  # their state has the batch last in memory
        options["block_cap_mb"] = 8 * 9 * 4 / 2**20
    opt, eager = oo.POGO(params, 0.1, base, compile=True, **options), oo.POGO(others, 0.1, base, **options)
    for t in range(4):
        for optimizer, mine in ((opt, params), (eager, others)):
            set_gradients(mine, t)
            if t == 2:
                mine[0].grad.view(-1)[0] = torch.nan if mine[0].is_contiguous() else 0
            optimizer.step()
    for one, two in zip(params, others, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-2 if layout == "bfloat16" else 2e-6)
        for name, value in eager.state[two].items():
            torch.testing.assert_close(opt.state[one][name], value, rtol=1e-4, atol=1e-5)
        assert one._version > 0


def _tiny_parameters(layout):
    """Small matrices: a graph has nodes for each entry."""
    if layout == "columns":
        return [point(7, 2, 3).detach().mT.contiguous().requires_grad_()]
    if layout == "channels_last":
        weight = point(5, 6, 2, 2).detach().to(memory_format=torch.channels_last)
        return [weight.requires_grad_()]
    if layout == "bfloat16":
        return [point(9, 2, 2).detach().bfloat16().requires_grad_()]
    return [point(2, 2, seed=k) for k in range(4)] if layout == "many" else [point(8, 2, 2), point(11, 2, 2, seed=1)]


def test_the_fused_step_is_one_graph_for_batches_of_any_size_and_one_loop():
    """It is the eager step, and it writes in place: nothing of the size of the parameters is allocated."""
    params = [point(k, 2, 2, seed=k) for k in (40, 64, 100)]
    metrics.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        opt = compare_with_eager(params)
    assert counters["stats"]["unique_graphs"] == 1
    assert metrics.generated_kernel_count == 1
    assert extra_bytes(opt.step) < params[0].nbytes


def test_the_fused_step_follows_options_that_change(eager_backend):
    """Its graphs have no guards: what they depend on is their key."""
    params, others = [point(8, 2, 2)], [point(8, 2, 2)]
    opt, eager = oo.POGO(params, 0.1, compile=True), oo.POGO(others, 0.1)
    changes = [{}, {"betas": [0.5, 0.9]}, {"landing": "half"}, {"maximize": True}, {"lr": 0.01}, {"betas": (0.9, 0.99)}]
    for t, change in enumerate(changes):
        for optimizer, mine in ((opt, params), (eager, others)):
            optimizer.param_groups[0].update(change)
            steps(optimizer, mine, 1, t)
        torch.testing.assert_close(params[0], others[0], rtol=0, atol=2e-6)


def test_the_fused_step_has_a_graph_for_counters_of_another_dtype(eager_backend):
    """Without guards, one made for int32 would read the memory of a loaded int64 as such."""
    params = [point(8, 2, 2)]
    opt = oo.POGO(params, 0.1, compile=True)
    torch._dynamo.reset()
    counters.clear()
    steps(opt, params, 2)
    state = opt.state[params[0]]
    state.update({name: state[name].long() for name in ("num_updates", "clipped")})
    steps(opt, params, 1)
    assert counters["stats"]["unique_graphs"] == 2
    assert state["num_updates"].unique().tolist() == [3]


def _entries(x):
    return [row.split(1, 1) for row in x.unbind(1)]


def test_a_state_that_cannot_change_in_place_is_written(eager_backend):
    """A loaded state may lie otherwise in memory than its parameter, which itself changes in place."""
    params, others = [point(4, 5, 2, 2)], [point(4, 5, 2, 2)]
    opt, eager = oo.POGO(params, 0.1, compile=True), oo.POGO(others, 0.1)
    for t in range(3):
        steps(opt, params, 1, t)
        steps(eager, others, 1, t)
        state = opt.state[params[0]]
        state["exp_avg"] = state["exp_avg"].to(memory_format=torch.channels_last)
    torch.testing.assert_close(params[0], others[0], rtol=0, atol=2e-6)
