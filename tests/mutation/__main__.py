"""Runs the tests against a sample of mutants, each in a process of its own; the score is printed per file.

A process that has imported torch and pytest but not the library is forked for each mutant. The child's import hook
serves the mutated module, and pytest runs the tests of that module. A mutant is killed if one of them fails, or if
they take far longer than without it.
"""

import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
import torch

from tests.mutation.mutate import Mutant, mutants, mutated

SOURCE = Path(__file__).parents[2] / "src"
ROOMS = ("stiefel", "base")
OTHERS = ("torch.", "hypothesis.", "numpy", "mpmath", "_pytest.", "sympy", "scipy")
EXAMPLES = 10
"""Of each property: more would find little else, and a mutant that survives runs them all."""

SLOW = (
    "thousand or compile or machine_code or iterations or equivariant or converges or haar or fact_5 or every_direction"
    " or scaled_matrix or safe_region"
)
"""Tests of many steps: what they find, others find sooner."""

POLICIES = [f"stiefel/test_{name}.py" for name in ("policies", "hostile_gradients", "rescue")]
TESTS = {
    "geometry": ["stiefel/test_geometry.py"],
    "batches": ["stiefel/test_geometry.py", "stiefel/test_cost_model.py", "stiefel/test_steps.py"],
    "polynomial": ["stiefel/test_polynomial.py"],
    "points": ["stiefel/test_points.py"],
    "cayley": ["stiefel/test_cayley.py"],
    "hadamard": ["test_hadamard.py"],
    "msign": ["stiefel/test_msign.py", "optim/test_stiefel_muon.py"],
    "cost_model": ["stiefel/test_cost_model.py", "stiefel/test_steps.py", *POLICIES],
    "sums": ["stiefel/test_sums.py", "stiefel/test_columns.py"],
    "draws": ["stiefel/test_draws.py", "optim/test_methods.py", "optim/test_rsdm.py"],
    "retractions": ["stiefel/test_retractions.py", "optim/test_methods.py", "optim/test_rgd.py"],
    "policies": [*POLICIES, "stiefel/test_steps.py", "optim/test_rescue.py"],
    "steps": [
        "stiefel/test_steps.py",
        "stiefel/test_columns.py",
        *POLICIES,
        "optim/test_rescue.py",
        "engine/test_single.py",
    ],
    "unrolled": ["stiefel/test_steps.py", *POLICIES, "optim/test_rescue.py"],
    "base": ["base/test_hyperparameters.py", "base/test_directions.py", "engine/test_state.py"],
    "bb": ["base/test_hyperparameters.py", "base/test_directions.py", "optim/test_bb.py"],
    "secant": ["base/test_secant.py", "optim/test_bb.py", "optim/test_solvers.py"],
    "cg": ["base/test_secant.py", "optim/test_solvers.py", "base/test_hyperparameters.py"],
    "lbfgs": ["base/test_secant.py", "optim/test_solvers.py", "base/test_hyperparameters.py"],
}
DEFAULT = ["base/test_directions.py", "base/test_hyperparameters.py", "optim/test_pogo.py"]


class Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves one module from a syntax tree."""

    def __init__(self, name: str, path: Path, tree: ast.Module):
        self.name, self.path, self.tree = name, path, tree

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.path)) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


class FewExamples:
    """A pytest plugin: properties are tested with few examples, also those that ask for more, and none is shrunk."""

    PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            test = getattr(item, "function", None)
            asked = getattr(test, "_hypothesis_internal_use_settings", None)
            if getattr(test, "is_hypothesis_test", False):
                few = min(EXAMPLES, (asked or hypothesis.settings.default).max_examples)
                test._hypothesis_internal_use_settings = hypothesis.settings(
                    asked, max_examples=few, phases=self.PHASES, database=None
                )


def run_tests(module: str) -> int:
    """Runs the tests of a module; pytest's exit status."""
    paths = [f"tests/{name}" for name in TESTS.get(module, DEFAULT)]
    options = [
        "-q",
        "-x",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:doctest",
        "-o",
        "addopts=",
    ]
    return int(pytest.main([*options, "-m", "not soak", "-k", f"not ({SLOW})", *paths], plugins=[FewExamples()]))


