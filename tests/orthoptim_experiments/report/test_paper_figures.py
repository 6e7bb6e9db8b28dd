"""The figures of the paper, each from one command that combines runs."""

import pytest

from orthoptim_experiments.harness.methods import RATES
from orthoptim_experiments.report.paper_figures import FIGURES
from tests.orthoptim_experiments.helpers import invoke
from tests.orthoptim_experiments.synthetic import write_run

SWEPT = tuple(f"{name}:base=SGD:lr={rate}" for name in ("POGO", "POGO-root") for rate in RATES)
PRECISE = tuple(f"{name}-{bits}" for name in ("POGO", "RGD") for bits in ("fp16", "fp64"))
MADE = {
    "pca": {},
    "procrustes": {},
    "vit": {"columns": {"accuracy": 0.4}},
    "circuits": {"columns": {"bpd": 1.3}},
    "precision": {"methods": PRECISE},
    "stepsize": {"methods": ("POGO", *SWEPT), "columns": {"bpd": 1.3}},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name, options in MADE.items():
        write_run(folder / f"{name}.jsonl", experiment=name, run_id=name, seeds=1, steps=40, **options)
    for variant in ("filters", "kernels"):
        options = {"run_id": variant, "config": {"variant": variant}, "columns": {"accuracy": 0.8}}
        write_run(folder / f"cnn-{variant}.jsonl", experiment="cnn", seeds=3, steps=40, **options)
    return folder


@pytest.mark.parametrize("name", FIGURES)
def test_one_command_for_each_figure(results, tmp_path, name):
    result = invoke("figure", name, results, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert [line.rpartition("/")[2] for line in result.stdout.split()] == [f"paper-{name}.png", f"paper-{name}.pdf"]
    assert all((tmp_path / f"paper-{name}.{ending}").stat().st_size > 3000 for ending in ("png", "pdf"))


def test_all_are_listed_and_what_is_missing_is_told_with_its_command(results, tmp_path):
    listed = invoke("figure").stdout
    assert all(name in listed for name in FIGURES)
    result = invoke("figure", "overview", results / "pca.jsonl", "--out", tmp_path)
    assert result.exit_code == 2
    assert "make one: orthoptim run cnn --constraint filters" in result.stderr
