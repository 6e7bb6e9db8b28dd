"""The ablation on the length of the landing step."""
