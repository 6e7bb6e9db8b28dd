"""Small changes of a module's syntax tree, each of which should make some test fail."""

import ast
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

OPERATORS = {
    "Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult", "Pow": "Mult", "FloorDiv": "Mult", "Mod": "Mult",
    "LShift": "RShift", "RShift": "LShift", "BitAnd": "BitOr", "BitOr": "BitAnd", "BitXor": "BitAnd",
    "And": "Or", "Or": "And",
    "Lt": "LtE", "LtE": "Lt", "Gt": "GtE", "GtE": "Gt", "Eq": "NotEq", "NotEq": "Eq",
    "Is": "IsNot", "IsNot": "Is", "In": "NotIn", "NotIn": "In",
}  # fmt: skip
NAMES = {
    "minimum": "maximum", "clamp_min": "clamp_max", "amin": "amax", "min": "max", "add_": "sub_",
    "sqrt": "square", "rsqrt": "sqrt", "any": "all", "mH": "mT",
}  # fmt: skip
NAMES |= {new: old for old, new in NAMES.items() if old not in ("sqrt", "rsqrt")}
DROPPED = ("conj", "resolve_conj", "clamp_min", "clamp_max", "clamp", "clamp_", "abs", "double", "contiguous")


class Mutant(NamedTuple):
    """One change: in which file, the how-manieth there, on which line, in which expression, and what becomes what."""

    path: Path
    number: int
    line: int
    place: str
    change: str

    @property
    def name(self) -> str:
        """How to ask for it again."""
        return f"{self.path.parent.name}/{self.path.name}:{self.number}"


def changes(node: ast.AST) -> Iterator[Callable[[], ast.AST]]:
    """What a node may be replaced by."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op).__name__ in OPERATORS:
        yield lambda: _set(node, op=getattr(ast, OPERATORS[type(node.op).__name__])())
    if isinstance(node, ast.Compare):
        first, *others = node.ops
        yield lambda: _set(node, ops=[getattr(ast, OPERATORS[type(first).__name__])(), *others])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield lambda: node.operand
    if isinstance(node, ast.IfExp):
        yield lambda: node.body
        yield lambda: node.orelse
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield lambda: _set(node, value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield lambda: _set(node, value=node.value + 1)
        yield lambda: _set(node, value=node.value - 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield lambda: _set(node, value=1.5 * node.value or 1.0)
        yield lambda: _set(node, value=node.value / 1.5 or -1.0)
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield lambda: _set(node, attr=NAMES[node.attr])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DROPPED:
        yield lambda: node.func.value


def mutants(path: Path) -> Iterator[Mutant]:
    """Every change of a module, in order."""
    tree = ast.parse(path.read_text())
    number = 0
    for node, parents in _sites(tree):
        for make in changes(node):
            place = ast.unparse(parents[-1]).splitlines()[0]
            yield Mutant(path, number, node.lineno, place, f"{ast.unparse(node)} → {ast.unparse(make())}")
            number += 1


def mutated(mutant: Mutant) -> ast.Module:
    """The module with that change made."""
    tree = ast.parse(mutant.path.read_text())
    number = 0
    for node, parents in list(_sites(tree)):
        for make in changes(node):
            if number == mutant.number:
                _replace(parents[-1], node, make())
                return ast.fix_missing_locations(tree)
            number += 1
    raise ValueError(f"Invalid mutant: {mutant.name}")


def _sites(node: ast.AST, parents: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Nodes that run, with those they are in; not types, messages and what only tells mypy something."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.expr):
        yield node, parents
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _sites(child, (*parents, node))


def _replace(parent: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for name, value in ast.iter_fields(parent):
        if value is old:
            setattr(parent, name, new)
        elif isinstance(value, list):
            setattr(parent, name, [new if child is old else child for child in value])


def _set(node: ast.AST, **fields: object) -> ast.AST:
    """A copy with some fields changed."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new
