"""The page about the guarantee names the tests that hold it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_tests_that_the_page_names_exist():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/guarantee.md").read_text()))
    defined = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 50
    assert not named - defined
