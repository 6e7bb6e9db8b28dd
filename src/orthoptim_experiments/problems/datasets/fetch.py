"""Downloading a data set: into a temporary folder beside its place, verified there, then moved."""

import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pooch
import requests

from orthoptim_experiments.problems.datasets.files import VARIABLE, DataError, read
from orthoptim_experiments.problems.datasets.sources import Archive, Source


def fetch(source: Source, directory: Path, *, mirror: str | None = None, progress: Any = False) -> bool:
    """Download a data set, unless it is there already.

    Whatever goes wrong, files appear whole and verified or not at all.

    Args:
        source: the data set.
        directory: the data directory; the data set gets a folder in it.
        mirror: address to take the archives from, in place of the published one; the checksums are the same.
        progress: a progress bar as pooch takes it.

    Returns:
        Whether anything was downloaded.

    Raises:
        DataError: if there is no network, no space, or the archive is not what was published.
    """
    if is_complete(source, directory):
        return False
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{source.name}-", dir=directory) as temporary:
            fresh = Path(temporary)
            (fresh / source.folder).mkdir()
            for archive in source.archives:
                _unpack(source, _download(archive, mirror or source.url, fresh, progress), fresh / source.folder)
            for file in source.files:
                read(source, file, fresh)
            (directory / source.folder).mkdir(exist_ok=True)
            for path in (fresh / source.folder).iterdir():
                os.replace(path, directory / source.folder / path.name)
    except OSError as error:
        raise DataError(f"cannot write {source.title} into {directory}: {error.strerror or error}") from None
    return True


def is_complete(source: Source, directory: Path) -> bool:
    """Whether every file of a data set is there, with the published content."""
    try:
        for file in source.files:
            read(source, file, directory)
    except DataError:
        return False
    return True


def _download(archive: Archive, url: str, folder: Path, progress: Any) -> Path:
    address = f"{url.rstrip('/')}/{archive.name}"
    # pooch reports each download on a logger of its own, which is no child of the root logger
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=progress, chunk_size=1 << 16)
    try:
        path = pooch.retrieve(address, f"sha256:{archive.sha256}", archive.name, folder, downloader=downloader)
    except requests.HTTPError as error:
        raise DataError(f"cannot fetch {address}: {error}; name another address with --mirror") from None
    except requests.RequestException as error:
        reason = type(error).__name__
        raise DataError(
            f"cannot fetch {address}: no network, or the transfer broke off ({reason}); "
            f"try again, or put the files into a directory and name it with --data-dir or {VARIABLE}"
        ) from None
    except ValueError:
        raise DataError(
            f"{address} is not the published file: its SHA-256 differs; nothing was kept; "
            "try again or name another address with --mirror"
        ) from None
    return Path(path)


def _unpack(source: Source, archive: Path, folder: Path) -> None:
    if not archive.name.endswith(".tar.gz"):
        os.replace(archive, folder / archive.name)
        return
    wanted = {file.name for file in source.files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = Path(member.name).name
                content = tar.extractfile(member) if name in wanted else None
                if content is not None:
                    with content, (folder / name).open("wb") as out:
                        shutil.copyfileobj(content, out, 1 << 20)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{archive.name} is damaged ({error}); nothing was kept; try again") from None
    archive.unlink()
