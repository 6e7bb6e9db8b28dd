"""Formulas as MathML, which browsers draw by themselves: the site needs no script from elsewhere to show them."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from docutils.utils.math.unichar2tex import uni2tex_table
from sphinx.application import Sphinx

# What formulas hold beside plain TeX: the letters of the field, as they stand in the docstrings.
_COMMANDS = {code: f"{command} " for code, command in uni2tex_table.items()} | str.maketrans(
    {"½": r"\tfrac{1}{2}", "‖": r"\| ", "⟨": r"\langle ", "⟩": r"\rangle ", "−": "-", "·": r"\cdot "}
)


def mathml(tex: str, **options: Any) -> str:
    """MathML of a formula; text in it is left as it is."""
    parts = re.split(r"(\\text\{[^}]*\})", tex)
    parts[::2] = [part.translate(_COMMANDS).replace(r"\dots", r"\ldots") for part in parts[::2]]
    plain = re.sub(r"\\(t?frac)(\d)(\d)", r"\\\1{\2}{\3}", "".join(parts))
    # bars and brackets that stretch are set too low as the base of an index
    return re.sub(r"<mo>([‖⟨⟩])</mo>", r'<mo stretchy="false">\1</mo>', tex2mathml(plain, **options))


def visit_inline(translator: Any, node: nodes.math) -> None:
    """Write an inline formula."""
    translator.body.append(f'<span class="math">{mathml(node.astext())}</span>')
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, with its number if it has one."""
    number = f'<span class="math-number">({node["number"]})</span>' if node.get("number") else ""
    identifier = f' id="{node["ids"][0]}"' if node.get("ids") else ""
    translator.body.append(f'<div class="math-block"{identifier}>{mathml(node.astext(), as_block=True)}{number}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer under the name that ``html_math_renderer`` takes."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
