"""The benchmark measures what it says, and says what is wrong in one line."""

import json
import warnings

import pytest
import torch
from typer.testing import CliRunner

from orthoptim_experiments.bench import contenders, measure, workloads
from orthoptim_experiments.cli import commands

SMALL = workloads.Workload("small", [(5, 4, 6), (4, 6)])


@pytest.fixture
def small(monkeypatch, eager_backend):
    monkeypatch.setitem(workloads.WORKLOADS, "W1", SMALL)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(*arguments):
    return CliRunner().invoke(commands.app, ["bench", *arguments])


def test_a_table_and_json(small, tmp_path):
    file = tmp_path / "figures.json"
    result = run("--workload", "W1", "--seconds", "0.01", "--threads", "1", "--json", str(file))
    assert result.exit_code == 0, result.output
    figures = json.loads(file.read_text())
    assert {"orthoptim safe", "orthoptim half", "torch Adam, fused", "limit"} <= figures["W1"].keys()
    for timing in figures["W1"].values():
        assert 0 < timing["least"] <= timing["median"]
    assert figures["threads"] == 1
    assert "orthoptim safe" in result.output


def test_a_contender_that_cannot_take_the_workload_is_left_out(small, monkeypatch):
    monkeypatch.setitem(workloads.WORKLOADS, "W1", SMALL._replace(dtype=torch.complex64))
    result = run("--workload", "W1", "--seconds", "0.01", "--threads", "1", "--only", "orthoptim safe,fused")
    assert result.exit_code == 0, result.output
    assert "W1: torch Adam, fused is left out" in result.output
    assert "│ orthoptim safe" in result.output


def test_missing_peers_are_named(small, monkeypatch):
    monkeypatch.setattr(contenders, "PEERS", {"geoopt": "no_such_module", "pogo-torch": "no_such_module"})
    result = run("--workload", "W1", "--seconds", "0.01", "--threads", "1", "--only", "orthoptim,geoopt")
    assert result.exit_code == 0, result.output
    assert "geoopt is not installed and left out" in result.output
    assert "RiemannianAdam" not in result.output


def test_quick_is_short_and_compiles_nothing(small, monkeypatch, tmp_path):
    monkeypatch.setattr(workloads, "QUICK", ("W1",))
    file = tmp_path / "figures.json"
    result = run("--quick", "--seconds", "0.01", "--threads", "1", "--json", str(file))
    assert result.exit_code == 0, result.output
    figures = json.loads(file.read_text())
    assert {"orthoptim safe", "orthoptim half", "limit"} <= figures["W1"].keys()
    assert not any("compiled" in name or "parametrization" in name for name in figures["W1"])
    assert "without an optimizer" in " ".join(result.output.split())  # the row "limit" is explained


def test_no_warning_of_torchs_own_code_is_shown(small, monkeypatch, recwarn):
    def make(params):
        return lambda: warnings.warn_explicit("old", FutureWarning, "compile.py", 1, module="torch._inductor.compile")

    monkeypatch.setattr(contenders, "contenders", lambda base: {"warning": make})
    assert run("--workload", "W1", "--seconds", "0.01", "--threads", "1").exit_code == 0
    assert not recwarn.list


def test_no_contender_is_one_line_and_exit_code_2(small):
    result = run("--workload", "W1", "--only", "nobody")
    assert result.exit_code == 2
    assert "no contender matches 'nobody'" in result.output


def test_the_workloads_are_those_of_the_paper():
    def matrices(name):
        return sum(torch.Size(shape[:-2]).numel() for shape in workloads.WORKLOADS[name].shapes)

    assert matrices("W1") == 218_624
    assert matrices("W2") == 18
    assert matrices("W3") == 784 + 258 + 6
    assert matrices("W3b") == 784
    assert matrices("W5") == 6
    assert matrices("W6") == 1000


def test_extra_bytes_is_the_peak_of_what_is_held_at_a_time():
    def step():
        a = torch.zeros(1000, dtype=torch.float64)
        b = a + 1
        del a
        return b + 1

    assert 16_000 <= measure.extra_bytes(step) < 16_100  # and the scalars 1


def test_contenders_all_step_the_same_parameters(eager_backend):
    for name, make in contenders.contenders().items():
        params = SMALL.parameters()
        step = make(params)
        step()
        assert all(torch.isfinite(p).all() for p in params), name


def test_all_methods_side_by_side(small, tmp_path):
    file = tmp_path / "figures.json"
    result = run("--workload", "W1", "--methods", "--seconds", "0.01", "--threads", "1", "--json", str(file))
    assert result.exit_code == 0, result.output
    figures = json.loads(file.read_text())["W1"]
    assert next(iter(figures)) == "POGO compiled"
    assert {"POGO", "RGD", "RSDM", "Landing", "LandingPC", "SLPG"} <= figures.keys()
