"""Which matrices a view makes of a convolution's weight, where a reader of its name would expect others."""

from dataclasses import replace

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from orthoptim.views import View


def convolutions(module: nn.Module) -> dict[Tensor, _ConvNd]:
    """The convolutions in a module by their weights, as far as these are parameters."""
    layers = [layer for layer in module.modules() if isinstance(layer, _ConvNd)]
    # not layer.weight, which a parametrization would compute
    weights = [(layer._parameters.get("weight"), layer) for layer in layers]
    return {weight: layer for weight, layer in weights if weight is not None}


def check_convolution(weight: Tensor, layer: _ConvNd, view: View, side: str) -> None:
    """Refuse a view that would constrain something else than its name says, unless the side was asked for.

    - ``kernels`` are the same for every convolution: each by itself.
    - ``filters`` of a convolution with groups are all its filters together. Where these are no more than they have
      entries, all are orthonormal: those of each group, and of different groups to each other. Where they are more, as
      in most depthwise convolutions, their *entries* would be: refused, unless ``side="columns"`` asks for it.
      ``View("filters", groups=...)`` makes the filters of each group orthonormal by themselves.
    - ``filters`` of a transposed convolution, whose weight is (in, out/groups, ...), are what each *input* channel
      writes to the output, not what each output channel reads: refused, unless ``side`` is given.
      ``View("filters", transposed=True)`` makes what each output channel reads orthonormal.

    Raises:
        ValueError: that says what would be constrained, and which view does what the name says.
    """
    transposed = any(part.transposed for part in view.parts(weight.shape, side))
    kind, window = _class_name(layer), "×".join(map(str, layer.kernel_size))
    if view.name != "filters":
        if view.name == "matrix" and weight.shape[-2:].numel() == 1:
            raise ValueError(
                f"is the weight of a {kind} with kernels {window}: view {view.name!r} would keep every single weight "
                "at modulus 1 (±1 if it is real) for ever; use 'filters'"
            )
        return
    meant = _filters_of(layer)
    if view.is_divided:
        if view.split is None and view != meant and view != _ungrouped(layer):
            raise ValueError(f"is the weight of a {kind} with groups={layer.groups}, which is not {view}: use {meant}")
        return
    if side != "auto":
        return
    filters, entries = weight.shape[0], weight.shape[1:].numel()
    if isinstance(layer, _ConvTransposeNd):
        raise ValueError(
            f"is the weight of a {kind}, whose first dim is its {filters} input channels: view 'filters' would make "
            f"what each of these writes ({entries} numbers) orthonormal, not what each output channel reads; give "
            f"side={'columns' if transposed else 'rows'!r} if you mean that; use {meant} for what output channels "
            "read, or 'kernels'"
        )
    if layer.groups > 1 and transposed:
        raise ValueError(
            f"is the weight of a {kind} with groups={layer.groups}, {filters} filters of {entries} numbers, which are "
            f"too many to be orthonormal: view 'filters' would make the {entries} columns orthonormal, each of which "
            f"runs through the filters of all groups; give side='columns' if you mean that; use {meant} for the "
            "filters of each group, or 'kernels'"
        )


def _filters_of(layer: _ConvNd) -> View:
    """The view whose rows are what each output channel reads, group by group."""
    groups = layer.groups if layer.groups > 1 else None
    return View("filters", groups=groups, transposed=isinstance(layer, _ConvTransposeNd))


def _ungrouped(layer: _ConvNd) -> View | None:
    """The same with one group that is written out, as ``groups=layer.groups`` does."""
    return replace(_filters_of(layer), groups=1) if layer.groups == 1 else None


def _class_name(layer: _ConvNd) -> str:
    """That of torch: engines such as ``fully_shard`` make classes of their own of it."""
    return next(each.__name__ for each in type(layer).__mro__ if each.__module__ == _ConvNd.__module__)
