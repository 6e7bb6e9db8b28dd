"""Steps at the paper's sizes on real images: they run on a CPU and stay feasible; the time of a step is printed."""

import time

import pytest
import torch

from orthoptim_experiments.harness import methods
from orthoptim_experiments.harness.experiment import configuration
from orthoptim_experiments.problems.cnn import experiment as cnn
from orthoptim_experiments.problems.vit import experiment as vit


@pytest.mark.soak
@pytest.mark.parametrize(
    ("experiment", "constraint", "steps", "matrices"),
    [(vit.ViT(), None, 10, 18), (cnn.CNN(), "filters", 100, 6), (cnn.CNN(), "kernels", 100, 218_624)],
    ids=["vit", "cnn-filters", "cnn-kernels"],
)
def test_steps_at_the_size_of_the_paper(real_data, capsys, experiment, constraint, steps, matrices):
    config = configuration(experiment, "paper", variant=constraint)
    training = experiment.problem(config, "POGO", seed=0)
    training.begin(methods.find("POGO").build(training.parameters(), experiment.methods(config)["POGO"]))
    times, farthest = [], 0.0
    for step in range(steps):
        start = time.perf_counter()
        training.advance()
        times.append(time.perf_counter() - start)
        drift = training.optimizers[0].drift()
        farthest = max(farthest, *(group.max_distance for group in drift))
        assert training.outcome() is None, step
    assert sum(group.matrices for group in drift) == matrices
    assert farthest <= 1e-3
    with capsys.disabled():
        median = sorted(times)[steps // 2]
        print(f"\n{steps} steps, {torch.get_num_threads()} threads: median {median:.2f} s, distance ≤ {farthest:.1e}")
