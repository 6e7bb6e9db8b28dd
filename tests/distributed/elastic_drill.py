"""Kill ranks of examples/elastic.py at random under torchrun; AdamW under the same script is the control.

python -m tests.distributed.elastic_drill --kills 20 --nproc 2 --seed 0
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic.py"
SECONDS_PER_KILL = 240.0


def torchrun(name, folder, nproc, steps, restarts):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", nproc, "--max-restarts", restarts]
    command += ["--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", EXAMPLE]
    command += ["--optimizer", name, "--steps", steps, "--every", "3", "--folder", folder]
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ranks(process):
    """The processes of the ranks, which torchrun has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children]


def drill(name, folder, nproc, kills, seed, steps=30):
    """Run with so many ranks killed; the parameters at the end (None if it did not get there), and the restarts."""
    chance = random.Random(seed)
    process = torchrun(name, folder, nproc, steps, kills)
    deadline = time.monotonic() + SECONDS_PER_KILL * (kills + 2)
    restart, wanted, output = "0", chance.randint(1, steps // 2), []
    for line in process.stdout:
        output.append(line)
        assert time.monotonic() < deadline, "".join(output)
        words = line.split()
        if words[:1] != ["step"] or words[5] != restart:
            continue
        if int(words[1]) >= wanted and int(restart) < kills:
            time.sleep(chance.random() * 0.2)
            victims = ranks(process)
            if victims:
                os.kill(chance.choice(victims), signal.SIGKILL)
                restart, wanted = str(int(restart) + 1), min(int(words[1]) + chance.randint(1, 4), steps - 1)
    process.wait()
    end = folder / "end.pt"
    return (torch.load(end) if process.returncode == 0 and end.exists() else None), int(restart), "".join(output)


def survives(name, folder, nproc, kills, seed):
    """Whether a run whose ranks are killed ends with the bits of one that is left alone; how many, and what it said."""
    steps = 15 + 3 * kills  # a kill comes after one to four steps
    whole, _, output = drill(name, folder / f"{name}-whole", nproc, 0, seed, steps)
    assert whole is not None, output
    found, killed, output = drill(name, folder / f"{name}-killed", nproc, kills, seed, steps)
    survived = found is not None and all(torch.equal(a, b) for a, b in zip(whole, found, strict=True))
    print(f"{name}, {nproc} ranks: {killed} killed, {'the same bits' if survived else 'did not survive'}", flush=True)
    return survived, killed, output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option, default in (("kills", 20), ("nproc", 2), ("seed", 0)):
        parser.add_argument(f"--{option}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        control, ours = (
            survives(name, Path(folder), given.nproc, given.kills, given.seed)[0] for name in ("adamw", "pogo")
        )
    sys.exit(control and not ours)


if __name__ == "__main__":
    main()
