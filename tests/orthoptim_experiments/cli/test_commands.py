"""The command line: real processes that are killed, interrupted, out of disk, or asked for what is not there."""

import os
import pty
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orthoptim_experiments.cli import commands
from orthoptim_experiments.harness.record_reader import load
from tests.forks import Command
from tests.orthoptim_experiments.helpers import COMMAND, invoke, same

TINY = [
    "--scale",
    "tiny",
    "--threads",
    "1",
    "--seeds",
    "2",
    "--methods",
    "POGO,RSDM,POGO-BB",
    "--checkpoint-every",
    "0",
]


def the_file(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.jsonl"))


def wait_until_it_grows(process, folder: Path, by: int) -> None:
    """Wait until the process has written so many bytes, or has ended."""
    before = size(folder)
    while process.poll() is None and size(folder) < before + by:
        time.sleep(0.002)


# A run and what it leaves


def test_a_run_ends_with_a_summary_and_the_path_of_its_results(tmp_path):
    result = invoke("run", "pca", *TINY[:-2], "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "[1/6] POGO, seed 0: converged after 51 steps" in result.stdout
    assert f"results: {the_file(tmp_path)}" in result.stdout
    again = invoke("run", "pca", *TINY[:-2], "--out", tmp_path)
    assert again.stdout.count("known from before") == 6


def kills(tmp_path, count, seed=0, seeds=2):
    arguments = [*TINY, "--seeds", str(seeds)]
    whole = invoke("run", "pca", *arguments, "--out", tmp_path / "whole")
    assert whole.exit_code == 0, whole.output
    out, chance, killed = tmp_path / "killed", random.Random(seed), 0
    for _ in range(count):
        process = Command("run", "pca", *arguments, "--out", out)
        wait_until_it_grows(process, out, chance.randint(1, size(tmp_path / "whole") // count))
        time.sleep(chance.random() * 0.02)
        process.kill()
        killed += process.wait()[0] == -signal.SIGKILL
    last = invoke("run", "pca", *arguments, "--out", out)
    assert last.exit_code == 0, last.output
    assert same(load(the_file(out)), load(the_file(tmp_path / "whole")))
    assert not (out / ".checkpoints").exists()
    return killed


def test_killed_and_resumed_gives_the_same_records(tmp_path):
    assert kills(tmp_path, 2, seeds=1) >= 1


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_killed_ten_times_and_resumed_gives_the_same_records(tmp_path, seed):
    assert kills(tmp_path, 10, seed) >= 5


def test_ctrl_c_leaves_a_usable_result_and_says_how_to_go_on(tmp_path):
    process = Command("run", "pca", *TINY, "--out", tmp_path)
    wait_until_it_grows(process, tmp_path, 3000)
    process.send_signal(signal.SIGINT)
    status, _, err = process.wait()
    assert status == 130
    assert b"interrupted; " in err
    assert b"To go on: orthoptim run pca --scale tiny" in err
    assert b"Traceback" not in err
    interrupted = load(the_file(tmp_path))
    assert interrupted.trials
    assert interrupted.trials[-1].status is None
    assert list((tmp_path / ".checkpoints").iterdir())
    result = invoke("run", "pca", *TINY, "--out", tmp_path)
    assert "goes on at step" in result.stdout


# What is wrong is said in one line


def test_an_unwritable_folder_is_one_line_and_exit_code_2(tmp_path):
    (tmp_path / "file").touch()
    result = invoke("run", "pca", "--scale", "tiny", "--out", tmp_path / "file" / "out")
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
    assert result.stderr.count("\n") == 1


def test_corrupt_results_are_one_line_and_stay_as_they_are(tmp_path):
    arguments = ("run", "pca", "--scale", "tiny", "--methods", "POGO-BB", "--out", tmp_path)
    invoke(*arguments)
    path = the_file(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = "%" + lines[2]
    path.write_text("".join(lines))
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert f"{path}:3: not JSON; repair or delete the file" in result.stderr
    assert path.read_text() == "".join(lines)


def test_a_torn_last_line_is_dropped_with_a_notice(tmp_path):
    arguments = ("run", "pca", "--scale", "tiny", "--methods", "POGO-BB", "--seeds", "1", "--out", tmp_path)
    invoke(*arguments)
    path = the_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert "the last line is torn" in result.stderr
    assert load(path).trials[0].status == "converged"


def test_a_second_process_on_the_same_run_is_told_so(tmp_path):
    process = Command("run", "pca", *TINY, "--out", tmp_path)
    try:
        wait_until_it_grows(process, tmp_path, 1)
        process.send_signal(signal.SIGSTOP)
        result = invoke("run", "pca", *TINY, "--out", tmp_path)
        assert result.exit_code == 2
        assert "is being written by another process" in result.stderr
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_is_one_line_and_earlier_results_load(tmp_path):
    # mounted in a namespace of its own, which ends with the process; results are copied out of it
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    command = " ".join([*COMMAND, "run", "pca", *TINY, "--out", str(disk)])
    script = f"mount -t tmpfs -o size=64k tmpfs {disk} && {command}; code=$?; cp -r {disk} {kept}; exit $code"
    process = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True)
    if "mount" in process.stderr or "unshare" in process.stderr:
        pytest.skip(process.stderr)
    assert process.returncode == 2, process.stderr
    assert "No space left on device; earlier results are kept" in process.stderr
    assert process.stderr.count("\n") == 1
    assert load(the_file(kept)).notice == ""


def test_a_method_that_fails_is_exit_code_1(tmp_path):
    arguments = ("--scale", "tiny", "--methods", "RSDM,POGO-BB", "--seeds", "1", "--set", "RSDM.r=17")
    result = invoke("run", "pca", *arguments, "--out", tmp_path)
    assert result.exit_code == 1
    assert "RSDM:r=17, seed 0: failed (ValueError: Invalid r: 17" in result.stdout
    assert "RSDM:r=17 failed: ValueError: Invalid r: 17" in result.stderr
    assert "POGO-BB, seed 0: converged" in result.stdout


def test_a_peer_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = invoke("run", "pca", "--scale", "tiny", "--methods", "pogo-torch", "--out", tmp_path)
    assert result.exit_code == 2
    assert "pogo-torch is not installed" in result.stderr


# What it shows


def test_in_a_terminal_the_display_is_live(tmp_path):
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    arguments = ["run", "pca", *TINY[:4], "--seeds", "1", "--methods", "POGO,RGD", "--out", str(tmp_path)]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    assert process.wait() == 0
    os.close(master)
    text = shown.decode()
    assert "\x1b[" in text
    assert "2/2 trials" in text
    assert "━" in text
    assert "converged" in text
    assert "POGO, seed 0" not in text  # those are the plain lines


def test_help_is_a_manual():
    page = invoke("run", "--help").stdout
    for word in ("Examples:", "Exit codes:", "Ctrl-C", "pca", "procrustes", "precision"):
        assert word in page
    assert "procrustes" in invoke("experiments").stdout
    page = invoke("experiments", "pca").stdout
    for word in ("1500×2000", "lr 10.5, lam 0.01", "condition number 1000", "pogo-torch"):
        assert word in page


def test_methods_are_listed_with_their_options():
    shown = invoke("methods").stdout
    for word in ("POGO-BB", "LandingPC", "tau=0.5", "pogo-torch", "VAdam", "betas=(0.9, 0.999)"):
        assert word in shown
    shown = invoke("methods", "RSDM").stdout
    assert "dimension of the random" in shown
    assert "sampling" in shown


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("orthoptim run pca --methods PO", "POGO-BB"),
        ("orthoptim run pca --methods POGO,R", "POGO,RSDM"),
        ("orthoptim run pca --scale l", "laptop"),
        ("orthoptim run pr", "procrustes"),
        ("orthoptim methods SL", "SLPG"),
    ],
)
def test_the_shell_completes(typed, offered):
    words = typed.split()
    variables = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1), "_ORTHOPTIM_COMPLETE": "complete_bash"}
    result = CliRunner(env=variables).invoke(commands.app, [], prog_name="orthoptim")
    assert offered in result.stdout.split()
