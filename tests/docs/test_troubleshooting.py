"""The page *When it goes wrong* has every error and warning of the library."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GAP = "…"


def template(node):
    """The text of a message, with a gap for everything that is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(value.value if isinstance(value, ast.Constant) else GAP for value in node.values)
    return None


def messages():
    """Every message of an error or a warning, with its place."""
    for path in sorted((ROOT / "src/orthoptim").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not (isinstance(call, ast.Call) and call.args):
                continue
            called = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if called.startswith("_"):
                continue  # caught inside of the library
            if isinstance(node, ast.Raise) or called == "warn_user":
                text = template(call.args[0])
                if text and not re.fullmatch(rf"[{GAP} .:']*(parameter|the tensor)?[{GAP} ]*", text):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def known():
    """What the page lists: the first cells of its tables, in which a gap stands for anything."""
    cells = re.findall(r"^\| `([^|]+)` \|", (ROOT / "docs/troubleshooting.md").read_text(), re.M)
    return [re.compile(".*".join(map(re.escape, cell.split(GAP))), re.S) for cell in cells]


@pytest.mark.docs
def test_every_message_has_a_row():
    patterns = known()
    missing = [f"{place}: {text}" for place, text in messages() if not any(each.search(text) for each in patterns)]
    assert not missing, "\n".join(missing)


@pytest.mark.docs
def test_every_row_is_of_a_message():
    # some messages are put together elsewhere: any text of the library counts
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src/orthoptim").rglob("*.py")]
    texts = [text for tree in trees for node in ast.walk(tree) if (text := template(node))]
    unused = [each.pattern for each in known() if not any(each.search(text) for text in texts)]
    assert not unused
