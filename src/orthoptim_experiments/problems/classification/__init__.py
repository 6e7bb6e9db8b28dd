"""What the image classifiers share: training and judges."""
