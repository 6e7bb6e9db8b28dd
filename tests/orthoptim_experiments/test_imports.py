"""The order of the rooms, and what is imported when: the library alone never loads the experiments."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/orthoptim_experiments"
MAY_IMPORT = {
    "harness": {"harness"},
    "bench": {"bench"},
    "problems": {"harness", "bench", "problems"},
    "report": {"harness", "problems", "report"},
    "cli": {"harness", "problems", "report", "bench", "cli", "api"},
}


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orthoptim_experiments."):
            yield node.module.split(".")[1]


def test_imports_go_one_way():
    upward = []
    for path in SOURCE.glob("*/**/*.py"):
        room = path.relative_to(SOURCE).parts[0]
        upward += [f"{path.relative_to(SOURCE)} → {other}" for other in {*imported_rooms(path)} - MAY_IMPORT[room]]
    assert not upward


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_the_library_never_imports_the_experiments():
    result = python("import sys, orthoptim; print([name for name in sys.modules if 'orthoptim_experiments' in name])")
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_the_command_without_its_extra_says_in_one_line_what_to_install():
    for package in ("typer", "rich"):
        missing = f"import sys; sys.argv[1:] = ['methods']; sys.modules['{package}'] = None; "
        result = python(missing + "from orthoptim_experiments.cli import main; main()")
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == f"orthoptim: {package} is missing; run: pip install 'orthoptim[experiments]'\n"
