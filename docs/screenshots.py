"""The pictures of the viewer: the real server, driven in a real browser.

python docs/screenshots.py --output docs           the two pictures of the README
python docs/screenshots.py --output out --all      every view, light and dark, wide and narrow
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from attnflow import Attribution, Raw, Tokens
from attnflow.show.page import page
from attnflow.show.view import view
from attnflow.tokens.patches import Grid, patch_names
from attnflow.web.models import embedded_models
from browser import Page, installed_browser, running_browser
from serving import Client, serving

SENTENCE = "the report that the chairman of the boards wrote"
PROMPT = "My name is Putin, I am from"


def ask(tab: Page, server: Client, task: str, text: str) -> None:
    """Open the page, type, and wait for the answer."""
    tab.go("about:blank")
    tab.go(server.address)
    tab.wait("document.querySelector('#model option')")
    tab.click(f"document.querySelector('[name=task][value={task}] + span')")
    tab.run(f"document.getElementById('text').value = {text!r}")
    tab.click("document.getElementById('go')")
    tab.wait("document.querySelector('.af-token')", 120)
    tab.mouse("mouseMoved", 3, 3)


def explained(tab: Page, server: Client) -> None:
    """A sentence, its flow, and the cut to its subject."""
    ask(tab, server, "explain", SENTENCE)
    choose(tab, "method", "2")
    choose(tab, "layer", "2")
    tab.click("document.querySelectorAll('.af-token-name')[2]")
    tab.run("document.activeElement.blur(); scrollTo(0, 0)")


def generated(tab: Page, server: Client) -> None:
    """A completion, and what its first token came from."""
    ask(tab, server, "generate", PROMPT)
    tab.click("document.querySelector('.af-written')")
    tab.mouse("mouseMoved", 3, 3)
    tab.run("scrollTo(0, 0)")


def choose(tab: Page, name: str, value: str) -> None:
    """Set a control of the viewer."""
    tab.run(
        f"(() => {{ const e = document.querySelector('.af-viewer [name={name}]'); "
        f"e.value = {value!r}; for (const kind of ['input', 'change']) "
        "e.dispatchEvent(new Event(kind, {bubbles: true})); })()"
    )
    time.sleep(0.3)


def picture(tab: Page, folder: Path) -> None:
    """A vision result: a bright disc, and a target that draws on it."""
    grid = Grid(8, 8, 1, 224, 224)
    across, down = np.meshgrid(np.linspace(-1, 1, 224), np.linspace(-1, 1, 224))
    disc = np.exp(-((across - 0.3) ** 2 + (down + 0.2) ** 2) * 6)
    pixels = np.stack([0.3 + 0.6 * disc, 0.35 + 0.5 * disc, 0.4 + 0.1 * disc], axis=-1)
    patches = disc.reshape(8, 28, 8, 28).mean(axis=(1, 3)).ravel()
    values = np.tile(np.concatenate([[0.1], patches]), (2, 65, 1))
    tokens = Tokens(patch_names(grid, ("[CLS]",)), grid=grid)
    shown = Attribution(values / values.sum(axis=-1, keepdims=True), (1, 2), tokens, tokens, Raw())
    path = folder / "image.html"
    path.write_text(page(view(shown, image=pixels)), encoding="utf-8")
    tab.go(path.as_uri())
    tab.wait("document.querySelector('.af-token')")


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs"))
    parser.add_argument("--all", action="store_true", help="every size and theme, to look through")
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
        views = [
            ("viewer-explain", explained, 1270, False),
            ("viewer-generate", generated, 1110, True),
        ]
        for name, prepare, height, dark in views:
            shots = [("", 1280, height, dark)]
            if arguments.all:
                sizes = ((1280, height), (390, 2400))
                shots = [
                    (f"-{width}-{'dark' if dark else 'light'}", width, high, dark)
                    for width, high in sizes
                    for dark in (False, True)
                ]
            for ending, width, high, theme in shots:
                tab.size(width, high, dark=theme)
                prepare(tab, server)
                time.sleep(0.8)
                tab.screenshot(arguments.output / f"{name}{ending}.png")
        if arguments.all:
            tab.size(1280, 900)
            picture(tab, Path(profile))
            time.sleep(0.5)
            tab.screenshot(arguments.output / "viewer-image.png")
        print("\n".join(tab.errors) or f"wrote the pictures to {arguments.output}")


if __name__ == "__main__":
    main()
