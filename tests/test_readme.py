"""README's code runs as written."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_code_of_the_readme_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 2
    exec("\n".join(blocks), {})


def test_every_public_name_is_documented():
    import orthoptim as oo

    for name in oo.__all__:
        assert getattr(oo, name).__doc__, name
