"""The directive ``formula``: the formula of a class, from its docstring, so that it is written once."""

import inspect
import re
import textwrap

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import orthoptim


class Formula(SphinxDirective):
    """``formula`` with one argument: a public name of orthoptim whose docstring has a ``math`` block."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make a formula on a line of its own."""
        text = inspect.getdoc(getattr(orthoptim, self.arguments[0])) or ""
        block = re.search(r"^\.\. math::\n((?:    .*\n|\n)+)", text, re.M)
        if block is None:
            raise self.error(f"the docstring of orthoptim.{self.arguments[0]} has no formula")
        formula = textwrap.dedent(block[1]).strip()
        return [nodes.math_block(formula, formula)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("formula", Formula)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
