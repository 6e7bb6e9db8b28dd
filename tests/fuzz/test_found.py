"""Sequences that broke a promise once, as small as they could be made."""

import pytest
import torch

import orthoptim
from tests.fuzz.gradients import Gradient
from tests.fuzz.machine import replay
from tests.fuzz.operations import AddGroup, Overwrite, Recover, SetLr, Step
from tests.fuzz.start import METHODS, Group, Start


def step(*kinds: str, seed: int = 0) -> Step:
    """The same kinds for every parameter."""
    return Step((Gradient(kinds),), seed)


def start(method: str, *shape: int, **group: object) -> Start:
    """One parameter in one group."""
    return Start(method, (Group((shape,), **group),))


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (10, 10), (6, 8), (4, 12)])
@pytest.mark.parametrize("landing", ["safe", "strict"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_an_almost_normal_gradient(shape, landing, dtype):
    """The tangent part is so small a part of the gradient that the square of its square underflows."""
    begin = start("pogo", *shape, lr=1.0, dtype=dtype, identity=True, options={"landing": landing})
    for seed in range(3):
        replay(begin, [step("almost_normal_1e13", seed=seed)])


@pytest.mark.parametrize("base", ["vadam", "vadam-no-eps"])
@pytest.mark.parametrize("landing", ["safe", "strict"])
def test_small_gradients_and_an_absurd_learning_rate(base, landing):
    begin = start("pogo", 3, 60, lr=1e12, base=base, options={"landing": landing})
    replay(begin, [step("noise_1e-20", seed=0), step("small", seed=1), SetLr(0, 1e20), step("noise_1e-20", seed=2)])


@pytest.mark.parametrize("factor", [2.3, 3.0, 1e3, 0.01])
@pytest.mark.parametrize("landing", ["safe", "strict"])
@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 6, 6), (2, 4, 12)])
def test_a_matrix_that_was_scaled_comes_back(shape, landing, factor):
    begin = start("pogo", *shape, options={"landing": landing})
    replay(begin, [step("noise"), Overwrite(0, 1, "scale", factor), step("noise", seed=1), Recover()])


def test_a_huge_gradient_under_vadam_is_stepped_along():
    """In the Gram form GGᴴ overflows."""
    replay(start("pogo", 2, 40, lr=1.0, base="vadam"), [step("huge")])
    replay(start("pogo", 2, 16, lr=1.0, base="vadam-no-eps", options={"landing": "strict"}), [step("huge")])


def test_argmin_where_the_leap_is_lost_in_rounding():
    """C is so small that its powers underflow."""
    begin = start("pogo", 2, 6, 4, lr=1e-6, identity=True, options={"landing": "argmin", "side": "columns"})
    replay(begin._replace(seed=261340144), [step("noise_1e-6", seed=210790871)])


@pytest.mark.parametrize("method", ["pogo", "landing"])
def test_barzilai_borwein_without_a_tangent_part(method):
    """The first step length has nothing to go by: R is zero."""
    replay(start(method, 5, 7, 7, lr=1.0, base="bb", identity=True), [step("normal", seed=251936794)])
    replay(start(method, 5, 4, 24, lr=1.0, base="bb", identity=True), [step("normal_1e12")])


@pytest.mark.parametrize("method", ["pogo", "landing"])
def test_barzilai_borwein_after_a_gradient_of_zero(method):
    replay(start(method, 5, 1, 12, lr=1.0, base="bb"), [step("zero"), step("noise_1e3", seed=1)])


@pytest.mark.parametrize("kind", ["normal_1e12", "almost_normal_1e9", "almost_normal_1e13"])
@pytest.mark.parametrize("eps", [0.1, 0.5])
def test_landing_along_an_almost_normal_gradient(kind, eps):
    """The field is rounding error, which is not tangent."""
    replay(start("landing", 2, 6, 4, lr=1.0, options={"eps": eps}), [step(kind)])


def test_landing_with_barzilai_borwein_along_a_normal_gradient():
    replay(start("landing", 5, 2, 8, lr=1.0, base="bb", options={"eps": 0.1, "lam": 0.1}), [step("normal", seed=5)])


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("lr", [1e15, 1e20])
def test_landingpc_projects_whatever_is_far(lr, coupled):
    """A distance that overflows is far, too."""
    begin = start("landingpc", 2, 8, 3, lr=lr, options={"coupled": coupled})
    replay(begin, [step("tangent"), step("noise_1e6", seed=1), step("almost_normal_1e10", seed=2)])


@pytest.mark.parametrize("landing", ["safe", "strict"])
def test_a_real_number_that_was_scaled_comes_back_under_a_huge_momentum(landing):
    """The relative gradient of a real 1×1 matrix is zero; its rounding error led as far away as the clip allows."""
    begin = start("pogo", 2, 2, 1, 1, lr=1.0, base="sgd-nesterov", options={"landing": landing})
    scale = Overwrite(param=0, matrix=2, how="scale", factor=2.3)
    replay(begin._replace(seed=1040999058), [step("huge", seed=708748069), scale, Recover(seed=648310400)])


def test_barzilai_borwein_where_the_relative_gradient_overflows():
    """LandingPC without a projection has left the manifold by 1e20; a learning rate of zero moves nothing then."""
    begin = start("landingpc", 12, 3, lr=1e20, base="bb", options={"side": "columns", "lam": 0.1, "tau": None})
    operations = [step("noise_1e6", seed=363609859), SetLr(group=0, lr=0.0), step("point", seed=390691110)]
    replay(begin._replace(seed=486445739), operations)


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("lr", [1e6, 1e9, 1e12])
@pytest.mark.parametrize("shape", [(2, 2, 3, 3), (4, 5, 5), (2, 7, 6)])
def test_landingpc_steps_however_long_its_leap(shape, lr, coupled):
    """That of a square matrix of odd size has no full rank: X was lost in the rounding of X − leap."""
    begin = start("landingpc", *shape, lr=lr, options={"coupled": coupled, "lam": 0.1})
    replay(begin, [step("tangent"), step("noise_1e-20", seed=1), step("tangent_1e3", seed=2)])


