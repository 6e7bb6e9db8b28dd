"""The API reference is complete: every public name is documented once."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import orthoptim as oo

ROOT = Path(__file__).parents[2]
DIRECTIVE = re.compile(r"^\.\. auto(?:class|function):: (orthoptim\.\S+)\n(?!   :no-index:)", re.M)


def integrations():
    """The public names of the modules for other packages; of the one they share, the class that is for users."""
    for path in sorted((ROOT / "src/orthoptim/integrations").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
            if public and (path.stem != "watching" or isinstance(node, ast.ClassDef)):
                yield f"orthoptim.integrations.{path.stem}.{node.name}"


@pytest.mark.docs
def test_every_public_name_is_documented_once():
    documented = Counter(name for page in (ROOT / "docs").rglob("*.md") for name in DIRECTIVE.findall(page.read_text()))
    assert documented == Counter([*(f"orthoptim.{name}" for name in oo.__all__), *integrations()])


@pytest.mark.docs
@pytest.mark.parametrize(("folder", "kind"), [("methods", oo.Orthoptimizer), ("bases", oo.Base)])
def test_every_method_and_base_has_a_page_and_a_row(folder, kind):
    classes = [value for name in oo.__all__ if isinstance(value := getattr(oo, name), type) and issubclass(value, kind)]
    overview = (ROOT / "docs" / folder / "index.md").read_text()
    for name in sorted(each.__name__ for each in classes if each is not kind):
        page = (ROOT / "docs" / folder / f"{name.lower()}.md").read_text()
        for part in (
            "{formula}",
            "**Cost.**",
            "**When to use it.**",
            "**What to expect.**",
            "```{figure}",
            "**Reference.**",
        ):
            assert part in page, f"{folder}/{name.lower()}.md lacks {part}"
        assert f"]({name.lower()}.md)" in overview
