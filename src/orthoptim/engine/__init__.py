"""The step of plain tensors, between the contract and the mathematics: buckets, state, update, counters, telemetry."""
