"""A vision transformer on CIFAR-10."""
