"""One contract for all orthoptimizers: a method registers in methods.py, and every test here runs on it."""
