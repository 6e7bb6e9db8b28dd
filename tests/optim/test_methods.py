"""The methods beside POGO: each against its oracle, and what is known of it."""

import pytest
import torch

import orthoptim as oo
from orthoptim.stiefel import draws
from tests.conformance.methods import point, set_gradients
from tests.optim import oracles
from tests.problems import iterations, pca, procrustes

ORACLES = {
    "rgd": (oo.RGD, oracles.rgd, None, {}),
    "rgd-canonical": (oo.RGD, oracles.rgd, None, {"metric": "canonical"}),
    "rgd-polar": (oo.RGD, oracles.rgd, None, {"retraction": "polar"}),
    "rgd-cholesky": (oo.RGD, oracles.rgd, None, {"retraction": "cholesky"}),
    "landing": (oo.Landing, oracles.landing, None, {"lam": 0.7, "eps": 0.3}),
    "landing-momentum": (
        oo.Landing,
        oracles.landing_of_average,
        (oo.SGD(momentum=0.5), lambda: oracles.RelativeMomentum(0.5)),
        {},
    ),
    "landing-momentum-of-gradients": (
        oo.Landing,
        oracles.landing,
        (oo.SGD(momentum=0.5), lambda: oracles.Momentum(0.5)),
        {"momentum_of": "gradient"},
    ),
    "landing-vadam": (oo.Landing, oracles.landing, (oo.VAdam(eps=1e-3), lambda: oracles.VAdam(eps=1e-3)), {}),
    "landingpc": (oo.LandingPC, oracles.landingpc, (oo.VAdam(), oracles.VAdam), {}),
    "landingpc-decoupled": (
        oo.LandingPC,
        oracles.landingpc,
        (oo.VAdam(), oracles.VAdam),
        {"coupled": False, "lam": 0.5, "tau": 0.01},
    ),
    "slpg": (oo.SLPG, oracles.slpg, None, {}),
}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_agrees_with_its_oracle_over_50_steps(name, dtype):
    cls, oracle, bases, options = ORACLES[name]
    params = [point(3, 4, 6, dtype=dtype), point(5, 5, dtype=dtype, seed=1), point(6, 4, dtype=dtype, seed=2)]
    mine, theirs = bases or (oo.SGD(), lambda: lambda x, g: g)
    opt = cls(params, 0.02, base=mine, **options)
    singles = [m.clone() for p in params for m in oo.View().to_matrices(p.detach())[0].reshape(-1, *_shape(p))]
    directions = [theirs() for _ in singles]
    for t in range(50):
        set_gradients(params, t)
        grads = [m.clone() for p in params for m in oo.View().to_matrices(p.grad)[0].reshape(-1, *_shape(p))]
        opt.step()
        singles = [
            oracle(x, direction(x, g), 0.02, **options)
            for x, g, direction in zip(singles, grads, directions, strict=True)
        ]
    result = [m for p in params for m in oo.View().to_matrices(p.detach())[0].reshape(-1, *_shape(p))]
    for one, two in zip(result, singles, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


def _shape(param):
    return sorted(param.shape[-2:])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("sampling", ["orthogonal", "permutation"])
def test_rsdm_agrees_with_its_oracle_over_50_steps(dtype, sampling):
    param = point(3, 4, 6, dtype=dtype)
    opt = oo.RSDM([param], 0.3, r=3, sampling=sampling, seed=5)
    singles = list(param.detach().clone())
    streams = draws.fingerprint(param.detach())
    for t in range(1, 51):
        set_gradients([param], t)
        step = torch.full((3,), float(t), dtype=torch.float64)
        if sampling == "orthogonal":
            frames = draws.subspace(streams, step, 5, 3, 6, dtype)
        else:
            frames = torch.eye(6, dtype=dtype)[draws.columns(streams, step, 5, 3, 6)]
        singles = [oracles.rsdm(x, g, 0.3, frame=f) for x, g, f in zip(singles, param.grad, frames, strict=True)]
        opt.step()
    for one, two in zip(param.detach(), singles, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_slpg_with_barzilai_borwein_steps_agrees_with_its_oracle(dtype):
    """Both step from the same points: the iteration is chaotic."""
    param = point(3, 4, 6, dtype=dtype)
    singles = [oracles.ShortBB() for _ in range(3)]
    opt = oo.SLPG([param], 1.0, barzilai_borwein=True)
    for t in range(50):
        if t % 5 == 0:  # before the optimum is reached, another function
            target = torch.randn(3, 4, 6, dtype=dtype)
        param.grad = param.detach() * torch.linspace(1, 9, 6, dtype=torch.float64) - target
        expected = [step(x, g) for x, g, step in zip(param.detach(), param.grad, singles, strict=True)]
        opt.step()
        for one, two in zip(param.detach(), expected, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["pca code", "pca paper", "procrustes"])
def test_slpg_with_barzilai_borwein_steps_converges_at_the_documented_setting(name, seed):
    problem = procrustes(50, seed) if name == "procrustes" else pca(75, 100, name.split()[1], seed)
    max_distance = []

    def make(x):
        opt = oo.SLPG(x, 1.0, barzilai_borwein=True)
        opt.register_step_post_hook(lambda *_: max_distance.append(float(oo.distance(x[0]))))
        return opt

    assert iterations(problem, make, 600) is not None
    assert max(max_distance) < 1e-2


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (oo.Landing, {"lam": 0.0}),
        (oo.Landing, {"eps": 1.5}),
        (oo.LandingPC, {"tau": 0.0}),
        (oo.LandingPC, {"tau": -1.0}),
        (oo.LandingPC, {"lam": -1.0}),
        (oo.RSDM, {"sampling": "sobol", "r": 2}),
    ],
)
def test_bad_options(cls, options):
    param = point(4, 6)
    before = param.detach().clone()
    with pytest.raises(ValueError, match=r"Invalid (lam|eps|tau|sampling)"):
        cls([param], 0.1, **options)
    assert torch.equal(param, before)
