"""Every Python block of every page runs, and prints what the page says."""

import doctest
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("[a-z]*/*.md"), ROOT / "README.md"])
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.S | re.M)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page):
    """The Python blocks of a page, each with the number of its first line."""
    text = page.read_text()
    for match in BLOCK.finditer(text):
        indent = len(match[1])
        code = "".join(line[indent:] for line in match[2].splitlines(keepends=True))
        yield text[: match.start(2)].count("\n"), code


@pytest.mark.docs
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page))], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": "page"}
    for line, code in blocks(page):
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
            runner = doctest.DocTestRunner(optionflags=FLAGS)
            report = []
            runner.run(test, out=report.append, clear_globs=False)
            names = test.globs
            assert not runner.failures, "".join(report)
        else:
            exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.docs
def test_no_block_escapes():
    """Blocks under other names of the language would not run."""
    for page in PAGES:
        assert not re.search(r"```(py|pycon|python3|ipython)\b", page.read_text()), page
