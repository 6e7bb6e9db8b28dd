"""The address table: where the tensors of each parameter of a bucket lie, for a kernel that steps all of them at once.

A row of 64-bit numbers describes one parameter:

| columns | what |
|---|---|
| 0–2 | number of matrices, length of the inner batch dim, address of ``step`` (0: none) |
| 3–22 | parameter, gradient, buffer, master: address, strides of the outer and inner batch dim, of rows, of columns |
| 23–34 | ``num_updates``, ``clipped``, ``rescued``, second moment: address, strides of the outer and inner batch dim |
| 35 | σ, as the bits of a double |

Two batch dims and one dim for each side describe whatever views make of contiguous, channels-last and transposed
tensors. The order of columns is free as long as all tensors of a parameter share it, so that the filters of
channels-last weights have one column stride, too.

Gradients may have other addresses in every step. These are in a tensor of their own, which is filled by kernels whose
arguments hold the addresses: a copy from the host would wait for the device, and a CUDA graph could not replay it.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.parts import Part
from orthoptim.tensors import has_values


class Members(NamedTuple):
    """The tensors of the parameters of a bucket; a list is empty where there is no such tensor.

    Attributes:
        x: the parameters.
        steps: their counters of steps; None for parts of a parameter but the first.
        buffer: the buffer of the base optimizer with a value per entry.
        master: copies in full precision.
        num_updates: counters per matrix, as the next two.
        clipped: see above.
        rescued: see above.
        square: second moments per matrix.
    """

    x: list[Tensor]
    steps: list[Tensor | None]
    buffer: list[Tensor]
    master: list[Tensor]
    num_updates: list[Tensor]
    clipped: list[Tensor]
    rescued: list[Tensor]
    square: list[Tensor]

    def of_matrices(self) -> tuple[list[Tensor], ...]:
        """The tensors with a value per matrix, in the order of the table."""
        return self.num_updates, self.clipped, self.rescued, self.square

    def addresses(self) -> list[int]:
        """Those of all tensors."""
        return [address(tensor) for tensor in chain(*self)]


class Places(NamedTuple):
    """How the batch and the columns of one parameter are cut into dims that have one stride in all its tensors.

    Attributes:
        dims: the number of batch dims.
        split: how many of these are the outer dim.
        order: that of the dims of columns.
    """

    dims: int
    split: int
    order: tuple[int, ...]


class AddressTable:
    """The address table of a bucket on its device, renewed when a tensor has moved.

    Args:
        parts: how each parameter is seen as matrices.
        device: where they are.
        block: how many matrices a program steps.

    Attributes:
        rows: the table, (parameters, 36).
        grads: the addresses of gradients.
        work: for each program, which parameter and which of its matrices is the first.
    """

    def __init__(self, parts: Sequence[Part], device: torch.device, block: int) -> None:
        self.parts = parts
        self.device = device
        self.rows = self.grads = torch.empty(0, dtype=torch.int64, device=device)
        starts = [(k, i) for k, part in enumerate(parts) for i in range(0, part.batch.numel(), block)]
        self.work = torch.tensor(starts, dtype=torch.int32, device=device)
        self._places: list[Places] = []
        self._addresses: list[int] = []
        self._strides: list[tuple[int, ...]] = []
        self._fits: list[bool] = []
        self._grad_addresses: list[int] = []

    def renew(self, members: Members, grads: list[Tensor]) -> list[Tensor]:
        """Renew what has changed since the last step.

        Returns:
            The gradients that the table refers to: copies of those that it cannot describe.
        """
        addresses = members.addresses()
        strides = [grad.stride() for grad in grads]
        moved = addresses != self._addresses
        if moved:
            self._places = [_find(tensors, part) for tensors, part in zip(_entries(members), self.parts, strict=True)]
        if moved or strides != self._strides:
            described = zip(grads, self.parts, self._places, strict=True)
            self._fits = [_fits(grad, part, places) for grad, part, places in described]
        if not all(self._fits):
            pairs = zip(grads, self._fits, members.x, strict=True)
            grads = [grad if fits else torch.empty_like(x, dtype=grad.dtype).copy_(grad) for grad, fits, x in pairs]
        if moved or strides != self._strides:
            rows = [self._row(members, k, grad) for k, grad in enumerate(grads)]
            self.rows = torch.tensor(rows, dtype=torch.int64, device=self.device)
            self._addresses, self._strides = addresses, strides
        grad_addresses = [address(grad) for grad in grads]
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if grad_addresses != self._grad_addresses or capturing:  # a graph must not rely on what others may overwrite
            if len(self.grads) != len(grads):
                self.grads = torch.empty(len(grads), dtype=torch.int64, device=self.device)
            self.grads.zero_()
            torch._foreach_add_(list(self.grads.unbind()), grad_addresses)
            self._grad_addresses = grad_addresses
        return grads

    def _row(self, members: Members, k: int, grad: Tensor) -> list[int]:
        part, places = self.parts[k], self._places[k]
        inner = torch.Size(part.batch[places.split :]).numel()
        row = [part.batch.numel(), inner, address(members.steps[k])]
        tensors = (members.x[k], grad, *(_at(values, k) for values in (members.buffer, members.master)))
        for tensor in tensors:
            row += [address(tensor), *(_strides(tensor, part, places) or (0, 0, 0, 0))]
        for values in members.of_matrices():
            tensor = _at(values, k)
            outer = (0, 0) if tensor is None else _batch_strides(tuple(tensor.shape), tensor.stride(), places.split)
            row += [address(tensor), *(outer or (0, 0))]
        return [*row, bits_of(part.scale)]


def describable(members: Members, parts: Sequence[Part]) -> bool:
    """Whether a table can describe the tensors, and gradients that lie like the parameters."""
    try:
        for tensors, part in zip(_entries(members), parts, strict=True):
            _find(tensors, part)
    except ValueError:
        return False
    return True


def address(tensor: Tensor | None) -> int:
    """That of the memory of a tensor; 0 for none, and for fake tensors."""
    return 0 if tensor is None or not has_values(tensor) else tensor.data_ptr()


def bits_of(number: float) -> int:
    """A double as an integer: tables hold integers, and triton passes floats in 32 bits."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def _at(values: Sequence[Tensor], k: int) -> Tensor | None:
    return values[k] if values else None


