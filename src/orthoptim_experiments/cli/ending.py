"""How a run of several processes ended: what the first rank tells the process that started them all."""

import json
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from orthoptim import atomic


@dataclass(frozen=True)
class Ending:
    """An end that is meant: the processes are not to be started again.

    Attributes:
        refused: why the run cannot go on, in one line; empty if it ended well.
        signum: the signal that interrupted it; 0 if none did.
        notice: what was left out of earlier results, see :class:`orthoptim_experiments.harness.records.Run`.
    """

    refused: str = ""
    signum: int = 0
    notice: str = ""


class Exchange:
    """A folder in which the processes of one run leave what has to outlive them.

    Args:
        folder: empty at first.
    """

    def __init__(self, folder: Path) -> None:
        self._ending = folder / "ending.json"
        self._lost = folder / "lost.txt"

    def end(self, ending: Ending) -> None:
        """Leave word that the run has ended."""
        atomic.write(self._ending, json.dumps(asdict(ending)).encode())

    def ending(self) -> Ending | None:
        """How it ended; None if it has not, or if whoever knew was killed."""
        try:
            return Ending(**json.loads(self._ending.read_bytes()))
        except FileNotFoundError:
            return None

    def lose(self, rank: int, error: BaseException) -> None:
        """Leave word that a rank could not go on; the first of them knows best why."""
        if not self._lost.exists():
            text = " ".join(str(error).split()) or "no message"
            atomic.write(self._lost, f"{text} (rank {rank})".encode())

    def lost(self) -> str:
        """Why ranks were lost, as far as they could say."""
        return self._lost.read_text(encoding="utf-8", errors="replace") if self._lost.exists() else ""

    def forget(self) -> None:
        """Forget why ranks were lost: they are there again."""
        self._lost.unlink(missing_ok=True)


def signal_name(signum: int) -> str:
    """For people.

    Example:
        >>> signal_name(9)
        'SIGKILL'
    """
    return signal.Signals(signum).name
