"""The documentation site: `make docs` builds it into out/docs, and a warning fails it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests"), str(HERE.parent / "src")]

import docstrings  # noqa: E402
import myst_nb.core.execute.direct  # noqa: E402
import notebooks  # noqa: E402
import reference_pages  # noqa: E402
import search_excerpts  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

from attnflow._version import __version__  # noqa: E402

# Tutorials run without a network: a model that is not on this machine is an error, not a download.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ["NO_COLOR"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # idle threads of small models cost processor time
os.environ["TQDM_DISABLE"] = "1"

project = "attnflow"
author = "The attnflow developers"
copyright = f"2026, {author}"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
templates_path: list[str] = []
nitpicky = False

# Docstrings are plain sentences with `names` in single backticks (docstrings.py).
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "both"
autodoc_typehints_format = "short"
autodoc_typehints_description_target = "documented_params"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
add_module_names = False

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
nb_execution_mode = "force"
myst_nb.core.execute.direct.single_nb_execution = notebooks.run
nb_execution_in_temp = True  # what a tutorial writes does not stay
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_text_lexer = "none"

html_theme = "furo"
html_title = f"attnflow {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

reference_pages.write(HERE / "reference")

# Links that lead out of docs/ in the repository, and the page of the site that shows the same.
OUTSIDE = {
    f"(../{file}": f"(/reference/project/{page}.md"
    for page, file in reference_pages.PROJECT.items()
}


# Links are called by the file they lead to, so that they read well in the repository; here `.md`
# means nothing.
FILE_NAME = re.compile(r"\[(?:docs/)?([a-z-]+)\.md\]\(")


def _lead_inside(app: Sphinx, name: str, content: list[str]) -> None:
    for link, page in OUTSIDE.items():
        content[0] = content[0].replace(link, page)
    content[0] = FILE_NAME.sub(lambda file: f"[{_title(file[1])}](", content[0])


def _title(file: str) -> str:
    return file.replace("-", " ").capitalize()


def setup(app: Sphinx) -> None:
    """Read docstrings as this project writes them, keep links inside the site, show excerpts."""
    app.connect("autodoc-process-docstring", docstrings.process)
    app.connect("source-read", _lead_inside)
    app.connect("html-page-context", search_excerpts.collect)
    app.connect("build-finished", search_excerpts.write)
