"""Worlds of processes that all tests of a session share."""

import pytest

from tests.distributed.world import World


def pytest_collection_modifyitems(items):
    """One xdist worker runs them all (with ``--dist loadgroup``): it alone starts processes."""
    for item in items:
        if "tests/distributed/" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("distributed"))


@pytest.fixture(scope="session")
def worlds():
    """Worlds by size, started when first asked for; one that was closed, because it hung, is started again."""
    started: dict[int, World] = {}

    def world(size: int) -> World:
        if size not in started or not started[size].alive:
            started[size] = World(size)
        return started[size]

    yield world
    for each in started.values():
        each.close()


@pytest.fixture
def two(worlds):
    return worlds(2)


@pytest.fixture
def four(worlds):
    return worlds(4)
