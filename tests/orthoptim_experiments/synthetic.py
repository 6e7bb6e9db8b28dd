"""Run files as the harness writes them, made up: what curves, figures and the page are tested with."""

import json
import math
import random
from pathlib import Path

from orthoptim_experiments.harness.record_writer import RunFile

SPEED = {"POGO": 0.012, "RGD": 0.004, "RSDM": 0.006, "Landing": 0.0045, "LandingPC": 0.011, "SLPG": 0.005}
SECONDS = {"POGO": 0.002, "RGD": 0.005, "RSDM": 0.004, "Landing": 0.0022, "LandingPC": 0.0025, "SLPG": 0.0024}
FLOOR = {"POGO": 4e-6, "RGD": 8e-6, "RSDM": 1e-4, "Landing": 2e-5, "LandingPC": 5e-5, "SLPG": 4e-6}

ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "cpu": "Some CPU", "threads": 2, "git": "0123abc"}

HEADER = {"id": "0123456789", "experiment": "pca", "config": {"n": 8}, "environment": {"torch": "2"}, "started": "now"}


def run_lines(
    experiment="pca",
    methods=tuple(SPEED),
    seeds=3,
    *,
    run_id="0123456789",
    statuses=None,
    steps=1500,
    title="",
    target=1e-6,
    config=None,
    columns=None,
):
    """The lines of a run file; `statuses` maps (method, seed) to how that trial ends (None: it does not)."""
    header = {
        "kind": "run", "id": run_id, "experiment": experiment,
        "config": {"experiment": experiment, "scale": "laptop", "p": 375, "n": 500, "dtype": "float32"},
        "environment": ENVIRONMENT, "started": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    header["config"] |= config or {}
    yield header
    for method in methods:
        for seed in range(seeds):
            for line in trial_lines(method, seed, steps, target, (statuses or {}).get((method, seed), "converged")):
                yield line | (columns or {}) if line["kind"] == "record" else line


def trial_lines(method, seed, steps, target, status):
    random_ = random.Random(f"{method} {seed}")
    rate = SPEED.get(method, 0.004) * random_.uniform(0.9, 1.1)
    pace = SECONDS.get(method, 0.003) * random_.uniform(0.95, 1.05)
    floor, start = FLOOR.get(method, 1e-5), random_.uniform(0.3, 0.4)
    yield {"kind": "trial", "method": method, "seed": seed, "options": {"lr": 0.25}, "environment": ENVIRONMENT}
    limit = steps if status in ("converged", "budget") else steps // 4
    gap = start
    for step in range(limit + 1):
        gap = start * math.exp(-rate * step) * random_.uniform(0.97, 1.03)
        if status == "diverged":
            gap = start * math.exp(rate * step)
        drift = 1 + (step / 150 if method == "RSDM" else 0)
        distance = floor * drift * random_.uniform(0.9, 1.1) + 1e-3 * math.exp(-step / 25) * (
            method.startswith("Landing")
        )
        yield {
            "kind": "record", "method": method, "seed": seed, "step": step, "time": step * pace, "loss": -1 + gap,
            "gap": gap, "projected_gap": gap * 1.01, "distance": distance, "max_distance": distance * 1.2,
        }  # fmt: skip
        if gap <= target and status == "converged":
            break
    if status is not None:
        if status == "converged" and gap > target:
            status = "budget"
        message = "RuntimeError: the matrix <X> is singular" if status == "failed" else None
        yield {
            "kind": "end",
            "method": method,
            "seed": seed,
            "status": status,
            "step": step,
            "time": step * pace,
            "message": message,
        }


def write_run(path: Path, **options) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in run_lines(**options)), encoding="utf-8")
    return path


def write_trial(path, *, steps=5, end="converged"):
    """A run of one trial, as the harness writes it."""
    with RunFile(path, HEADER) as file:
        file.append("trial", method="POGO", seed=0, options={"lr": 0.5}, environment={})
        for step in range(steps):
            file.append("record", method="POGO", seed=0, step=step, time=0.1 * step, loss=1.0 / (step + 1))
        if end:
            file.append("end", method="POGO", seed=0, status=end, step=steps, time=1.0, message="")
    return path
