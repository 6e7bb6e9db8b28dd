"""Checkpoints of unfinished trials: written atomically, deleted when the trial ends."""

import glob
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from orthoptim import atomic
from orthoptim_experiments.harness.filenames import refuse_link
from orthoptim_experiments.harness.records import ResultsError


class Checkpoint:
    """On-disk checkpoint of one trial.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace it by tensors and plain values."""
        buffer = io.BytesIO()  # torch's own writer does not say why it could not write
        torch.save(dict(state), buffer)
        try:
            refuse_link(self.path.parent)
            atomic.write(self.path, buffer.getvalue())
        except OSError as error:
            raise ResultsError(f"cannot write {self.path}: {error.strerror}; earlier results are kept") from None

    def load(self) -> dict[str, Any] | None:
        """The saved state; None if there is none that can be read: the trial then begins anew."""
        try:
            state: dict[str, Any] = torch.load(self.path, weights_only=True, map_location="cpu")
        except Exception:  # torch raises all kinds of errors for a file that is not its own
            return None
        return state

    def delete(self) -> None:
        """Remove it, and its folder if it was the last."""
        self.path.unlink(missing_ok=True)
        for torn in self.path.parent.glob(
            f".{glob.escape(self.path.name)}.*"
        ):  # of a process that was killed while writing
            torn.unlink(missing_ok=True)
        try:
            self.path.parent.rmdir()
        except OSError:  # others are in there, or it never was
            return
