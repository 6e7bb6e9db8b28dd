"""The other orthoptimizers take the same ways."""

import pytest
import torch

import orthoptim as oo
from tests.distributed.cases import TWO, Case, Setting, place, start
from tests.distributed.comparison import TOLERANCE, differences, lengths

METHODS = {
    "rgd": [
        Setting("RGD", {"lr": 0.05}),
        Setting("RGD", {"lr": 0.05, "metric": "canonical", "retraction": "polar"}),
        Setting("RGD", {"lr": 0.05, "retraction": "cholesky"}, "VAdam"),
    ],
    "landing": [
        Setting("Landing", {"lr": 0.01}, "SGD", {"momentum": 0.1}),
        Setting("Landing", {"lr": 0.01, "momentum_of": "gradient"}, "SGD", {"momentum": 0.5}),
        Setting("Landing", {"lr": 0.02}, "VAdam"),
    ],
    "landingpc": [
        Setting("LandingPC", {"lr": 0.02}),
        Setting("LandingPC", {"lr": 0.02, "lam": 0.5, "coupled": False, "tau": None}),
        Setting("LandingPC", {"lr": 0.3, "lam": 0.1, "tau": 0.02}),  # projects now and then
    ],
    "slpg": [Setting("SLPG", {"lr": 0.01}), Setting("SLPG", {"lr": 0.01, "barzilai_borwein": True})],
    "worked-base": [Setting("POGO", {"lr": 0.1}, "AdaGradNorm")],
    "worked-method": [
        Setting("LeapAndPolish", {"lr": 0.05}),
        Setting("LeapAndPolish", {"lr": 0.1, "polish": 3}, "AdaGradNorm"),
    ],
    "rsdm": [Setting("RSDM", {"lr": 0.1, "r": 2}), Setting("RSDM", {"lr": 0.1, "r": 2, "sampling": "permutation"})],
}


@lengths
@pytest.mark.parametrize("settings", METHODS.values(), ids=METHODS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_steps_equal_those_of_one_process(two, settings, dtype, steps):
    for found, strategies in two.run(differences, settings, TWO, dtype, steps):
        assert not [(name, error) for name, error in found if not error <= TOLERANCE[dtype]]
        assert "whole" in strategies
        if settings[0].method != "RSDM":
            assert {"two-phase", "exchange"} <= strategies


def test_buffers_of_a_method_reach_all_replicas(four):
    cases = [Case((9, 7), (2, 2), "r 0"), Case((3, 40), (2, 2), "r 1")]
    for found, _ in four.run(differences, METHODS["slpg"], cases, torch.float64, 5):
        assert not [(name, error) for name, error in found if not error <= TOLERANCE[torch.float64]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_stiefelmuon(two, dtype):
    """Few steps: a sign amplifies the rounding of small singular values a thousandfold, in each step."""
    settings = [
        Setting("StiefelMuon", {"lr": 0.05}),
        Setting("StiefelMuon", {"lr": 0.3, "landing": "strict", "ns_coefficients": (3.4445, -4.7750, 2.0315)}, "VAdam"),
    ]
    limit = {torch.float32: 1e-3, torch.complex128: 1e-11}[dtype]
    for found, strategies in two.run(differences, settings, TWO, dtype, 5):
        assert not [(name, error) for name, error in found if not error <= limit]
        assert {"whole", "two-phase", "exchange"} <= strategies


def test_scale(two):
    """XXᴴ = σ²I: construction brings matrices there, and steps keep them there, as in one process."""
    settings = [
        Setting("POGO", {"lr": 0.1, "scale": 1.01}, "VAdam"),
        Setting("POGO", {"lr": 0.1, "scale": 0.99}, "SGD"),
    ]
    for found, strategies in two.run(differences, settings, TWO, torch.float64, 5):
        assert not [(name, error) for name, error in found if not error <= TOLERANCE[torch.float64]]
        assert {"whole", "two-phase", "exchange"} <= strategies
    assert max(two.run(scaled_distances, TWO)) < 1e-5


def scaled_distances(rank, cases):
    """The largest distance of matrices of a scale, drawn and projected as DTensors."""
    worst = 0.0
    for i, case in enumerate(cases):
        x = place(start(case, i, torch.float32), case)
        for init in ("project", "random"):
            oo.orthogonalize_(x, view=case.view, side=case.side, scale="rms", init=init)
            worst = max(worst, float(oo.distance(x, view=case.view, side=case.side, scale="rms").max()))
        whole = x.full_tensor()
        worst = max(worst, float(oo.distance(whole, view=case.view, side=case.side, scale="rms").max()))
    return worst