@pytest.mark.parametrize("method", ["pogo", "rgd", "rsdm", "landing", "landingpc", "slpg"])
def test_an_absurd_learning_rate_and_a_gradient_of_zero(method):
    """The learning rate over the norm of the gradients overflows."""
    options = {"rsdm": {"r": 2}, "landingpc": {"coupled": False}}.get(method, {})
    replay(start(method, 2, 3, 5, lr=1e20, base="vadam-no-eps", identity=True, options=options), [step("zero")])
    for dtype in (torch.float32, torch.complex64):
        param = torch.nn.Parameter(torch.eye(3, 5, dtype=dtype))
        opt = METHODS[method]([param], 1e20, base=orthoptim.VAdam(eps=0), **options)
        param.grad = torch.zeros_like(param)
        opt.step()
        assert opt.drift()[0].skipped == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_half_precision_matrix_that_was_made_deficient(dtype):
    """Its master copy follows in the entries that were written."""
    begin = start("pogo", 3, 4, 6, lr=1.0, base="vadam", dtype=dtype)
    replay(begin, [step("noise"), Overwrite(param=0, matrix=1, how="deficient"), step("noise", seed=1)])


def test_landingpc_beside_a_poisoned_parameter():
    """Fewer matrices are projected then; the last bits of a decomposition depend on where in memory it is done."""
    begin = Start("landingpc", (Group(((5, 8, 7), (5, 8, 7)), lr=1.0, identity=True),), seed=740307610)
    replay(begin, [Step((Gradient(("minus_inf",)), Gradient(("huge",))), 102046480)])


def test_landingpc_after_barzilai_borwein_found_nothing_to_go_by():
    begin = start("landingpc", 5, 8, 5, lr=1.0, base="bb", identity=True, options={"lam": 0.1})
    replay(begin, [step("point"), step("noise_1e-6", seed=1)])


@pytest.mark.parametrize("retraction", ["qr", "polar", "cholesky"])
@pytest.mark.parametrize("lr", [1e3, 1e6, 1e15])
def test_rgd_after_a_long_step(retraction, lr):
    begin = start("rgd", 6, 12, lr=lr, options={"retraction": retraction})
    replay(begin, [step("noise"), step("noise_1e15", seed=1), step("huge", seed=2), step("noise", seed=3)])


@pytest.mark.parametrize("retraction", ["qr", "polar", "cholesky"])
@pytest.mark.parametrize("kind", ["small", "noise_1e-20", "denormal"])
def test_rgd_along_directions_of_vadam_whose_squares_underflow(kind, retraction):
    """Without ε a small gradient was divided by zero, and became a direction of length 1e8."""
    begin = start("rgd", 1, 1, 3, 3, lr=1.0, base="vadam-no-eps", identity=True, options={"retraction": retraction})
    replay(begin, [step(kind, seed=seed) for seed in range(3)])


@pytest.mark.parametrize("metric", ["euclidean", "canonical"])
@pytest.mark.parametrize("retraction", ["qr", "polar", "cholesky"])
@pytest.mark.parametrize("lr", [1e3, 1e6])
def test_rgd_after_a_long_step_in_one_direction(retraction, metric, lr):
    """Rows that become nearly equal: the condition number of YYᴴ is the square of lr."""
    begin = start("rgd", 6, 12, lr=lr, options={"retraction": retraction, "metric": metric})
    replay(begin, [Step((Gradient(("noise",), "expanded"),), seed) for seed in range(3)])


@pytest.mark.parametrize("method", ["pogo", "slpg", "landingpc"])
def test_a_value_beyond_half_precision_is_not_written(method):
    options = {"pogo": {"landing": "half"}, "slpg": {}, "landingpc": {"tau": None}}[method]
    begin = start(method, 2, 8, 6, lr=1e6, dtype="float16", options=options)
    replay(begin, [step("tangent_1e3"), step("noise", seed=1)])


def test_a_gram_step_that_overflows_where_its_c_is_finite_is_not_written():
    """C is put together from XXᴴ, XGᴴ and GGᴴ: a long leap along a G that is almost normal is not seen by it."""
    first = Group(((8, 5),), lr=1.0, options={"view": "filters", "side": "columns", "landing": "argmin"})
    options = {"view": "matrix", "side": "auto", "landing": "half", "maximize": True}
    second = Group(((5, 1, 12),), lr=1e20, base="vadam-no-eps", options=options)
    gradient = Step((Gradient(("almost_normal_1e9",)),), 275148101)
    replay(Start("pogo", (first,), seed=342995151), [AddGroup(second, 840781001), gradient])


def test_slpg_beside_a_poisoned_matrix_where_entries_are_subnormal():
    """Half of C, and C with a weight of a half, are rounded otherwise there; a neighbour decided which was taken."""
    options = {"view": "kernels", "barzilai_borwein": False}
    shapes = ((1, 2, 3, 3), (1, 2, 3, 3), (2, 2, 2, 2))
    begin = Start("slpg", (Group(shapes, lr=1000.0, base="bb", options=options),), seed=8749937)
    first = (
        Gradient(("almost_normal_1e13",)),
        Gradient(("inf",)),
        Gradient(("minus_inf", "normal", "almost_normal_1e12")),
    )
    others = [Step((Gradient(("denormal",)),), 807169397), Step((Gradient(("normal", "nan_everywhere")),), 478115036)]
    replay(begin, [Step(first, 686908644), *others])
