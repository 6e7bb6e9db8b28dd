"""Fetching: whole and verified, or one clear line and nothing left behind."""

import pytest

from orthoptim_experiments.problems.datasets import DataError, fetch, is_complete
from tests.orthoptim_experiments.server import CONTENT, gz_source, packed, serving, tar_source


def everything(directory):
    return sorted(path for path in directory.rglob("*"))


def failing(source, directory, **options):
    before = everything(directory)
    with pytest.raises(DataError) as caught:
        fetch(source, directory, retries=0, **options)
    assert everything(directory) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_archive_is_unpacked_and_not_kept(tmp_path):
    archive = packed({**CONTENT, "readme.html": b"no part of the data", "../escaped": b"no part of the folder"})
    with serving({"toy.tar.gz": archive}) as url:
        assert fetch(tar_source(archive), tmp_path / "new", mirror=url)
    folder = tmp_path / "new" / "toy-files"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENT
    assert everything(tmp_path / "new") == [folder, *sorted(folder.iterdir())]


def test_single_files_are_kept_as_they_are(tmp_path):
    source, archives = gz_source()
    with serving(archives) as url:
        assert fetch(source, tmp_path, mirror=url + "/")
    assert {path.name: path.read_bytes() for path in (tmp_path / "toy-files").iterdir()} == archives
    assert is_complete(source, tmp_path)


def test_what_is_complete_is_not_fetched(tmp_path):
    archive = packed()
    source = tar_source(archive)
    with serving({"toy.tar.gz": archive}) as url:
        fetch(source, tmp_path, mirror=url)
    assert not fetch(source, tmp_path)  # its address does not answer


def test_a_damaged_file_is_replaced(tmp_path):
    archive = packed()
    source = tar_source(archive)
    (tmp_path / "toy-files").mkdir()
    (tmp_path / "toy-files" / "one.bin").write_bytes(b"damaged")
    with serving({"toy.tar.gz": archive}) as url:
        assert fetch(source, tmp_path, mirror=url)
    assert is_complete(source, tmp_path)


def test_a_download_that_fails_is_tried_again(tmp_path):
    archive = packed()
    with serving({"toy.tar.gz": archive}, refusals=1) as url:
        assert fetch(tar_source(archive), tmp_path, mirror=url, retries=1)


def test_no_network(tmp_path):
    assert "no network" in failing(tar_source(packed()), tmp_path)


def test_a_broken_transfer(tmp_path):
    archive = packed()
    with serving({"toy.tar.gz": archive}, missing_bytes=100) as url:
        message = failing(tar_source(archive), tmp_path, mirror=url)
    assert "broke off" in message


def test_a_wrong_checksum(tmp_path):
    with serving({"toy.tar.gz": packed({"one.bin": b"other"})}) as url:
        message = failing(tar_source(packed()), tmp_path, mirror=url)
    assert "SHA-256 differs" in message


def test_no_such_address(tmp_path):
    with serving({}) as url:
        assert "404" in failing(tar_source(packed()), tmp_path, mirror=url)


def test_an_archive_that_is_none(tmp_path):
    junk = b"no archive" * 100
    with serving({"toy.tar.gz": junk}) as url:
        assert "damaged" in failing(tar_source(junk), tmp_path, mirror=url)


def test_an_archive_without_a_file(tmp_path):
    archive = packed({"one.bin": CONTENT["one.bin"]})
    with serving({"toy.tar.gz": archive}) as url:
        assert "no two.bin" in failing(tar_source(archive), tmp_path, mirror=url)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    assert "cannot write Toy" in failing(tar_source(packed()), tmp_path / "file" / "below")
