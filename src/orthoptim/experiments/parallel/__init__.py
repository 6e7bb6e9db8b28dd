"""Several processes that train one model: `orthoptim run --nproc`."""
