"""How near a training step comes to the matrix products it cannot do without.

    python -m orthoptim_experiments.problems.circuits.speed --units 10 --batch 256

prints the time of the likelihood and its gradient against that of the same products, forward and backward, bare: on
tensors that exist already, and nothing around them. The two take turns, and the ratio is that of their minima; on a
machine that others use too, that of processor time with one thread (OMP_NUM_THREADS=1) is the one to trust.
"""

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from orthoptim_experiments.problems.circuits.model import SquaredUnitaryCircuit


def training_step(circuit: SquaredUnitaryCircuit, images: torch.Tensor) -> Callable[[], None]:
    """The mean negative log-likelihood and its gradient, without the optimizer."""

    def step() -> None:
        circuit.zero_grad()
        circuit(images).mean().neg().backward()

    return step


def bare_products(circuit: SquaredUnitaryCircuit, batch: int) -> Callable[[], None]:
    """For each fold the three batched products of a step: t = Wv, and those for the gradients of W and of v."""
    calls = []
    for weight in circuit.weights:
        nodes, _, inputs = weight.shape
        half = circuit.units if inputs == circuit.units**2 else circuit.units**2
        tall = weight.detach().view(nodes, -1, half)
        v = torch.randn(nodes, half, batch, dtype=tall.dtype)
        t, d_tall, d_v = tall @ v, torch.empty_like(tall), torch.empty_like(v)
        calls += [(tall, v, t), (t, v.mT, d_tall), (tall.mT, t, d_v)]

    def step() -> None:
        for a, b, out in calls:
            torch.bmm(a, b, out=out)

    return step


class Least(NamedTuple):
    """The least seconds of several calls, on the clock and of the processor."""

    clock: float
    processor: float


def minima(steps: Sequence[Callable[[], None]], rounds: int) -> list[Least]:
    """The least time of each, taking turns; the first turn is a warm-up."""
    clock: list[list[float]] = [[] for _ in steps]
    processor: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds + 1):
        for step, seconds, busy in zip(steps, clock, processor, strict=True):
            start, start_busy = time.perf_counter(), time.process_time()
            step()
            busy.append(time.process_time() - start_busy)
            seconds.append(time.perf_counter() - start)
    return [Least(min(seconds[1:]), min(busy[1:])) for seconds, busy in zip(clock, processor, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=10)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    circuit = SquaredUnitaryCircuit(28, 28, options.units)
    images = torch.randint(0, 256, (options.batch, 28, 28), dtype=torch.uint8)
    step = training_step(circuit, images)
    step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    ours, bare = minima([step, bare_products(circuit, options.batch)], options.rounds)
    print(f"units {options.units}, batch {options.batch}, {torch.get_num_threads()} threads, complex64")
    print(f"peak memory of the process {peak:.2f} GiB")
    print("                  clock    processor")
    for name, least in (("training step", ours), ("bare products", bare)):
        print(f"{name}  {least.clock:8.3f} s   {least.processor:8.3f} s")
    print(f"ratio          {ours.clock / bare.clock:8.3f}     {ours.processor / bare.processor:8.3f}")


if __name__ == "__main__":
    main()
