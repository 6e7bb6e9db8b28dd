"""PEFT: low-rank adapters with orthonormal factors, and orthogonal fine-tuning whose blocks are trained directly.

Both change a model that PEFT has made, in place, and return the patterns for :func:`orthoptim.param_groups`.
:func:`fold_` makes plain adapters of PEFT again, whose files anybody can load and merge.
"""

from collections.abc import Iterator
from typing import Any

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.oft.layer import OFTLayer, OFTRotationModule
from torch import Tensor, nn

from orthoptim.functional import orthogonalize_
from orthoptim.literals import Init
from orthoptim.precision import full_precision
from orthoptim.validation import check_bool

_RANDOM: Init = "random"


class CoredFactor(nn.Module):
    """The factor A = CQ of an adapter: a free core C (r×r) and Q (r×n) with orthonormal rows.

    It stands in the place of ``lora_A``, a linear layer without bias whose ``weight`` is computed.

    Args:
        rank: r.
        in_features: n.
        like: a tensor with the dtype and device.
        generator: for Q.
    """

    def __init__(self, rank: int, in_features: int, like: Tensor, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.empty(rank, in_features, dtype=like.dtype, device=like.device))
        self.core = nn.Parameter(torch.zeros(rank, rank, dtype=like.dtype, device=like.device))
        orthogonalize_(self.rows.data, init=_RANDOM, generator=generator)

    @property
    def weight(self) -> Tensor:
        """A = CQ, which PEFT reads to merge."""
        return self.core @ self.rows

    def forward(self, x: Tensor) -> Tensor:
        """Apply A."""
        return nn.functional.linear(nn.functional.linear(x, self.rows), self.core)


@torch.no_grad()
def stiefel_lora(
    model: nn.Module,
    *,
    adapter: str = "default",
    core: bool = False,
    generator: torch.Generator | None = None,
) -> dict[str, str]:
    r"""Make the factors of LoRA adapters orthonormal, in place.

    .. math::
        ΔW = s\,B A,\quad B^H B = I \qquad\text{or, with a core,}\qquad ΔW = s\,B C Q,\quad B^H B = QQ^H = I

    B starts random and A (or C) at zero, so that the model is unchanged. The columns of B never become alike: the
    adapter keeps its rank. Call it before training; A and C are free, and go to the ordinary parameters (``rest``).

    Args:
        model: what ``peft.get_peft_model`` returned for a ``LoraConfig``; its linear layers are adapted.
        adapter: the name of the adapter.
        core: whether both outer factors are orthonormal, with a free core between them.
        generator: for the random factors.

    Returns:
        The patterns of the orthonormal factors, for :func:`orthoptim.param_groups`.

    Example:
        ``orthogonal = stiefel_lora(get_peft_model(model, LoraConfig(r=8)))``
    """
    check_bool("core", core)
    layers = list(_lora_layers(model, adapter))
    if not layers:
        raise ValueError(
            f"the model has no linear LoRA layer with an adapter {adapter!r}: call peft.get_peft_model first"
        )
    for layer in layers:
        if getattr(layer, "use_dora", {}).get(adapter):
            raise ValueError("DoRA normalises the columns of the weight itself: use LoraConfig(use_dora=False)")
        first, last = layer.lora_A[adapter], layer.lora_B[adapter]
        orthogonalize_(last.weight.data, side="columns", init=_RANDOM, generator=generator)
        if core:
            layer.lora_A[adapter] = CoredFactor(first.out_features, first.in_features, first.weight, generator)
        else:
            first.weight.zero_()
    patterns = {f"*lora_B.{adapter}.weight": "matrix"}
    return {**patterns, f"*lora_A.{adapter}.rows": "matrix"} if core else patterns


