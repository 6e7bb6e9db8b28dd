"""Packages that `make test-integrations` installs and `make test` does not."""

import pytest


def needs(name):
    """Import a package, or skip the test with the command that installs it."""
    return pytest.importorskip(name, reason=f"{name} is not installed: make test-integrations", exc_type=ImportError)
