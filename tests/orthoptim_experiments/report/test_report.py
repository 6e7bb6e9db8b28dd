"""`orthoptim report`: from run files to page and figures, or to one line that says what is wrong."""

import json
import os

import pytest
from typer.testing import CliRunner

from orthoptim_experiments.cli import commands
from orthoptim_experiments.harness.claims import Claim, Verdict
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.problems import EXPERIMENTS
from orthoptim_experiments.report import describe, find_runs
from orthoptim_experiments.report.section import judge
from tests.orthoptim_experiments.synthetic import run_lines, write_run

SMALL = {"methods": ("POGO", "RGD"), "seeds": 2, "steps": 30}


def report(*arguments):
    return CliRunner().invoke(commands.app, ["report", *map(str, arguments)])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_page_and_figures_of_a_folder(here):
    (here / "results").mkdir()
    write_run(here / "results" / "pca-1.jsonl", **SMALL, run_id="1")
    write_run(here / "results" / "procrustes-2.jsonl", experiment="procrustes", **SMALL, run_id="2")
    result = report()
    assert result.exit_code == 0, result.output
    figures = [f"figures/{run}.{ending}" for run in ("pca-1", "procrustes-2") for ending in ("png", "pdf", "csv")]
    assert result.stdout.split() == ["report.html", *figures]
    assert all((here / name).stat().st_size > 1000 for name in result.stdout.split())
    page = (here / "report.html").read_text()
    assert "<h2" in page
    assert page.count("plotly.js v") == 1  # once, however many runs
    assert not list(here.rglob(".*"))


def test_files_are_named_one_by_one_each_counts_once_and_out_goes_where_asked(here):
    path = write_run(here / "any name.jsonl", **SMALL)
    result = report(path, path, here, "--out", here / "new" / "page.html")
    assert result.exit_code == 0, result.output
    assert (here / "new" / "page.html").read_text().count('<section class="run"') == 1
    assert (here / "new" / "figures" / "pca-0123456789.png").exists()


def test_open_shows_the_page(here, monkeypatch):
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    report(write_run(here / "run.jsonl", **SMALL), "--open")
    assert shown == [(here / "report.html").as_uri()]


def test_a_torn_last_line_is_left_out_with_a_notice(here):
    path = write_run(here / "run.jsonl", **SMALL)
    path.write_bytes(path.read_bytes()[:-9])
    result = report(path)
    assert result.exit_code == 0, result.output
    assert "the last line is torn" in result.stderr
    assert "the last line is torn" in (here / "report.html").read_text()


def test_defects_are_one_line_each_and_the_rest_is_shown(here):
    path = write_run(here / "run.jsonl", **SMALL)
    lines = path.read_text().splitlines()
    lines[0] = lines[0].replace('"p": 375', '"p": "<b>many</b>"')
    lines[4] = lines[4][:20]
    path.write_text("\n".join(lines) + "\n")
    (here / "other.jsonl").write_bytes(b"\xff\xfe{\0}\0")
    (here / "folder.jsonl").mkdir()
    (here / "circle.jsonl").symlink_to(here / "circle.jsonl")
    os.mkfifo(here / "pipe.jsonl")
    result = report(here)
    assert result.exit_code == 0, result.output
    assert sorted(result.stderr.splitlines()) == [
        f"orthoptim: {here}/other.jsonl:1: the last line is torn (6 bytes), and there is no other: it holds no run",
        f"orthoptim: {here}/run.jsonl:1: config 'p' '<b>many</b>' is not a whole number",
        f"orthoptim: {here}/run.jsonl:5: not JSON",
        f"orthoptim: cannot read {here}/circle.jsonl: Too many levels of symbolic links",
        f"orthoptim: cannot read {here}/folder.jsonl: Is a directory",
        f"orthoptim: cannot read {here}/pipe.jsonl: not a regular file",
    ]
    page = (here / "report.html").read_text()
    assert "run.jsonl:5: not JSON" in page
    assert "&lt;b&gt;many&lt;/b&gt;" in page
    assert "<b>many" not in page


def test_files_of_which_none_can_be_used_are_exit_code_2(here):
    for name in ("a.jsonl", "b.jsonl"):
        (here / name).write_text("[]\n")
    result = report(here)
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"orthoptim: {here}/a.jsonl:1: [] is not a JSON object; it holds no run",
        f"orthoptim: {here}/b.jsonl:1: [] is not a JSON object; it holds no run",
        f"orthoptim: none of the 2 files in {here} holds a run",
    ]
    assert not (here / "report.html").exists()


@pytest.mark.parametrize("name", ["../../escaped", "ABSOLUTE"])
def test_names_in_a_run_are_no_paths(here, name):
    name = name.replace("ABSOLUTE", str(here / "escaped"))
    (here / "a" / "b").mkdir(parents=True)
    path = write_run(here / "run.jsonl", experiment=name, run_id=name, **SMALL)
    result = report(path, "--out", here / "a" / "b" / "report.html")
    assert result.exit_code == 0, result.output
    written = {each for each in here.rglob("*") if each.is_file()} - {path}
    assert {each.parent for each in written} == {here / "a" / "b", here / "a" / "b" / "figures"}
    assert len(written) == 4


def test_a_run_in_two_folders_and_names_that_differ_by_case_have_figures_of_their_own(here):
    for folder, name in (("one", "mine"), ("two", "mine"), ("three", "MINE")):
        (here / folder).mkdir()
        write_run(here / folder / "run.jsonl", experiment=name, **SMALL)
    result = report("one", "two", "three")
    assert result.exit_code == 0, result.output
    stems = ["MINE-0123456789", "mine-0123456789-2", "mine-0123456789-3"]
    assert [path for path in result.stdout.split() if path.endswith("png")] == [f"figures/{stem}.png" for stem in stems]
    page = (here / "report.html").read_text()
    assert all(page.count(f'<section class="run" id="{stem}"') == 1 for stem in stems)


