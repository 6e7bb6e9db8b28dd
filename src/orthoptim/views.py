"""A parameter tensor as batches of matrices (..., p, n) with p ≤ n and orthonormal rows, and back.

A :class:`View` says which matrices there are; :mod:`orthoptim.parts` reshapes, slices, transposes and scales.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from orthoptim.parts import SIDES, Blocks, Part, Scale, make_part, scale_factor

ViewName = Literal["matrix", "filters", "kernels"]
"""The names of views, see :class:`View`."""

VIEWS: tuple[str, ...] = get_args(ViewName)


@dataclass(frozen=True, repr=False)
class View:
    """How a parameter is seen as matrices. Views compare and hash by value.

    A parameter may hold several matrices side by side along a dim: parts of different sizes (``split``), and equal
    blocks within each part (``heads``, ``groups``). Each of them is orthonormal, as if it were a separate parameter.

    Args:
        name: ``"matrix"``, the last two dims; ``"filters"``, the first dim against the rest, the filters of a
            convolution; or ``"kernels"``, the kernel of each pair of channels: its first dim against the rest, so k×k
            in 2-d, k×k² in 3-d, and a vector of norm 1 in 1-d.
        split: sizes of the parts along ``dim``, or the number of equal parts.
        heads: for ``"matrix"``, the number of heads along ``dim`` in each part, or one number for each part.
        groups: for ``"filters"``, the number of groups of channels in each part; the filters of each group are
            orthonormal by themselves.
        transposed: for ``"filters"``, whether the weight is that of a transposed convolution, (in, out/groups, ...). A
            filter is what an output channel reads.
        dim: for ``"matrix"``, the dim that is split, and that holds the heads.

    Example:
        >>> qkv = View("matrix", split=(8, 4, 4), heads=(4, 2, 2))  # grouped-query attention, fused
        >>> qkv
        View('matrix', split=(8, 4, 4), heads=(4, 2, 2))
        >>> [tuple(x.shape) for x in qkv.to_matrices(torch.empty(16, 8))]
        [(8, 2, 8)]
        >>> output = View("matrix", heads=4, dim=1)  # the projection of what the heads return
        >>> [tuple(x.shape) for x in output.to_matrices(torch.empty(8, 8))]
        [(4, 2, 8)]
        >>> [tuple(x.shape) for x in View("matrix", split=(8, 4, 4)).to_matrices(torch.empty(16, 8))]
        [(1, 8, 8), (2, 4, 8)]
    """

    name: ViewName = "matrix"
    _: KW_ONLY
    split: int | tuple[int, ...] | None = None
    heads: int | tuple[int, ...] | None = None
    groups: int | None = None
    transposed: bool = False
    dim: int = 0
    scale: Scale = field(default=1.0, init=False)  # an option of its own, not of a view: see scaled()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in VIEWS:
            raise ValueError(f"Invalid view: {self.name!r}; choose one of {', '.join(VIEWS)}")
        for option in ("split", "heads"):
            object.__setattr__(self, option, _counts(option, getattr(self, option)))
        if isinstance(_counts("groups", self.groups), tuple):
            raise ValueError(f"Invalid groups value: {self.groups!r}; it must be one number")
        if not isinstance(self.transposed, bool):
            raise ValueError(f"Invalid transposed value: {self.transposed!r}; it must be True or False")
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise ValueError(f"Invalid dim value: {self.dim!r}; it must be an integer")
        self._check_combination()

    def _check_combination(self) -> None:
        """Refuse options that have no effect."""
        allowed = {
            "matrix": {"split", "heads", "dim"},
            "filters": {"split", "groups", "transposed"},
            "kernels": set[str](),
        }[self.name]
        given = [option for option in self._given() if option not in allowed]
        if given:
            hint = ": filters are divided by groups" if given[0] == "heads" and self.name == "filters" else ""
            raise ValueError(f"view {self.name!r} has no {given[0]}{hint}")
        if self.dim != 0 and self.split is None and self.heads is None:
            raise ValueError(f"dim={self.dim} has no effect on a view without split and heads")
        if self.transposed and self.split is not None:
            raise ValueError("the weight of a transposed convolution cannot be split: its filters are not in dim 0")
        if isinstance(self.heads, tuple) and len(self.heads) != self._part_count():
            raise ValueError(
                f"heads={self.heads} are {len(self.heads)} numbers, but there are {self._part_count()} parts"
            )

    def _given(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)[1:] if each.init}
        return {name: value for name, (value, default) in values.items() if value != default}

    def _part_count(self) -> int:
        return 1 if self.split is None else self.split if isinstance(self.split, int) else len(self.split)

    def __repr__(self) -> str:
        options = [f", {name}={value!r}" for name, value in self._given().items()]
        return f"View({self.name!r}{''.join(options)})"

    @classmethod
    def of(cls, view: "ViewLike | Mapping[str, Any] | str") -> "View":
        """The view that a name stands for, or what :meth:`plain` returned; a view itself.

        Raises:
            ValueError: if there is none.
        """
        if isinstance(view, View):
            return view
        if isinstance(view, str) and view in _NAMED:
            return _NAMED[view]
        if not isinstance(view, Mapping):
            raise ValueError(f"Invalid view: {view!r}; choose one of {', '.join(VIEWS)}, or a View")
        try:
            return cls(**view)
        except TypeError:
            raise ValueError(f"Invalid view: {view!r}; its keys must be options of View") from None

    def scaled(self, scale: Scale) -> "View":
        """The same view of parameters that hold σ times orthonormal matrices, see :func:`scale_factor`.

        Example:
            >>> View("matrix").scaled(2.0).to_matrices(2 * torch.eye(2))
            [tensor([[1., 0.],
                    [0., 1.]])]
        """
        scale_factor(scale, 1, 1)  # raises
        if scale == self.scale:
            return self
        view = replace(self)
        object.__setattr__(view, "scale", scale)
        return view

    def plain(self) -> str | dict[str, Any]:
        """The view as values that a checkpoint can hold: its name, or a dict of its options.

        Example:
            >>> View("matrix").plain(), View("matrix", split=(4, 2), heads=2).plain()
            ('matrix', {'name': 'matrix', 'split': [4, 2], 'heads': 2})
        """
        options = {key: list(value) if isinstance(value, tuple) else value for key, value in self._given().items()}
        return {"name": self.name, **options} if options else self.name

    @property
    def is_divided(self) -> bool:
        """Whether matrices lie side by side along a dim; if not, the matrices are the last dims of the tensor."""
        return self.split is not None or self.heads is not None or self.groups is not None or self.transposed

    def parts(self, shape: Sequence[int], side: str = "auto") -> tuple[Part, ...]:
        """The matrices of a tensor of a shape: a part for each run of matrices of one shape.

        The batch may be empty, the matrices may not.

        Raises:
            ValueError: if a tensor of this shape cannot be seen so.

        Example:
            >>> View("filters").parts((8, 4, 3, 3))
            (Part(batch=torch.Size([]), p=8, n=36, transposed=False, blocks=None, scale=1.0),)
        """
        if torch.compiler.is_compiling():  # which does not look into a cache
            return _parts(self, torch.Size(shape), side)
        return _cached_parts(self, torch.Size(shape), side)

    def part(self, shape: Sequence[int], side: str = "auto") -> Part:
        """The matrices of a tensor that holds the entries of one part, as :meth:`Part.entries` returns them."""
        if not self.is_divided:
            return self.parts(shape, side)[0]
        dims = 2 if self.name == "matrix" else len(shape) - 1
        batch, sides = shape[: len(shape) - dims], shape[len(shape) - dims :]
        return make_part(torch.Size(batch), sides[0], torch.Size(sides[1:]).numel(), side, self.scale)

    def batch_shape(self, shape: Sequence[int]) -> torch.Size:
        """The shape of a tensor with one value for each matrix: dims of the batch, then the number of blocks."""
        leading = shape[: self.leading_dims(len(shape))]
        return torch.Size([*leading, sum(run.count for run in self.runs(shape))] if self.is_divided else leading)

    def to_matrices(self, tensor: Tensor, side: str = "auto") -> list[Tensor]:
        """The matrices (..., p, n) of each part: views of the tensor where strides allow."""
        return [part.matrices(tensor) for part in self.parts(tensor.shape, side)]

    def from_matrices(self, matrices: Sequence[Tensor], shape: Sequence[int], side: str = "auto") -> Tensor:
        """The inverse of :meth:`to_matrices`, for a tensor of the given shape."""
        parts = self.parts(shape, side)
        if not self.is_divided:
            whole = matrices[0] if parts[0].scale == 1 else matrices[0] * parts[0].scale
            return (whole.mT if parts[0].transposed else whole).reshape(shape)
        tensor = matrices[0].new_empty(shape)
        for part, x in zip(parts, matrices, strict=True):
            part.write_(tensor, x)
        return tensor

    def join_values(self, values: Sequence[Tensor]) -> Tensor:
        """Values of the matrices of each part as one tensor, of :meth:`batch_shape`."""
        return torch.cat(list(values), -1) if self.is_divided else values[0]

    def leading_dims(self, ndim: int) -> int:
        """How many dims of the tensor come before those of a matrix: they count matrices."""
        return {"matrix": ndim - 2, "filters": 0, "kernels": 2}[self.name]

    def matrix_dims(self, ndim: int) -> tuple[int, ...]:
        """The dims of the tensor that are those of a matrix: that of its rows, then those of its columns."""
        first = self.leading_dims(ndim)
        return (1, 0, *range(2, ndim)) if self.transposed else tuple(range(first, ndim))

    def divided_dim(self, ndim: int) -> int:
        """The dim along which matrices lie side by side, for a view that :attr:`is_divided`.

        Raises:
            ValueError: if there is no such dim.
        """
        dim = self.dim + ndim if self.dim < 0 else self.dim
        if dim not in self.matrix_dims(ndim):
            dims = " or ".join(str(each) for each in self.matrix_dims(ndim))
            raise ValueError(
                f"has {ndim} dims, of which {self!r} divides dim {self.dim}: only dim {dims} is a matrix's"
            )
        return dim

    def runs(self, shape: Sequence[int]) -> list[Blocks]:
        """The blocks along the divided dim of a tensor, those of one size that follow each other together.

        Raises:
            ValueError: if the dim cannot be divided so.
        """
        ndim = len(shape)
        dim, leading = self.divided_dim(ndim), self.leading_dims(ndim)
        matrix = [d if d < dim else d + 1 for d in self.matrix_dims(ndim)]  # the block's dim is put before
        order = (*range(leading), dim, *matrix)
        runs: list[Blocks] = []
        start = first = 0
        for length, count in zip(self._lengths(shape[dim], dim), self._block_counts(), strict=True):
            if length % count:
                word = "groups" if self.name == "filters" else "heads"
                raise ValueError(f"has a part of {length} entries along dim {dim}, which {count} {word} do not divide")
            size = length // count
            if runs and runs[-1].size == size:
                runs[-1] = replace(runs[-1], count=runs[-1].count + count)
            else:
                runs.append(Blocks(dim, start, size, count, first, order))
            start, first = start + length, first + count
        return runs

    def _lengths(self, length: int, dim: int) -> list[int]:
        """The lengths of the parts along a dim."""
        if self.split is None:
            return [length]
        if isinstance(self.split, int):
            if length % self.split:
                raise ValueError(f"has {length} entries along dim {dim}, which split={self.split} does not divide")
            return [length // self.split] * self.split
        if sum(self.split) != length:
            raise ValueError(
                f"has {length} entries along dim {dim}, but the parts of split={self.split} have {sum(self.split)}"
            )
        return list(self.split)

    def _block_counts(self) -> list[int]:
        """The number of blocks in each part."""
        count = self.heads if self.heads is not None else self.groups
        return list(count) if isinstance(count, tuple) else [count or 1] * self._part_count()

    def of_blocks(self, count: int) -> "View":
        """The view of a tensor that holds ``count`` of the blocks, all of which have one size."""
        filters = self.name == "filters"
        view = replace(self, split=None, groups=count) if filters else replace(self, split=None, heads=count)
        return view.scaled(self.scale)


ViewLike = View | ViewName
"""What options called ``view`` take: a view, or the name of one."""


def _counts(option: str, value: Any) -> int | tuple[int, ...] | None:
    """A positive integer or a tuple of them, also from a list; None."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    valid = all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in values)
    if value is not None and not (values and valid):
        raise ValueError(f"Invalid {option} value: {value!r}; it must be a positive integer or a tuple of them")
    return values if isinstance(value, list) else cast("int | tuple[int, ...] | None", value)


