"""The site: `make docs` builds it into docs/_build/html, without a network; a warning is an error."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small matrices: threads wait for each other
sys.path[:0] = [str(HERE / "_ext"), str(HERE / "tools"), str(HERE.parent / "src")]

import figures  # noqa: E402  (docs/tools: draws the pictures of the pages)
from sphinx.application import Sphinx  # noqa: E402

import orthoptim  # noqa: E402

project = "orthoptim"
author = "the orthoptim developers"
copyright = "the orthoptim developers"
version = release = orthoptim.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "formula",
    "results_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "tools", "_ext", "**sg_execution_times.rst"]
nitpicky = False
suppress_warnings = ["config.cache"]  # sphinx-gallery's settings hold functions, which cannot be cached

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["lightning", "transformers", "peft"]  # the same pages whether they are installed or not
autodoc_default_options = {"show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"orthoptim {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_theme_options = {"source_repository": "", "navigation_with_keys": True}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# The quickstart is run and shown with what it printed; the tests run the other examples, which need other packages.
sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "examples",
    "filename_pattern": r"/quickstart\.py",
    "ignore_pattern": r"__init__\.py|/_|elastic\.py",
    "within_subsection_order": "ExampleTitleSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 10**6,
    "remove_config_comments": True,
    "default_thumb_file": str(HERE / "_static/thumbnail.png"),
    "copyfile_regex": r"",
}


def setup(app: Sphinx) -> None:
    """Draw the pictures before the pages that show them are read."""
    figures.draw_all(HERE / "_figures")