def test_figures_are_not_written_through_a_link(here):
    (here / "elsewhere").mkdir()
    (here / "figures").symlink_to(here / "elsewhere")
    result = report(write_run(here / "run.jsonl", **SMALL))
    assert result.exit_code == 2
    assert result.stderr == "orthoptim: figures: is a symbolic link, and nothing is written through it\n"
    assert not list((here / "elsewhere").iterdir())


def no_results(here):
    return [], "there are no results at results"


def no_runs_in_folder(here):
    (here / "empty").mkdir()
    return [here / "empty"], "there are no results in"


def no_such_file(here):
    return [here / "nothing.jsonl"], "there are no results at"


def no_run(here):
    (here / "other.jsonl").write_text('{"kind": "something"}\n')
    return [here / "other.jsonl"], "other.jsonl:1: the first line must be of kind 'run'"


def out_is_a_folder(here):
    return [write_run(here / "run.jsonl", **SMALL), "--out", here], f"{here}: Is a directory"


def out_below_a_file(here):
    path = write_run(here / "run.jsonl", **SMALL)
    return [path, "--out", path / "report.html"], f"{path / 'report.html'}: "


@pytest.mark.parametrize(
    "case", [no_results, no_runs_in_folder, no_such_file, no_run, out_is_a_folder, out_below_a_file]
)
def test_bad_input_is_one_line_and_exit_code_2(here, case):
    arguments, message = case(here)
    before = sorted(here.rglob("*"))
    result = report(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("orthoptim: ")
    assert result.stderr.count("\n") == 1
    assert sorted(here.rglob("*")) == before  # nothing half-written


def test_a_page_that_cannot_be_replaced_stays_as_it_was(here, monkeypatch):
    path = write_run(here / "run.jsonl", **SMALL)
    (here / "report.html").write_text("before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = report(path)
    assert result.exit_code == 2
    assert "report.html: No space left on device" in result.stderr
    assert (here / "report.html").read_text() == "before"
    assert sorted(each.name for each in here.iterdir()) == ["report.html", "run.jsonl"]


def test_the_experiment_says_what_to_show(here):
    section = describe(load(write_run(here / "run.jsonl", **SMALL)))
    assert section.title == EXPERIMENTS["pca"].title
    assert "\n" not in section.about
    assert [claim for claim, _ in section.findings] == list(EXPERIMENTS["pca"].claims)
    shades = {panel.y: panel.shade for panel in section.panels}
    assert shades == {"gap": None, "projected_gap": None, "distance": pytest.approx(10 * 2**-24 * 375)}


def test_the_text_has_the_sizes_of_the_run_and_not_the_papers(here):
    lines = list(run_lines("procrustes", **SMALL))
    lines[0]["config"] |= {"tolerance": 1e-4, "budget": 77}
    (here / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "below 0.0001, or after 77 steps" in describe(load(here / "run.jsonl")).about
    for experiment in EXPERIMENTS.values():
        for scale in experiment.scales:
            assert "{" not in experiment.description(configuration(experiment, scale))


def test_claims_as_a_table_in_markdown(here):
    path = write_run(here / "run.jsonl", **SMALL)
    result = report(path, "--claims", here / "claims.md")
    assert result.exit_code == 0, result.output
    lines = (here / "claims.md").read_text().splitlines()
    assert len(lines) == 2 + len(EXPERIMENTS["pca"].claims)
    assert "“we see that POGO and LandingPC converge first” (§5.1, Online PCA)" in lines[2]
    assert {line.count(" | ") for line in lines[2:]} == {4}


def test_an_unknown_experiment_is_shown_with_all_its_columns(here):
    lines = list(run_lines("mine", **SMALL))
    for line in lines:
        if line["kind"] == "record":
            line["accuracy"] = 0.5
    path = here / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = describe(load(path))
    assert (section.title, section.findings, section.target) == ("mine", (), None)
    assert {"accuracy", "gap", "distance", "loss"} <= set(section.columns)
    assert report(path).exit_code == 0


def test_claims_are_judged_on_the_run_and_data_that_do_not_suffice_are_no_crash(here):
    run = load(write_run(here / "run.jsonl", **SMALL))
    assert judge(Claim("yes", lambda run: Verdict("holds", run.id)), run) == ("holds", "0123456789 (2 seeds only)")
    for doomed in (lambda run: max([]), lambda run: [][0], lambda run: {}["a"], lambda run: 1 / 0):
        assert judge(Claim("no", doomed), run).verdict == "not measured"


def test_every_claim_stands_a_run_that_has_just_begun(here):
    for name, experiment in EXPERIMENTS.items():
        lines = run_lines(name, methods=experiment.default_methods, seeds=1, steps=4)
        statuses = [line for line in lines if line["kind"] in ("run", "trial")]
        path = here / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in statuses))
        assert {verdict.verdict for _, verdict in describe(load(path)).findings} == {"not measured"}


def test_runs_are_in_the_order_of_experiments(here):
    write_run(here / "a.jsonl", experiment="procrustes", **SMALL)
    write_run(here / "b.jsonl", experiment="pca", **SMALL)
    assert [run.experiment for run in find_runs([here], tell=pytest.fail)] == ["pca", "procrustes"]