class DirectRotation(OFTRotationModule):  # type: ignore[misc]
    """PEFT's rotation of blocks, with the blocks (k, b, b) themselves as its parameter ``weight``.

    Args:
        module: PEFT's module, whose rotation it starts from.
    """

    def __init__(self, module: OFTRotationModule) -> None:
        nn.Module.__init__(self)
        self.__dict__.update({name: value for name, value in vars(module).items() if not name.startswith("_")})
        self.coft = False  # a projection of the skew matrices, which are not there
        for name in ("rows", "cols"):
            self.register_buffer(name, getattr(module, name), persistent=False)
        blocks = module._cayley_batch(module.weight.float(), module.block_size, use_cayley_neumann=False)
        self.weight = nn.Parameter(blocks.to(module.weight.dtype))

    def _cayley_batch(self, blocks: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The blocks are orthogonal already."""
        return blocks


@torch.no_grad()
def orthogonal_blocks(model: nn.Module, *, adapter: str = "default") -> dict[str, str]:
    """Train the blocks of orthogonal fine-tuning directly, in place of skew matrices and a Cayley transform.

    PEFT's default approximates the transform by five terms of a Neumann series, which is orthogonal only near the
    start. Here the blocks are parameters, and the optimizer keeps them orthogonal.

    Args:
        model: what ``peft.get_peft_model`` returned for an ``OFTConfig``.
        adapter: the name of the adapter.

    Returns:
        The patterns of the blocks, for :func:`orthoptim.param_groups`.
    """
    layers = list(_oft_layers(model, adapter))
    if not layers:
        raise ValueError(f"the model has no OFT layer with an adapter {adapter!r}: call peft.get_peft_model first")
    for layer in layers:
        if not isinstance(layer.oft_R[adapter], DirectRotation):
            layer.oft_R[adapter] = DirectRotation(layer.oft_R[adapter])
    return {f"*oft_R.{adapter}.weight": "matrix"}


@torch.no_grad()
def fold_(model: nn.Module, *, adapter: str = "default") -> nn.Module:
    """Make plain adapters of PEFT again, in place, to be saved by ``save_pretrained`` or merged.

    The product CQ of a core becomes an ordinary A. Blocks become skew matrices by the inverse Cayley transform
    S = (I + R)⁻¹(I − R), and the configuration says that the transform is to be exact.

    Args:
        model: the model that :func:`stiefel_lora` or :func:`orthogonal_blocks` has changed.
        adapter: the name of the adapter.

    Raises:
        ValueError: if a block has an eigenvalue −1, where there is no inverse transform: merge the adapter instead.
    """
    for layer in _lora_layers(model, adapter):
        cored = layer.lora_A[adapter]
        if isinstance(cored, CoredFactor):
            layer.lora_A[adapter] = plain = nn.Linear(cored.rows.shape[1], len(cored.core), bias=False)
            plain.weight = nn.Parameter(cored.weight)
    configs: Any = model.peft_config
    for layer in _oft_layers(model, adapter):
        if isinstance(layer.oft_R[adapter], DirectRotation):
            layer.oft_R[adapter] = _skew_rotation(layer.oft_R[adapter])
            configs[adapter].use_cayley_neumann = False
    return model


def _lora_layers(model: nn.Module, adapter: str) -> Iterator[Any]:
    return (layer for layer in model.modules() if isinstance(layer, LoraLinear) and adapter in layer.lora_A)


def _oft_layers(model: nn.Module, adapter: str) -> Iterator[Any]:
    return (layer for layer in model.modules() if isinstance(layer, OFTLayer) and adapter in layer.oft_R)


def _skew_rotation(direct: DirectRotation) -> OFTRotationModule:
    with full_precision(direct.weight.device):
        blocks = direct.weight.double()
        eye = torch.eye(direct.block_size, dtype=blocks.dtype, device=blocks.device)
        skew, info = torch.linalg.solve_ex(eye + blocks, eye - blocks)
    if bool(info.any()) or not bool(torch.isfinite(skew).all()) or float(skew.abs().max()) > 1e6:
        raise ValueError(
            "a block has an eigenvalue -1 and no Cayley transform: merge the adapter into the model instead"
        )
    plain = OFTRotationModule(
        direct.r,
        direct.n_elements,
        direct.block_size,
        direct.in_features,
        block_share=direct.block_share,
        kernel_size=direct.kernel_size,
        use_cayley_neumann=False,
    ).to(direct.weight.device)
    vectors = plain._pytorch_skew_symmetric_inv(0.5 * (skew - skew.mT), direct.block_size)
    plain.weight = nn.Parameter(vectors.to(direct.weight.dtype))
    return plain
