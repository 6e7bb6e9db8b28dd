"""Checkpoints that survive a kill, a full disk and a power failure."""

import os
from typing import Any, BinaryIO

import torch

from orthoptim.atomic import replacing


def save(obj: object, path: str | os.PathLike[str], **options: Any) -> None:
    """Save like :func:`torch.save`, but atomically: at every moment ``path`` holds the old checkpoint or the new one.

    ``torch.save`` overwrites the file in place: if the process is killed or the disk is full, neither checkpoint is
    left. This function writes a new file beside the old one, flushes it to the disk and renames it, which needs space
    for both. If anything fails, the old file stays and the new one is removed; only a process that is killed leaves a
    temporary file, ``.<name>.<random>.tmp``, which you may delete.

    Several processes may save to one path: one of their files stays, whole. Parameters that are DTensors are saved by
    :mod:`torch.distributed.checkpoint`.

    Args:
        obj: what to save, such as ``{"model": model.state_dict(), "optimizer": opt.state_dict()}``.
        path: name of the file, in a folder that exists; a link is followed.
        **options: passed on to :func:`torch.save`.

    Raises:
        TypeError: If ``path`` is an open file, which cannot be replaced.
        OSError: If the file cannot be written.

    Example:
        >>> import tempfile, torch, orthoptim as oo
        >>> weight = torch.nn.Parameter(torch.eye(8))
        >>> opt = oo.POGO([weight], lr=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     oo.save({"weight": weight.detach(), "optimizer": opt.state_dict()}, f"{folder}/last.pt")
        ...     checkpoint = torch.load(f"{folder}/last.pt", weights_only=True)
        >>> sorted(checkpoint)
        ['optimizer', 'weight']
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a str or os.PathLike, but got {type(path).__name__}; torch.save writes to files")
    with replacing(path) as file:
        writer = _Writer(file)
        torch.save(obj, writer, **options)  # type: ignore[arg-type]  # write and flush are all it calls
        if writer.error is not None:
            raise writer.error


class _Writer:
    """A file that keeps its first error to itself: torch's writer would lose the reason, which is in the error.

    Args:
        file: open for writing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.error: OSError | None = None
        self._file = file

    def write(self, data: Any) -> int:
        """Write bytes; after an error they are dropped."""
        if self.error is None:
            try:
                return self._file.write(data)
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Nothing: what is left is written when the file is closed."""
