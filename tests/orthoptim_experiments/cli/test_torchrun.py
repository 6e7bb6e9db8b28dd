"""`orthoptim run --nproc`: processes that are killed, interrupted or asked for what cannot be."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from orthoptim_experiments.cli import EXIT_STATUS, torchrun
from orthoptim_experiments.cli.job import SIZES, make_job
from tests.forks import CONTEXT
from tests.orthoptim_experiments.helpers import COMMAND, invoke, run_job, the_run, unlike
from tests.orthoptim_experiments.together import together

TIMEOUT = 300.0  # processes may be paused for a while
CNN = ["cnn", "--methods", "POGO", "--train-images", "200", "--batch-size", "40", "--epochs", "6"]
CNN_SIZES = {"train_images": 200, "batch_size": 40, "epochs": 6.0}  # as in CNN
CIRCUITS = ["circuits", "--methods", "POGO"]


def words(experiment, nproc, out):
    common = ["--scale", "tiny", "--threads", "1", "--checkpoint-every", "0"]
    return ["run", *experiment, *common, "--nproc", str(nproc), "--out", str(out)]


def spawn(experiment, nproc, out):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*COMMAND, *words(experiment, nproc, out)], **pipes)


def only(folder):
    (trial,) = the_run(folder).trials
    return trial


def workers(process) -> list[int]:
    """The processes that it has started."""
    return [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def wait_for(process, happened):
    """Wait until something has happened, or the process has ended."""
    deadline = time.monotonic() + TIMEOUT
    while process.poll() is None and not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def steps_saved(folder):
    """A function that counts the checkpoints written while it watches."""
    seen = set()

    def count():
        seen.update(path.stat().st_mtime_ns for path in folder.glob(".checkpoints/[!.]*.pt"))
        return len(seen)

    return count


def kill(process, folder, chance):
    """Kill a rank, any of them, some steps from now; whether the run was still under way."""
    count, steps = steps_saved(folder), chance.randint(2, 6)
    wait_for(process, lambda: _ignoring_races(count) >= steps)
    ranks = workers(process) if process.poll() is None else []
    if ranks:
        os.kill(chance.choice(ranks), signal.SIGKILL)
        wait_for(process, lambda: not set(ranks) & set(workers(process)))  # all are replaced
    return bool(ranks)


def _ignoring_races(count):
    try:
        return count()
    except FileNotFoundError:  # replaced or deleted between two calls
        return 0


def survive(experiment, nproc, folder, kills, seed=0):
    """A run that loses so many ranks on its way, and what it wrote to stderr."""
    process, chance = spawn(experiment, nproc, folder), random.Random(seed)
    done = sum(kill(process, folder, chance) for _ in range(kills))
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, out + err
    assert done == kills
    assert err.splitlines() == ["orthoptim: a process was lost; all begin again from the last checkpoint"] * kills
    assert "goes on at step" in out
    assert out.count("POGO, seed 0: budget") == 1  # one rank speaks
    assert (folder / ".checkpoints").exists() == (experiment is CIRCUITS)  # which more epochs would continue
    assert list(folder.glob("figures/*.png"))
    return only(folder)


def undisturbed(experiment, nproc, folder):
    process = spawn(experiment, nproc, folder)
    out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, err) == (0, "")
    assert out.count("POGO, seed 0: budget") == 1  # one rank speaks
    return only(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run by ranks that are forked: to start them by torchrun is what the tests themselves do."""
    folder = tmp_path_factory.mktemp("whole")
    together(2, run_job, folder, "cnn", ("POGO",), 2, "float32", **CNN_SIZES)
    return only(folder)


def assert_same(one, other):
    assert one.digest == other.digest != ""
    assert one.status == other.status == "budget"
    assert unlike(one, other) == set()


def test_a_rank_that_is_killed_is_replaced_and_the_run_ends_with_the_same_bits(tmp_path):
    """The command of the README with parts of the model, in float32, the default, on gloo."""
    together(2, run_job, tmp_path / "whole", "cnn", ("POGO",), 2, "float32", sharded=True, **CNN_SIZES)
    killed = survive([*CNN, "--sharded"], 2, tmp_path / "killed", kills=1)
    assert_same(killed, only(tmp_path / "whole"))


