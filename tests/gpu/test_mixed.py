"""Reduced products, emulated: the bounds of every form and landing hold, in IEEE and in mixed mode."""

import pytest
import torch

import orthoptim as oo
from orthoptim import stiefel
from tests.conformance.methods import point
from tests.reduced_products import DROPPED, Reduced


@pytest.fixture
def reduced(request):
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def farthest(kind, precision, landing, base, shape, lr, steps, dtype=torch.float32, hostile=0.0, every=1):
    """The largest distance ‖XXᴴ − I‖₂ of a run, in float64, after each ``every`` steps; and how many were rounded."""
    generator = torch.Generator().manual_seed(0)
    x = point(*shape, dtype=dtype)
    target = torch.randn(shape, dtype=dtype, generator=generator)
    opt = oo.POGO([x], lr, base, landing=landing, matmul_precision=precision)
    worst = 0.0
    with Reduced(kind) as mode:
        for t in range(steps):
            noise = torch.randn(shape, dtype=dtype, generator=generator)
            x.grad = 0.3 * noise - target + hostile * x.detach()
            opt.step()
            if (t + 1) % every:
                continue
            with torch._C._DisableTorchDispatch():
                exact = x.detach().to(torch.complex128 if dtype.is_complex else torch.float64)
                worst = max(worst, float(torch.linalg.eigvalsh(exact @ exact.mH).sub(1).abs().max()))
    return worst, mode.rounded


FORMS = {"direct-n": (3, 12, 14), "direct-p": (3, 8, 24)}
LANDINGS = ["safe", "strict", "half", "root", "argmin", "newton-schulz"]


def floor(shape):
    """Of float32, see shared bounds of the tests of policies: rounding of p×n matrices."""
    return 1.5e-6 * shape[-2] ** 0.5


@pytest.mark.usefixtures("reduced")
@pytest.mark.parametrize("precision", ["ieee", "mixed"])
@pytest.mark.parametrize("kind", DROPPED)
@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("form", FORMS)
def test_ordinary_steps_stay_within_the_bound_of_float32(form, landing, kind, precision):
    shape, lr = FORMS[form], 0.1
    found, rounded = farthest(kind, precision, landing, oo.VAdam(), shape, lr, 40, every=4)
    bound = 0.75 * (1.5 * lr) ** 4 if landing in ("safe", "half", "root", "argmin") else 0.0
    assert found <= 1.5 * max(bound, floor(shape))
    assert (rounded > 0) == (precision == "mixed")


@pytest.mark.usefixtures("reduced")
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.complex64, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", DROPPED)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("landing", "bound"), [("safe", 0.5), ("strict", 1.5e-6)])
def test_hostile_gradients_do_not_break_the_guarantee(landing, bound, form, kind, dtype):
    shape = FORMS[form]
    for lr, hostile in ((1e3, 0.0), (1.0, 1e4), (1e-2, 1e6), (1e12, 1e-3)):
        for base in (oo.SGD(), oo.VAdam()):
            found, _ = farthest(kind, "mixed", landing, base, shape, lr, 8, dtype, hostile)
            assert found <= bound + floor(shape), (lr, hostile, base)


def eigenvalues(x):
    return torch.linalg.eigvalsh(x.double() @ x.double().mH) - 1


def almost_flat(p, n):
    """Rows of a Hadamard matrix, a little off: entries of one size, whose rounding errors point in like directions."""
    x = oo.orthogonalize_(torch.empty(n, n), init="hadamard")[:p]
    x = x * (1 + 2e-3 * torch.rand(p, n, generator=torch.Generator().manual_seed(1)))
    return oo.project_(x)


@pytest.mark.usefixtures("reduced")
@pytest.mark.parametrize("kind", DROPPED)
@pytest.mark.parametrize(("form", "p", "n"), [("direct-n", 12, 16), ("direct-p", 8, 32)])
@pytest.mark.parametrize(("landing", "bound"), [("safe", 0.5), ("strict", 1.5e-6)])
def test_leaps_along_the_rounding_error_itself_do_not_break_the_guarantee(landing, bound, form, p, n, kind):
    """The worst that rounding X to X + E can do: R = uvᴴ, of the largest singular value of E off the rows of X."""
    policy, mode = stiefel.policy(landing, mixed=True), Reduced(kind)
    for x in (point(p, n).detach(), almost_flat(p, n)):
        for _ in range(4):
            e = mode.round(x).double() - x.double()
            e = e - e @ x.double().mH @ x.double()
            u, _, v = torch.linalg.svd(e, full_matrices=False)
            with mode:
                ends = [
                    stiefel.pogo_step(x[None], (sign * u[:, :1] @ v[:1]).float()[None], 1e6, policy, form).x[0]
                    for sign in (1, -1)
                ]
            x = max(ends, key=lambda end: float(eigenvalues(end).abs().max()))
            assert eigenvalues(x).abs().max() <= bound + floor((p, n))


