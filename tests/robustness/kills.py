"""Kill a training process at random moments while it saves, and see what is left.

    python -m tests.robustness.kills --count 100 --seed 0

Each process resumes from the checkpoint the last one left, steps and saves until it is killed. After every kill the
checkpoint must load with ``weights_only=True`` and hold, bit for bit, what a run that was never stopped holds after as
many steps: so every resumption was exact. ``--plain`` saves with ``torch.save`` instead, to see that the kills hit.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import orthoptim as oo
from tests.robustness.run import Run, digest

SAVES = 3  # a process is killed during one of its first saves, or soon after
LONGEST = 0.05  # seconds from the beginning of that save to the kill


@dataclass
class Counts:
    """What the kills left."""

    kills: int = 0
    while_saving: int = 0  # a temporary file was left
    unreadable: int = 0
    identical: int = 0
    steps: int = 0


def kill(count: int, seed: int, folder: Path, save: Callable[..., None] = oo.save) -> Counts:
    """Kill ``count`` processes, one after the other."""
    _uninterrupted(1)  # torch imports much at the first step: once, here, rather than in every process
    moments = random.Random(seed)
    path, counts = folder / "last.pt", Counts()
    held: list[tuple[int, str]] = []
    for _ in range(count):
        _live(path, save, moments.randint(1, SAVES), moments.uniform(0, LONGEST))
        counts.kills += 1
        torn = list(folder.glob(".last.pt.*.tmp"))
        counts.while_saving += len(torn)
        for each in torn:
            each.unlink()
        try:
            state = torch.load(path, weights_only=True)
        except Exception:
            counts.unreadable += 1
            path.unlink()
        else:
            held.append((state["steps"], digest(state)))
    counts.steps = max((steps for steps, _ in held), default=0)
    whole = _uninterrupted(counts.steps)
    counts.identical = sum(whole[steps] == bits for steps, bits in held)
    return counts


def _live(path: Path, save: Callable[..., None], saves: int, seconds: float) -> None:
    """Start a process, and kill it so many seconds after the beginning of a save."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            run = Run()
            if not path.exists():
                save(run.state(), path)
            run.resume(path)
            while True:
                run.step()
                os.write(theirs, b"1")
                save(run.state(), path)
        except BaseException as error:
            print(f"the process ended by itself: {error!r}", file=sys.stderr)
        finally:
            os._exit(1)
    os.close(theirs)
    begun = [os.read(ours, 1) for _ in range(saves)]
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.close(ours)
    _, status = os.waitpid(child, 0)
    if not all(begun) or not os.WIFSIGNALED(status):
        raise RuntimeError("a process ended before it was killed")


def _uninterrupted(steps: int) -> list[str]:
    """What a run that is never stopped and never saved holds after 0, 1, ... steps."""
    run = Run()
    digests = [digest(run.state())]
    for _ in range(steps):
        run.step()
        digests.append(digest(run.state()))
    return digests


def main() -> int:
    """Print the counts; the exit status is 1 if a kill left anything but a whole checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="save with torch.save, which is not atomic")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a forked process has no other threads
    with tempfile.TemporaryDirectory() as folder:
        save = torch.save if arguments.plain else oo.save
        counts = kill(arguments.count, arguments.seed, Path(folder), save)
    print(
        f"kills {counts.kills}, of these while saving {counts.while_saving}, unreadable files {counts.unreadable}, "
        f"resumed bit-identical {counts.identical}, steps {counts.steps}"
    )
    return int(counts.identical < counts.kills)


if __name__ == "__main__":
    sys.exit(main())
