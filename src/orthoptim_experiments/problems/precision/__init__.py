"""The ablation on precision."""
