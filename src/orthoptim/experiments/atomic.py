"""Files that are whole or not there: written beside their place, then moved into it."""

import os
import tempfile
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Writes a file, creating its folder; a file that was there is replaced at once or left as it was.

    Raises:
        OSError: If the folder or the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
