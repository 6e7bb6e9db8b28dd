"""Mutation testing of ``stiefel`` and ``base``: does a test fail when a formula is changed? See ``make mutants``."""
