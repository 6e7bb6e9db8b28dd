"""examples/elastic.py under torchrun: ranks are killed at random, and AdamW under the same script is the control."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic.py"
TIMEOUT = 600.0


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
    deadline = time.monotonic() + TIMEOUT
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
    process.wait(TIMEOUT)
    end = folder / "end.pt"
    return (torch.load(end) if process.returncode == 0 and end.exists() else None), int(restart), "".join(output)


@pytest.mark.soak
@pytest.mark.parametrize("nproc", [2, 4])
def test_whatever_restart_adamw_survives_ours_survives_with_the_same_bits(tmp_path, nproc):
    kills = 10  # of each of two world sizes
    for name in ("adamw", "pogo"):
        whole, _, output = drill(name, tmp_path / f"{name}-whole", nproc, 0, 0)
        assert whole is not None, output
        found, killed, output = drill(name, tmp_path / f"{name}-killed", nproc, kills, seed=nproc)
        survived = found is not None and all(torch.equal(a, b) for a, b in zip(whole, found, strict=True))
        print(f"{name}, {nproc} ranks: {killed} killed, {'the same bits' if survived else 'did not survive'}")
        if name == "adamw":
            control = survived
        else:
            assert survived or not control, output[-3000:]
            assert killed >= kills // 2
