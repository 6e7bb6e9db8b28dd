"""Step time and memory, against the peers and against what the hardware allows."""
