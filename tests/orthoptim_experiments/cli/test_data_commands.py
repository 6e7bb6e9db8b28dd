"""`orthoptim data`: what it prints, its exit code, what it leaves on disk."""

import resource
import shutil
import subprocess
import sys

from typer.testing import CliRunner

from orthoptim_experiments.cli.data_commands import app
from tests.orthoptim_experiments.server import serving

COMMAND = [sys.executable, "-c", "from orthoptim_experiments.cli.data_commands import app; app()"]


def run(*arguments, environment=None):
    return CliRunner(env=environment).invoke(app, [str(argument) for argument in arguments])


def failed(code, stdout, stderr):
    """The one line of a refusal."""
    assert code == 2, stderr
    assert stdout == ""
    (line,) = stderr.splitlines()
    assert line.startswith("orthoptim: ")
    return line


def refusal(*arguments):
    result = run(*arguments)
    return failed(result.exit_code, result.stdout, result.stderr)


def test_where(tmp_path):
    assert run("where", environment={"ORTHOPTIM_DATA": str(tmp_path)}).stdout == f"{tmp_path}\n"
    assert run("where", "--data-dir", "/elsewhere").stdout == "/elsewhere\n"


def test_check(real_data, tmp_path):
    good = run("check", "mnist", "--data-dir", real_data)
    assert good.exit_code == 0
    assert good.stdout.count("as published") == 4
    shutil.copytree(real_data / "mnist", tmp_path / "mnist")
    images = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    images.chmod(0o644)
    images.write_bytes(images.read_bytes()[:-1000])
    bad = run("check", "mnist", "--data-dir", tmp_path)
    assert bad.exit_code == 2
    assert bad.stdout.count("as published") == 3
    assert "t10k-images-idx3-ubyte.gz is truncated" in bad.stderr
    assert len(bad.stderr.splitlines()) == 1


def test_fetch_finds_what_is_there(real_data):
    result = run("fetch", "mnist", "--data-dir", real_data)
    assert result.exit_code == 0
    assert "is complete in" in result.stdout


def test_fetch_without_network(tmp_path):
    line = refusal("fetch", "cifar10", "--data-dir", tmp_path, "--mirror", "http://127.0.0.1:9")
    assert "cifar-10-binary.tar.gz: no network" in line
    assert list(tmp_path.iterdir()) == []


def test_fetch_of_something_else(tmp_path):
    with serving({"cifar-10-binary.tar.gz": b"something else"}) as url:
        line = refusal("fetch", "cifar10", "--data-dir", tmp_path, "--mirror", url)
    assert "SHA-256 differs" in line
    assert list(tmp_path.iterdir()) == []


def test_fetch_without_space(tmp_path):
    """In a process of its own, of which no file may grow beyond 100 kB."""

    def no_space():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    with serving({"cifar-10-binary.tar.gz": bytes(1_000_000)}) as url:
        command = [*COMMAND, "fetch", "cifar10", "--data-dir", str(tmp_path), "--mirror", url]
        result = subprocess.run(command, capture_output=True, text=True, preexec_fn=no_space)
    assert "cannot write CIFAR-10 into" in failed(result.returncode, result.stdout, result.stderr)
    assert list(tmp_path.iterdir()) == []
