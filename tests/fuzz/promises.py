"""What each method promises about the distance ‖XXᴴ − I‖ of its matrices, and when it may decline a step."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orthoptim.tensors import compute_dtype
from orthoptim.views import View

SAFE = 0.5
STRICT = 1.5e-6


class Promise(NamedTuple):
    """The largest distance of a matrix that started on the manifold.

    Attributes:
        distance: in exact arithmetic.
        frobenius: whether the promise is about the Frobenius norm; else the spectral one.
        accumulates: whether rounding errors add up over the steps.
        always_steps: whether every finite gradient is stepped along, whatever its size.
        recovers: whether a matrix of full rank that was written far from the manifold comes back.
    """

    distance: float
    frobenius: bool = False
    accumulates: bool = False
    always_steps: bool = False
    recovers: bool = False


def promise_of(algorithm: str, group: Mapping[str, Any]) -> Promise | None:
    """What a constrained group promises; None where a long step may leave the manifold for good."""
    if algorithm in ("pogo", "stiefelmuon") and group["landing"] in ("safe", "strict"):
        return Promise(SAFE if group["landing"] == "safe" else STRICT, always_steps=True, recovers=True)
    if algorithm == "rgd":
        return Promise(0.0, recovers=True)
    if algorithm == "rsdm":
        return Promise(0.0, accumulates=True)
    if algorithm == "landing":
        return Promise(group["eps"], frobenius=True, always_steps=True)
    if algorithm == "landingpc" and group["tau"] is not None:
        return Promise(group["tau"], frobenius=True, recovers=True)
    return None


def rounding(dtype: torch.dtype, p: int, n: int) -> float:
    """The distance that rounding explains in the precision that matrices of this dtype are computed in."""
    unit = torch.finfo(compute_dtype(dtype)).eps / 2
    return unit * (10 * p + 4 * math.sqrt(n))


def storage_rounding(dtype: torch.dtype, p: int, n: int) -> float:
    """The distance of an orthonormal matrix whose entries were rounded to the dtype it is stored in."""
    unit = torch.finfo(dtype).eps / 2
    return unit * (10 * p + 4 * math.sqrt(n))


def wide(tensor: Tensor) -> Tensor:
    """The values in float64 or complex128."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def matrices_of(tensor: Tensor, group: Mapping[str, Any]) -> Tensor:
    """The matrices (B, p, n) of a tensor that has the shape of a parameter of the group."""
    (matrices,) = View.of(group["view"]).to_matrices(tensor.detach(), group["side"])
    return matrices.reshape(-1, *matrices.shape[-2:])


def distances(matrices: Tensor, frobenius: bool = False) -> Tensor:
    """‖XXᴴ − I‖ of each matrix, measured in double precision; infinite where the square of an entry is not finite."""
    x = wide(matrices)
    finite = (x.abs() < 1e100).flatten(1).all(1)
    x = torch.where(finite[:, None, None], x, 0)
    c = x @ x.mH - torch.eye(x.shape[-2], dtype=x.dtype)
    size = torch.linalg.matrix_norm(c) if frobenius else torch.linalg.eigvalsh(c).abs().amax(-1)
    return torch.where(finite, size, math.inf)
