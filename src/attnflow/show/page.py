"""A view as one HTML file: the viewer, its style and the data inside, nothing fetched.

The page may run exactly the scripts it was written with: its content security policy names them by
their hash. The data stands in a block that no browser runs, with every sign that could end it
escaped, because a token may be `</script>`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attnflow.errors import percent

__all__ = ["SCRIPTS", "STYLES", "VIEWER_FOLDER", "InteractiveView", "embedded_json", "page"]

_COMMENT_LINE = re.compile(r"^ *//.*\n", re.MULTILINE)
_INDENTATION = re.compile(r"^ +", re.MULTILINE)  # no text of the viewer runs over several lines
VIEWER_FOLDER = Path(__file__).parent / "viewer"
_TEMPLATES = Path(__file__).parent / "templates"

# In the order they need each other.
SCRIPTS = (
    *("elements.js", "document.js", "words.js", "lines.js", "text.js", "answer.js", "map.js"),
    *("ranking.js", "heads.js", "cut.js", "graph.js", "picture.js", "verdict.js", "paths.js"),
    *("controls.js", "viewer.js"),
)
STYLES = ("viewer.css",)
_OWN_DATA = "open.js"  # only in a page that carries its data
_OWN_STYLE = "page.css"

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def render(template: str | Path, **values: Any) -> str:
    """Return a Jinja template, by name or path, with these values, escaped unless marked safe."""
    return str(_compiled(_TEMPLATES / template).render(values))


@cache
def _compiled(path: Path) -> Any:
    import jinja2  # here, because a command that writes no HTML need not wait for it

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = percent
    return environment.from_string(path.read_text(encoding="utf-8"))


def page(document: Mapping[str, Any]) -> str:
    """Return the self-contained page of a view document.

    >>> from attnflow import AttentionTrace, Rollout
    >>> from attnflow.show.view import view
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "</script>"])
    >>> page(view(Rollout()(trace)))[:15]
    '<!doctype html>'
    """
    script, style = _contents((*SCRIPTS, _OWN_DATA)), _contents((*STYLES, _OWN_STYLE))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return render(
        "page.html.j2",
        title=document["title"],
        data=embedded_json(document),
        policy=policy,
        script=script,
        style=style,
    )


def embedded_json(document: Mapping[str, Any]) -> str:
    """Return JSON that is safe between script tags: ASCII, without the signs of markup.

    >>> print(embedded_json({"token": "</script>"}))
    {"token":"\\u003c/script\\u003e"}
    """
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for sign, escaped in _ESCAPES.items():
        text = text.replace(sign, escaped)
    return text


@dataclass(frozen=True, eq=False)
class InteractiveView:
    """A page for a notebook: displayed as the viewer in a frame of its own, with the static form
    below it for places that strip scripts.

    >>> InteractiveView("<p>the viewer</p>", static="<p>a table</p>")._repr_html_()[:30]
    '<iframe sandbox="allow-scripts'
    """

    html: str
    static: str
    height: int = 760

    def _repr_html_(self) -> str:
        template = "frame.html.j2"
        return render(template, page=self.html, static=self.static, height=self.height)


@cache
def _contents(names: tuple[str, ...]) -> str:
    """Join the files; comments of whole lines and indentation stay in the package."""
    texts = ((VIEWER_FOLDER / name).read_text(encoding="utf-8") for name in names)
    return "\n".join(_INDENTATION.sub("", _COMMENT_LINE.sub("", text)) for text in texts)


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
