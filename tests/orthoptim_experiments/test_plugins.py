"""Methods and problems of others, as the documentation shows them; records for other programs."""

import csv
import re
import sys
from pathlib import Path

import pytest

from orthoptim_experiments import run
from orthoptim_experiments.harness import export
from orthoptim_experiments.harness.methods import METHODS, Method
from orthoptim_experiments.problems import EXPERIMENTS, plugins
from tests.orthoptim_experiments.helpers import invoke, the_run

PAGE = Path(__file__).parents[2] / "docs" / "researchers.md"


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """The code of the documentation as files; what they register is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.S)
    for name, code in blocks:
        (tmp_path / name).write_text(code)
    before = set(METHODS), set(EXPERIMENTS)
    yield dict(blocks)
    for table, names in zip((METHODS, EXPERIMENTS), before, strict=True):
        for name in set(table) - names:
            del table[name]


def test_the_documented_plugins_are_short(documented):
    lengths = {name: sum(bool(line.strip()) for line in code.splitlines()) for name, code in documented.items()}
    assert lengths["projected_sgd.py"] <= 20
    assert lengths["brockett.py"] <= 40


def test_a_method_of_ones_own_runs_beside_the_others_and_is_swept(documented, tmp_path):
    options = ("--scale", "tiny", "--seeds", 1, "--threads", 1, "--plugin", "projected_sgd.py", "--out", tmp_path / "r")
    result = invoke("run", "pca", *options, "--methods", "projected-SGD,POGO")
    assert result.exit_code == 0, result.output
    result = invoke("run", "pca", *options, "--methods", "projected-SGD", "--grid", "lr=0.05,0.1")
    assert result.exit_code == 0, result.output
    found = the_run(tmp_path / "r")
    assert found.methods == ["projected-SGD", "POGO", "projected-SGD:lr=0.05", "projected-SGD:lr=0.1"]
    assert {trial.status for trial in found.trials} == {"converged"}
    assert "best of the sweep: projected-SGD:lr=0.1" in result.stdout


def test_a_problem_of_ones_own_runs_and_is_reported(documented, tmp_path):
    result = invoke("run", "brockett", "--plugin", "brockett.py", "--threads", 1, "--seeds", 1, "--out", tmp_path / "r")
    assert result.exit_code == 0, result.output
    assert [trial.status for trial in the_run(tmp_path / "r").trials] == ["converged"] * 3
    result = invoke("report", tmp_path / "r", "--plugin", "brockett.py", "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "Brockett" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("code", "message"),
    [("1 / 0", "ZeroDivisionError"), ("x = 1", "neither METHODS nor EXPERIMENTS"), (None, "there is no file")],
)
def test_a_plugin_that_cannot_be_used_is_one_line(tmp_path, code, message):
    if code is not None:
        (tmp_path / "mine.py").write_text(code)
    result = invoke("run", "pca", "--plugin", tmp_path / "mine.py")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_names_that_are_taken_are_refused():
    with pytest.raises(ValueError, match="there is a method 'POGO' already"):
        plugins.register(methods=[Method("POGO", "", METHODS["RGD"].make, "#000000", defaults={})])
    namesake = type("Mine", (type(EXPERIMENTS["pca"]),), {"__module__": "mine"})()
    with pytest.raises(ValueError, match="there is an experiment 'pca' already"):
        plugins.register(experiments=[namesake])


def test_records_from_python_as_csv_and_latex(tmp_path):
    records = run("pca", ["POGO", "SLPG:lr=100.0"], seeds=3, scale="tiny", out=None)
    rows = list(csv.DictReader(records.to_csv(tmp_path / "pca.csv").open()))
    assert len(rows) == sum(map(len, records.trials))
    assert {row["status"] for row in rows} == {"converged", "diverged"}
    table = records.to_latex()
    assert table.count(r"\\") == 3
    assert "diverged at step" in table
    assert "POGO & $" in table
    with pytest.raises(ValueError, match="unknown method 'Pogo' in pca"):
        run("pca", ["Pogo"], out=None)


def test_latex_has_mean_and_half_interval(tmp_path):
    assert export._cell(None, log=False) == "--"
    from orthoptim_experiments.harness.statistics import Estimate

    assert export._cell(Estimate(0.5, 0.4, 0.6, 3), log=False) == r"$0.5 \pm 0.1$"
    assert export._cell(Estimate(1e-6, 1e-7, 1e-5, 3), log=True).startswith(r"$1 \cdot 10^{-6}$ [")


def test_records_as_a_data_frame(monkeypatch):
    records = run("pca", ["POGO", "RGD"], seeds=2, scale="tiny", out=None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        records.to_dataframe()
    monkeypatch.undo()
    pytest.importorskip("pandas")
    frame = records.to_dataframe()
    assert len(frame) == sum(map(len, records.trials))
    last = frame.groupby(["method", "seed"])["projected_gap"].last()
    assert last["RGD", 1] == records.trial("RGD", 1).records["projected_gap"][-1]
    assert frame["status"].eq("converged").all()
