"""The environment of a run: versions, machine, threads, revision of the code."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import orthoptim as oo
from orthoptim_experiments.harness import ranks


def environment(device: torch.device) -> dict[str, Any]:
    """What determines times and rounding, as plain values."""
    facts: dict[str, Any] = {
        "orthoptim": oo.__version__,
        "revision": revision(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "nproc": ranks.world_size(),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def cpu() -> str:
    """The model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def revision() -> str:
    """The git revision of a checkout, with a + if files were changed; empty for an installed package."""
    source = Path(oo.__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(source), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # an environment inside someone else's repository is not a checkout of ours
        if not git("ls-files", "--", "__init__.py"):
            return ""
        return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""
