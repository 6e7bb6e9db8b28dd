"""
accelerate: two processes, sharded by FSDP2
===========================================

The optimizer is built for the whole model and given to ``accelerator.prepare`` together with it, as any other. Run by
itself the file starts two processes on this machine; ``accelerate launch`` does the same from your configuration.
"""

import argparse
import os
import sys
import tempfile

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType, set_seed
from torch import nn

import orthoptim as oo
from orthoptim_experiments.problems.datasets import load

ORTHOGONAL = {"0.weight": "matrix", "2.weight": "matrix"}


def build(accelerator: Accelerator) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer, sharded."""
    set_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    oo.orthogonalize_(model, ORTHOGONAL)
    opt = oo.POGO(oo.param_groups(model, ORTHOGONAL, lr=0.1, rest={"algorithm": "adamw", "lr": 3e-3}))
    return accelerator.prepare(model, opt)


def work(rank: int, world: int, steps: int, port: int, folder: str) -> None:
    """What each process does: train half of the steps, save, resume, train the rest."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )  # fmt: skip
    torch.set_num_threads(1)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap", reshard_after_forward=True)
    if torch.cuda.is_available():
        accelerator = Accelerator(fsdp_plugin=plugin)
    else:  # accelerate shards on accelerators only, unless it is told that it does
        accelerator = Accelerator(cpu=True)
        accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    digits = load("digits8").train
    images, labels = (digits.pixels.flatten(1) / 16 - 0.3)[rank::world], digits.labels[rank::world]
    losses = []

    def train(model: nn.Module, opt: torch.optim.Optimizer, numbers: range) -> None:
        for step in numbers:
            rows = torch.arange(50 * step, 50 * step + 50) % len(images)
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            accelerator.backward(loss)
            opt.step()
            losses.append(float(accelerator.reduce(loss.detach(), "mean")))

    model, opt = build(accelerator)
    train(model, opt, range(steps // 2))
    accelerator.save_state(folder)

    accelerator.free_memory()
    model, opt = build(accelerator)
    accelerator.load_state(folder)
    train(model, opt, range(steps // 2, steps))

    drift = opt.optimizer.drift()  # collective: every process calls it
    distance = max(row.max_distance for row in drift)
    if accelerator.is_main_process:
        print(opt.optimizer.plan())
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, largest distance {distance:.1e}")
    assert losses[-1] < losses[steps // 2 - 1] < losses[0]
    assert distance <= 1e-5
    accelerator.end_training()
    # gloo's threads abort about one process in twenty while Python shuts down: end without shutting down
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Start the processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    arguments = (options.processes, options.steps, 29400 + os.getpid() % 500, tempfile.mkdtemp())
    torch.multiprocessing.spawn(work, arguments, nprocs=options.processes)


if __name__ == "__main__":
    main()
