"""oo.save: whatever fails, the file is the old one or the new one."""

import contextlib
import errno
import os
import re
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import orthoptim as oo
from orthoptim import atomic
from tests.conformance.methods import clones, point, steps

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def unchanged(path):
    """The file holds what it held before, and its folder nothing else."""
    before, names = path.read_bytes(), sorted(os.listdir(path.parent))
    yield
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == names


@pytest.fixture
def path(tmp_path):
    """A file that is there already."""
    file = tmp_path / "last.pt"
    oo.save({"step": 1}, file)
    return file


def test_what_is_saved_is_loaded_and_resumes_to_the_same_bits(path):
    params = [point(4, 6), point(6, 6, dtype=torch.complex64, seed=1)]
    opt = oo.POGO(params, 0.1)
    steps(opt, params, 3)
    oo.save({"params": params, "optimizer": opt.state_dict()}, str(path))
    steps(opt, params, 3, 3)
    saved = torch.load(path, weights_only=True)
    others = clones(saved["params"])
    other = oo.POGO(others, 0.1)
    other.load_state_dict(saved["optimizer"])
    steps(other, others, 3, 3)
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)


def test_kills_at_random_moments():
    """100 of them: ``python -m tests.robustness.kills``."""
    command = [sys.executable, "-m", "tests.robustness.kills", "--count", "5"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert re.match(r"kills 5, .* unreadable files 0, resumed bit-identical 5,", ended.stdout), ended
    assert ended.returncode == 0


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_a_kill_at_each_moment_before_the_new_file_is_in_place(path, moment):
    assert _killed_at(path, moment)
    assert torch.load(path, weights_only=True) == {"step": 1}


def test_a_kill_after_the_new_file_is_in_place(path):
    assert _killed_at(path, "sync_folder")
    assert torch.load(path, weights_only=True)["step"] == 2


def _killed_at(path, moment):
    """Whether a process that saves was killed at that moment."""
    child = os.fork()
    if child == 0:
        try:
            die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
            if moment == "sync_folder":
                atomic._sync_folder = die
            elif moment == "write":
                resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the process dies when it writes byte 10 001
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            else:
                setattr(os, moment, die)
            oo.save({"step": 2, "large": torch.ones(10_000)}, path)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def disk_of(size):
    """No file can grow beyond so many bytes; Python ignores the signal, so that writing fails with an error."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


@pytest.mark.parametrize("size", [0, 100, 20_000, 400_000, 4_000_000])
def test_a_full_disk_leaves_the_old_file(path, size):
    with unchanged(path), disk_of(size), pytest.raises(OSError, match="File too large") as caught:
        oo.save({"large": torch.ones(1 << 20)}, path)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("function", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_whatever_fails_leaves_the_old_file(path, function, error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(os, function, fail)
    with unchanged(path), pytest.raises(type(error)):
        oo.save({"step": 2}, path)


def test_what_cannot_be_pickled_leaves_the_old_file(path):
    with unchanged(path), pytest.raises(Exception, match=r"pickle|local object"):
        oo.save({"tensor": torch.ones(1000), "function": lambda: None}, path)


def test_the_data_and_then_the_name_are_brought_to_the_disk(path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append(_kind(handle)), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("replace"), replace(*names)))
    oo.save({"step": 2}, path)
    assert calls == ["file of the whole size", "replace", "folder"]


def _kind(handle):
    status = os.fstat(handle)
    return "folder" if stat.S_ISDIR(status.st_mode) else "file of the whole size" if status.st_size > 500 else "file"


@pytest.mark.parametrize(("code", "raises"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_does_not_sync_folders(path, code, raises, monkeypatch):
    fsync = os.fsync

    def refuse(handle):
        if _kind(handle) == "folder":
            raise OSError(code, "no")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="no") if raises else contextlib.nullcontext():
        oo.save({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 2}


def test_a_link_is_followed_and_permissions_are_kept(path):
    link = path.with_name("link.pt")
    link.symlink_to(path.name)
    path.chmod(0o640)
    oo.save({"step": 2}, link)
    assert link.is_symlink()
    assert torch.load(path, weights_only=True) == {"step": 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "plain").write_text("")
    oo.save({}, tmp_path / "new.pt")
    assert (tmp_path / "plain").stat().st_mode == (tmp_path / "new.pt").stat().st_mode


@pytest.mark.parametrize("name", ["x" * 255, "ö" * 127, "a\udcff.pt"])
def test_names_as_long_as_they_may_be(tmp_path, name):
    oo.save({"step": 1}, tmp_path / name)
    assert os.listdir(tmp_path) == [name]


def test_what_is_no_ordinary_file_is_not_replaced(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match=f"Not a regular file: '{fifo}'"):
        oo.save({}, fifo)
    with pytest.raises(IsADirectoryError):
        oo.save({}, tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        oo.save({}, tmp_path / "nowhere" / "last.pt")
    assert os.listdir(tmp_path) == ["fifo"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_an_open_file_is_refused(path):
    with path.open("ab") as file, pytest.raises(TypeError, match=r"a str or os\.PathLike, but got Buffered"):
        oo.save({}, file)


def test_options_of_torch_save(path):
    oo.save({"step": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    assert torch.equal(torch.load(path, weights_only=True)["step"], torch.ones(3))


def test_bytes_are_written_to_a_folder_that_is_made(tmp_path):
    atomic.write(tmp_path / "a" / "b", b"c")
    assert (tmp_path / "a" / "b").read_bytes() == b"c"
    with pytest.raises(FileExistsError, match="b/c"):
        atomic.write(tmp_path / "a" / "b" / "c", b"c")
