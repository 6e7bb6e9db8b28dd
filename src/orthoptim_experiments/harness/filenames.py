"""File names from names that are data: whatever a results file says, nothing is written outside its folder."""

import hashlib
import string
from collections.abc import Iterable
from pathlib import Path

LONGEST = 120
"""Characters of a stem: endings, and the random part of a temporary file, fit into the 255 that file systems allow."""

_SAFE = frozenset(string.ascii_letters + string.digits + "._-+= ")  # which every locale and file system has
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in range(10))}


def file_stem(name: str) -> str:
    """A file name, without ending, for a name that may be anything.

    It has ASCII letters, digits and ``._-+=`` or spaces only, does not begin with a dot, is not too long, and is none
    of the names that Windows reserves. A name that is so already stays; any other gets a digest of it at its end.

    Example:
        >>> file_stem("pca-0123456789")
        'pca-0123456789'
        >>> file_stem("../../etc/passwd"), file_stem("NUL")
        ('_.._etc_passwd-3754d6cb', '_NUL-ae6de182')
    """
    stem = "".join(char if char in _SAFE else "_" for char in name)[:LONGEST].strip(". ")
    if stem.partition(".")[0].strip().casefold() in _RESERVED:
        stem = f"_{stem}"
    if stem == name and stem:
        return stem
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{stem[: LONGEST - 10]}-{digest}"


def distinct_stems(names: Iterable[str]) -> list[str]:
    """A stem for each name, no two of them equal, not even where the file system ignores case.

    Example:
        >>> distinct_stems(["pca-1", "PCA-1", "pca-1"])
        ['pca-1', 'PCA-1-2', 'pca-1-3']
    """
    stems: list[str] = []
    taken: set[str] = set()
    for name in names:
        first = stem = file_stem(name)
        count = 1
        while stem.casefold() in taken:
            count += 1
            stem = f"{first}-{count}"
        taken.add(stem.casefold())
        stems.append(stem)
    return stems


def refuse_link(folder: Path) -> Path:
    """The folder, unless it is a symbolic link: what is written below it would end up elsewhere.

    Raises:
        OSError: If it is one.
    """
    if folder.is_symlink():
        raise OSError(None, "is a symbolic link, and nothing is written through it", str(folder))
    return folder
