"""Excerpts beside what the site's search finds, also where the site is opened from a file.

Sphinx's search fetches a page to show a part of it, and a browser fetches nothing from a file. So
the text of every page lies in one script, which only the page of the search loads.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

FILE = "excerpts.js"
# The page's address, as the search asks for it, gives its text in the place that the search reads.
SCRIPT = """const pageTexts =
%s;
if (location.protocol === "file:")
  window.fetch = async (address) => {
    const page = address.replace(/^\\.\\//, "").replace(/\\.html$/, "");
    const main = document.createElement("div");
    main.setAttribute("role", "main");
    main.textContent = pageTexts[page] ?? "";
    return { text: async () => (page in pageTexts ? main.outerHTML : "") };
  };
"""
_texts: dict[str, str] = {}


def collect(app: Sphinx, name: str, template: str, context: dict[str, Any], tree: object) -> None:
    """Keep the text of a page as it is written, and give the page of the search its script."""
    if name == "search":
        app.add_js_file(FILE)
    elif tree is not None:
        body = re.sub(r"<(script|style|svg)\b.*?</\1>|<[^>]+>", " ", context["body"], flags=re.S)
        _texts[name] = " ".join(html.unescape(body).replace("¶", " ").split())


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the script; pages that were not built anew keep what it had of them."""
    path = Path(app.outdir) / "_static" / FILE
    if error is None:
        text = path.read_text(encoding="utf-8") if path.exists() else SCRIPT % "{}"
        old = json.loads(text.splitlines()[1].removesuffix(";"))
        path.write_text(SCRIPT % json.dumps(old | _texts), encoding="utf-8")
