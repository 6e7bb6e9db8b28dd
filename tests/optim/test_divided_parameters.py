"""Parameters that hold several matrices side by side are stepped as their matrices alone would be."""

import copy
import io
import itertools
from typing import NamedTuple

import pytest
import torch
from torch import nn

import orthoptim as oo
from tests.conformance.methods import METHODS, clones, every_method, set_gradients


class Case(NamedTuple):
    """A parameter, and the sizes of its matrices along the dim that the view divides."""

    shape: tuple[int, ...]
    view: oo.View
    sizes: list[int]


CASES = {
    "fused QKV": Case((24, 8), oo.View(split=3), [8] * 3),
    "grouped-query QKV": Case((16, 8), oo.View(split=(8, 4, 4)), [8, 4, 4]),
    "heads of grouped-query QKV": Case((16, 8), oo.View(split=(8, 4, 4), heads=(4, 2, 2)), [2] * 8),
    "unequal heads": Case((16, 8), oo.View(split=(8, 4, 4), heads=2), [4, 4, 2, 2, 2, 2]),
    "heads": Case((12, 8), oo.View(heads=3), [4] * 3),
    "heads of the output projection": Case((8, 12), oo.View(heads=3, dim=1), [4] * 3),
    "fused along the last dim": Case((8, 16), oo.View(split=(8, 4, 4), dim=-1), [8, 4, 4]),
    "LSTM gates": Case((24, 6), oo.View(split=4), [6] * 4),
    "tall gates": Case((20, 3), oo.View(split=4), [5] * 4),
    "experts": Case((3, 16, 8), oo.View(split=(8, 4, 4), dim=1), [8, 4, 4]),
    "tiny heads": Case((30, 3), oo.View(heads=10), [3] * 10),
    "two sizes by turns": Case((14, 5), oo.View(split=(4, 3, 4, 3)), [4, 3, 4, 3]),
    "groups": Case((8, 3, 3, 3), oo.View("filters", groups=4), [2] * 4),
    "depthwise": Case((6, 1, 3), oo.View("filters", groups=6), [1] * 6),
    "fused convolution": Case((24, 8, 1), oo.View("filters", split=(8, 16), groups=2), [4, 4, 8, 8]),
    "transposed convolution": Case((6, 4, 3, 3), oo.View("filters", transposed=True, groups=2), [3] * 2),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def slices(tensor, case):
    """The matrices of the parameter as tensors of their own."""
    pieces = tensor.detach().split(case.sizes, case.view.divided_dim(len(case.shape)))
    return [(each.transpose(0, 1) if case.view.transposed else each).contiguous() for each in pieces]


def make_params(case, dtype=torch.float32, count=2):
    params = []
    for seed in range(count):
        tensor = torch.empty(case.shape, dtype=dtype)
        generator = torch.Generator().manual_seed(seed)
        params.append(nn.Parameter(oo.orthogonalize_(tensor, view=case.view, init="random", generator=generator)))
    return params


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128], ids=str)
@pytest.mark.parametrize("method", ["pogo", "pogo-sgd", "pogo-muon", "rgd", "landing", "slpg-bb"])
def test_a_divided_parameter_equals_its_matrices_alone(method, dtype, case):
    params = make_params(case, dtype)
    alone = [[nn.Parameter(each) for each in slices(param, case)] for param in params]
    opt = METHODS[method](params, view=case.view)
    # in the order of the parts: those of one size are one block of both
    separate = METHODS[method](list(itertools.chain(*alone)), view=case.view.name)
    for t in range(4):
        set_gradients(params, t)
        for param, pieces in zip(params, alone, strict=True):
            for piece, grad in zip(pieces, slices(param.grad, case), strict=True):
                piece.grad = grad
        opt.step()
        separate.step()
    for param, pieces in zip(params, alone, strict=True):
        for piece, own in zip(pieces, slices(param, case), strict=True):
            assert torch.equal(piece, own)
    assert opt.drift()[0][1:4] == pytest.approx(separate.drift()[0][1:4], rel=1e-3, abs=1e-6)
    assert [opt.state[param]["num_updates"].unique().tolist() for param in params] == [[4], [4]]
    assert [float(opt.state[param]["step"]) for param in params] == [4, 4]