@pytest.mark.usefixtures("reduced")
@pytest.mark.parametrize("kind", DROPPED)
@pytest.mark.parametrize("shape", [(12, 12), (6, 10)])
@pytest.mark.parametrize(("landing", "bound"), [("safe", 0.5), ("strict", 1.5e-6)])
def test_spectral_steps_keep_their_guarantee(landing, bound, shape, kind):
    for lr, hostile in ((1e3, 0.0), (0.9, 1e4), (0.05, 0.0)):
        x, generator = point(*shape), torch.Generator().manual_seed(0)
        opt = oo.StiefelMuon([x], lr, landing=landing, matmul_precision="mixed")
        for _ in range(6):
            x.grad = torch.randn(shape, generator=generator) + hostile * x.detach()
            with Reduced(kind) as mode:
                opt.step()
            assert (mode.rounded > 0) == (shape[0] == shape[1])
            limit = min(bound, 0.75 * lr**4) if shape[0] == shape[1] and landing == "safe" else bound
            assert eigenvalues(x.detach()).abs().max() <= limit + floor(shape)


@pytest.mark.usefixtures("reduced")
@pytest.mark.parametrize("kind", DROPPED)
@pytest.mark.parametrize("p", [4, 32, 100])
def test_how_far_from_tangent_a_reduced_leap_is(p, kind):
    """‖RXᴴ + XRᴴ‖₂ ≤ 8u‖G‖_F in direct-p, which the clip leaves room for: almost normal and rough gradients."""
    unit, generator = 2.0 ** (-8 if kind == "bfloat16" else -11), torch.Generator().manual_seed(p)
    for x in (point(p, 3 * p).detach(), almost_flat(p, 4 * p) if p != 100 else point(p, 4 * p).detach()):
        noise = torch.randn(x.shape, generator=generator)
        for g in (noise, x + 1e-3 * noise / noise.norm(), x * torch.arange(1.0, p + 1)[:, None], x.sign(), x**3):
            with Reduced(kind):
                r = 0.5 * ((x @ x.mH) @ g - (x @ g.mH) @ x)
            normal = r.double() @ x.double().mH
            assert torch.linalg.matrix_norm(normal + normal.mH, 2) <= 8 * unit * g.double().norm()


@pytest.mark.usefixtures("reduced")
def test_all_products_reduced_would_leave_the_manifold():
    """What the mode is for: the same step without exact measurements is a thousand times as far away."""
    x = point(64, 64).detach()[None]
    worst = {True: 0.0, False: 0.0}
    for mixed in worst:
        y, generator = x.clone(), torch.Generator().manual_seed(0)
        policy = stiefel.policy("safe", mixed=mixed)
        for _ in range(40):
            g = torch.randn(1, 64, 64, generator=generator) / 64
            with Reduced("tf32"):
                y = stiefel.pogo_step(y, g, 0.1, policy, "direct-n", normalized=True).x
        worst[mixed] = float(stiefel.distance(y.double()).max())
    assert worst[True] < 2e-5
    assert worst[False] > 20 * worst[True]


@pytest.mark.usefixtures("reduced")
def test_construction_and_distance_are_exact():
    for kind in DROPPED:
        x = point(128, 128)
        before = x.detach().clone()
        with Reduced(kind):
            oo.POGO([x], 0.1, matmul_precision="mixed")
            assert oo.distance(x) < 1e-4
        assert torch.equal(x, before)


def test_the_form_measures_where_it_lands():
    x = [point(4, 200)]
    assert [bucket.form for bucket in oo.POGO(x, 0.1).plan()] == ["gram"]
    assert [bucket.form for bucket in oo.POGO(x, 0.1, matmul_precision="mixed").plan()] == ["direct-p"]


def test_without_reduced_products_only_clipped_leaps_differ():
    x, y = point(5, 6), point(5, 6)
    opts = [oo.POGO([x], 0.1), oo.POGO([y], 0.1, matmul_precision="mixed")]
    for _ in range(3):
        x.grad = y.grad = torch.randn(5, 6)
        for opt in opts:
            opt.step()
    assert torch.equal(x, y)


def test_switches_are_as_before_after_a_step():
    torch.set_float32_matmul_precision("high")
    try:
        x = point(5, 6)
        opt = oo.POGO([x], 0.1, matmul_precision="mixed")
        x.grad = torch.randn(5, 6)
        opt.step()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"matmul_precision": "half"}, "matmul_precision"),
        ({"matmul_precision": "mixed", "compile": True}, "compile"),
        ({"matmul_precision": "mixed", "base": oo.BB()}, "BB"),
    ],
)
@pytest.mark.parametrize("method", [oo.POGO, oo.StiefelMuon])
def test_what_cannot_be_mixed_is_refused(options, word, method):
    with pytest.raises(ValueError, match=word):
        method([point(4, 6)], 0.1, **options)


@pytest.mark.parametrize("method", [oo.RGD, oo.Landing, oo.LandingPC, oo.SLPG])
def test_methods_that_measure_nothing_after_the_leap_refuse_it(method):
    with pytest.raises(TypeError, match="matmul_precision"):
        method([point(4, 6)], 0.1, matmul_precision="mixed")


@pytest.mark.soak
@pytest.mark.usefixtures("reduced")
@pytest.mark.parametrize("precision", ["ieee", "mixed"])
@pytest.mark.parametrize("kind", DROPPED)
@pytest.mark.parametrize("landing", LANDINGS)
@pytest.mark.parametrize("shape", [(64, 64), (32, 128)])
@pytest.mark.parametrize("lr", [0.02, 0.1])
def test_a_thousand_steps(shape, landing, kind, precision, lr):
    found, _ = farthest(kind, precision, landing, oo.VAdam(), shape, lr, 1000, every=20)
    bound = 0.75 * (1.5 * lr) ** 4 if landing in ("safe", "half", "root", "argmin") else 0.0
    assert found <= 1.5 * max(bound, floor(shape))
