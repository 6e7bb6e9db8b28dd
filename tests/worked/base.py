"""A base optimizer of one's own: AdaGrad with one sum of squares per matrix, and momentum."""

import orthoptim as oo
from orthoptim.stiefel import square_norm


class AdaGradNorm(oo.Base):
    """b ← μb + g, s ← s + ‖g‖²; the direction is b/√s."""

    name = "adagrad-norm"
    statistic = staticmethod(square_norm)

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__(momentum=momentum)

    @staticmethod
    def buffers(hyperparameters):
        return {"momentum_buffer": "entries", "sum_of_squares": "matrices"}

    @staticmethod
    def advance(grad, state, t, **hyperparameters):
        buffer = hyperparameters["momentum"] * state["momentum_buffer"] + grad
        return buffer, {"momentum_buffer": buffer}

    @staticmethod
    def scale(statistic, state, t, **hyperparameters):
        total = (state["sum_of_squares"] + statistic).clamp(1e-30, 1e30)
        return total.rsqrt(), {"sum_of_squares": total}
