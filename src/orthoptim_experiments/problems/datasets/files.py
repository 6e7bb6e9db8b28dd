"""The data directory, and reading a file of it: whole and verified, or not at all."""

import gzip
import hashlib
import os
import zlib
from pathlib import Path

import pooch

from orthoptim_experiments.problems.datasets.sources import File, Source

VARIABLE = "ORTHOPTIM_DATA"


class DataError(ValueError):
    """Data are missing, damaged, or could not be fetched. Its message is one line that says what to do."""


def data_directory(given: Path | None = None) -> Path:
    """Where the data sets are: the directory given, else ``$ORTHOPTIM_DATA``, else the cache of the user."""
    if given is not None:
        return given
    return Path(os.environ.get(VARIABLE) or pooch.os_cache("orthoptim"))


def read(source: Source, file: File, directory: Path) -> bytearray:
    """The content of a file of a data set, uncompressed and verified.

    Raises:
        DataError: if it is missing, unreadable, truncated or not what was published.
    """
    path = find(source, file, directory)
    try:
        content = _content(path, file.size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated or corrupt ({error}): {_again(source, directory)}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if len(content) != file.size:
        kind = "is truncated" if len(content) < file.size else "is too long"
        raise DataError(f"{path} {kind} ({_bytes(len(content), file.size)}): {_again(source, directory)}")
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise DataError(f"{path} is corrupt (its SHA-256 is not the published one): {_again(source, directory)}")
    return content


def find(source: Source, file: File, directory: Path) -> Path:
    """The path of a file, with or without ``.gz``."""
    folder = directory / source.folder
    for path in (folder / file.name, folder / f"{file.name}.gz"):
        if path.is_file():
            return path
    raise DataError(
        f"{source.title}: no {file.name} in {folder}: run `orthoptim data fetch {source.name}`, "
        f"or name the directory that has {source.folder}/ with --data-dir or {VARIABLE}"
    )


def _content(path: Path, size: int) -> bytearray:
    """The bytes of a file, gunzipped where its name says so; of a file that is too long, only so many as to see it."""
    content = bytearray(size + 1)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb", buffering=0) as stream:
        filled = 0
        with memoryview(content) as view:
            while filled < len(view) and (count := stream.readinto(view[filled:])):
                filled += count
    del content[filled:]
    return content


def _bytes(found: int, expected: int) -> str:
    return f"{found} bytes of {expected}" if found < expected else f"more than its {expected} bytes"


def _again(source: Source, directory: Path) -> str:
    return f"remove it and run `orthoptim data fetch {source.name} --data-dir {directory}`"
