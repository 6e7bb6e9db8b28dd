"""Workloads: the shapes of the paper's experiments, with gradients that have a tangent and a normal part."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from orthoptim.functional import orthogonalize_


class Workload(NamedTuple):
    """Parameters of given shapes, all seen as matrices of their last two dims."""

    title: str
    shapes: Sequence[tuple[int, ...]]
    dtype: torch.dtype = torch.float32

    def parameters(self, device: str = "cpu", seed: int = 0) -> list[Tensor]:
        """Orthonormal parameters with gradients, the same for every contender."""
        generator = torch.Generator(device).manual_seed(seed)
        params: list[Tensor] = []
        for shape in self.shapes:
            x = torch.empty(shape, dtype=self.dtype, device=device)
            param = torch.nn.Parameter(orthogonalize_(x, init="random", generator=generator))
            noise = torch.randn(shape, dtype=self.dtype, device=device, generator=generator)
            param.grad = noise + param.detach()
            params.append(param)
        return params

    def nbytes(self) -> int:
        """The bytes of the parameters."""
        return sum(torch.Size(shape).numel() for shape in self.shapes) * self.dtype.itemsize


_KERNELS = [(64, 24, 3, 3), (64, 64, 3, 3), (256, 64, 3, 3), *[(256, 256, 3, 3)] * 3]
_CIRCUIT = [(258, 10, 10_000), (6, 10, 100)]

WORKLOADS: dict[str, Workload] = {
    "W1": Workload("218 624 kernels 3×3 in six tensors", _KERNELS),
    "W2": Workload("18 attention matrices 1024×1024", [(1024, 1024)] * 18),
    "W3": Workload("the circuit, complex: 784 of 10×256, 258 of 10×10⁴", [(784, 10, 256), *_CIRCUIT], torch.complex64),
    "W3b": Workload("the 784 leaves as separate parameters, complex", [(10, 256)] * 784, torch.complex64),
    "W4": Workload("one matrix 1500×2000", [(1500, 2000)]),
    "W5": Workload("six filter matrices 64×216 … 256×2304", [(64, 216), (64, 576), (256, 576), *[(256, 2304)] * 3]),
    "W6": Workload("1000 separate parameters 64×64", [(64, 64)] * 1000),
    "W8": Workload("one matrix 64×64", [(64, 64)]),
    "W9": Workload("one matrix 200×150", [(200, 150)]),
    "W10": Workload("one matrix 4096×4096", [(4096, 4096)]),
    "E8": Workload("8 experts 64×256 in one tensor", [(8, 64, 256)]),
    "E64": Workload("64 experts 64×256 in one tensor", [(64, 64, 256)]),
    "E256": Workload("256 experts 64×256 in one tensor", [(256, 64, 256)]),
    "host": Workload(
        "1000 separate parameters 8×8: their arithmetic is little, the rest is host time", [(8, 8)] * 1000
    ),
}

DEFAULT = tuple(name for name in WORKLOADS if name not in ("W10", "host") and not name.startswith("E"))
"""What is measured where nothing is named: a parametrization of W10 or of many experts takes minutes; host time is that
of one thread."""

QUICK = ("W1", "W5", "W8")
QUICK_CONTENDERS = "pogo-torch,orthoptim safe,orthoptim half,torch Adam,limit"
"""What --quick measures: kernels, filters and one small matrix; nothing that compiles, no QR or exponential."""
