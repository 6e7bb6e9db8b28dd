"""The store: what is written is read back, whatever was cut off; what is corrupt is refused."""

import json
import math
import resource
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthoptim.experiments import results
from orthoptim.experiments.results import ResultsError, RunFile, load

HEADER = {"id": "0123456789", "experiment": "pca", "config": {"n": 8}, "environment": {"torch": "2"}, "started": "now"}

values = st.floats(width=64)
records = st.lists(st.dictionaries(st.sampled_from(["loss", "gap", "distance"]), values), min_size=1, max_size=8)


def write(path, *, steps=5, end="converged"):
    with RunFile(path, HEADER) as file:
        file.append("trial", method="POGO", seed=0, options={"lr": 0.5}, environment={})
        for step in range(steps):
            file.append("record", method="POGO", seed=0, step=step, time=0.1 * step, loss=1.0 / (step + 1))
        if end:
            file.append("end", method="POGO", seed=0, status=end, step=steps, time=1.0, message="")
    return path


@given(records)
def test_what_is_written_is_read_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    with RunFile(path, HEADER) as file:
        file.append("trial", method="POGO-½", seed=3, options={"lr": 0.5, "betas": (0.9, 0.999)}, environment={})
        for step, row in enumerate(rows):
            file.append("record", method="POGO-½", seed=3, step=step, time=float(step), **row)
    run = load(path)
    assert (run.id, run.experiment, run.config, run.notice) == ("0123456789", "pca", {"n": 8}, "")
    (trial,) = run.trials
    assert (trial.method, trial.seed, trial.status) == ("POGO-½", 3, None)
    assert trial.options == {"lr": 0.5, "betas": [0.9, 0.999]}
    assert all(len(column) == len(rows) for column in trial.records.values())
    for step, row in enumerate(rows):
        for name in trial.records.keys() - {"step", "time"}:
            wrote, read = row.get(name, math.nan), trial.records[name][step]
            assert read == wrote if math.isfinite(wrote) else math.isnan(read)


@given(st.data())
def test_cut_anywhere_it_loads_and_goes_on(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("run") / "run.jsonl")
    whole = path.read_bytes()
    cut = data.draw(st.integers(whole.index(b"\n") + 1, len(whole)))
    path.write_bytes(whole[:cut])
    torn = not whole[:cut].endswith(b"\n")
    run = load(path)
    assert bool(run.notice) == torn
    with RunFile(path, HEADER) as file:
        assert bool(file.run.notice) == torn
        file.append("trial", method="RGD", seed=0, options={}, environment={})
    again = load(path)
    assert again.notice == ""
    assert again.methods == [*run.methods, "RGD"]
    assert [len(trial) for trial in again.trials] == [*(len(trial) for trial in run.trials), 0]


@pytest.mark.parametrize("cut", [0, 1, 20])
def test_a_file_without_a_whole_first_line_begins_anew(tmp_path, cut):
    path = write(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ResultsError, match="holds no run"):
        load(path)
    with RunFile(path, HEADER) as file:
        assert file.run.trials == []
    assert load(path).id == "0123456789"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\x00\xff garbage", "not JSON"),
        (b'{"kind":"record","method":"POGO","seed":0,"time":1}', "it has no 'step'"),
        (b'{"kind":"record","method":"POGO","seed":0,"step":1,"time":1,"loss":"low"}', "'low' is not a number"),
        (b'{"kind":"record","method":"RGD","seed":0,"step":1,"time":1}', "has not begun"),
        (b'{"kind":"end","method":"POGO","seed":0,"status":"great"}', "unknown status 'great'"),
        (b'{"kind":"picture","method":"POGO","seed":0,"name":"samples","png":"?"}', "its picture is not base64"),
        (b'{"kind":"more","method":"POGO","seed":0}', "unknown kind"),
        (b"[1, 2]", ""),
        (b"", "not JSON"),
    ],
)
def test_a_corrupt_line_in_the_middle_is_refused_by_file_and_line(tmp_path, line, reason):
    path = write(tmp_path / "run.jsonl")
    lines = path.read_bytes().split(b"\n")
    lines.insert(3, line)
    path.write_bytes(b"\n".join(lines))
    for read in (load, lambda path: RunFile(path, HEADER)):
        with pytest.raises(ResultsError) as caught:
            read(path)
        message = str(caught.value)
        assert "run.jsonl, line 4 is corrupt" in message
        assert reason in message
        assert "\n" not in message
    assert path.read_bytes() == b"\n".join(lines)


def test_a_resume_voids_later_records_and_a_new_beginning_all(tmp_path):
    path = write(tmp_path / "run.jsonl", end=None)
    with RunFile(path, HEADER) as file:
        file.append("resume", method="POGO", seed=0, step=2)
        file.append("record", method="POGO", seed=0, step=3, time=9.0, loss=7.0)
    assert load(path).trials[0].records["step"] == [0, 1, 2, 3]
    assert load(path).trials[0].records["loss"][-1] == 7.0
    with RunFile(path, HEADER) as file:
        file.append("trial", method="POGO", seed=0, options={"lr": 1.0}, environment={})
    (trial,) = load(path).trials
    assert len(trial) == 0
    assert trial.options == {"lr": 1.0}


def test_only_one_process_writes_at_a_time(tmp_path):
    path = write(tmp_path / "run.jsonl")
    with RunFile(path, HEADER):
        code = "import sys; from orthoptim.experiments.results import *\nRunFile(sys.argv[1], {})"
        other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
        assert "is being written by another process" in other.stderr
        assert load(path).trials  # readers are let in
    RunFile(path, HEADER).close()


def test_what_cannot_be_written_whole_is_taken_back(tmp_path):
    path = tmp_path / "run.jsonl"
    before, limit = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with RunFile(path, HEADER) as file:
            file.append("trial", method="POGO", seed=0, options={}, environment={})
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 300, limit[1]))
            file.append("record", method="POGO", seed=0, step=0, time=0.0)
            with pytest.raises(ResultsError, match=r"cannot write .*run\.jsonl: File too large; earlier results"):
                file.append("record", method="POGO", seed=0, step=1, time=0.0, **{f"name{i}": 0.0 for i in range(30)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    run = load(path)
    assert run.notice == ""
    assert len(run.trials[0]) == 1


def test_what_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="cannot write"):
        RunFile(tmp_path / "file" / "run.jsonl", HEADER)
    with pytest.raises(ResultsError, match="cannot read"):
        load(tmp_path / "none.jsonl")


def test_every_line_is_strict_json(tmp_path):
    path = tmp_path / "run.jsonl"
    with RunFile(path, HEADER) as file:
        file.append("trial", method="POGO", seed=0, options={"limit": math.inf}, environment={})
        file.append("record", method="POGO", seed=0, step=0, time=0.0, loss=math.nan)

    def refuse(name):
        raise AssertionError(name)

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert lines[1]["options"] == {"limit": None}
    assert lines[2]["loss"] is None
    assert set(results.STATUSES) == {"converged", "budget", "diverged", "timeout", "failed"}
