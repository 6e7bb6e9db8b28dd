"""Networks with orthogonal weights, and their training."""
