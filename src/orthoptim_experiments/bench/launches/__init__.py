"""What a step launches on a GPU, counted without one: fake CUDA tensors, a counter of operations, a roofline model."""
