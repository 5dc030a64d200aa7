"""The pages in a real browser: a headless Chromium opens them, points, clicks and types."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnflow import AttentionTrace, Attribution, Flow, Raw, Rollout, Tokens
from attnflow.attribution.passages import statements_of
from attnflow.errors import percent
from attnflow.show.page import page as page_of
from attnflow.show.view import view
from attnflow.testing import random_attention
from attnflow.tokens.patches import Grid, patch_names
from attnflow_connect.server.models import Limits, OfferedModel, embedded_models
from browser import Browser, Page, installed_browser
from serving import Client, serving
from test_server import tiny_writer

PROGRAM = installed_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason="no Chromium or Chrome found: install one (Debian: apt-get install chromium), "
    "or name it in ATTNFLOW_BROWSER; `make browser` does it where it may",
)

WORDS = ["the", "key", "to", "the", "old", "cabinets", "is", "lost"]
HOSTILE = ["</script>", "<script>document.title='taken'</script>", "<img src=x onerror=alert(1)>"]


def show(tab: Page, document: dict[str, Any], folder: Path) -> None:
    """Open a report from disk, as a reader would."""
    path = folder / "report.html"
    path.write_text(page_of(document), encoding="utf-8")
    tab.go(path.as_uri())
    tab.wait("document.querySelector('.af-token')")
    tab.wait("document.querySelector('.af-spoken').textContent")


def words_document() -> dict[str, Any]:
    trace = AttentionTrace.from_arrays(random_attention(4, 2, 8, seed=5, shape="peaked"), WORDS)
    results = [Rollout()(trace), Raw()(trace), Flow()(trace, threads=1)]
    return view(results, graph=Flow().graph(trace))


def token(text: str, which: int = 0) -> str:
    found = f"[...document.querySelectorAll('.af-token')].filter(e => e.textContent === {text!r})"
    return f"{found}[{which}]"


def shares(tab: Page) -> list[int]:
    script = "[...document.querySelectorAll('.af-text .af-token')].map(e => [e.dataset.item, "
    found = tab.run(script + "e.style.getPropertyValue('--share')])")
    ordered = sorted((int(item), int(share.rstrip("%") or 0)) for item, share in found)
    return [share for _, share in ordered]


def open_details(tab: Page) -> None:
    tab.run("document.querySelector('.af-details').open = true")
    settle(tab)


def settle(tab: Page) -> None:
    """Until what was asked for has been drawn."""
    tab.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def chosen(tab: Page) -> str:
    return str(tab.run("document.querySelector('.af-chosen').textContent"))


def expected_shares(values: Any) -> list[int]:
    row = np.array(values)
    return [round(100 * share) for share in (row / row.max()).tolist()]


# -- a report from disk ----------------------------------------------------------------------------


def test_hovering_shows_the_sources_of_a_target(tab: Page, tmp_path: Path) -> None:
    trace = AttentionTrace.from_arrays(random_attention(4, 2, 8, seed=5, shape="peaked"), WORDS)
    values = Rollout()(trace).values
    show(tab, words_document(), tmp_path)
    assert shares(tab) == pytest.approx(expected_shares(values[-1, 0]), abs=1)
    x, y = tab.place(token("cabinets"))
    tab.mouse("mouseMoved", x, y)
    settle(tab)
    assert chosen(tab) == "cabinets"
    assert shares(tab) == pytest.approx(expected_shares(values[-1, 5]), abs=1)
    share = values[-1, 5].max() / values[-1, 5].sum()
    assert tab.run("document.querySelector('.af-number').textContent") == f"{100 * share:.0f} %"
    tab.mouse("mouseMoved", 5, 5)
    settle(tab)
    assert chosen(tab) == "the"
    tab.click(token("lost"))
    tab.mouse("mouseMoved", 5, 5)
    settle(tab)
    assert chosen(tab) == "lost"


def test_layer_method_scale_and_filters_change_what_is_shown(tab: Page, tmp_path: Path) -> None:
    trace = AttentionTrace.from_arrays(random_attention(4, 2, 8, seed=5, shape="peaked"), WORDS)
    show(tab, words_document(), tmp_path)
    open_details(tab)
    choose(tab, "layer", "1", "input")
    assert shares(tab) == pytest.approx(expected_shares(Rollout()(trace).values[1, 0]), abs=1)
    choose(tab, "method", "1")
    assert shares(tab) == pytest.approx(expected_shares(Raw()(trace).values[1, 0]), abs=1)
    listed = "[...document.querySelectorAll('.af-strongest tbody tr:not([hidden])')].length"
    choose(tab, "strongest", "3")
    assert tab.run(listed) == 3
    assert len([share for share in shares(tab) if share]) <= 3
    choose(tab, "scale", "max")
    assert tab.run("document.querySelector('.af-number').textContent") == "1.000"
    choose(tab, "strongest", "all")
    tab.click("document.querySelector('[name=common]')")
    settle(tab)
    hidden = tab.run("[...document.querySelectorAll('.af-hidden')].map(e => e.textContent)")
    assert set(hidden) >= {"the", "to", "is"}
    assert "key" not in hidden
    tab.click("document.querySelector('[name=mean]')")
    settle(tab)
    tab.wait("document.querySelector('summary').textContent.includes('mean of layers')")


def choose(
    tab: Page, name: str, value: str, event: str = "change", *, within: str = ".af-viewer"
) -> None:
    tab.run(
        f"(() => {{ const e = document.querySelector('{within} [name={name}]'); "
        f"e.value = {value!r}; "
        f"e.dispatchEvent(new Event({event!r}, {{bubbles: true}})); }})()"
    )
    settle(tab)


def test_the_keyboard_reaches_everything(tab: Page, tmp_path: Path) -> None:
    show(tab, words_document(), tmp_path)
    tab.run("document.querySelector('.af-text').focus()")
    for _ in range(2):
        tab.key("ArrowRight")
    settle(tab)
    assert chosen(tab) == "to"
    active = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    assert tab.run(f"{active}.textContent") == "to"
    assert tab.run(f"{active}.getAttribute('aria-selected')") == "true"
    tab.key("End")
    settle(tab)
    assert chosen(tab) == "lost"
    output = "document.querySelector('.af-output').textContent"
    assert tab.run(output) == "4 of 4"
    tab.key("-")
    settle(tab)
    assert tab.run(output) == "3 of 4"
    tab.wait("document.querySelector('.af-spoken').textContent.startsWith('“lost” draws on')")
    assert "layer 3 of 4" in tab.run("document.querySelector('summary').textContent")
    for role in ("listbox", "option", "group"):
        assert tab.run(f"document.querySelector('[role={role}]') !== null")
    unnamed = (
        "[...document.querySelectorAll('button:not([hidden]), select, input')].filter(e => "
        "!e.textContent.trim() && !e.getAttribute('aria-label') && !e.labels?.length).length"
    )
    assert tab.run(unnamed) == 0


def test_the_cut_is_that_of_the_library(tab: Page, tmp_path: Path) -> None:
    trace = AttentionTrace.from_arrays(random_attention(4, 2, 8, seed=5, shape="peaked"), WORDS)
    show(tab, words_document(), tmp_path)
    pairs = [(layer, i, j) for layer in (1, 2, 3, 4) for i in (0, 3, 7) for j in (0, 1, 5)]
    opened = "attnflow.open(JSON.parse(document.getElementById('attnflow-data').textContent)).graph"
    script = f"(() => {{ const g = {opened}; return {json.dumps(pairs)}.map(([l, i, j]) => {{ "
    found = tab.run(
        script + "const c = attnflow.minimumCut(g, l, i, j); "
        "return [c.value, c.edges.reduce((sum, edge) => sum + edge.capacity, 0)]; }); })()"
    )
    for (layer, i, j), (value, cut) in zip(pairs, found, strict=True):
        true = Flow().minimum_cut(trace, target=i, source=j, layer=layer).value
        assert value == pytest.approx(true, abs=1e-3)
        assert cut == pytest.approx(value, abs=1e-9)  # max-flow = min-cut
    assert tab.run("document.querySelector('.af-cuts').hidden")  # of rollout there is no cut
    open_details(tab)
    choose(tab, "method", "2")
    tab.click("document.querySelectorAll('.af-cut')[1]")
    tab.wait("document.querySelectorAll('.af-cut-edge').length > 0")
    assert "held back by" in tab.run(
        "document.querySelector('.af-graph').previousSibling.textContent"
    )


def test_words_wrap_like_text(tab: Page, tmp_path: Path) -> None:
    pieces = ["Ġ" + "x" * 9 if k % 2 == 0 else "y" * 5 for k in range(60)]
    pieces[20] = pieces[22] = pieces[24] = "Ċ"
    values = np.ones((1, 60, 60)) / 60
    shown = Attribution(values, (1,), Tokens.of(pieces), Tokens.of(pieces), Raw())
    for width in (1280, 390):
        tab.size(width, 800)
        show(tab, view(shown), tmp_path)
        lines = tab.run(
            "[...document.querySelectorAll('.af-line')].map(l => ({"
            "  items: [...l.children].map(e => Number(e.dataset.item)),"
            "  right: Math.max(...[...l.children].map(e => e.getBoundingClientRect().right))}))"
        )
        edge = tab.run("document.querySelector('.af-text').getBoundingClientRect().right")
        assert [k for line in lines for k in line["items"]] == list(range(60))
        assert max(line["right"] for line in lines) <= edge
        starts = {line["items"][0] for line in lines}
        assert all(k % 2 == 0 or k in (21, 23, 25) for k in starts)  # a word is not torn apart
        assert {21, 23, 25} <= starts  # a line end ends the line
        assert tab.run("document.documentElement.scrollWidth") <= width


def test_a_script_in_a_token_is_only_text(tab: Page, tmp_path: Path) -> None:
    values = np.ones((1, 3, 3)) / 3
    shown = Attribution(values, (1,), Tokens.of(HOSTILE), Tokens.of(HOSTILE), Raw())
    show(tab, view(shown, title="<script>alert(1)</script>"), tmp_path)
    texts = tab.run("[...document.querySelectorAll('.af-token')].map(e => e.textContent)")
    assert texts == HOSTILE
    assert tab.run("document.querySelectorAll('.af-viewer script, .af-viewer img').length") == 0
    assert tab.run("document.title") == "<script>alert(1)</script> · attnflow"
    tab.click(token(HOSTILE[0]))
    settle(tab)
    assert tab.run("document.title").startswith("<script>")


def test_a_page_may_run_no_script_but_its_own(browser: Browser, tmp_path: Path) -> None:
    text = page_of(words_document()).replace("<main", "<script>globalThis.taken = 1</script><main")
    path = tmp_path / "attacked.html"
    path.write_text(text, encoding="utf-8")
    tab = browser.new_page()
    tab.go(path.as_uri())
    tab.wait("document.querySelector('.af-token')")
    assert tab.run("globalThis.taken ?? null") is None
    assert any("Content Security Policy" in error for error in tab.errors)


def test_an_image_is_overlaid_and_its_patches_chosen(tab: Page, tmp_path: Path) -> None:
    grid = Grid(2, 2, 1, 40, 40)
    tokens = Tokens(patch_names(grid, ("[CLS]",)), grid=grid)
    values = np.eye(5)[None]
    shown = Attribution(values, (1,), tokens, tokens, Raw())
    show(tab, view(shown, image=np.full((40, 40, 3), 255, np.uint8)), tmp_path)
    tab.wait("document.querySelector('.af-picture canvas').width > 10")
    box = tab.run(
        "(() => { const e = document.querySelector('.af-picture canvas'); "
        "e.scrollIntoView(); const b = e.getBoundingClientRect(); return [b.x, b.y, b.width]; })()"
    )
    x, y = box[0] + box[2] * 0.75, box[1] + box[2] * 0.25  # the upper right patch
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        tab.mouse(kind, x, y)
    settle(tab)
    assert "patch 0,1" in tab.run("document.querySelector('.af-side h3').textContent")
    pixel = (
        "(() => { const c = document.querySelector('.af-picture canvas'); "
        "return (fx, fy) => [...c.getContext('2d').getImageData("
        "c.width * fx, c.height * fy, 1, 1).data]; })()"
    )
    assert tab.run(f"{pixel}(0.25, 0.75)")[:3] == [255, 255, 255]
    red, _, blue, _ = tab.run(f"{pixel}(0.75, 0.25)")
    assert red - blue > 60  # warm, over a photo that keeps its colours
    choose(tab, "cover", "0", "input")
    assert tab.run(f"{pixel}(0.75, 0.25)")[:3] == [255, 255, 255]


@pytest.mark.parametrize("dark", [False, True])
def test_every_shade_can_be_read(tab: Page, tmp_path: Path, dark: bool) -> None:
    """The contrast of every token's ink with its ground, by WCAG 2's formula, is 4.5 or more."""
    size = 41
    values = np.arange(size, dtype=float)[None, None] * np.ones((1, size, 1))
    values[0, :, ::2] *= -1
    names = [f"w{k}" for k in range(size)]
    shown = Attribution(values, (1,), Tokens.of(names), Tokens.of(names), Raw())
    tab.size(1280, 900, dark=dark)
    show(tab, view(shown), tmp_path)
    colours = tab.run(
        "(() => { const sheet = document.createElement('canvas'); sheet.width = sheet.height = 1; "
        "const pen = sheet.getContext('2d', {willReadFrequently: true}); "
        "const paper = getComputedStyle(document.documentElement).getPropertyValue('--af-paper'); "
        "const flat = (...layers) => { for (const one of layers) { pen.fillStyle = one; "
        "pen.fillRect(0, 0, 1, 1); } return [...pen.getImageData(0, 0, 1, 1).data]; }; "
        "return [...document.querySelectorAll('.af-token')].map(e => { const s = "
        "getComputedStyle(e); return [flat(paper, s.backgroundColor), flat(s.color)]; }); })()"
    )
    assert len(colours) == size
    assert min(contrast(ground, ink) for ground, ink in colours) >= 4.5


def contrast(one: list[int], other: list[int]) -> float:
    def light(colour: list[int]) -> float:
        parts = [part / 255 for part in colour[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


# -- the answer first ------------------------------------------------------------------------------


def answer_document(*, documents: bool) -> dict[str, Any]:
    """A prompt of 300 tokens and an answer of two sentences; "45" came from the second document."""
    rng = np.random.default_rng(3)
    prompt = [f"Ġword{k}" for k in range(300)]
    for k in range(19, 300, 20):
        prompt[k] = "."
    answer = ["It", "Ġis", "Ġ", "4", "5", "Ġdays", ".", "ĠWrite", "Ġsoon", "."]
    values = rng.random((2, len(answer), 300)) * 0.01
    values[:, 3:6, 250:254] = 1.0
    spans = [["one.txt", 20, 120], ["two.txt", 120, 280]] if documents else None
    about = {"completion": "It is 45 days. Write soon.", "documents": spans}
    targets = Tokens(tuple(answer), tuple(range(300, 310)))
    result = Attribution(values, (1, 2), targets, Tokens.of(prompt), Raw(), provenance=about)
    return view(result, title="How long is it?")


def test_shares_of_what_speaks_for_and_against_are_those_of_python(
    tab: Page, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0, 0.02, size=(1, 1, 90)) + np.repeat([0.05, -0.05, 0.02], 30)
    about = {
        "completion": "45 days.",
        "documents": [[f"{k}.txt", 30 * k, 30 * k + 30] for k in range(3)],
    }
    sources = Tokens.of([f"Ġword{k}" for k in range(90)])
    target = Tokens(("45 days.",), (90,))
    result = Attribution(values, (1,), target, sources, Raw(), provenance=about)
    ranked = statements_of(result)[0].sources
    assert 0 in [source.share for source in ranked], "one document speaks against the answer"
    tab.size(1280, 900)
    show(tab, view(result, title="How long is it?"), tmp_path)
    cards = tab.run(
        "[...document.querySelectorAll('.af-card')].map(e => [e.querySelector('.af-card-name')"
        ".textContent, e.querySelector('.af-card-share').textContent])"
    )
    listed = [source for source in ranked if source.share >= 1 / len(ranked)]
    assert cards == [[source.name, percent(source.share)] for source in listed]


@pytest.mark.parametrize("documents", [True, False])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_answer_source_and_share_are_seen_without_scrolling(
    tab: Page, tmp_path: Path, width: int, height: int, documents: bool
) -> None:
    tab.size(width, height)
    show(tab, answer_document(documents=documents), tmp_path)
    tab.click("[...document.querySelectorAll('.af-written')].find(e => e.textContent === '45')")
    tab.mouse("mouseMoved", 2, 2)
    settle(tab)
    if not documents:
        tab.click("document.querySelector('[data-unit=word]')")
    share = ".af-first .af-card-share" if documents else ".af-number"
    for part in (".af-answer-text", ".af-spoken", share):
        bottom = tab.run(f"document.querySelector('{part}').getBoundingClientRect().bottom")
        assert 0 < bottom <= height, part
    lead = tab.run("document.querySelector('.af-spoken').textContent")
    assert ("two.txt, sentence 7" if documents else "“word25") in lead
    assert tab.run("scrollY") == 0
    seen = (
        "(() => { const box = document.querySelector('.af-text').getBoundingClientRect(); "
        "return [...document.querySelectorAll('.af-text .af-token')].some(e => { "
        "const b = e.getBoundingClientRect(); return e.textContent === 'word251' && "
        "b.top >= box.top && b.bottom <= box.bottom; }); })()"
    )
    assert tab.run(seen)  # the prompt is scrolled to what matters
    assert tab.run("document.documentElement.scrollWidth") <= width


def test_the_answer_is_walked_by_keyboard(tab: Page, tmp_path: Path) -> None:
    show(tab, answer_document(documents=True), tmp_path)
    spoken = "document.querySelector('.af-spoken').textContent"
    assert tab.run(spoken).startswith("“It is 45 days.” draws on two.txt, sentence 7 (")
    tab.run("document.querySelector('.af-answer-text').focus()")
    tab.key("ArrowRight")
    settle(tab)
    assert tab.run(spoken).startswith("“Write soon.” draws on")
    tab.key("u")
    settle(tab)
    assert tab.run(spoken).startswith("“It is 45 days. Write soon.” draws on")
    tab.key("u")
    tab.key("End")
    settle(tab)
    active = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
    assert tab.run(f"{active}.textContent") == "."
    assert tab.run("document.querySelector('.af-cards li').textContent").startswith("t")


def test_the_way_back_is_followed_step_by_step(tab: Page, tmp_path: Path) -> None:
    prompt = [*(f"Ġword{k}" for k in range(9)), ".", *(f"Ġmore{k}" for k in range(9)), "."]
    answer = ["ĠIt", "Ġis", "Ġso", ".", "ĠThen", "Ġgo", "."]
    values = np.zeros((1, 7, 26))
    values[0, :4, 10:20] = 0.1  # the first sentence draws on the second one of the prompt
    values[0, 4:, 20:24] = 0.25  # and the second sentence on the first
    result = Attribution(
        values,
        (1,),
        Tokens(tuple(answer), tuple(range(20, 27))),
        Tokens.of([*prompt, *answer[:-1]]),
        Raw(),
        provenance={"completion": "It is so. Then go.", "prompt_length": 20},
    )
    tab.size(1280, 900)
    show(tab, view(result), tmp_path)
    tab.run("document.querySelector('.af-answer-text').focus()")
    tab.key("ArrowRight")
    settle(tab)
    steps = "[...document.querySelectorAll('.af-path .af-step')]"
    names = f"{steps}.filter(e => e.checkVisibility()).map(e => e.textContent)"
    way = ["what it wrote, sentence 1", "sentence 2"]
    assert tab.run(names) == way
    shares = "[...document.querySelectorAll('.af-step-share')].map(e => e.textContent)"
    assert tab.run(shares) == ["100 %, the model wrote", "100 %, given"]
    tab.run("document.querySelector('.af-path details').open = false")
    assert tab.run(names) == way[:1]
    assert tab.errors == []


def test_a_report_is_linked_to_what_it_shows(tab: Page, browser: Browser, tmp_path: Path) -> None:
    show(tab, answer_document(documents=True), tmp_path)
    tab.click("document.querySelector('[data-unit=word]')")
    tab.click("[...document.querySelectorAll('.af-written')].find(e => e.textContent === 'soon')")
    tab.mouse("mouseMoved", 2, 2)
    settle(tab)
    again = browser.new_page()
    again.size(1280, 900)
    again.go(tab.run("location.href"))
    again.wait("document.querySelector('.af-chosen')")
    assert chosen(again) == "soon"
    assert again.errors == []


# -- long texts ------------------------------------------------------------------------------------


def long_result(length: int, layers: int) -> Attribution:
    """Every target of a long text; all layers lie in one small buffer, each a few numbers on."""
    rng = np.random.default_rng(0)
    shift = 997
    base = rng.random(length * length + shift * layers) ** 12
    strides = (shift * 8, length * 8, 8)
    values = np.lib.stride_tricks.as_strided(
        base, (layers, length, length), strides, writeable=False
    )
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    texts = ["Ġ" + "".join(rng.choice(letters, size=rng.integers(1, 9))) for _ in range(length)]
    tokens = Tokens.of(texts)
    return Attribution(values, tuple(range(1, layers + 1)), tokens, tokens, Rollout())


# Scrolls, points, slides and clicks; the most that any one step touched, drew and unpacked.
_WORK = """
new Promise(async (done) => {
  const most = { touched: 0, drawn: 0, unpacked: 0 };
  let now = { touched: 0, drawn: 0, unpacked: 0 };
  const count = (owner, name, what) => {
    const usual = owner[name];
    owner[name] = function (...given) { now[what] += 1; return usual.apply(this, given); };
    return () => (owner[name] = usual);
  };
  const pen = CanvasRenderingContext2D.prototype;
  const undo = ["fillRect", "fillText", "measureText", "putImageData", "drawImage"]
    .map((name) => count(pen, name, "drawn"));
  undo.push(count(globalThis, "atob", "unpacked"));
  const changes = (list) => {
    for (const { addedNodes, removedNodes } of list)
      now.touched += addedNodes.length + removedNodes.length || 1;
  };
  const watcher = new MutationObserver(changes);
  const all = { subtree: true, childList: true, attributes: true, characterData: true };
  watcher.observe(document.querySelector(".af-viewer"), all);
  const frame = () =>
    new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
  const step = async (act) => {
    now = { touched: 0, drawn: 0, unpacked: 0 };
    act();
    await frame();
    changes(watcher.takeRecords());
    for (const what of Object.keys(most)) most[what] = Math.max(most[what], now[what]);
  };
  const text = document.querySelector(".af-text");
  const slider = document.querySelector("[name=layer]");
  const map = document.querySelector(".af-map");
  for (let k = 0; k < STEPS; k++) {
    await step(() => {
      text.scrollTop = (k * 331) % text.scrollHeight;
      map.scrollTop = (k * 977) % map.scrollHeight;
    });
    const seen = text.querySelectorAll(".af-token");
    const hover = new PointerEvent("pointerover", { bubbles: true });
    await step(() => seen[(k * 7) % seen.length].dispatchEvent(hover));
    await step(() => {
      slider.value = String(k % 8);
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    });
    await step(() => seen[(k * 11) % seen.length].click());
  }
  watcher.disconnect();
  undo.forEach((restore) => restore());
  done(most);
})
"""


def work(tab: Page, length: int, folder: Path) -> dict[str, int]:
    """The most that one step of a reader makes the page do, for a text of this length."""
    show(tab, view(long_result(length, 3)), folder)
    open_details(tab)
    tab.wait("document.querySelectorAll('.af-token').length > 50")
    tab.wait("document.querySelector('.af-map-canvas').height > 20")
    tab.run(_WORK.replace("STEPS", "8"))  # what is made at the first visit of a layer is made here
    return dict(tab.run(_WORK.replace("STEPS", "15")))


def test_two_thousand_tokens_stay_fluid(tab: Page, tmp_path: Path) -> None:
    """Four times the text is not four times the work of a step: only what is seen is drawn.

    Work is counted, not timed, so that a busy machine changes nothing. A little more is touched,
    because a step can scroll further.
    """
    short, long = work(tab, 500, tmp_path), work(tab, 2000, tmp_path)
    assert short["touched"] > 50
    assert short["drawn"] > 50
    for what in ("touched", "drawn"):
        assert long[what] <= 1.5 * short[what], (what, short, long)
    assert long["unpacked"] == 0  # every layer is unpacked once
    assert tab.run("document.querySelectorAll('.af-token').length") < 1000
    listed = tab.run("document.querySelector('.af-notes').textContent")
    assert "64 strongest sources of each target" in listed
    assert tab.run("document.querySelector('.af-token').getAttribute('aria-setsize')") == "2000"


def test_a_remark_stands_with_its_result(
    tab: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remark = "at layer 4 every target draws alike <b>: read a lower layer"
    monkeypatch.setattr("attnflow.show.view.remarks", lambda _: [remark])
    show(tab, words_document(), tmp_path)
    notes = "document.querySelector('.af-notes').textContent"
    assert "At layer 4 every target draws alike <b>: read a lower layer." in tab.run(notes)


def test_shares_count_what_a_large_document_left_out(tab: Page, tmp_path: Path) -> None:
    result = long_result(600, 4)
    show(tab, view(result), tmp_path)
    opened = "attnflow.open(JSON.parse(document.getElementById('attnflow-data').textContent))"
    one, mean = tab.run(
        f"(() => {{ const r = {opened}.results[0]; "
        "return [r.total(1, 7, r.row(1, 7)), r.total(null, 7, r.meanRow(7))]; })()"
    )
    sums = result.values[:, 7].sum(axis=-1)
    assert one == pytest.approx(sums[1], rel=1e-4)
    assert mean == pytest.approx(sums.mean(), rel=1e-4)
    share = 100 * result.values[-1, 0].max() / result.values[-1, 0].sum()
    expected = "< 1 %" if share < 0.95 else f"{share:.0f} %"
    assert tab.run("document.querySelector('.af-number').textContent") == expected


def test_a_long_text_is_walked_by_keyboard(tab: Page, tmp_path: Path) -> None:
    show(tab, view(long_result(600, 4)), tmp_path)
    tab.run("document.querySelector('.af-text').focus()")
    tab.key("End")
    settle(tab)
    assert tab.run("document.querySelector('.af-chosen').dataset.item") == "599"
    assert tab.run("document.querySelector('.af-text').scrollTop") > 100


# -- the served page -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    os.environ.setdefault("MPLBACKEND", "Agg")
    writer = OfferedModel("tiny-writer", "", explains=True, generates=True, load=tiny_writer)
    with serving([embedded_models()[0], writer], Limits(tokens=64)) as running:
        yield running


def ask(tab: Page, text: str, *, task: str = "explain", model: str | None = None) -> None:
    if tab.run("document.getElementById('ask').hidden"):
        tab.click("document.getElementById('edit')")
    tab.click(f"document.querySelector('[name=task][value={task}] + span')")
    if model is not None:
        choose(tab, "model", model, within="#ask")
    tab.run("document.querySelector('#result').replaceChildren()")
    tab.run("document.getElementById('text').value = ''; document.getElementById('text').focus()")
    if text:
        tab.call("Input.insertText", text=text)
    tab.click("document.getElementById('go')")
    tab.mouse("mouseMoved", 2, 2)  # away from where the result will stand


def visit(tab: Page, server: Client) -> None:
    """Open the form, its options unfolded."""
    tab.go("about:blank")
    tab.go(f"{server.address}#new")
    tab.wait("document.querySelector('#model option')")
    tab.run("document.getElementById('options').open = true")


def test_the_page_explains_a_sentence_and_gives_it_away(
    tab: Page, server: Client, browser: Browser, tmp_path: Path
) -> None:
    visit(tab, server)
    ask(tab, "the keys to the cabinet")
    tab.wait("document.querySelector('.af-token')")
    assert "The model says" in tab.run("document.querySelector('.af-answer').textContent")
    open_details(tab)
    before = shares(tab)
    choose(tab, "layer", "0", "input")
    assert shares(tab) != before
    choose(tab, "method", "3")  # after the model's default
    assert "Flow(" in tab.run("document.querySelector('.af-notes').textContent")
    tab.run("document.querySelector('.menu').open = true")
    for which, first in (("html", b"<!doctype html>"), ("json", b'{"format"'), ("png", b"\x89PNG")):
        tab.click(f"document.getElementById('as-{which}')")
        path = downloaded(tmp_path, which)
        assert path.read_bytes().startswith(first)
    loaded = Attribution.load(downloaded(tmp_path, "json"))
    assert loaded.prediction is not None
    assert loaded.top(1, target=loaded.prediction.position)
    again = browser.new_page()
    again.go(downloaded(tmp_path, "html").as_uri())
    again.wait("document.querySelector('.af-token')")
    assert token_texts(again) == ["[CLS]", *["the", "keys", "to", "the", "cabinet"], "[EOS]"]
    linked = browser.new_page()
    linked.go(tab.run("document.getElementById('link').href"))
    linked.wait("document.querySelector('.af-token')")
    assert token_texts(linked) == token_texts(again)
    assert again.errors + linked.errors == []


def downloaded(folder: Path, form: str) -> Path:
    for _ in range(400):
        found = sorted(folder.glob(f"attnflow-*.{form}"))
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"no .{form} came: {list(folder.iterdir())}")


def token_texts(tab: Page) -> list[str]:
    return list(tab.run("[...document.querySelectorAll('.af-token')].map(e => e.textContent)"))


def test_the_page_generates_and_a_written_token_is_chosen(tab: Page, server: Client) -> None:
    visit(tab, server)
    ask(tab, "a b </script> c", task="generate")
    tab.wait("document.querySelectorAll('.af-written').length === 20")
    prompt = tab.run("[...document.querySelectorAll('.af-text .af-token')].map(e => e.textContent)")
    assert prompt == ["a", "b", "</script>", "c"]
    open_details(tab)
    tab.click("document.querySelectorAll('.af-written')[6]")
    settle(tab)
    assert tab.run("document.querySelectorAll('.af-written')[6].matches('.af-chosen')")
    assert max(shares(tab)[:4]) == 100
    cells = tab.run("document.querySelector('.af-map-canvas').height")
    assert cells > 20  # token × layer, beside it


def test_bad_input_is_told_in_the_page(tab: Page, server: Client) -> None:
    visit(tab, server)
    error = "document.getElementById('error')"
    ask(tab, "")
    tab.wait(f"!{error}.hidden")
    assert "type a text first" in tab.run(f"{error}.textContent")
    ask(tab, "a " * 80, model="tiny-writer")
    tab.wait(f"{error}.textContent.includes('80 tokens')")
    ask(tab, "the key", model="verb-number")
    tab.wait("document.querySelector('.af-token')")
    assert tab.run(f"{error}.hidden")


def test_hostile_text_in_the_served_page_is_only_text(tab: Page, server: Client) -> None:
    visit(tab, server)
    ask(tab, "a <script>document.title='taken'</script> </script> b", model="tiny-writer")
    tab.wait("document.querySelector('.af-token')")
    assert tab.run("document.title") == "attnflow"
    assert tab.run("document.querySelectorAll('#result script').length") == 0


def test_a_job_is_seen_and_cancelled(tab: Page) -> None:
    from threading import Event

    go = Event()

    def load() -> Any:
        go.wait(30)
        return tiny_writer()

    slow = OfferedModel("slow", "", explains=True, generates=False, load=load)
    with serving([slow]) as client:
        visit(tab, client)
        ask(tab, "a b")
        tab.wait("document.getElementById('stage').textContent === 'loading the model …'")
        assert tab.run("document.getElementById('ask').hidden")  # the question stands on top
        assert tab.run("document.getElementById('asked').textContent") == "a b"
        ends = "['asked', 'stage', 'cancel'].map(e => document.getElementById(e)"
        ends += ".getBoundingClientRect().bottom)"
        assert sorted(tab.run(ends)) == tab.run(ends)
        assert max(tab.run(ends)) < 300
        tab.click("document.getElementById('cancel')")
        go.set()
        tab.wait("document.getElementById('error').textContent === 'Cancelled.'")
        assert tab.run("document.getElementById('progress').hidden")
        assert not tab.run("document.getElementById('ask').hidden")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out_of_the_page(tab: Page, server: Client, width: int, dark: bool) -> None:
    tab.size(width, 900, dark=dark)
    visit(tab, server)
    ask(tab, "the reports that the chairman of the boards wrote")
    tab.wait("document.querySelector('.af-details')")
    open_details(tab)
    tab.wait("document.querySelector('.af-graph circle')")
    assert (
        tab.run("document.querySelectorAll('.af-thumb').length") > 20
    )  # every head of every layer
    assert tab.run("document.documentElement.scrollWidth") <= width
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in ground[4:-1].split(",")) < 384) == dark


def test_documents_are_asked_about_and_the_link_restores_all(
    tab: Page, server: Client, browser: Browser
) -> None:
    visit(tab, server)
    tab.wait("document.querySelector('[name=task]:checked').value === 'ask'")
    tab.run("document.getElementById('text').value = 'a b ?'")
    fill = (
        "(() => { const [name, text] = document.querySelectorAll('.document:last-child input, "
        ".document:last-child textarea'); name.value = %r; text.value = %r; })()"
    )
    tab.run(fill % ("one.txt", "c d e f"))
    tab.click("document.getElementById('add-document')")
    tab.run(fill % ("two.txt", "g h a b"))
    tab.click("document.getElementById('go')")
    tab.wait("document.querySelector('.af-spoken')?.textContent")
    said = tab.run("document.querySelector('.af-verdict').innerText")
    assert said.startswith("No source found")  # a model of random numbers needs none of them
    assert not tab.run("document.querySelectorAll('.af-card-name').length")
    assert tab.run("document.getElementById('ask').hidden")  # the form has stepped aside
    tab.click("document.querySelector('[data-unit=answer]')")
    open_details(tab)
    settle(tab)
    spoken = "document.querySelector('.af-spoken').textContent"
    linked = browser.new_page()
    linked.size(1280, 900)
    linked.go(tab.run("document.getElementById('link').href"))
    linked.wait("document.querySelector('.af-spoken')?.textContent")
    settle(linked)
    assert linked.run(spoken) == tab.run(spoken)
    assert linked.run("document.querySelector('.af-details').open")
    assert linked.run("document.getElementById('text').value") == "a b ?"
    texts = "[...document.querySelectorAll('.document textarea')].map(e => e.value)"
    assert linked.run(texts) == ["c d e f", "g h a b"]
    assert linked.errors == []


def test_a_result_never_stands_under_another_text(tab: Page, server: Client) -> None:
    visit(tab, server)
    ask(tab, "the keys to the cabinet")
    tab.wait("document.querySelector('.af-spoken')?.textContent")
    tab.click("document.getElementById('edit')")
    assert not tab.run("document.body.classList.contains('stale')")
    tab.run("document.getElementById('text').focus()")
    tab.call("Input.insertText", text=" and the key")
    assert tab.run("document.body.classList.contains('stale')")
    assert not tab.run("document.getElementById('stale').hidden")
    tab.run(
        "new MutationObserver(() => { globalThis.emptied = true; })"
        ".observe(document.getElementById('result'), {childList: true})"
    )
    tab.click("document.getElementById('go')")
    tab.wait("globalThis.emptied && document.querySelector('.af-spoken')?.textContent")
    assert not tab.run("document.body.classList.contains('stale')")
    changed = tab.run("document.getElementById('changed').textContent")
    assert "Before" in changed
    assert "Now" in changed
