"""What the tests of `wrap` share."""

import inspect

import torch

# every optimizer of torch that takes dense real parameters
OPTIMIZERS = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
}
RATES = {"LBFGS": 0.1, "Adadelta": 1.0, "Rprop": 0.01, "Muon": 0.02}


def build(name, params):
    return OPTIMIZERS[name](params, lr=RATES.get(name, 0.01))


class Prodigy(torch.optim.Optimizer):
    """A Prodigy-like optimizer: the step length grows with the distance travelled, kept in the group."""

    def __init__(self, params, lr=1.0):
        super().__init__(params, {"lr": lr, "d": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            moved = 0.0
            for p in group["params"]:
                start = self.state[p].setdefault("start", p.clone())
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 0.1)
                p.sub_(m / (m.norm() + 1e-8), alpha=group["lr"] * group["d"])
                moved = max(moved, float((p - start).norm()))
            group["d"] = max(group["d"], 0.1 * moved)
