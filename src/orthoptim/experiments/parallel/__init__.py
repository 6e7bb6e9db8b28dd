"""Several processes that train one model: `orthoptim run --nproc`."""

RESTARTS = 10
"""How often processes that were lost are replaced before a run is given up."""
