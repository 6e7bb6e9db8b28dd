"""What a command counted, in a file: for the documentation."""

import json
import subprocess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]


def write_record(path: Path | None, command: str, **counts: Any) -> None:
    """Write counts with where they came from; nothing without a path."""
    if path is None:
        return
    record = {"command": command, "commit": commit(), "torch": torch.__version__, **counts}
    path.write_text(json.dumps(record, indent=2) + "\n")


def commit() -> str:
    """The commit of this checkout, with a mark where it was changed; empty without git."""
    try:
        words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
