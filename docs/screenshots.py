"""The pictures of the viewer: the real server, driven in a real browser.

python docs/screenshots.py --output docs           wide and narrow, light and dark
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

from attnflow.data.example import DOCUMENTS, QUESTION
from attnflow.web.models import embedded_models
from browser import Page, installed_browser, running_browser
from serving import Client, serving

SENTENCE = "the reports that the chairman of the board wrote"
SMOLLM2 = "SmolLM2-135M-Instruct"
Request = Callable[[], tuple[str, dict[str, Any]]]


def asked() -> tuple[str, dict[str, Any]]:
    """A question over five documents."""
    documents = [{"name": name, "text": text} for name, text in DOCUMENTS.items()]
    return "ask", {"model": SMOLLM2, "question": QUESTION, "documents": documents, "tokens": 32}


def talked() -> tuple[str, dict[str, Any]]:
    """A conversation of three messages."""
    messages = [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "My name is Anna and I live in Rome. Tom lives in Paris."},
        {"role": "assistant", "content": "Nice to meet you, Anna."},
        {"role": "user", "content": "In which city do I live?"},
    ]
    return "chat", {"model": SMOLLM2, "messages": messages, "tokens": 16}


def continued() -> tuple[str, dict[str, Any]]:
    """A prompt that is continued, with every head."""
    return "generate", {"model": SMOLLM2, "prompt": "My name is Putin, I am from", "tokens": 8}


def explained() -> tuple[str, dict[str, Any]]:
    """A sentence with its details: layers, heads, the flow graph and the cut to its subject."""
    methods = ["default", "rollout", "raw", "flow"]
    return "explain", {"model": "verb-number", "text": SENTENCE, "methods": methods}


def asked_about_image() -> tuple[str, dict[str, Any]]:
    """A question about the drawing of docs/images.md, by the model that ships."""
    image = base64.b64encode((Path(__file__).parent / "scene.png").read_bytes()).decode()
    question = "what is above the triangle?"
    return "image-question", {"model": "scenes", "image": image, "question": question}


# name, what was asked, the view of it, width, height, dark
SHOTS: tuple[tuple[str, Request, str, int, int, bool], ...] = (
    ("viewer-ask", asked, "", 1280, 900, False),
    ("viewer-ask-dark", asked, "", 1280, 900, True),
    ("viewer-ask-narrow", asked, "", 390, 844, True),
    ("viewer-ask-narrow-light", asked, "", 390, 844, False),
    ("viewer-chat", talked, "", 1280, 900, False),
    ("viewer-chat-narrow", talked, "", 390, 844, True),
    ("viewer-heads", continued, "d=1", 1280, 2300, False),
    ("viewer-explain", explained, "r=0&o=3&d=1&s=2", 1280, 1900, False),
    ("viewer-explain-dark", explained, "r=0&o=3&d=1&s=2", 1280, 1900, True),
    ("viewer-explain-narrow", explained, "r=0", 390, 844, False),
    ("figures/page-image", asked_about_image, "", 1280, 1100, False),
    ("figures/page-image-narrow", asked_about_image, "", 390, 980, True),
)


def result_of(server: Client, request: Request, results: dict[Request, str]) -> str:
    """The name of the result, made once however often it is shown."""
    if request not in results:
        task, body = request()
        job = server.post(f"/api/{task}", body).json
        results[request] = str(server.finished(job["id"], 1200)["result"])
    return results[request]


def shoot(
    tab: Page, server: Client, results: dict[Request, str], output: Path, only: str = ""
) -> None:
    """All pictures, one after the other, or those whose name holds `only`."""
    for name, request, view, width, height, dark in SHOTS:
        if only not in name:
            continue
        result = result_of(server, request, results)
        tab.size(width, height, dark=dark)
        tab.go("about:blank")
        tab.go(f"{server.address}#{result}?{view}")
        tab.wait("document.querySelector('.af-spoken')?.textContent", 120)
        time.sleep(0.8)
        tab.screenshot(output / f"{name}.png")
    if only:
        return
    tab.size(1280, 900)
    tab.click("document.getElementById('edit')")
    tab.click("document.querySelector('[name=task][value=chat] + span')")
    tab.run("scrollTo(0, 0)")
    time.sleep(0.3)
    tab.screenshot(output / "viewer-form.png")


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs"))
    parser.add_argument("--only", default="", help="those whose name holds this")
    arguments = parser.parse_args()
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
        shoot(tab, server, {}, arguments.output, arguments.only)
        print("\n".join(tab.errors) or f"wrote the pictures to {arguments.output}")


if __name__ == "__main__":
    main()
