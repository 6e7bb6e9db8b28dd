"""The directive ``results-gallery``: every figure and summary that is committed under a folder of results.

A folder of the results is a section, with the text of its ``summary.md`` or ``README.md`` if it has one, its figures,
and a list of its records. A folder without figures is left out; without any folder the page says so, and builds.
"""

import os
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FIGURES = (".svg", ".png")


class ResultsGallery(SphinxDirective):
    """``results-gallery`` with one argument: the folder, from the root of the repository."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make a section for each folder that holds figures."""
        root = Path(self.env.srcdir).parent / self.arguments[0]
        self.env.note_reread()  # results come and go without a change of the page
        figures = sorted(path for path in root.rglob("*") if path.suffix in FIGURES) if root.is_dir() else []
        if not figures:
            text = f"No figures are committed under {self.arguments[0]}/ yet; the commands above make them."
            return [nodes.paragraph(text, text)]
        # one figure may be there as a picture and as a drawing: the drawing is sharper
        drawn = {path.with_suffix("") for path in figures if path.suffix == ".svg"}
        kept = [path for path in figures if path.suffix == ".svg" or path.with_suffix("") not in drawn]
        return [self._section(folder, kept, root) for folder in sorted({path.parent for path in kept})]

    def _section(self, folder: Path, figures: list[Path], root: Path) -> nodes.Node:
        title = folder.relative_to(root).as_posix() if folder != root else root.name
        section = nodes.section(ids=[nodes.make_id(f"results-{title}")])
        section += nodes.title(title, title)
        for name in ("summary.md", "README.md"):
            if (folder / name).is_file():
                lines = (folder / name).read_text().splitlines()
                # its headings would end this section
                text = [f"**{line.lstrip('# ')}**" if line.startswith("#") else line for line in lines]
                section += self.parse_text_to_nodes("\n".join(text))
                break
        for path in figures:
            if path.parent == folder:
                uri = os.path.relpath(path, Path(self.env.doc2path(self.env.docname)).parent)
                caption = re.sub(r"-[0-9a-f]{10}$", "", path.stem).replace("_", " ").replace("-", " ")
                figure = nodes.figure("", nodes.image(uri=uri, alt=caption, classes=["result"]))
                figure += nodes.caption(caption, caption)
                section += figure
        return section


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("results-gallery", ResultsGallery)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
