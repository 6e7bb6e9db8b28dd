"""Text of unknown origin, made fit for one line of a terminal."""

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlong = 40
_SHORT.maxlevel = 2


def excerpt(value: object) -> str:
    r"""A value as Python writes it, cut to a few words; no control character survives.

    Example:
        >>> excerpt("red\x1b[31m"), len(excerpt("a" * 10_000)), len(excerpt(10**4000)) < 60
        ("'red\\x1b[31m'", 60, True)
    """
    return _SHORT.repr(value)


def one_line(text: str) -> str:
    r"""The text without line breaks, and with control characters written out.

    Example:
        >>> one_line("results/a\nb\x1b[2J.jsonl: gone")
        'results/a b\\x1b[2J.jsonl: gone'
    """
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
