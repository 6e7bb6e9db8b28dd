"""How much of the best spectral descent StiefelMuon's direction takes: python -m tests.optim.spectral_gap."""

import torch

import orthoptim as oo
from tests.optim.oracles import best_tangent_direction, exact_msign, sym, taken

SHAPES = [(8, 8), (2, 3), (4, 8), (8, 9), (8, 12), (8, 32), (16, 20)]
SEEDS = 10


def without_projections(x, g):
    """What is left of public code that takes the sign of G itself, and a feasible multiple of its tangent part."""
    d = exact_msign(g)
    r = d - sym(d @ x.mH) @ x
    return float((g * r).sum() / torch.linalg.matrix_norm(r, 2).clamp_min(1))


def main():
    print("share of the dual optimum of max ⟨G, D⟩ over tangent D with ‖D‖₂ ≤ 1; Gaussian G, 10 seeds, float64")
    print(f"{'p×n':>6}  {'mean':>6}  {'least':>6}  {'sign of G, projected':>20}")
    for p, n in SHAPES:
        shares, others = [], []
        for seed in range(SEEDS):
            generator = torch.Generator().manual_seed(seed)
            x = oo.orthogonalize_(torch.empty(p, n, dtype=torch.float64), init="random", generator=generator)
            g = torch.randn(p, n, dtype=torch.float64, generator=generator)
            best = best_tangent_direction(x, g, 1500)
            shares.append(taken(x, g) / best)
            others.append(without_projections(x, g) / best)
        print(f"{p:>3}×{n:<3} {sum(shares) / SEEDS:>6.3f}  {min(shares):>6.3f}  {sum(others) / SEEDS:>20.3f}")


if __name__ == "__main__":
    main()
