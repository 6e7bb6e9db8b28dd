"""Elastic training with an orthoptimizer: torchrun restarts what dies, torch.distributed.checkpoint resumes.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc-per-node 2 --max-restarts 3 examples/elastic.py

Kill a rank while it trains: all are started again, and go on from the last checkpoint to the same bits. Nothing here is
special to orthoptim: with ``--optimizer adamw`` the same script trains torch's AdamW.

On gloo the variable is needed: else a restarted world finds the addresses of the dead one in the store that it shares
with torchrun, and does not connect.
"""

import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import orthoptim as oo

ORTHOGONAL = {"0.weight": "matrix", "2.weight": "matrix"}


def build(name: str, width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A sharded model, which is the same on all ranks before it is sharded, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 8))
    oo.orthogonalize_(model, ORTHOGONAL)
    fully_shard(model)
    if name == "adamw":
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, oo.POGO(oo.param_groups(model, ORTHOGONAL, lr=0.1, rest={"algorithm": "adamw", "lr": 1e-2}))


def newest(folder: Path) -> Path | None:
    """The last checkpoint that is complete: its metadata are written after all of its data."""
    complete = [path for path in folder.glob("step-*") if (path / ".metadata").exists()]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Every rank writes its part; the first then deletes all checkpoints but the last two."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state, "step": step}, checkpoint_id=folder / f"step-{step}")
    if dist.get_rank() == 0:
        for old in sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))[:-2]:
            shutil.rmtree(old, ignore_errors=True)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Read a checkpoint into the model and the optimizer; the step it was written after."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["step"])


def batch(step: int, width: int) -> torch.Tensor:
    """The inputs of this rank in a step: drawn from the number of the step, so that a resumed run sees the same."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(16, width, generator=generator)


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", choices=["pogo", "adamw"], default="pogo")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5, help="steps from checkpoint to checkpoint")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--folder", type=Path, default=Path("elastic-checkpoints"))
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # equal on all ranks: sums are rounded by how they are divided among threads
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model, optimizer = build(arguments.optimizer, arguments.width)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    found = newest(arguments.folder)
    first = 0 if found is None else load(found, model, optimizer)
    for step in range(first, arguments.steps):
        x = batch(step, arguments.width)
        loss = (model(x) - x[:, :8]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % arguments.every == 0:
            save(arguments.folder, step + 1, model, optimizer)
        if dist.get_rank() == 0:
            print(
                f"step {step + 1} of {arguments.steps}, restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}",
                flush=True,
            )
    whole = [param.full_tensor().detach().double() for param in model.parameters()]
    if dist.get_rank() == 0:
        torch.save(whole, arguments.folder / "end.pt")
        if arguments.optimizer == "pogo":
            print("distance", max(float(oo.distance(each)) for each in (whole[0], whole[2])), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may abort while the interpreter ends


if __name__ == "__main__":
    main()
