"""Checkpoints of half-done trials: written whole or not at all, and gone when the trial ends."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from orthoptim.experiments.results import ResultsError


class Checkpoint:
    """The last resting place of one trial.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._new = path.with_suffix(".new")

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace it by tensors and plain values."""
        buffer = io.BytesIO()  # torch's own writer does not say why it could not write
        torch.save(dict(state), buffer)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._new.open("wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._new, self.path)
        except OSError as error:
            self._new.unlink(missing_ok=True)
            raise ResultsError(f"cannot write {self.path}: {error.strerror}; earlier results are kept") from None

    def load(self) -> dict[str, Any] | None:
        """What was saved; None if nothing was, or if it cannot be read: the trial then begins anew."""
        try:
            state: dict[str, Any] = torch.load(self.path, weights_only=True, map_location="cpu")
        except Exception:  # torch raises all kinds of errors for a file that is not its own
            return None
        return state

    def delete(self) -> None:
        """Remove it, and its folder if it was the last."""
        self.path.unlink(missing_ok=True)
        self._new.unlink(missing_ok=True)
        try:
            self.path.parent.rmdir()
        except OSError:  # others are in there, or it never was
            return
