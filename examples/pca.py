"""Online PCA, small: find the leading subspace of a matrix with POGO, and with Riemannian gradient descent.

Minimise f(X) = −½ tr(XAXᵀ) over XXᵀ = I. The minimum is minus half the sum of the p largest eigenvalues of A.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

import orthoptim as oo

P, N = 150, 200
STEPS = 1500


def problem(seed: int = 0) -> tuple[Tensor, float]:
    """A symmetric A with condition number 1000, as in the paper's text, and the optimal value."""
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(N, N, generator=generator))
    spectrum = 10 * torch.logspace(-3, 0, N)
    return (q * spectrum) @ q.T, -0.5 * float(spectrum[-P:].sum())


def run(name: str, make_step: Callable[[Tensor], Callable[[], object]]) -> None:
    """Run one method, printing the gap to the optimum and the distance to the manifold as it goes."""
    a, optimum = problem()
    generator = torch.Generator().manual_seed(1)
    x = torch.nn.Parameter(oo.orthogonalize_(torch.empty(P, N), init="random", generator=generator))
    step, clock = make_step(x), 0.0
    print(f"\n{name}\n{'step':>6} {'seconds':>8} {'gap':>9} {'distance':>9}")
    for t in range(STEPS + 1):
        start = time.perf_counter()
        xa = x @ a
        loss = -0.5 * (xa * x).sum()
        (x.grad,) = torch.autograd.grad(loss, x)
        if t % 250 == 0:
            gap = abs(loss.item() - optimum) / abs(optimum)
            print(f"{t:6d} {clock:8.2f} {gap:9.1e} {oo.distance(x).item():9.1e}")
            start = time.perf_counter()
        step()
        clock += time.perf_counter() - start


if __name__ == "__main__":
    print(f"Online PCA: the leading {P} of {N} dimensions.")
    run("POGO (SGD, momentum 0.3, lr 0.25)", lambda x: oo.POGO([x], 0.25, oo.SGD(momentum=0.3)).step)
    run("RGD (QR retraction, lr 0.15)", lambda x: oo.RGD([x], 0.15).step)
