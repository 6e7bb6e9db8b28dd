"""What runs any experiment: trials, records, checkpoints, the clock, statistics."""
