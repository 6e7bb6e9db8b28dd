"""The step of a bucket by a kernel: its tensors, its numbers, its launches."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from orthoptim.base import VAdam
from orthoptim.engine.kernels.launch import launch
from orthoptim.engine.kernels.table import AddressTable, Members, bits_of
from orthoptim.engine.plan import Bucket
from orthoptim.engine.rule import UpdateRule
from orthoptim.parts import Part
from orthoptim.stiefel import policy
from orthoptim.stiefel.policies import LONGEST

BLOCK = 128
"""How many tiny matrices a program steps: one for each lane of four warps."""

TILE = 16
"""How many columns of a matrix a program works on at a time."""

WARPS = 8
"""How many warps work on a matrix that is not tiny."""

STRETCH = 1024
"""How many columns of a long matrix a program works through."""


def members_of(
    rule: UpdateRule,
    bucket: Bucket,
    params: Sequence[Tensor],
    states: Mapping[str, Sequence[Tensor]],
    steps: Sequence[Tensor | None] = (),
) -> Members:
    """The tensors of the members of a bucket, among those of all parameters."""

    def pick(name: str) -> list[Tensor]:
        return [states[name][i] for i in bucket.members] if name in states else []

    buffer, square = ("exp_avg", "exp_avg_sq") if rule.base is VAdam else ("momentum_buffer", "")
    return Members(
        x=[params[i] for i in bucket.members],
        steps=[steps[i] for i in bucket.members] if steps else [],
        buffer=pick(buffer),
        master=pick("master") if bucket.half else [],
        num_updates=pick("num_updates"),
        clipped=pick("clipped"),
        rescued=pick("rescued"),
        square=pick(square),
    )


class KernelStep:
    """Steps the matrices of a bucket.

    Args:
        name: that of the kernel.
        bucket: the matrices.
        parts: how each of its parameters is seen as matrices.
    """

    def __init__(self, name: str, bucket: Bucket, parts: Sequence[Part]) -> None:
        self.name = name
        self.bucket = bucket
        self._table = AddressTable(parts, bucket.device, BLOCK if name == "tiny" else 1)

    def __call__(
        self,
        rule: UpdateRule,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Mapping[str, Sequence[Tensor]],
        steps: Sequence[Tensor | None],
    ) -> None:
        """Step the matrices, whose tensors are among those of all parameters."""
        members = members_of(rule, self.bucket, params, states, steps)
        own = [grads[i].resolve_conj().resolve_neg() for i in self.bucket.members]
        if len({grad.dtype for grad in own}) > 1:
            own = [grad.to(self.bucket.dtype) for grad in own]
        own = self._table.renew(members, own)
        _LAUNCHES[self.name](self._table, self.bucket, rule, members, own[0].dtype)


def _launch_tiny(table: AddressTable, bucket: Bucket, rule: UpdateRule, members: Members, grad: torch.dtype) -> None:
    stored = members.x[0].dtype
    launch(
        _device("tiny").tiny_step,
        (len(table.work),),
        table.rows,
        table.grads,
        table.work,
        *_numbers(rule, bucket),
        **_constants(rule, bucket, stored, grad),
        **_base_constants(rule),
        LARGEST=torch.finfo(stored).max if stored == torch.float16 else 0.0,
        BLOCK=BLOCK,
        device=bucket.device,
        moved=_bytes(members, grad, writes=True),
    )


def _launch_direct(table: AddressTable, bucket: Bucket, rule: UpdateRule, members: Members, grad: torch.dtype) -> None:
    launch(
        _device("direct").direct_step,
        (len(table.work),),
        table.rows,
        table.grads,
        table.work,
        *_numbers(rule, bucket),
        **_constants(rule, bucket, members.x[0].dtype, grad),
        **_base_constants(rule),
        **_tile(rule, bucket),
        ROUNDOFF=torch.finfo(bucket.real_dtype).eps / 2,
        device=bucket.device,
        moved=_bytes(members, grad, writes=True),
    )


def _launch_gram(table: AddressTable, bucket: Bucket, rule: UpdateRule, members: Members, grad: torch.dtype) -> None:
    constants, tile = _constants(rule, bucket, members.x[0].dtype, grad), _tile(rule, bucket)
    numbers, grid = _numbers(rule, bucket), (len(table.work), -(-bucket.n // STRETCH))
    planes = 6 if bucket.dtype.is_complex else 3
    room = math.prod(grid) * (planes * tile["ROWS"] ** 2 + 4)
    scratch = torch.empty(room, dtype=bucket.real_dtype, device=bucket.device)
    tensors = (table.rows, table.grads, table.work, scratch)
    sums = {name: value for name, value in (constants | tile).items() if name in _SUMS}
    module = _device("gram")
    reads, all_bytes = (_bytes(members, grad, writes) for writes in (False, True))
    options: dict[str, Any] = {"STRETCH": STRETCH, "device": bucket.device}
    launch(module.gram_sums, grid, *tensors, numbers[1], **sums, **options, moved=reads)
    launch(module.gram_step, grid, *tensors, *numbers, **constants, **tile, **options, moved=all_bytes)


def _bytes(members: Members, grad: torch.dtype, writes: bool) -> int:
    """What a kernel reads, and writes, of entries."""
    held = sum(tensor.nbytes for tensor in (*members.x, *members.buffer, *members.master))
    return held * (2 if writes else 1) + sum(tensor.numel() for tensor in members.x) * grad.itemsize


_SUMS = ("P", "N", "T", "XT", "GT", "HALF", "SCALED", "MAXIMIZE", "COMPLEX", "ROWS", "TILE", "num_warps", "num_stages")
"""The constants that sums depend on."""

_LAUNCHES: dict[str, Callable[[AddressTable, Bucket, UpdateRule, Members, torch.dtype], None]] = {
    "tiny": _launch_tiny,
    "direct": _launch_direct,
    "gram": _launch_gram,
}


def _device(module: str) -> Any:
    """Device code, which needs triton."""
    return import_module(f"orthoptim.engine.kernels.device.{module}")


def _numbers(rule: UpdateRule, bucket: Bucket) -> list[Any]:
    """The numbers of a step: lr, 1−β₁, 1−β₂, log β₁, log β₂, ε, μ, 1−d; in double precision as their bits."""
    lr: float | Tensor = rule.group["lr"]
    betas, eps, momentum, dampening = (0.0, 0.0), 0.0, 0.0, 0.0
    if rule.base is VAdam:
        betas, eps = rule.hyperparameters["betas"], rule.hyperparameters["eps"]
    else:
        momentum, dampening = rule.hyperparameters["momentum"], rule.hyperparameters["dampening"]
    logs = (math.log(beta) if beta > 0 else -math.inf for beta in betas)
    numbers = [*(1 - beta for beta in betas), *logs, eps, momentum, 1 - dampening]
    on_device = isinstance(lr, Tensor) and lr.device == bucket.device
    encode = bits_of if bucket.real_dtype == torch.float64 else float
    return [lr if on_device else encode(float(lr)), *map(encode, numbers)]


def _constants(rule: UpdateRule, bucket: Bucket, stored: torch.dtype, grad: torch.dtype) -> dict[str, Any]:
    """What a kernel is compiled for."""
    landing = policy(rule.group["landing"], rule.group["landing_steps"])
    steps = {"strict": 3, "newton-schulz": rule.group["landing_steps"]}.get(rule.group["landing"], 1)
    lr = rule.group["lr"]
    info = torch.finfo(bucket.real_dtype)
    return {
        "P": bucket.p,
        "N": bucket.n,
        "T": _triton_dtype(bucket.real_dtype),
        "XT": _triton_dtype(stored),
        "GT": _triton_dtype(grad),
        "HALF": bucket.half,
        "SCALED": any(block.scale != 1 for block in bucket.blocks),
        "LR_TENSOR": isinstance(lr, Tensor) and lr.device == bucket.device,
        "MAXIMIZE": bool(rule.group["maximize"]),
        "CLIP": landing.clip or 0.0,
        "STEPS": steps,
        "REACH": landing.reach,
        "MAX": info.max,
        "TINY": info.tiny,
        "FLOOR": info.tiny / info.eps,
        "TERMS": 18 if bucket.real_dtype == torch.float64 else 10,
    }


def _base_constants(rule: UpdateRule) -> dict[str, bool]:
    """What a kernel is compiled for, of the base optimizer."""
    return {
        "VADAM": rule.base is VAdam,
        "MOMENTUM": rule.hyperparameters.get("momentum", 0) != 0,
        "NESTEROV": bool(rule.hyperparameters.get("nesterov", False)),
        "DAMPENED": rule.hyperparameters.get("dampening", 0) != 0,
    }


def _tile(rule: UpdateRule, bucket: Bucket) -> dict[str, Any]:
    """The rows and columns that a program works on at a time: powers of two, at least 16 for products.

    More columns at a time, fewer warps, or loads ahead of the loop make registers spill.
    """
    clip = policy(rule.group["landing"]).clip
    return {
        "MOST": LONGEST * bucket.p**0.5 if clip is None else clip,
        "COMPLEX": bucket.dtype.is_complex,
        "ROWS": 16 if bucket.p <= 16 else 32,
        "TILE": TILE,
        "num_warps": WARPS,
        "num_stages": 1,
    }


@lru_cache
def _triton_dtype(dtype: torch.dtype) -> Any:
    """That of real and imaginary parts."""
    name = str(dtype.to_real()).removeprefix("torch.")
    return getattr(import_module("triton.language"), name)
