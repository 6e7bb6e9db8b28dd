"""A convolutional network on CIFAR-10."""
