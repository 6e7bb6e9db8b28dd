"""Batch normalisation over the whole batch, whichever ranks its images are on.

torch's SyncBatchNorm does the same on GPUs alone. Statistics of each rank's part would be noisier the more ranks there
are, so that another number of processes would train another network.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from orthoptim_experiments.harness import ranks

DIMS = (0, 2, 3)


class BatchNorm2d(nn.BatchNorm2d):
    """torch's own, but that the batch is that of all ranks."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the images or features of this rank."""
        if not self.training or ranks.world_size() == 1:
            return super().forward(x)
        y, mean, variance, count = _Normalize.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        self._remember(mean, variance * (count / (count - 1)))
        normalised: Tensor = y
        return normalised

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            if running is not None:
                running.lerp_(new.to(running.dtype), self.momentum or 0.0)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


class _Normalize(torch.autograd.Function):
    """y = w·(x − mean)/√(variance + eps) + b, with two small collectives: one forwards, one backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
        mean, variance, count = (statistic.to(weight.dtype) for statistic in _statistics(x))
        scale = (variance + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        slope = weight * scale
        y = torch.addcmul(_spread(bias - mean * slope), x.to(slope.dtype), _spread(slope))
        return y.to(x.dtype), mean, variance, count  # x may have 16 bits, statistics have not

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, scale, count = ctx.saved_tensors
        shifted, dy = x - _spread(mean), dy.to(mean.dtype)
        d_bias, d_weight = dy.sum(DIMS), (dy * shifted).sum(DIMS) * scale
        # those of this rank, to be summed with the gradients of all other parameters; x needs the sums now
        mean_dy, mean_dot = (ranks.all_reduce_sum(torch.stack((d_bias, d_weight)).double()) / count).to(mean.dtype)
        centred = torch.addcmul(dy - _spread(mean_dy), shifted, _spread(-scale * mean_dot))
        return (centred * _spread(weight * scale)).to(x.dtype), d_weight, d_bias, None


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and number of values of each channel over all ranks, from those of each, in double precision."""
    variance, mean = torch.var_mean(x.double(), DIMS, correction=0)
    own = torch.stack((mean, variance, torch.full_like(mean, x.numel() / x.shape[1])))
    parts = [torch.empty_like(own) for _ in range(ranks.world_size())]
    dist.all_gather(parts, own)
    means, variances, counts = torch.stack(parts).unbind(1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    variance = (counts * (variances + (means - mean).square())).sum(0) / count
    return mean, variance, count


def _spread(values: Tensor) -> Tensor:
    """One value for each channel, with the dims of images."""
    return values.view(-1, 1, 1)
