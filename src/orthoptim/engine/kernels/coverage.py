"""Which buckets a kernel steps."""

import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from orthoptim.base import SGD, VAdam
from orthoptim.engine.kernels.step import KernelStep, members_of
from orthoptim.engine.kernels.table import Members, describable
from orthoptim.engine.plan import Bucket
from orthoptim.engine.rule import UpdateRule
from orthoptim.pointwise import has_triton
from orthoptim.stiefel.batches import TINY
from orthoptim.views import View

LANDINGS = ("safe", "strict", "half", "newton-schulz")
"""The others solve quartics in float64."""

MOST_ROWS = 32
"""The largest p whose p×p products fit into the registers."""

FEW_COMPLEX_ROWS = 16
"""The same for complex matrices in the form gram, which has more of these products alive at a time, and on ROCm."""

MOST_COLUMNS = 1 << 16
"""The largest n that one program works through."""

RESIDENT_BYTES = 96 << 10
"""The size of X and G up to which the caches of a multiprocessor hold them from pass to pass."""


def covers(
    rule: UpdateRule, bucket: Bucket, params: Sequence[Tensor], states: Mapping[str, Sequence[Tensor]]
) -> KernelStep | None:
    """What steps a bucket in the place of its blocks; None: no kernel does.

    Args:
        rule: how the group is updated.
        bucket: the matrices.
        params: the parameters that the members of the bucket are positions in.
        states: their states by name; empty before the first step.
    """
    if not _runs_on(bucket.device) or torch.compiler.is_compiling() or not _is_pogo(rule):
        return None
    name = kernel_name(bucket, params[bucket.members[0]].dtype, rule.base.normalized)
    if name is None:
        return None
    view, side = View.of(rule.group["view"]).scaled(rule.group["scale"]), rule.group["side"]
    parts = [view.part(params[i].shape, side) for i in bucket.members]
    members = members_of(rule, bucket, params, states)
    if not _has_expected_types(members, bucket) or not describable(members, parts):
        return None
    return KernelStep(name, bucket, parts)


def kernel_name(bucket: Bucket, stored: torch.dtype, normalized: bool) -> str | None:
    """The kernel for matrices that are stored in a dtype; None: there is none."""
    if bucket.n <= TINY and not bucket.dtype.is_complex:
        return "tiny"
    if stored not in (torch.float32, torch.complex64, torch.bfloat16) or bucket.p > MOST_ROWS:
        return None
    many_planes = bucket.dtype.is_complex and bucket.p > FEW_COMPLEX_ROWS
    if many_planes and torch.version.hip is not None:
        return None
    if normalized and not many_planes and 2 * bucket.p * bucket.n * bucket.dtype.itemsize > RESIDENT_BYTES:
        return "gram"
    return "direct" if bucket.n <= MOST_COLUMNS else None


def _has_expected_types(members: Members, bucket: Bucket) -> bool:
    """Whether the states are what kernels take them for: a loaded state may count in another dtype."""
    counters = (*members.num_updates, *members.clipped, *members.rescued)
    expected = [(counters, torch.int32), (members.square, bucket.real_dtype)]
    expected += [((*members.buffer, *members.master), bucket.dtype)]
    return all(t.dtype == dtype and t.device == bucket.device for tensors, dtype in expected for t in tensors)


def _runs_on(device: torch.device) -> bool:
    """Whether triton has a backend for the device; its interpreter works on CPU tensors."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return device.type == ("cpu" if interpreted else "cuda") and has_triton()


def _is_pogo(rule: UpdateRule) -> bool:
    """Whether the kernels compute what the method does; a subclass may do something else."""
    known = vars(rule.method).get("has_kernels", False) and rule.base in (VAdam, SGD)
    return known and rule.group["landing"] in LANDINGS
