"""`orthoptim demo`: a single matrix, a model that needs unitary matrices, and the page on both."""

import webbrowser
from pathlib import Path
from typing import Any

from rich.console import Console

from orthoptim_experiments.api import run
from orthoptim_experiments.cli.progress import display
from orthoptim_experiments.harness.methods import METHODS, PAPER
from orthoptim_experiments.harness.records import Run
from orthoptim_experiments.harness.statistics import last
from orthoptim_experiments.problems import datasets

CIRCUIT = "POGO-strict"
CIRCUITS: dict[str, dict[str, Any]] = {
    "mnist": {"units": 4, "train_images": 20_000, "test_images": 500, "batch_size": 128, "epochs": 6.0},
    "digits8": {"units": 4, "dataset": "digits8", "states": 17, "train_images": 1_500, "test_images": 297}
    | {"batch_size": 50, "epochs": 10.0},
}


def demo(out: Path, show: bool) -> None:
    """Run both, write the page, and say in one sentence what was seen."""
    from orthoptim_experiments.report import describe, write_report  # a second of imports

    console = Console()
    compared = [name for name in (*PAPER, "StiefelMuon", "POGO-BB") if name in METHODS]
    print(f"1. Online PCA, 225×300: {len(compared)} methods on one seed")
    with display(console, compared, [0]) as watcher:
        pca = run("pca", compared, 1, sizes={"budget": 1000}, out=out, watcher=watcher)
    try:
        datasets.load("mnist")
        images = "mnist"
    except ValueError:
        images = "digits8"
    print(f"2. A squared unitary circuit on {images}: every matrix unitary, so that p(x) = |c(x)|² sums to one")
    with display(console, [CIRCUIT], [0]) as watcher:
        circuit = run("circuits", [CIRCUIT], 1, sizes=CIRCUITS[images], out=out, watcher=watcher)
    sections = [describe(circuit), describe(pca)]
    page, *_ = write_report(sections, out / "demo.html", figures=out / "figures")
    address = f"{page.resolve().as_uri()}#{sections[0].anchor}"
    if show:
        webbrowser.open(address)
    print(f"\n{sentence(pca, circuit)}\n\npage: {page}")


def sentence(pca: Run, circuit: Run) -> str:
    """What was seen."""
    from orthoptim_experiments.report import describe

    ranked = sorted(describe(pca).summaries(), key=lambda each: each.rank)
    arrived = [each for each in ranked if each.arrival is not None and each.arrival.all]
    times = ", ".join(f"{each.method} {each.rank:.2g} s" for each in arrived[:3])
    (trial,) = circuit.of(CIRCUIT)
    seconds, bpd, log_z = (last(trial, name) for name in ("processor_time", "bpd", "abs_log_z"))
    return (
        f"On PCA {times} of processor time to a gap of {pca.config['tolerance']:.0e}, judged on the manifold; and a "
        f"circuit of unitary matrices, trained in {seconds:.0f} s to {bpd:.2f} bits per pixel, is a normalised "
        f"distribution (|log Z| = {log_z:.0e}): its samples and its completions of digits are exact."
    )
