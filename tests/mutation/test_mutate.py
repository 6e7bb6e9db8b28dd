"""Mutants are small changes of code that runs, each of which differs from the original."""

import ast

from tests.mutation.mutate import mutants, mutated

SOURCE = '''"""Words."""
def f(a: int, b: "float" = 1.5) -> bool:
    assert a != 0
    if not (a < 2 and b.conj().mH > -b):
        raise ValueError(f"Invalid: {a - 1}")
    return a if a is None else max(a, True)
'''

CHANGES = [
    "1.5 → 2.25",
    "1.5 → 1.0",
    "not (a < 2 and b.conj().mH > -b) → a < 2 and b.conj().mH > -b",
    "a < 2 and b.conj().mH > -b → a < 2 or b.conj().mH > -b",
    "a < 2 → a <= 2",
    "2 → 3",
    "2 → 1",
    "b.conj().mH > -b → b.conj().mH >= -b",
    "b.conj().mH → b.conj().mT",
    "b.conj() → b",
    "-b → b",
    "a if a is None else max(a, True) → a",
    "a if a is None else max(a, True) → max(a, True)",
    "a is None → a is not None",
    "True → False",
]


def test_the_mutants_of_a_module(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    found = list(mutants(path))
    assert [mutant.change for mutant in found] == CHANGES
    assert [mutant.number for mutant in found] == list(range(len(found)))
    original = ast.unparse(ast.parse(SOURCE))
    for mutant in found:
        before, after = mutant.change.split(" → ")
        assert ast.unparse(mutated(mutant)) == original.replace(before, after, 1)
