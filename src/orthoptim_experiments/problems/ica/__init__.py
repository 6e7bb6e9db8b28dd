"""Independent component analysis."""
