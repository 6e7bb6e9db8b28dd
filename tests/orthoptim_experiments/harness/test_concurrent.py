"""Several processes on one folder of results, and a disk that is full: nothing is lost."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orthoptim import atomic
from orthoptim_experiments.harness.record_reader import load
from orthoptim_experiments.harness.record_writer import RunFile
from orthoptim_experiments.harness.records import ResultsError
from tests.forks import Command
from tests.orthoptim_experiments.synthetic import HEADER, write_trial

WRITER = """
import json, sys, time
from orthoptim_experiments.harness.records import ResultsError
from orthoptim_experiments.harness.record_writer import RunFile
path, header, method = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
refusals = 0
for seed in range(20):
    while True:
        try:
            with RunFile(path, header) as file:
                file.append("trial", method=method, seed=seed, options={}, environment={})
                for step in range(10):
                    file.append("record", method=method, seed=seed, step=step, time=float(step), loss=1.0)
                    time.sleep(0.0005)
                file.append("end", method=method, seed=seed, status="budget")
            time.sleep(0.001)
            break
        except ResultsError as error:
            assert "is being written by another process" in str(error), error
            refusals += 1
            time.sleep(0.001)
print(refusals)
"""


def test_processes_that_take_turns_on_one_file_lose_no_record(tmp_path):
    path, names = tmp_path / "run.jsonl", ["one", "two", "three"]
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, json.dumps(HEADER), name], stdout=subprocess.PIPE)
        for name in names
    ]
    refusals = [int(process.communicate()[0]) for process in processes]
    run = load(path)
    assert (run.notice, run.defects) == ("", [])
    assert {(trial.method, trial.seed) for trial in run.trials} == {
        (name, seed) for name in names for seed in range(20)
    }
    assert all(len(trial) == 10 and trial.status == "budget" for trial in run.trials)
    assert sum(refusals) > 0  # they did meet
    assert path.read_bytes().count(b'"kind": "run"') == 1


def test_runs_of_two_processes_in_one_folder_are_those_of_each_alone(tmp_path):
    words = ["run", "pca", "--scale", "tiny", "--threads", "1", "--methods", "POGO,RSDM", "--seeds", "1"]
    words += ["--checkpoint-every", "0", "--out", tmp_path, "--dtype"]
    together = [Command(*words, dtype) for dtype in ("float32", "float64")]
    assert [(status, err) for status, _, err in (process.wait() for process in together)] == [(0, b"")] * 2
    runs = [load(path) for path in tmp_path.glob("*.jsonl")]
    assert sorted(run.config["dtype"] for run in runs) == ["float32", "float64"]
    for run in runs:
        assert (run.notice, run.defects) == ("", [])
        assert [trial.method for trial in run.trials] == ["POGO", "RSDM"]
        assert all(trial.status in ("converged", "budget") for trial in run.trials)
        assert all(trial.records["step"] == list(range(len(trial))) for trial in run.trials)
    assert not (tmp_path / ".checkpoints").exists()
    assert len(list((tmp_path / "figures").iterdir())) == 4


def test_a_folder_that_another_process_removes_is_made_again(tmp_path, monkeypatch):
    """As the folder of checkpoints is, by whoever finds it empty."""
    mkdir, removals = Path.mkdir, []

    def mkdir_and_lose(self, *arguments, **options):
        mkdir(self, *arguments, **options)
        if len(removals) < 3:
            removals.append(self.rmdir())

    monkeypatch.setattr(Path, "mkdir", mkdir_and_lose)
    atomic.write(tmp_path / "folder" / "file", b"data")
    assert (tmp_path / "folder" / "file").read_bytes() == b"data"
    assert len(removals) == 3


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_disk_that_fills_up_within_a_line_keeps_the_earlier_ones(tmp_path, monkeypatch, room):
    path = write_trial(tmp_path / "run.jsonl", end=None)
    before = path.read_bytes()
    write_, left = os.write, [room]

    def full(handle, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write_(handle, data[: left[0]])
        left[0] -= written
        return written

    with RunFile(path, HEADER) as file:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(ResultsError) as caught:
            file.append("record", method="POGO", seed=0, step=9, time=9.0, loss=1.0)
        assert str(caught.value) == f"cannot write {path}: No space left on device; earlier results are kept"
        monkeypatch.undo()
        assert path.read_bytes() == before
        file.append("record", method="POGO", seed=0, step=9, time=9.0, loss=1.0)
    assert len(load(path).trials[0]) == 6


def test_a_full_disk_keeps_a_torn_line_where_it_is(tmp_path, monkeypatch):
    path = write_trial(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes()[:-9])
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultsError, match=r"run\.jsonl\.torn: No space left on device; nothing is changed"):
        RunFile(path, HEADER)
    assert path.read_bytes() == before
