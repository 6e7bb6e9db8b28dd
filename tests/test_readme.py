"""README's code runs as written."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_code_of_the_readme_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 2
    names = {}
    exec(blocks[0], names)
    assert max(row.max_distance for row in names["opt"].drift()) < 3e-6  # rounding, as it promises
    exec(blocks[1], names)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_files_that_the_readme_links_to_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text())
    assert len(links) > 10
    assert not [link for link in links if not (ROOT / link).exists()]


def test_every_public_name_is_documented():
    import orthoptim as oo

    for name in oo.__all__:
        assert getattr(oo, name).__doc__, name
