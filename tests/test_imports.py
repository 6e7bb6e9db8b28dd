"""The order of the rooms: a module imports its own room and the rooms below it, never one above."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src/orthoptim"
ORDER = [
    {"literals", "validation", "user_warnings", "atomic", "tensors", "pointwise", "precision"},
    {"stiefel"},
    {"parts", "views", "base"},
    {"engine"},
    {"distributed"},
    {"checkpoint", "convolutions", "groups", "functional", "averaging"},
    {"optim"},
    {"integrations"},
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "orthoptim":
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orthoptim."):
            yield node.module.split(".")[1]


def test_no_module_of_ours_is_imported_late():
    """An import inside of a function hides the order; that of torch.distributed.tensor, which takes long, may."""
    late = []
    for path in SOURCE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                nodes = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
                late += [
                    f"{path.name}: {ast.unparse(node)}"
                    for node in nodes
                    if "torch.distributed.tensor" not in ast.unparse(node)
                ]
    assert not late


def test_imports_go_one_way():
    upward = []
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).with_suffix("").parts[0]
        if room != "__init__":
            upward += [f"{path.relative_to(SOURCE)} → {other}" for other in imports(path) if LEVEL[other] > LEVEL[room]]
    assert not upward


def test_importing_the_library_loads_torch_and_itself_alone():
    """So its import time is that of its own modules: `python -m tests.import_time` prints it."""
    script = "import sys, torch; old = set(sys.modules); import orthoptim; print(*sorted(set(sys.modules) - old))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    others = {name for name in loaded if name.partition(".")[0] != "orthoptim"}
    assert {name.partition(".")[0] for name in others} <= {"torch", *sys.stdlib_module_names}
    assert len(others) <= 10  # no slow part of torch, such as torch.distributed.tensor
    assert not [name for name in loaded if name.startswith("orthoptim.integrations")]
