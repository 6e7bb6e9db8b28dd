"""Functions written as sums over columns, run on pieces of the columns whose sums are added up here."""

from orthoptim.stiefel import Direction, flatten

WIDTHS = (3, 0, 4)  # one of them empty, as a shard may be


def in_pieces(function, x, g, scale=None, widths=WIDTHS, normalized=False):
    """What ``function(x, direction)`` returns for each piece; the factor of G becomes known with the first sums."""
    pieces = zip(x.split(widths, -1), g.split(widths, -1), strict=True)
    directions = [(piece, Direction(part, normalized=normalized, known=False)) for piece, part in pieces]
    generators = [flatten(function(piece, direction)) for piece, direction in directions]
    partial, results = _send(generators, None)
    for _, direction in directions:
        direction.set_scale(scale)
    while not results:
        sums = [sum(terms) for terms in zip(*partial, strict=True)]
        partial, results = _send(generators, sums)
    assert not partial
    return results


def _send(generators, sums):
    """What they yield, or return."""
    partial, results = [], []
    for generator in generators:
        try:
            partial.append(generator.send(None if sums is None else [total.clone() for total in sums]))
        except StopIteration as stop:
            results.append(stop.value)
    return partial, results
