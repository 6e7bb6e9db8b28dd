"""Tables of the guides: who is compared with whom."""

from pathlib import Path

import pytest

from orthoptim_experiments.harness.records import Run, Trial
from orthoptim_experiments.problems.markdown import mean, minus, table


@pytest.mark.parametrize("reference", ["SGDG", "SGDG:lr=5"])
def test_differences_are_paired_by_seed_whether_or_not_the_options_of_the_reference_were_set(reference):
    trials = [
        Trial(method, seed, status="budget", records={"step": [0], "loss": [seed + offset]})
        for method, offset in ((reference, 1.0), ("POGO", 1.5), ("SGDG-like", 0.0))
        for seed in (0, 7)
    ]
    run = Run(Path("made-up.jsonl"), "0", "rotations", {}, environment={}, started="", trials=trials)
    assert table(run, {"loss": mean("loss", ".1f"), "paired": minus("SGDG", "loss", 1)}).splitlines()[2:] == [
        f"| {reference} | 4.5 | – |",
        "| POGO | 5.0 | +0.5 |",
        "| SGDG-like | 3.5 | -1.0 |",
    ]
