"""The documentation: `make docs` builds it into docs/_build/html; a warning is an error."""

from pathlib import Path

from sphinx.application import Sphinx

import longspan
from longspan.cli import reference_page

project = "longspan"
author = "the longspan developers"
version = release = longspan.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False  # annotations name types of torch and jaxtyping, whose pages are not at hand offline

myst_heading_anchors = 4  # GitHub's anchors, so that one link works in both places
myst_enable_extensions = ["colon_fence", "dollarmath"]

html_theme = "furo"
html_title = "longspan"
html_copy_source = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures of modules checked by jaxtyping are long; the text says what they take


def setup(app: Sphinx) -> None:
    """Write the pages of the reference from the code before anything is read."""
    app.connect("builder-inited", lambda _: reference_page.write(Path(__file__).parent / "reference" / "generated"))