def start(path: Path, tree: ast.Module | None, seconds: int, report: int | None = None) -> int:
    """The id of a process whose status is 0 if all tests pass with the module as the tree has it, within the time.

    Args:
        path: the module's.
        tree: its changed syntax; ``None``: as it is.
        seconds: of processor time, when to give up: a machine that is busy, or a process that is paused, kills nothing.
        report: where to write the names of the modules that torch and others have imported by then.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        if tree is not None:
            name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            sys.meta_path.insert(0, Hook(name, path, tree))
        try:
            status = run_tests(path.stem)
        except BaseException:
            status = 99
        if report is not None:
            os.write(report, " ".join(name for name in sys.modules if name.startswith(OTHERS)).encode())
        os._exit(status)
    return child


def warm_up(path: Path) -> int | None:
    """The limit of time for the mutants of a module, or ``None`` where its tests fail without any change.

    Imports what the tests import, so that no child has to.
    """
    before = _children_seconds()
    with tempfile.TemporaryFile("w+") as names:
        passed = os.waitpid(start(path, None, 600, report=names.fileno()), 0)[1] == 0
        names.seek(0)
        for name in names.read().split():
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    return 30 + round(4 * (_children_seconds() - before)) if passed else None


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def files() -> Iterator[Path]:
    """The modules to mutate."""
    for room in ROOMS:
        yield from (path for path in sorted((SOURCE / "orthoptim" / room).glob("*.py")) if path.stem != "__init__")


def sample(count: int, seed: int, names: list[str]) -> list[Mutant]:
    """A random sample of all mutants, or those of the given names; the same for the same seed and sources."""
    everything = [mutant for path in files() for mutant in mutants(path)]
    if names:
        return [m for m in everything if m.name in names or m.path.stem in names]
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    return sorted(chosen, key=lambda mutant: (mutant.path, mutant.number))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to run (landing.py:17) or modules (landing); default: sample")
    parser.add_argument("--count", type=int, default=220, help="the size of the sample")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="how many mutants are tested at a time")
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = sample(args.count, args.seed, args.names)
    limits: dict[frozenset[str], int] = {}  # of modules with the same tests
    running: dict[int, Mutant] = {}
    total, survived = Counter[Path](), Counter[Path]()

    def wait() -> None:
        child, status = os.wait()
        mutant = running.pop(child)
        if status == 0:
            survived[mutant.path] += 1
            print(f"survived {mutant.name}, line {mutant.line}: {mutant.change}, in {mutant.place}", flush=True)

    for mutant in chosen:
        path = mutant.path
        tests = frozenset(TESTS.get(path.stem, DEFAULT))
        if tests not in limits:
            limit = warm_up(path)
            if limit is None:
                sys.exit(f"{path.stem}: its tests fail without any change")
            limits[tests] = limit
        total[path] += 1
        running[start(path, mutated(mutant), limits[tests])] = mutant
        if len(running) == args.jobs:
            wait()
        print(f"{total.total() - len(running)} of {len(chosen)}, {mutant.name}", file=sys.stderr, flush=True)
    while running:
        wait()
    print("\n| file | mutants | killed | survived |\n|---|---|---|---|")
    for path in total:
        name = path.relative_to(SOURCE / "orthoptim")
        print(f"| `{name}` | {total[path]} | {total[path] - survived[path]} | {survived[path]} |")
    every, alive = total.total(), survived.total()
    print(f"| all | {every} | {every - alive} | {alive} |\n\n{1 - alive / every:.1%} killed (seed {args.seed})")
    sys.exit(alive > 0.1 * every)


if __name__ == "__main__":
    main()
