"""Online PCA."""
