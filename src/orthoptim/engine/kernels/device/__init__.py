"""Device code, in Triton. Imported only where triton is there and a bucket is stepped by it."""