def _entries(members: Members) -> list[tuple[list[Tensor], list[Tensor]]]:
    """For each parameter, its tensors with a value per entry, and those with a value per matrix."""
    entries = [values for values in (members.x, members.buffer, members.master) if values]
    matrices = [values for values in members.of_matrices() if values]
    return [([values[k] for values in entries], [values[k] for values in matrices]) for k in range(len(members.x))]


def _find(tensors: tuple[list[Tensor], list[Tensor]], part: Part) -> Places:
    """The dims that serve all tensors of a parameter.

    Raises:
        ValueError: if there are none.
    """
    entries, matrices = tensors
    x, dims = entries[0], len(part.batch)
    order = tuple(sorted(range(dims + 1, x.ndim), key=x.stride, reverse=True))
    entries = [*entries, torch.empty_like(x, device="meta")]
    for split in range(dims + 1):
        places = Places(dims, split, order)
        if all(_fits(tensor, part, places) for tensor in entries) and all(
            _batch_strides(tuple(values.shape), values.stride(), split) is not None for values in matrices
        ):
            return places
    raise ValueError("no two batch dims and one dim for each side describe all tensors")


def _fits(tensor: Tensor, part: Part, places: Places) -> bool:
    return not (tensor.is_conj() or tensor.is_neg()) and _strides(tensor, part, places) is not None


def _strides(tensor: Tensor | None, part: Part, places: Places) -> tuple[int, int, int, int] | None:
    """The strides of a tensor of the parameter's shape, in real numbers: outer, inner, of rows, of columns of X."""
    if tensor is None:
        return None
    found = _entry_strides(tuple(tensor.shape), tensor.stride(), places)
    if found is None:
        return None
    outer, inner, row, column = (stride * (2 if tensor.is_complex() else 1) for stride in found)
    return (outer, inner, column, row) if part.transposed else (outer, inner, row, column)


@lru_cache(maxsize=4096)
def _entry_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], places: Places
) -> tuple[int, int, int, int] | None:
    batch = _batch_strides(shape[: places.dims], strides[: places.dims], places.split)
    column = _merged([shape[d] for d in places.order], [strides[d] for d in places.order])
    return None if batch is None or column is None else (*batch, strides[places.dims], column)


@lru_cache(maxsize=4096)
def _batch_strides(shape: tuple[int, ...], strides: tuple[int, ...], split: int) -> tuple[int, int] | None:
    outer, inner = _merged(shape[:split], strides[:split]), _merged(shape[split:], strides[split:])
    return None if outer is None or inner is None else (outer, inner)


def _merged(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of several dims seen as one; None, if they cannot be."""
    dims = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length != 1]
    if any(stride != after * length for (_, stride), (length, after) in pairwise(dims)):
        return None
    return dims[-1][1] if dims else 0
