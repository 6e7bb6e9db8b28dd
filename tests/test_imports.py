"""The order of the rooms: a module imports its own room and the rooms below it, never one above."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src/orthoptim"
ORDER = [
    {"literals", "validation", "user_warnings", "atomic", "tensors"},
    {"stiefel"},
    {"precision", "views", "base"},
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
