"""The files of a data set: read and verified, or fetched by pooch."""

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pooch
import requests

from orthoptim_experiments.problems.datasets.sources import Source

VARIABLE = "ORTHOPTIM_DATA"


class DataError(ValueError):
    """Data are missing, damaged, or could not be fetched. Its message is one line that says what to do."""


def data_directory(given: Path | None = None) -> Path:
    """Where the data sets are: the directory given, else ``$ORTHOPTIM_DATA``, else the cache of the user."""
    return given or Path(os.environ.get(VARIABLE) or pooch.os_cache("orthoptim"))


def find(source: Source, name: str, directory: Path) -> Path:
    """The path of a file, with or without ``.gz``."""
    folder = directory / source.folder
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(
        f"{source.title}: no {name} in {folder}: run `orthoptim data fetch {source.name}`, "
        f"or name the directory that has {source.folder}/ with --data-dir or {VARIABLE}"
    )


def read(source: Source, name: str, directory: Path) -> bytearray:
    """The content of a file of a data set, uncompressed and verified.

    Raises:
        DataError: if it is missing, unreadable, or not what was published.
    """
    path = find(source, name, directory)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = bytearray(file.read())
    except (EOFError, zlib.error, gzip.BadGzipFile):
        content = bytearray()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if hashlib.sha256(content).hexdigest() != source.files[name]:
        again = f"remove it and run `orthoptim data fetch {source.name} --data-dir {directory}`"
        raise DataError(f"{path} is truncated or corrupt (its SHA-256 is not the published one): {again}")
    return content


def is_complete(source: Source, directory: Path) -> bool:
    """Whether every file of a data set is there, with the published content."""
    try:
        for name in source.files:
            read(source, name, directory)
    except DataError:
        return False
    return True


def fetch(
    source: Source, directory: Path, *, mirror: str | None = None, retries: int = 2, progress: Any = False
) -> bool:
    """Download a data set, unless it is there already.

    Whatever goes wrong, files appear whole and verified or not at all.

    Args:
        source: the data set.
        directory: the data directory; the data set gets a folder in it.
        mirror: address to take the archives from, in place of the published one; the checksums are the same.
        retries: how often a download that failed is tried again.
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
            for path in _download(source, fresh, mirror or source.url, retries, progress):
                shutil.move(path, fresh / source.folder)
            for name in source.files:
                read(source, name, fresh)
            (directory / source.folder).mkdir(exist_ok=True)
            for path in (fresh / source.folder).iterdir():
                os.replace(path, directory / source.folder / path.name)
    except OSError as error:
        raise DataError(f"cannot write {source.title} into {directory}: {error.strerror or error}") from None
    return True


def _download(source: Source, folder: Path, url: str, retries: int, progress: Any) -> list[Path]:
    """The files of all archives of a data set, downloaded and unpacked."""
    url = f"{url.rstrip('/')}/"
    pooch.get_logger().setLevel("WARNING")  # pooch reports each download on a logger of its own
    registry = pooch.create(folder / "archives", url, registry=source.archives, retry_if_failed=retries)
    downloader = pooch.HTTPDownloader(progressbar=progress, chunk_size=1 << 16)
    members = [f"{source.folder}/{name}" for name in source.files]
    paths: list[Path] = []
    for name in source.archives:
        unpack = pooch.Untar(members) if name.endswith(".tar.gz") else None
        try:
            fetched = registry.fetch(name, processor=unpack, downloader=downloader)
        except requests.HTTPError as error:
            raise DataError(f"cannot fetch {url}{name}: {error}; name another address with --mirror") from None
        except requests.RequestException as error:
            raise DataError(
                f"cannot fetch {url}{name}: no network, or the transfer broke off ({type(error).__name__}); "
                f"try again, or put the files into a directory and name it with --data-dir or {VARIABLE}"
            ) from None
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile):
            raise DataError(f"{name} is damaged; nothing was kept; try again") from None
        except ValueError:
            raise DataError(
                f"{url}{name} is not the published file: its SHA-256 differs; nothing was kept; "
                "try again or name another address with --mirror"
            ) from None
        paths += map(Path, [fetched] if unpack is None else fetched)
    return paths
