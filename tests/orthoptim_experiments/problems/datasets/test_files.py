"""Reading files that are missing, cut short, or changed."""

import gzip
from pathlib import Path

import pytest

from orthoptim_experiments.problems.datasets import DataError, data_directory
from orthoptim_experiments.problems.datasets.files import read
from tests.orthoptim_experiments.server import CONTENT, packed, tar_source

SOURCE = tar_source(packed())
FILE = "one.bin"
DATA = CONTENT["one.bin"]


def refusal(directory):
    with pytest.raises(DataError) as caught:
        read(SOURCE, FILE, directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "toy-files").mkdir()
    return tmp_path / "toy-files"


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress)])
def test_content_is_read_packed_or_not(folder, suffix, pack):
    (folder / f"one.bin{suffix}").write_bytes(pack(DATA))
    assert read(SOURCE, FILE, folder.parent) == DATA


def test_missing(tmp_path):
    assert "orthoptim data fetch toy" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", DATA[:-1], DATA + b"more", bytes([DATA[0] ^ 1]) + DATA[1:]])
def test_another_content(folder, content):
    (folder / "one.bin").write_bytes(content)
    assert "is truncated or corrupt" in refusal(folder.parent)


@pytest.mark.parametrize("damage", [lambda packed: packed[:-20], lambda packed: b"x" + packed, lambda _: b""])
def test_damaged_gz(folder, damage):
    (folder / "one.bin.gz").write_bytes(damage(gzip.compress(DATA)))
    message = refusal(folder.parent)
    assert "truncated" in message or "corrupt" in message


def test_gz_with_a_damaged_middle(folder):
    archive = bytearray(gzip.compress(DATA))
    archive[len(archive) // 2] ^= 0xFF
    (folder / "one.bin.gz").write_bytes(archive)
    assert "one.bin.gz is" in refusal(folder.parent)


def test_directory_comes_from_the_argument_then_the_variable_then_the_cache(monkeypatch):
    monkeypatch.setenv("ORTHOPTIM_DATA", "/from/variable")
    assert data_directory(Path("/given")) == Path("/given")
    assert data_directory() == Path("/from/variable")
    monkeypatch.delenv("ORTHOPTIM_DATA")
    assert data_directory().name == "orthoptim"