@pytest.mark.soak
@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("experiment", [CNN, CIRCUITS], ids=lambda words: words[0])
def test_five_ranks_are_killed_and_the_run_ends_with_the_same_bits(tmp_path, experiment, nproc):
    killed = survive(experiment, nproc, tmp_path / "killed", kills=5, seed=nproc)
    assert_same(killed, undisturbed(experiment, nproc, tmp_path / "whole"))


@pytest.mark.soak
def test_ctrl_c_stops_all_and_the_same_command_goes_on(tmp_path, whole):
    process = spawn(CNN, 2, tmp_path)
    count = steps_saved(tmp_path)
    wait_for(process, lambda: _ignoring_races(count) >= 2)
    ranks = workers(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    (line,) = err.splitlines()
    assert line.startswith("interrupted; 0 trials are done. To go on: orthoptim run cnn")
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    assert only(tmp_path).status is None
    (path, ended), (_, others) = together(2, run_job, tmp_path, "cnn", ("POGO",), 2, "float32", **CNN_SIZES)
    assert ended == others == [("POGO", 0, "budget", False)]
    assert [path] == list(tmp_path.glob("*.jsonl"))  # the same run, not another beside it
    assert_same(only(tmp_path), whole)


@pytest.mark.soak
def test_ranks_whose_agent_is_killed_do_not_live_on(tmp_path):
    process = spawn(CNN, 2, tmp_path)
    wait_for(process, lambda: _ignoring_races(steps_saved(tmp_path)) >= 1)
    ranks = workers(process)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_run_that_loses_ranks_too_often_is_given_up_in_one_line(tmp_path):
    kill_all = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    (tmp_path / "sitecustomize.py").write_text(f"import os\nif 'TORCHELASTIC_RUN_ID' in os.environ:\n    {kill_all}\n")
    code = "from orthoptim_experiments.cli import main, torchrun; torchrun.RESTARTS = 0; main()"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", code, *words(CNN, 2, tmp_path / "out")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("orthoptim: processes were lost 1 times, the last time as rank ")
    assert "SIGKILL" in line


def ended(folder, rank, status):
    """The exit status that rank 0 leaves in a file, of a command that ends all ranks so."""
    file = folder / "status"
    os.environ |= {EXIT_STATUS: str(file), "RANK": str(rank)}
    torchrun.run_as_worker(lambda: sys.exit(status))


@pytest.mark.parametrize(("rank", "status"), [(0, 2), (0, None), (1, 2)])
def test_the_first_process_leaves_the_exit_status_and_none_is_taken_for_a_lost_one(tmp_path, rank, status):
    process = CONTEXT.Process(target=ended, args=(tmp_path, rank, status))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert [file.read_text() for file in tmp_path.iterdir()] == [str(status or 0)] * (rank == 0)


@pytest.mark.soak
def test_results_that_cannot_be_written_are_one_line(tmp_path):
    (tmp_path / "file").touch()
    process = spawn(["cnn"], 2, tmp_path / "file" / "out")
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 2
    (line,) = err.splitlines()
    assert "cannot write" in line


def test_one_process_is_no_option(tmp_path):
    for option in ([], ["--nproc", "1"]):
        result = invoke(
            "run", "circuits", "--scale", "tiny", "--epochs", "1", "--methods", "RGD", *option, "--out", tmp_path
        )
        assert result.exit_code == 0, result.output
    assert "known from before" in result.stdout
    assert only(tmp_path).environment["nproc"] == 1


def test_cores_are_shared_by_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    options = {
        "scale": "tiny",
        "methods": None,
        "seeds": None,
        "device": "cpu",
        "threads": None,
        "overrides": None,
        "grid": None,
    }
    options |= {
        "variant": None,
        "dtype": None,
        "sharded": False,
        **dict.fromkeys(SIZES),
        "out": tmp_path,
        "timeout": None,
        "retry": False,
        "checkpoint_every": 5.0,
    }
    jobs = [make_job("cnn", options | {"nproc": nproc}) for nproc in (1, 3, 16)]
    assert [job.config["threads"] for job in jobs] == [8, 2, 1]
    assert [job.config.get("nproc") for job in jobs] == [None, 3, 16]
    assert len({job.path for job in jobs}) == 3
