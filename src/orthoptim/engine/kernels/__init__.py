"""Triton kernels: the step of a whole bucket in one or two launches, on CUDA and ROCm devices.

The plan asks :func:`covers` for each bucket. Where the answer is a kernel, it takes the place of the blocks; else the
bucket is stepped by torch's own operations, which are also the oracle of the kernels in the tests.

| kernel | matrices | form | launches |
|---|---|---|---|
| ``tiny`` | real, n ≤ 4 | ``tiny`` | 1 |
| ``direct`` | p ≤ 32 | ``direct-p``, one program per matrix | 1 |
| ``gram`` | p ≤ 32, long rows, a normalised base | ``gram``, several programs per matrix | 2 |

Device code is in :mod:`orthoptim.engine.kernels.device`. Triton is imported when the first bucket is covered.
"""

from orthoptim.engine.kernels.coverage import covers
from orthoptim.engine.kernels.launch import observe_launches

__all__ = ["covers", "observe_launches"]
