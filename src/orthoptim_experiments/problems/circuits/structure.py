"""The quad-tree over the pixels of an image, built bottom-up: who is whose child, and which nodes are alike.

A level merges the blocks of 2×2 nodes of the level below. Where a side is odd, what is left at the border is merged in
pairs, and a single corner passes through to the next level as it is: 28×28 → 14×14 → 7×7 → 4×4 → 2×2 → 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Fold:
    """The nodes of a level with equally many children: their weights are one tensor, their contraction is one call.

    Attributes:
        children: for each node the places of its children among the nodes of the level below, in raster order.
    """

    children: tuple[tuple[int, ...], ...]

    @property
    def arity(self) -> int:
        """How many children each node has: four or two."""
        return len(self.children[0])


@dataclass(frozen=True)
class Level:
    """The nodes one step up, in this order: those of each fold, then the one that passes through.

    Attributes:
        folds: the inner nodes.
        passing: the places, among the nodes of the level below, of the nodes that have no partner.
    """

    folds: tuple[Fold, ...]
    passing: tuple[int, ...]

    def __len__(self) -> int:
        return sum(len(fold.children) for fold in self.folds) + len(self.passing)

    def origins(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """For each node its fold, its row there, and its children; (-1, 0, the one below) for one passing through."""
        for number, fold in enumerate(self.folds):
            for row, children in enumerate(fold.children):
                yield number, row, children
        for below in self.passing:
            yield -1, 0, (below,)


def quad_tree(height: int, width: int) -> tuple[Level, ...]:
    """The levels above the pixels, which are numbered in raster order. The last level has one node, the root.

    Example:
        >>> [len(level) for level in quad_tree(28, 28)]
        [196, 49, 16, 4, 1]
        >>> quad_tree(2, 3)[0]
        Level(folds=(Fold(children=((0, 1, 3, 4),)), Fold(children=((2, 5),))), passing=())
    """
    if height < 1 or width < 1 or height * width < 2:
        raise ValueError(f"a quad-tree needs an image of at least two pixels, but got {height}×{width}")
    grid = [[row * width + column for column in range(width)] for row in range(height)]
    levels = []
    while len(grid) * len(grid[0]) > 1:
        level, grid = _merge(grid)
        levels.append(level)
    return tuple(levels)


def _merge(grid: list[list[int]]) -> tuple[Level, list[list[int]]]:
    """The level above a grid of places, and the grid of places in that level."""
    blocks = [
        [
            tuple(below for line in grid[row : row + 2] for below in line[column : column + 2])
            for column in range(0, len(grid[0]), 2)
        ]
        for row in range(0, len(grid), 2)
    ]
    by_arity = {arity: [block for line in blocks for block in line if len(block) == arity] for arity in (4, 2, 1)}
    place = {block: number for number, block in enumerate(by_arity[4] + by_arity[2] + by_arity[1])}
    folds = tuple(Fold(tuple(by_arity[arity])) for arity in (4, 2) if by_arity[arity])
    level = Level(folds, tuple(block[0] for block in by_arity[1]))
    return level, [[place[block] for block in line] for line in blocks]
