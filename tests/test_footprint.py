"""How many files of the library a step crosses: what a reader has to open to follow one."""

import pytest

from tests.footprint import footprint, plain

CASES = {
    "one matrix": (9, [(300, 300)], "matrix"),
    "tiny kernels": (10, [(8, 4, 3, 3)], "kernels"),
    "many matrices": (9, [(16, 16)] * 20, "matrix"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_plain_step_crosses_few_files(name):
    most, shapes, view = CASES[name]
    files, _ = footprint(plain(*shapes, view=view).step)
    assert len(files) <= most, sorted(files)