def _parts(view: View, shape: torch.Size, side: str) -> tuple[Part, ...]:
    if side not in SIDES:
        raise ValueError(f"Invalid side: {side!r}; choose one of {', '.join(SIDES)}")
    ndim = len(shape)
    if ndim < 2:
        raise ValueError(
            f"has {ndim} dims, but a matrix has two: leave it to an ordinary group "
            "(a pattern such as 'attn.*weight' leaves biases out)"
        )
    if view.name == "kernels":
        _check_kernels(shape)
    dims = view.matrix_dims(ndim)
    leading = shape[: view.leading_dims(ndim)]
    if not view.is_divided:
        return (make_part(leading, shape[dims[0]], shape[dims[0] + 1 :].numel(), side, view.scale),)
    parts = []
    for run in view.runs(shape):
        sizes = [run.size if dim == run.dim else shape[dim] for dim in dims]
        batch = torch.Size([*leading, run.count])
        parts.append(make_part(batch, sizes[0], torch.Size(sizes[1:]).numel(), side, view.scale)._replace(blocks=run))
    return tuple(parts)


_cached_parts = lru_cache(maxsize=4096)(_parts)


def _check_kernels(shape: torch.Size) -> None:
    if not 3 <= len(shape) <= 5:
        raise ValueError(
            f"has {len(shape)} dims, but view 'kernels' is of the weights of convolutions, which have 3 to 5: use "
            "'matrix' or 'filters'"
        )
    if shape[2:].numel() == 1:
        size = "×".join(map(str, shape[2:]))
        raise ValueError(
            f"has kernels {size}: view 'kernels' would keep every single weight at modulus 1 (±1 if it is real) for "
            "ever; use 'filters'"
        )


_NAMED = {name: View(cast(ViewName, name)) for name in VIEWS}
