"""The problems: gradients, optima and gaps are what they say, and states are all it takes to go on."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import orthoptim as oo
from orthoptim_experiments.harness import methods
from orthoptim_experiments.harness.clock import Clock
from orthoptim_experiments.harness.experiment import configuration, run_id
from orthoptim_experiments.problems import EXPERIMENTS
from orthoptim_experiments.problems.pca import problem as pca
from orthoptim_experiments.problems.precision.products import half_products
from orthoptim_experiments.problems.procrustes import problem as procrustes

TINY = {name: configuration(experiment, "tiny") for name, experiment in EXPERIMENTS.items()}
CASES = [("pca", "POGO"), ("procrustes", "POGO"), ("precision", "POGO-fp16"), ("precision", "RSDM-fp64")]


def begin(experiment, method, seed=0, config=None):
    config = config or TINY[experiment]
    problem = EXPERIMENTS[experiment].problem(config, method, seed)
    problem.begin(methods.find(method).build(problem.parameters(), EXPERIMENTS[experiment].methods(config)[method]))
    return problem


@pytest.mark.parametrize(("name", "variant"), [("pca", "code"), ("pca", "paper"), ("procrustes", None)])
@given(seed=st.integers(0, 1000))
def test_the_optimum_is_one_and_the_gradient_vanishes_on_the_manifold_there(name, variant, seed):
    config = configuration(EXPERIMENTS[name], "tiny", variant=variant, dtype="float64")
    problem = begin(name, "POGO", seed, config)
    x = problem.x.detach()
    # the analytic gradient is that of the value
    leaf = x.clone().requires_grad_()
    (0.5 * -(leaf @ problem.a * leaf).sum() if name == "pca" else _procrustes(problem, leaf)).backward()
    assert torch.allclose(leaf.grad, problem.x.grad, atol=1e-12)
    assert math.isclose(problem.value(), problem.value_at(x), rel_tol=1e-12)
    # no point is better than the optimum, and one is as good
    assert problem.value() >= problem.optimum - 1e-9
    best = _best(name, problem, config)
    assert math.isclose(problem.value_at(best), problem.optimum, rel_tol=1e-9)


def _procrustes(problem, x):
    return (problem.a @ x - problem.b).square().sum() / (2 * problem.n)


def _best(name, problem, config):
    if name == "pca":
        return torch.linalg.eigh(problem.exact)[1][:, -config["p"] :].mT.contiguous()
    a, b = problem.exact
    return oo.project_(a.mT @ b)


@given(seed=st.integers(0, 1000))
def test_procrustes_starts_in_the_component_of_its_optimum(seed):
    data = procrustes.instance(8, seed, "float32")
    best = oo.project_(data.a.mT @ data.b)
    assert torch.linalg.det(best) * torch.linalg.det(data.start) > 0


def test_the_variants_of_pca_are_those_of_the_text_and_of_the_code():
    paper = torch.linalg.eigvalsh(pca.instance(30, 40, "paper", 0, "float64").a)
    code = torch.linalg.eigvalsh(pca.instance(30, 40, "code", 0, "float64").a)
    assert math.isclose(paper[-1] / paper[0], 1000, rel_tol=1e-6)
    assert code[0] < 0


def test_hyperparameters_are_those_of_the_paper_at_its_scale_and_scale_with_n():
    full = {
        name: EXPERIMENTS[name].methods(configuration(EXPERIMENTS[name], "paper")) for name in ("pca", "procrustes")
    }
    rates = {name: {method: options.get("lr") for method, options in full[name].items()} for name in full}
    assert [rates["pca"][m] for m in methods.PAPER] == [0.25, 0.15, 1.5, 0.25, 10.5, 0.125]
    assert [rates["procrustes"][m] for m in methods.PAPER] == [0.5, 0.5, 2.0, 0.5, 1.5, 0.5]
    assert (full["pca"]["RSDM"]["r"], full["procrustes"]["RSDM"]["r"]) == (700, 900)
    assert (full["pca"]["LandingPC"]["lam"], full["procrustes"]["LandingPC"]["lam"]) == (0.01, 0.1)
    quarter = EXPERIMENTS["pca"].methods({"n": 500})
    assert quarter["LandingPC"]["lr"] == 5.25
    assert quarter["RSDM"]["r"] == 175


@pytest.mark.parametrize(("name", "method"), [*CASES, ("pca", "pogo-torch"), ("pca", "POGO-BB"), ("pca", "RSDM")])
def test_a_state_is_all_it_takes_to_go_on(name, method, tmp_path):
    if not methods.find(method).installed:
        pytest.skip("not installed")
    whole, half = begin(name, method), begin(name, method)
    for _ in range(8):
        whole.advance()
    for _ in range(5):
        half.advance()
    torch.save(half.state_dict(), tmp_path / "state.pt")
    rest = begin(name, method)
    rest.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert rest.step == 5
    for _ in range(3):
        rest.advance()
    assert torch.equal(rest.x, whole.x)
    assert rest.evaluate() == whole.evaluate()


@pytest.mark.parametrize(("name", "method"), CASES)
def test_evaluation_changes_nothing(name, method):
    watched, alone = begin(name, method), begin(name, method)
    for _ in range(5):
        watched.evaluate()
        watched.outcome()
        watched.advance()
        alone.advance()
    assert torch.equal(watched.x, alone.x)


def test_outcomes():
    problem = begin("pca", "POGO")
    assert problem.outcome() is None
    problem.step = problem.budget
    assert problem.outcome().status == "budget"
    problem.tolerance = math.inf
    assert problem.outcome().status == "converged"
    for value in (math.nan, math.inf, -1e9):
        problem.value = lambda value=value: value
        assert problem.outcome().status == "diverged"


def test_the_projected_gap_is_not_fooled_by_a_point_off_the_manifold():
    problem = begin("pca", "POGO", config=configuration(EXPERIMENTS["pca"], "tiny", dtype="float64"))
    on = problem.evaluate()
    with torch.no_grad():
        problem.x.mul_(1.05)
    problem.differentiate()
    off = problem.evaluate()
    assert abs(off["gap"] - on["gap"]) > 1e-2
    assert math.isclose(off["projected_gap"], on["gap"], rel_tol=1e-9)
    assert off["distance"] > 0.1


def test_sixteen_bit_products_round_factors_and_nothing_else():
    x, y = torch.randn(2, 5, 6), torch.randn(2, 6, 4)
    rounded = x.bfloat16().float() @ y.bfloat16().float()
    with half_products(torch.device("cpu")):
        assert torch.equal(x @ y, rounded)
        assert torch.equal(torch.baddbmm(x[:, :, :4], x, y), torch.baddbmm(x[:, :, :4], x, y))
        assert torch.equal(x + x, 2 * x)
        assert torch.equal(x.double() @ y.double(), torch.bmm(x.double(), y.double()))
    assert not torch.equal(x @ y, rounded)


def test_precision_differs_where_it_should():
    runs = {bits: begin("precision", f"POGO-{bits}") for bits in methods.PRECISIONS}
    for bits, problem in runs.items():
        for _ in range(60):  # until the steps are so short that only rounding is left
            with EXPERIMENTS["precision"].arithmetic(TINY["precision"], f"POGO-{bits}"):
                problem.advance()
    away = {bits: problem.evaluate()["distance"] for bits, problem in runs.items()}
    assert away["fp16"] > 100 * away["fp32"]
    assert away["fp32"] > 100 * away["fp64"]


def test_the_clock_waits_for_the_device_and_counts_only_what_is_inside(monkeypatch):
    events = []
    monkeypatch.setattr("torch.accelerator.synchronize", lambda device: events.append(device))
    now, used = iter([1.0, 3.0, 10.0, 11.5]), iter([5.0, 6.0, 7.0, 9.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    monkeypatch.setattr("time.process_time", lambda: next(used))
    clock = Clock(torch.device("cuda:1"), elapsed=0.5, processor=0.25)
    for _ in range(2):
        with clock:
            events.append("work")
    assert (clock.elapsed, clock.processor) == (4.0, 3.25)
    device = torch.device("cuda:1")
    assert events == [device, "work", device] * 2


def test_a_run_id_changes_with_anything_but_methods_and_seeds():
    experiment = EXPERIMENTS["pca"]
    same = {"scale": "tiny", "variant": "code", "dtype": "float32", "device": "cpu", "threads": 1}
    ids = {run_id(configuration(experiment, **same)), run_id(configuration(experiment, "tiny"))}
    assert len(ids) == 1
    for change in (
        {"scale": "laptop"},
        {"variant": "paper"},
        {"dtype": "float64"},
        {"device": "cuda"},
        {"threads": 2},
    ):
        ids.add(run_id(configuration(experiment, **{**same, **change})))
    assert len(ids) == 6
