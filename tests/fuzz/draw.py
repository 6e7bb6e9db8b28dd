"""Random sequences: a seed gives a start and operations."""

import random
from collections.abc import Collection
from typing import Any

from tests.fuzz import operations as ops
from tests.fuzz.gradients import HARMLESS, KINDS, LAYOUTS, POISON, Gradient
from tests.fuzz.start import BASES, METHODS, Group, Start

DTYPES = ("float32", "float64", "complex64", "complex128", "bfloat16", "float16")
RATES = (0.0, 1e-30, 1e-6, 1e-3, 0.01, 0.1, 0.1, 0.5, 0.5, 1.0, 1.0, 3.0, 10.0, 1e3, 1e6, 1e9, 1e12, 1e15, 1e20)
FACTORS = (3.0, 2.3, 1e3, 0.3, 0.01)
COMPILED = 1000  # one sequence in so many has a compiled group: to compile takes as long as a hundred sequences

_LANDINGS = ("safe",) * 9 + ("strict",) * 7 + ("half", "root", "argmin", "newton-schulz")
_DIMS = (1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 12)
_WIDE = ((2, 40), (3, 60), (4, 24), (5, 32), (1, 50))
_METHODS = ("pogo",) * 6 + tuple(METHODS)


class Draw:
    """Draws a sequence.

    Args:
        seed: of all sequences.
        number: of this one.
        without: gradient kinds (or the beginnings of their names) and kinds of overwriting that are left out.
    """

    def __init__(self, seed: int, number: int, without: Collection[str] = ()) -> None:
        self.random = random.Random(f"{seed}-{number}")
        self.heads = random.Random(f"{seed}-{number} heads")
        self.kinds = [kind for kind in KINDS if not kind.startswith(tuple(without))]
        self.overwrites = [how for how in ("scale", "scale", "orthonormal", "zero", "deficient") if how not in without]
        self.compiled = number % COMPILED == COMPILED - 1

    def sequence(self) -> tuple[Start, list[ops.Operation]]:
        """A start and about fifteen operations; few where they are compiled."""
        method = self.random.choice(_METHODS)
        if self.compiled:
            begin = Start(method, (self._group(method, compiled=True),), self._seed())
            return begin, [self._step() for _ in range(self.random.randint(2, 4))]
        groups = [self._group(method) for _ in range(self.random.choice((1, 1, 1, 2)))]
        if self.random.random() < 0.2:
            groups.insert(self.random.randint(0, len(groups)), self._ordinary())
        begin = Start(method, tuple(groups), self._seed())
        operations = [self._operation(method) for _ in range(self.random.randint(8, 20))]
        scaled = any(isinstance(operation, ops.Overwrite) and operation.how == "scale" for operation in operations)
        if scaled and self.random.random() < 0.7:
            operations.append(ops.Recover(seed=self._seed()))
        return begin, operations

    def _operation(self, method: str) -> ops.Operation:
        chance = self.random.random()
        if chance < 0.55:
            return self._step()
        if chance < 0.6:
            return ops.StepAgain()
        if chance < 0.7:
            return ops.SetLr(self.random.randrange(4), self.random.choice(RATES), self.random.random() < 0.3)
        if chance < 0.82:
            how = self.random.choice(("save", "save", "save-late", "pickle", "deepcopy"))
            return ops.Duplicate(how, swap=self.random.random() < 0.4)
        if chance < 0.84:
            return ops.Reload()
        if chance < 0.92:
            how = self.random.choice(self.overwrites) if self.overwrites else "orthonormal"
            factor = self.random.choice(FACTORS) if how == "scale" else 1.0
            return ops.Overwrite(self.random.randrange(8), self.random.randrange(8), how, factor, self._seed())
        if chance < 0.94:
            return ops.ToggleGrad(self.random.randrange(8))
        if chance < 0.96:
            return ops.ZeroGrad(self.random.random() < 0.5)
        group = self._ordinary() if self.random.random() < 0.2 else self._group(method)
        return ops.AddGroup(group, self._seed())

    def _step(self) -> ops.Step:
        count = self.random.randint(1, 4)
        return ops.Step(tuple(self._gradient() for _ in range(count)), self._seed())

    def _gradient(self) -> Gradient:
        chance = self.random.random()
        if chance < 0.12:
            return Gradient(("none",))
        if chance < 0.13:
            return Gradient(("sparse",))
        count = self.random.randint(1, 3)
        kinds = tuple(self._kind() for _ in range(count))
        return Gradient(kinds, self.random.choice(tuple(LAYOUTS)) if self.random.random() < 0.25 else "plain")

    def _kind(self) -> str:
        chance = self.random.random()
        if chance < 0.3:
            return self.random.choice(HARMLESS)
        return self.random.choice(POISON if chance < 0.4 else self.kinds)

    def _group(self, method: str, compiled: bool = False) -> Group:
        view = self.random.choice(("matrix", "matrix", "matrix", "filters", "kernels"))
        shapes = [self._shape(view)]
        if not compiled:
            more = self.random.randint(0, 3)
            shapes += [shapes[0] if self.random.random() < 0.6 else self._shape(view) for _ in range(more)]
        side = self.random.choice(("auto", "auto", *self._sides(view, shapes)))
        options: dict[str, Any] = {"view": view, "side": side, **self._options(method, view, side, shapes)}
        if view == "matrix" and not compiled and self.heads.random() < 0.25:
            options["view"], shapes = self._side_by_side(shapes)
        if self.random.random() < 0.1:
            options["maximize"] = True
        if compiled:
            options["compile"] = True
        clips = options.get("landing", "safe") in ("safe", "strict")
        bases = [name for name, base in BASES.items() if clips or base.default_landing is None]
        layouts = ("plain", "plain", "transposed")
        return Group(
            tuple(shapes),
            self.random.choice(RATES),
            self.random.choice(bases),
            self.random.choice(DTYPES),
            tuple(self.random.choice(layouts) for _ in range(self.random.randint(1, 2))),
            self.random.random() < 0.2,
            identity=self.random.random() < 0.25,
            options=options,
        )

    def _side_by_side(self, shapes: list[tuple[int, ...]]) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
        """A view of heads, as a checkpoint holds it, and the shapes of parameters whose heads have the given shapes."""
        heads, dim = self.heads.choice((2, 3)), self.heads.choice((-2, -1))
        view = {"name": "matrix", "heads": heads, "dim": dim}
        factors = (heads, 1) if dim == -2 else (1, heads)
        return view, [(*batch, rows * factors[0], columns * factors[1]) for *batch, rows, columns in shapes]

    def _ordinary(self) -> Group:
        shapes = tuple(self.random.choice(((3,), (4, 2), ())) for _ in range(self.random.randint(1, 2)))
        algorithm = self.random.choice(("adamw", "sgd"))
        return Group(shapes, self.random.choice((0.0, 1e-3, 0.1)), algorithm, "float32", ordinary=True)

    def _shape(self, view: str) -> tuple[int, ...]:
        if view == "kernels":
            k = self.random.choice((2, 3, 3))
            return self.random.randint(1, 2), self.random.randint(1, 2), k, self.random.choice((k, k, k + 1))
        p, n = self.random.choice(_DIMS), self.random.choice(_DIMS)
        if self.random.random() < 0.12:
            p, n = self.random.choice(_WIDE)
        if view == "filters":
            return self.random.choice(((p, n), (p, min(n, 4), 2, 2)))
        batch = self.random.choice(((), (), (), (2,), (3,), (5,), (2, 2), (1,)))
        return (*batch, p, n)

    @staticmethod
    def _sides(view: str, shapes: list[tuple[int, ...]]) -> list[str]:
        pairs = [_rows_and_columns(view, shape) for shape in shapes]
        sides = []
        if all(rows <= columns for rows, columns in pairs):
            sides.append("rows")
        if all(columns <= rows for rows, columns in pairs):
            sides.append("columns")
        return sides

    def _options(self, method: str, view: str, side: str, shapes: list[tuple[int, ...]]) -> dict[str, Any]:
        choice = self.random.choice
        if method == "pogo":
            landing = choice(_LANDINGS)
            return {"landing": landing, **({"landing_steps": choice((1, 2, 4))} if landing == "newton-schulz" else {})}
        if method == "rgd":
            return {"metric": choice(("euclidean", "canonical")), "retraction": choice(("qr", "polar", "cholesky"))}
        if method == "rsdm":
            n = min(max(_rows_and_columns(view, shape)) for shape in shapes)
            return {"r": self.random.randint(1, n), "sampling": choice(("orthogonal", "permutation"))}
        if method == "landing":
            return {"lam": choice((1.0, 0.1)), "eps": choice((0.5, 0.1))}
        if method == "landingpc":
            return {"lam": choice((1.0, 0.1)), "tau": choice((0.5, 0.5, None)), "coupled": choice((True, False))}
        if method == "stiefelmuon":
            return {"landing": choice(("safe", "strict", "half")), "ns_steps": choice((3, 5, 6))}
        return {"barzilai_borwein": choice((True, False))}

    def _seed(self) -> int:
        return self.random.randrange(1 << 30)


def _rows_and_columns(view: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if view != "filters":
        return shape[-2], shape[-1]
    columns = 1
    for size in shape[1:]:
        columns *= size
    return shape[0], columns
