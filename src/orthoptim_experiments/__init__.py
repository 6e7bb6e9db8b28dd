"""The experiments of the paper, the benchmarks, and the command `orthoptim`: the extra [experiments]."""