@every_method
def test_every_method_keeps_divided_parameters_orthonormal(make):
    for name in ("unequal heads", "heads of the output projection", "transposed convolution"):
        params = make_params(CASES[name])
        opt = make(params, view=CASES[name].view)
        for t in range(3):
            set_gradients(params, t)
            opt.step()
        assert opt.drift()[0].max_distance < 0.2
        assert opt.drift()[0].skipped == 0


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", ["pogo", "rgd"])
def test_a_run_resumes_bit_for_bit(method, dtype, case):
    params = make_params(case, dtype)
    opt = METHODS[method](params, view=case.view)
    train(opt, params, range(3))
    file = io.BytesIO()
    torch.save({"optimizer": opt.state_dict(), "params": [param.detach() for param in params]}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    others = [nn.Parameter(each) for each in saved["params"]]
    resumed = METHODS[method](others, view=case.view)
    resumed.load_state_dict(saved["optimizer"])
    assert resumed.param_groups[0]["view"] == case.view
    copied, copies = copy.deepcopy((opt, params))
    for each, own in ((opt, params), (resumed, others), (copied, copies)):
        train(each, own, range(3, 6))
    for param, other, copied_param in zip(params, others, copies, strict=True):
        assert torch.equal(param, other)
        assert torch.equal(param, copied_param)
        for name, value in opt.state[param].items():
            assert torch.equal(value, resumed.state[other][name])


def train(opt, params, steps):
    for t in steps:
        set_gradients(params, t)
        opt.step()


def test_the_state_has_the_shape_of_the_parameter_or_of_its_matrices():
    case = CASES["experts"]
    (param,) = make_params(case, torch.bfloat16, count=1)
    opt = oo.POGO([param], lr=0.1, view=case.view)
    train(opt, [param], range(1))
    state = opt.state[param]
    assert state["master"].shape == state["exp_avg"].shape == param.shape
    assert state["num_updates"].shape == state["exp_avg_sq"].shape == (3, 3)


@pytest.mark.parametrize(
    ("view", "other", "same"),
    [
        (oo.View(heads=3), oo.View(heads=3), True),
        (oo.View(heads=3), {"name": "matrix", "heads": 3}, True),
        (oo.View(heads=3), oo.View(heads=4), False),
        (oo.View(heads=3), "matrix", False),
        ("matrix", oo.View("matrix"), True),
    ],
)
def test_a_checkpoint_is_refused_unless_its_view_is_the_same(view, other, same):
    first, second = (
        nn.Parameter(oo.orthogonalize_(torch.randn(12, 12), view=each)) for each in (view, oo.View.of(other))
    )
    opt, resumed = oo.POGO([first], lr=0.1, view=view), oo.POGO([second], lr=0.1, view=other)
    train(opt, [first], range(1))
    if same:
        resumed.load_state_dict(opt.state_dict())
        return
    with pytest.raises(ValueError, match=r"loaded state dict has view .* build it as it was saved"):
        resumed.load_state_dict(opt.state_dict())


@pytest.mark.parametrize("view", [{"name": "matrix", "heads": 5}, {"name": "matrix", "colour": 1}, 3, "square"])
def test_a_hostile_view_in_a_checkpoint_changes_nothing(view):
    param = nn.Parameter(torch.eye(12))
    opt = oo.POGO([param], lr=0.1, view=oo.View(heads=3))
    state = opt.state_dict()
    state["param_groups"][0]["view"] = view
    with pytest.raises(ValueError, match="loaded state dict has view"):
        opt.load_state_dict(state)
    assert opt.param_groups[0]["view"] == oo.View(heads=3)


def test_the_plan_has_a_bucket_for_each_shape():
    case = CASES["grouped-query QKV"]
    params = make_params(case, count=3)
    opt = oo.POGO([(f"{i}.qkv", param) for i, param in enumerate(params)], lr=0.1, view=case.view)
    rows = [(row.name, row.matrices, row.p, row.n) for row in opt.plan()]
    assert rows == [("0.qkv +2 more", 3, 8, 8), ("0.qkv +2 more", 6, 4, 8)]
    apart = [(row.name, row.matrices, row.p) for row in opt.plan(per_parameter=True)]
    assert apart == [*((f"{i}.qkv", 1, 8) for i in range(3)), *((f"{i}.qkv", 2, 4) for i in range(3))]
    train(opt, params, range(1))
    assert [(row.name, row.matrices, row.p, row.n) for row in opt.plan()] == rows
    assert [row.matrices for row in opt.drift(per_parameter=True)] == [3, 3, 3]


def test_one_row_of_the_plan_names_a_parameter_once():
    case = CASES["two sizes by turns"]
    (param,) = make_params(case, count=1)
    assert [row.name for row in oo.POGO([("weight", param)], lr=0.1, view=case.view).plan()] == ["weight", "weight"]


def test_a_matrix_without_a_finite_gradient_is_skipped_and_its_neighbours_step():
    case = CASES["grouped-query QKV"]
    (param,) = make_params(case, count=1)
    before = param.detach().clone()
    opt = oo.POGO([param], lr=0.1, view=case.view)
    set_gradients([param])
    param.grad[9] = torch.nan  # in the second matrix
    opt.step()
    assert opt.state[param]["num_updates"].tolist() == [1, 0, 1]
    same = [torch.equal(a, b) for a, b in zip(slices(before, case), slices(param, case), strict=True)]
    assert same == [False, True, False]
    assert opt.drift()[0].skipped == 1


def test_matrices_that_were_written_far_away_are_named():
    case = CASES["grouped-query QKV"]
    (param,) = make_params(case, count=1)
    opt = oo.POGO([("qkv", param)], lr=0.1, view=case.view)
    with torch.no_grad():
        param[8:12] *= 3
    set_gradients([param])
    with pytest.warns(UserWarning, match=r"parameter 'qkv' .* was far from orthonormal \(1 of 2 matrices\)"):
        opt.step()
    assert opt.state[param]["rescued"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("view", [oo.View(heads=3, dim=-1), oo.View(split=2, dim=-1)])
def test_an_empty_batch_steps_nothing(view):
    param = nn.Parameter(torch.empty(0, 4, 6))
    opt = oo.POGO([param], lr=0.1, view=view)
    param.grad = torch.empty(0, 4, 6)
    opt.step()
    assert oo.distance(param, view=view).shape == (0, view.batch_shape((1, 4, 6))[-1])
    assert opt.drift()[0].matrices == 0


@every_case
def test_functions_see_a_parameter_by_its_view(case):
    tensor = torch.randn(case.shape, dtype=torch.float64)
    alone = slices(tensor, case)
    how = {"view": case.view.name}
    expected = torch.stack([oo.distance(each, **how) for each in alone], -1)
    torch.testing.assert_close(oo.distance(tensor, view=case.view), expected, rtol=1e-12, atol=0)
    assert not oo.is_orthogonal(tensor, view=case.view)
    oo.project_(tensor, view=case.view)
    assert oo.is_orthogonal(tensor, view=case.view)
    for piece, own in zip(alone, slices(tensor, case), strict=True):
        torch.testing.assert_close(oo.project_(piece, **how), own, rtol=0, atol=1e-12)
    assert oo.is_orthogonal(oo.orthogonalize_(tensor, view=case.view, init="random"), view=case.view)


@pytest.mark.parametrize("name", ["unequal heads", "heads of the output projection", "transposed convolution"])
def test_a_compiled_step_is_the_same(name):
    case = CASES[name]
    params = make_params(case, torch.float64)
    others = clones(params)
    opt, compiled = oo.POGO(params, lr=0.1, view=case.view), oo.POGO(others, lr=0.1, view=case.view, compile=True)
    for t in range(3):
        set_gradients(params, t)
        set_gradients(others, t)
        opt.step()
        compiled.step()
    for param, other in zip(params, others, strict=True):
        torch.testing.assert_close(param, other, rtol=0, atol=1e-12)


def test_a_step_that_the_user_compiles_is_the_same():
    case = CASES["unequal heads"]
    params = make_params(case, torch.float64)
    others = clones(params)
    opt, other = oo.POGO(params, lr=0.1, view=case.view), oo.POGO(others, lr=0.1, view=case.view)
    compiled = torch.compile(other.step, fullgraph=True, backend="aot_eager")
    for t in range(2):
        set_gradients(params, t)
        set_gradients(others, t)
        opt.step()
        compiled()
    for param, last in zip(params, others, strict=True):
        torch.testing.assert_close(param, last, rtol=0, atol=1e-12)


def test_parameters_that_lie_otherwise_in_memory_are_the_same():
    for name in ("groups", "transposed convolution"):
        case = CASES[name]
        params = make_params(case, torch.float64)
        others = [nn.Parameter(param.detach().to(memory_format=torch.channels_last)) for param in params]
        opt, other = oo.POGO(params, lr=0.1, view=case.view), oo.POGO(others, lr=0.1, view=case.view)
        for t in range(3):
            set_gradients(params, t)
            set_gradients(others, t)
            opt.step()
            other.step()
        for param, last in zip(params, others, strict=True):
            assert last.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(param, last, rtol=0, atol=1e-12)


def test_wrap_lands_each_matrix():
    layer = nn.MultiheadAttention(8, 2, bias=False)
    patterns = {"in_proj_weight": oo.View(split=3, heads=2)}
    oo.orthogonalize_(layer, patterns)
    opt = oo.wrap(torch.optim.NAdam(layer.parameters(), lr=1e-2), patterns, model=layer)
    for _ in range(3):
        opt.zero_grad()
        layer(*torch.randn(3, 5, 8))[0].square().sum().backward()
        opt.step()
    assert oo.is_orthogonal(layer.in_proj_weight, view=patterns["in_proj_weight"], tol=1e-4)


def test_the_plan_of_divided_parameters_is_shown_before_the_first_step():
    param = torch.nn.Parameter(torch.eye(4).repeat(3, 1))
    opt = oo.POGO([param], lr=0.1, view=oo.View("matrix", split=3))
    assert [row.matrices for row in opt.plan()] == [3]
