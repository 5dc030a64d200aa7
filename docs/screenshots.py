"""The pictures of the viewer: the real server, driven in a real browser.

python docs/screenshots.py --output docs           wide and narrow, light and dark
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from attnflow.models.house import DOCUMENTS, QUESTION
from attnflow.web.models import embedded_models
from browser import Page, installed_browser, running_browser
from serving import Client, serving

SENTENCE = "the report that the chairman of the boards wrote"
SMOLLM2 = "SmolLM2-135M-Instruct"


def open_result(tab: Page, server: Client, task: str, request: dict[str, Any], view: str) -> None:
    """Have the server work, then open the link to what came out."""
    job = server.post(f"/api/{task}", request).json
    result = server.finished(job["id"], 600)["result"]
    tab.go("about:blank")
    tab.go(f"{server.address}#{result}?{view}")
    tab.wait("document.querySelector('.af-spoken')?.textContent", 120)
    time.sleep(0.8)


def answered(tab: Page, server: Client) -> None:
    """A question over five documents."""
    documents = [{"name": name, "text": text} for name, text in DOCUMENTS.items()]
    request = {"model": SMOLLM2, "question": QUESTION, "documents": documents, "tokens": 32}
    open_result(tab, server, "ask", request, "")


def explained(tab: Page, server: Client) -> None:
    """A sentence with its details: layers, heads, the flow graph and the cut to its subject."""
    request = {"model": "verb-number", "text": SENTENCE, "methods": ["rollout", "raw", "flow"]}
    open_result(tab, server, "explain", request, "r=0&o=2&d=1&s=2")


SHOTS = (
    ("viewer-ask", answered, 1280, 900, False),
    ("viewer-ask-dark", answered, 1280, 900, True),
    ("viewer-ask-narrow", answered, 390, 844, True),
    ("viewer-ask-narrow-light", answered, 390, 844, False),
    ("viewer-explain", explained, 1280, 1900, False),
    ("viewer-explain-dark", explained, 1280, 1900, True),
)


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    os.environ.setdefault("MPLBACKEND", "Agg")
    program = installed_browser()
    if program is None:
        sys.exit("No Chromium or Chrome found: `make browser` says what to do.")
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as profile,
        serving(embedded_models()) as server,
        running_browser(program, Path(profile)) as browser,
    ):
        tab = browser.new_page()
        for name, prepare, width, height, dark in SHOTS:
            tab.size(width, height, dark=dark)
            prepare(tab, server)
            tab.screenshot(arguments.output / f"{name}.png")
        print("\n".join(tab.errors) or f"wrote the pictures to {arguments.output}")


if __name__ == "__main__":
    main()
