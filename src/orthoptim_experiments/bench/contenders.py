"""The optimizers that are compared: ours, installed peers, unconstrained ones, and bare matrix products."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrizations

import orthoptim as oo
from orthoptim.literals import LandingPolicy, MsignDtype

Step = Callable[[], Any]
LR = 0.1
PEERS = {"pogo-torch": "pogo", "geoopt": "geoopt"}


def ours(landing: LandingPolicy, base: oo.Base, compile: bool = False) -> Callable[[list[Tensor]], Step]:
    """POGO."""
    return lambda params: oo.POGO(params, LR, base, landing=landing, compile=compile).step


def pogo_torch(momentum: float | None) -> Callable[[list[Tensor]], Step]:
    """The authors' package; it takes parameters of shape (batch, p, n)."""

    def make(params: list[Tensor]) -> Step:
        import pogo
        import pogo.base

        batches = []
        for param in params:
            assert param.grad is not None
            x, grad = (a.reshape(-1, *param.shape[-2:]) for a in (param.detach(), param.grad))
            if x.shape[-2] > x.shape[-1]:  # which it refuses
                x, grad = x.mT.contiguous(), grad.mT.contiguous()
            batch = torch.nn.Parameter(x)
            batch.grad = grad
            batches.append(batch)
        base = pogo.base.VectorAdam() if momentum is None else pogo.base.SGD(momentum=momentum)
        step: Step = pogo.POGO(batches, base, LR).step
        return step

    return make


def geoopt_adam(params: list[Tensor]) -> Step:
    """Riemannian Adam on geoopt's Stiefel manifold, of orthonormal columns."""
    import geoopt

    manifold = geoopt.EuclideanStiefel()
    columns = []
    for param in params:
        assert param.grad is not None
        column = geoopt.ManifoldParameter(param.detach().mT.contiguous(), manifold=manifold)
        column.grad = param.grad.mT.contiguous()
        columns.append(column)
    step: Step = geoopt.optim.RiemannianAdam(columns, lr=LR).step
    return step


def torch_adam(**options: Any) -> Callable[[list[Tensor]], Step]:
    """Unconstrained Adam: what a step costs at least in practice."""
    return lambda params: torch.optim.Adam(params, lr=1e-6, **options).step


def torch_muon(params: list[Tensor]) -> Step:
    """Unconstrained Muon: five steps of its quintic, in bfloat16."""
    if any(param.ndim != 2 or param.is_complex() for param in params):
        raise NotImplementedError("torch.optim.Muon takes real matrices alone")
    step: Step = torch.optim.Muon(params, lr=1e-6, weight_decay=0).step
    return step


def muon_in_float32(params: list[Tensor]) -> Step:
    """The step of torch.optim.Muon with its products in float32, for a comparison at equal precision."""
    if any(param.ndim != 2 or param.is_complex() for param in params):
        raise NotImplementedError("torch.optim.Muon takes real matrices alone")
    buffers = [torch.zeros_like(param) for param in params]

    @torch.no_grad()
    def step() -> None:
        for param, buffer in zip(params, buffers, strict=True):
            assert param.grad is not None
            buffer.lerp_(param.grad, 0.05)
            y = param.grad.lerp(buffer, 0.95)
            y.div_(y.norm().clamp_min(1e-7))
            for _ in range(5):
                gram = y @ y.mT
                y = torch.addmm(y, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), y, beta=3.4445)
            param.add_(y, alpha=-1e-6)

    return step


def stiefel_muon(ns_dtype: MsignDtype, ns_steps: int = 6) -> Callable[[list[Tensor]], Step]:
    """Muon's steps on the manifold: Polar Express, a leap and a landing."""
    return lambda params: oo.StiefelMuon(params, LR, ns_dtype=ns_dtype, ns_steps=ns_steps).step


def parametrized(params: list[Tensor]) -> Step:
    """Torch's orthogonal parametrization with Adam: forward, backward through it, and the step."""
    modules: list[Any] = []
    grads = [param.grad for param in params]
    for param in params:
        module: Any = torch.nn.Module()
        module.weight = torch.nn.Parameter(param.detach().clone())
        modules.append(parametrizations.orthogonal(module, "weight", use_trivialization=False))
    optimizer = torch.optim.Adam([p for module in modules for p in module.parameters()], lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward([module.weight for module in modules], grads)
        optimizer.step()

    return step


def limit(params: list[Tensor]) -> Step:
    """The bare products of the best form, on batches that are already gathered; for tiny matrices a copy."""
    shapes: dict[tuple[int, int], list[Tensor]] = {}
    for param in params:
        shapes.setdefault((param.shape[-2], param.shape[-1]), []).append(param.detach().reshape(-1, *param.shape[-2:]))
    batches = [torch.cat(parts) for parts in shapes.values()]

    def products(x: Tensor) -> Tensor:
        p, n = x.shape[-2:]
        if n <= 4:
            return x.clone()
        if n < 2 * p:
            s = x.mH @ x
            r = x @ s
            return (r @ r.mH) @ r
        a, b, c = (x @ x.mH for _ in range(3))
        return torch.baddbmm(a @ x, b + c, x)

    return lambda: [products(batch) for batch in batches]


def methods() -> dict[str, Callable[[list[Tensor]], Step]]:
    """Every orthoptimizer, POGO compiled first, each with its own base optimizer; unconstrained Adam and Muon."""

    def made(kind: Any, *arguments: Any) -> Callable[[list[Tensor]], Step]:
        return lambda params: kind(params, LR, *arguments).step

    def rsdm(params: list[Tensor]) -> Step:
        r = max(2, min(params[0].shape[-2:]) // 4)
        step: Step = oo.RSDM(params, LR, r).step
        return step

    return {
        "POGO compiled": ours("safe", oo.VAdam(), compile=True),
        "POGO": ours("safe", oo.VAdam()),
        "Landing": made(oo.Landing),
        "LandingPC": made(oo.LandingPC),
        "SLPG": made(oo.SLPG),
        "RGD": made(oo.RGD),
        "RSDM": rsdm,
        "torch Adam, fused": torch_adam(fused=True),
        "torch Muon": torch_muon,
        "Muon, float32": muon_in_float32,
        "StiefelMuon": stiefel_muon("bfloat16"),
        "StiefelMuon, five steps": stiefel_muon("bfloat16", 5),
        "StiefelMuon, full": stiefel_muon("full"),
    }


def contenders(base: str = "vadam") -> dict[str, Callable[[list[Tensor]], Step]]:
    """All contenders by name, the reference first; ``base`` is ``"vadam"`` or ``"sgd"`` (momentum 0.9)."""
    base_optimizer = oo.VAdam() if base == "vadam" else oo.SGD(momentum=0.9)
    table: dict[str, Callable[[list[Tensor]], Step]] = {
        "pogo-torch": pogo_torch(None if base == "vadam" else 0.9),
        "orthoptim safe": ours("safe", base_optimizer),
        "orthoptim half": ours("half", base_optimizer),
        "orthoptim compiled": ours("safe", base_optimizer, compile=True),
        "geoopt RiemannianAdam": geoopt_adam,
        "torch parametrization + Adam": parametrized,
        "torch Adam, foreach": torch_adam(foreach=True),
        "torch Adam, fused": torch_adam(fused=True),
        "limit": limit,
    }
    return {name: make for name, make in table.items() if name.split()[0] not in missing()}


def missing() -> list[str]:
    """The peers that are not installed."""
    return [peer for peer, module in PEERS.items() if importlib.util.find_spec(module) is None]
