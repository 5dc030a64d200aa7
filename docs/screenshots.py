"""The pictures of the viewer: the real server, driven in a real browser.

python docs/screenshots.py --output docs           light and dark
python docs/screenshots.py --axe axe.min.js        and what axe-core (npm) finds serious in each
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import attnflow
from attnflow_connect.server.models import embedded_models
from attnflow_experiments.verb_number.data import template_examples
from browser import Page, installed_browser, running_browser
from serving import Client, serving

SENTENCE = "the reports that the chairman of the board wrote"
Request = Callable[[], tuple[str, dict[str, Any]]]


def explained() -> tuple[str, dict[str, Any]]:
    """A sentence with its details: layers, heads, the flow graph and the cut to its subject."""
    methods = ["default", "rollout", "raw", "flow"]
    return "explain", {"model": "verb-number", "text": SENTENCE, "methods": methods}


def asked_about_image() -> tuple[str, dict[str, Any]]:
    """A question about the drawing of docs/images.md, by the model that ships."""
    image = base64.b64encode((Path(__file__).parent / "scene.png").read_bytes()).decode()
    question = "what is above the triangle?"
    return "image-question", {"model": "scenes", "image": image, "question": question}


# name, what was asked (None: nothing, the page opens), the view of it, width, height, dark
SHOTS: tuple[tuple[str, Request | None, str, int, int, bool], ...] = (
    ("viewer-ask", None, "", 1400, 900, False),
    ("viewer-ask-dark", None, "", 1400, 900, True),
    ("viewer-form", None, "#new", 1280, 900, False),
    ("viewer-explain", explained, "r=0&o=3&d=1&s=2", 1280, 1900, False),
    ("figures/page-image", asked_about_image, "", 1280, 1100, False),
)


SERIOUS = """axe.run(document).then(({ violations }) => violations
  .filter(({ impact }) => ["serious", "critical"].includes(impact))
  .map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target).join(", ")}`))"""


def result_of(server: Client, request: Request, results: dict[Request, str]) -> str:
    """The name of the result, made once however often it is shown."""
    if request not in results:
        task, body = request()
        job = server.post(f"/api/{task}", body).json
        results[request] = str(server.finished(job["id"], 1200)["result"])
    return results[request]


def shoot(tab: Page, server: Client, output: Path, only: str, axe: str) -> None:
    """All pictures, one after the other, or those whose name holds `only`."""
    results: dict[Request, str] = {}
    for name, request, view, width, height, dark in SHOTS:
        if only not in name:
            continue
        place = view if request is None else f"#{result_of(server, request, results)}?{view}"
        tab.size(width, height, dark=dark)
        tab.go("about:blank")
        tab.go(f"{server.address}{place}")
        there = ".af-spoken[data-said]" if place != "#new" else "#ask:not([hidden])"
        tab.wait(f"document.querySelector('{there}')", 120)
        time.sleep(0.8)
        tab.screenshot(output / f"{name}.png")
        for finding in tab.run(f"{axe}; {SERIOUS}") if axe else ():
            print(f"{name}: {finding}")


def shoot_summary(tab: Page, folder: Path, output: Path) -> None:
    """The summary of a corpus: sentences that the experiment on verbs makes, read by its model."""
    data = folder / "prefixes.txt"
    texts = [" ".join(example.words) for example in template_examples(1000)]
    data.write_text("\n".join(texts), encoding="utf-8")
    settings = attnflow.corpus.Settings(methods=["rollout", "raw"], level="word")
    corpus = attnflow.corpus.run("verb-number", data, folder / "prefixes", settings=settings)
    page = folder / "summary.html"
    page.write_text(attnflow.corpus.summarize(corpus).to_html(), encoding="utf-8")
    tab.size(1100, 1740, dark=False)
    tab.go(page.as_uri())
    tab.screenshot(output / "corpus-summary.png")


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs"))
    parser.add_argument("--only", default="", help="those whose name holds this")
    parser.add_argument("--axe", type=Path, help="axe.min.js of the package axe-core")
    arguments = parser.parse_args()
    axe = "" if arguments.axe is None else arguments.axe.read_text(encoding="utf-8")
    os.environ.setdefault("MPLBACKEND", "Agg")
    program = installed_browser()
    if program is None:
        sys.exit("No Chromium or Chrome found: `make browser` says what to do.")
    (arguments.output / "figures").mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as profile,
        serving(embedded_models()) as server,
        running_browser(program, Path(profile)) as browser,
    ):
        tab = browser.new_page()
        tab.call("Page.setBypassCSP", enabled=bool(axe))
        shoot(tab, server, arguments.output, arguments.only, axe)
        if arguments.only in "corpus-summary":
            shoot_summary(tab, Path(profile), arguments.output)
        print("\n".join(tab.errors) or f"wrote the pictures to {arguments.output}")


if __name__ == "__main__":
    main()
