"""DTensor parameters: placements to local work and a fixed number of collectives.

Nothing needs to be configured: orthoptimizers take DTensors as they come, from ``fully_shard``, HSDP or tensor
parallelism, and step them by the strategy that :mod:`orthoptim.distributed.strategies` chooses.
"""
