"""The served page in a real browser: what is in sight, the keyboard, links, chat, methods."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from attnflow.data import example
from attnflow.hosts.model import Model
from attnflow.methods import trace_methods
from attnflow_connect.server.models import Limits, OfferedModel, embedded_models
from browser import Browser, Page, installed_browser
from serving import Client, serving
from test_browser import choose, open_details, settle, visit
from test_server import tiny_writer

PROGRAM = installed_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium or Chrome found")

SPOKEN = "document.querySelector('.af-spoken').textContent"
DONE = "document.querySelector('.af-spoken')?.textContent"


def talker() -> Model:
    """The tiny writer with room for a long prompt, and a chat template."""
    from transformers import GPT2Config, GPT2LMHeadModel

    _, tokenizer = tiny_writer()
    tokenizer.chat_template = "{% for m in messages %}l {{ m['content'] }} m {% endfor %}"
    size: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 1024}
    config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=None, **size)
    return Model(GPT2LMHeadModel(config).eval(), tokenizer)


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    os.environ.setdefault("MPLBACKEND", "Agg")
    loaded = talker()  # before a job waits for it: importing takes long on a busy machine
    abilities = {"explains": True, "generates": True, "chats": True}
    writer = OfferedModel("talker", "", load=lambda: loaded, examples=("a b c",), **abilities)
    with serving([embedded_models()[0], writer], Limits()) as running:
        yield running


def opened(tab: Page, server: Client, task: str, view: str = "", **request: Any) -> str:
    """Have the server work, and open the link to what came out; gives the result's name."""
    job = server.post(f"/api/{task}", {"model": "talker", **request}).json
    result = server.finished(job["id"], 180)["result"]
    tab.go("about:blank")
    tab.go(f"{server.address}#{result}?{view}")
    tab.wait(DONE)
    settle(tab)
    return str(result)


def focused(tab: Page) -> str:
    """What has the focus: an id, a name with its value, a role or a class."""
    return str(
        tab.run(
            "(() => { const e = document.activeElement; return e.id || (e.name && e.name + '=' + "
            "e.value) || e.getAttribute('role') || e.className || e.tagName; })()"
        )
    )


def tab_to(tab: Page, name: str, *, most: int = 60) -> None:
    """Press Tab until something has the focus."""
    passed = []
    for _ in range(most):
        tab.key("Tab")
        passed.append(focused(tab))
        if passed[-1] == name:
            return
    raise AssertionError(f"Tab never came to {name!r}: {passed}")


# -- what is in sight -----------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
@pytest.mark.parametrize("task", ["generate", "ask"])
def test_answer_source_and_share_are_in_sight_without_scrolling(
    tab: Page, server: Client, task: str, width: int, height: int
) -> None:
    """Three hundred tokens before the answer, the form folded away, nothing scrolled."""
    tab.size(width, height)
    if task == "generate":
        opened(tab, server, task, prompt=" ".join("abcdefghij" * 30), tokens=6)
    else:
        texts = [
            {"name": f"{k}.txt", "text": " ".join("abcdefghij" * 10)[: -2 * k]} for k in (1, 2, 3)
        ]
        opened(tab, server, task, question="a b ?", documents=texts, tokens=6)
    assert tab.run("document.getElementById('ask').hidden")
    assert tab.run("scrollY") == 0
    assert tab.run("document.querySelectorAll('.af-viewer .af-text').length") == 1
    ends = tab.run(
        "['.af-answer-text', '.af-verdict p', '.af-verdict dl'].map(e => document.querySelector(e)"
        ".getBoundingClientRect()).map(b => [b.top, b.bottom])"
    )
    for top, bottom in ends:
        assert top >= 0
        assert bottom <= height
    assert tab.run("document.documentElement.scrollWidth") <= width
    if task == "ask":  # nothing carries what random numbers write: no share stands beside that
        assert tab.run("document.querySelector('.af-verdict').innerText").startswith("No source")
        assert tab.run("document.querySelector('.af-spoken').hidden")
        return
    named = tab.run("document.querySelectorAll('.af-spoken strong')[1].textContent")
    share = tab.run(f"{SPOKEN}.match(/\\(([\\d<]+ ?[\\d]* %)/)[1]")
    assert named
    assert share.endswith("%")
    spoken = tab.run("document.querySelector('.af-spoken').getBoundingClientRect().bottom")
    assert spoken <= height  # with its share


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_opens_on_an_answer(tab: Page, width: int, height: int, dark: bool) -> None:
    """SmolLM2's answer about five documents, in sight at once; no model is loaded for it."""

    def load() -> Any:
        raise AssertionError("a model was loaded")

    abilities = {"explains": True, "generates": True, "chats": True}
    model = OfferedModel(example.MODEL, "", load=load, **abilities)
    tab.size(width, height, dark=dark)
    with serving([model]) as client:
        tab.go("about:blank")
        tab.go(client.address)
        tab.wait(DONE)
        settle(tab)
        assert tab.run("document.querySelector('.af-head h2').textContent") == example.QUESTION
        said = tab.run("document.querySelector('.af-verdict').innerText")
        assert said.startswith("Rests on contract.txt, sentence 3.")
        for part in (".af-answer-text", ".af-verdict", ".af-spoken", "#own"):
            box = tab.run(f"document.querySelector('{part}').getBoundingClientRect().toJSON()")
            assert 0 <= box["top"] < box["bottom"] <= height, part
        assert tab.run("document.documentElement.scrollWidth") <= width
        shown = tab.run("document.querySelector('.af-text').innerText")
        assert "<|im_start|>" not in shown
        assert "⏎" not in shown
        open_details(tab)
        tab.click("document.querySelector('[name=marks]')")
        settle(tab)
        assert "<|im_start|>" in tab.run("document.querySelector('.af-text').innerText")
        tab.click("document.getElementById('own')")
        tab.wait("document.getElementById('ask')?.hidden === false")
        assert tab.run("document.getElementById('text').value") == ""
        assert not tab.run("document.getElementById('options').open")
        tab.click("document.getElementById('example-documents')")
        names = tab.run("[...document.querySelectorAll('.document input')].map(e => e.value)")
        assert names == [*example.DOCUMENTS]
        assert tab.run("document.getElementById('text').value") == example.QUESTION


def test_what_the_answer_rests_on_is_drawn(tab: Page, server: Client) -> None:
    result = opened(tab, server, "generate", prompt="a b c d", tokens=3)
    record = server.get(f"/api/results/{result}.json").json["results"][0]["verdicts"][0]
    said = tab.run("document.querySelector('.af-verdict').innerText")
    said = said.replace("\xa0", " ")
    assert record["claim"][1:] in said
    assert record["reason"][1:] in said
    bars = tab.run(
        "[...document.querySelectorAll('.af-verdict-bar')].map(e => "
        "Number(e.style.getPropertyValue('--share')))"
    )
    assert bars == pytest.approx([bar["share"] for bar in record["bars"]], abs=1e-4)


# -- the keyboard ---------------------------------------------------------------------------------


def test_the_keyboard_alone_does_everything(tab: Page, server: Client) -> None:
    """The form, a run, a word, a layer, the details, another method, and a second run."""
    visit(tab, server)
    tab.wait("document.querySelector('[name=task]:checked').value === 'ask'")
    tab_to(tab, "task=ask")
    tab.key("ArrowRight")
    assert focused(tab) == "task=chat"
    tab.key("ArrowRight")
    assert focused(tab) == "task=generate"
    tab_to(tab, "text")
    tab.key("a", control=True)
    tab.run("document.getElementById('text').select()")  # Ctrl+A is the system's, not the page's
    tab.call("Input.insertText", text="a b c d e f")
    tab_to(tab, "method=rollout")
    tab.key(" ")
    assert tab.run("document.querySelector('[name=method][value=rollout]').checked")
    tab_to(tab, "go")
    tab.key("Enter")
    tab.wait(DONE)
    assert tab.run("document.getElementById('ask').hidden")
    tab_to(tab, "listbox")
    first = tab.run(SPOKEN)
    tab.key("End")
    settle(tab)
    assert tab.run(SPOKEN) != first
    tab.key("-")
    settle(tab)
    assert "layer 1 of 2" in tab.run("document.querySelector('.af-details summary').textContent")
    tab_to(tab, "SUMMARY", most=120)
    tab.key("Enter")
    tab.wait("document.querySelector('.af-details').open")
    tab_to(tab, "method=0")
    tab.key("ArrowDown")
    settle(tab)
    assert "Rollout" in tab.run("document.querySelector('.af-details summary').textContent")
    tab.run("document.activeElement.blur()")
    tab_to(tab, "edit")
    tab.key("Enter")
    assert focused(tab) == "text"
    tab.call("Input.insertText", text=" g")
    assert not tab.run("document.getElementById('stale').hidden")
    tab.key("Enter", control=True)
    tab.wait("document.getElementById('ask').hidden && !document.getElementById('changed').hidden")
    assert "Before" in tab.run("document.getElementById('changed').innerText").title()


# -- links ----------------------------------------------------------------------------------------


def test_a_link_restores_form_method_layer_and_token(
    tab: Page, server: Client, browser: Browser
) -> None:
    methods = ["default", "rollout"]
    opened(tab, server, "generate", prompt="a b c d e", tokens=5, methods=methods, chat=True)
    open_details(tab)
    choose(tab, "method", "1")
    choose(tab, "layer", "0", "input")
    tab.click("document.querySelectorAll('.af-written')[3]")
    settle(tab)
    linked = browser.new_page()
    linked.size(1280, 900)
    linked.go(tab.run("document.getElementById('link').href"))
    linked.wait(DONE)
    settle(linked)
    for script in (
        SPOKEN,
        "document.querySelector('.af-details summary').textContent",
        "[...document.querySelectorAll('.af-chosen')].map(e => e.textContent).join()",
        "document.getElementById('text').value",
        "document.getElementById('tokens').value",
        "String(document.getElementById('chat').checked)",
        "[...document.querySelectorAll('[name=method]:checked')].map(e => e.value).join()",
    ):
        assert linked.run(script) == tab.run(script), script
    assert linked.run("document.getElementById('text').value") == "a b c d e"
    assert linked.run("document.querySelector('.af-details summary').textContent").startswith(
        "Details: Rollout"
    )
    assert not linked.run("document.body.classList.contains('stale')")
    assert linked.errors == []


def test_a_change_of_any_choice_makes_the_result_stale(tab: Page, server: Client) -> None:
    opened(tab, server, "generate", prompt="a b c", tokens=3)
    tab.click("document.getElementById('edit')")
    tab.run("document.getElementById('options').open = true")
    stale = "document.body.classList.contains('stale')"
    assert not tab.run(stale)
    for element in ("[name=method][value=raw]", "[name=method][value=careful]", "#chat"):
        tab.click(f"document.querySelector('{element}')")
        assert tab.run(stale), element
        tab.click(f"document.querySelector('{element}')")
        assert not tab.run(stale), element
    tab.click("document.querySelector('[name=task][value=chat] + span')")
    assert tab.run(stale)
    tab.click("document.getElementById('keep')")
    tab.wait("document.getElementById('ask').hidden")
    assert not tab.run(stale)


# -- methods beside each other --------------------------------------------------------------------


def test_ask_offers_methods_and_two_stand_side_by_side(tab: Page, server: Client) -> None:
    texts = [{"name": "one.txt", "text": "a b c d"}, {"name": "two.txt", "text": "e f g h"}]
    request: dict[str, Any] = {"question": "a b", "documents": texts, "tokens": 4}
    opened(tab, server, "ask", "r=0&o=1", **request, methods=["default", "rollout"])
    columns = tab.run(
        "[...document.querySelectorAll('.af-columns h3')].map(e => [e.textContent, "
        "e.getBoundingClientRect().left, e.getBoundingClientRect().width])"
    )
    first = "Balanced gradients · documents measured, too"
    assert [name for name, *_ in columns] == [first, "Rollout"]
    assert columns[1][1] >= columns[0][1] + columns[0][2]
    assert tab.run("document.querySelectorAll('.af-ranking').length") == 2
    tab.click("document.getElementById('edit')")
    offered = tab.run("[...document.querySelectorAll('#ask [name=method]')].map(e => e.value)")
    assert offered[:4] == ["default", "rollout", "raw", "flow"]
    assert set(offered) == {"default", *trace_methods(), "careful"}


def test_the_careful_method_on_the_page(tab: Page, server: Client) -> None:
    visit(tab, server)
    tab.click("document.querySelector('[name=task][value=generate] + span')")
    careful = "document.querySelector('[name=method][value=careful]')"
    tab.click(careful)
    assert tab.run("document.querySelector('[name=method]').disabled")
    tab.run("document.getElementById('text').value = 'a b c d'")
    tab.run("document.getElementById('tokens').value = 3")
    tab.click("document.getElementById('go')")
    tab.wait(DONE)
    assert "Careful" in tab.run("document.querySelector('.af-details summary').textContent")
    assert "the whole model" in tab.run("document.querySelector('.af-details summary').textContent")
    tokens = "[...document.querySelectorAll('.af-text .af-token')]"
    prompt = tab.run(f"{tokens}.map(e => e.textContent.trim())")
    assert prompt == ["b", "c", "d"]  # the first token is where attention sinks
    assert tab.run(f"{careful}.checked")
    tab.run("document.querySelector('[name=task][value=explain]').click()")
    tab.run("document.getElementById('model').value = 'verb-number'")
    tab.run("document.getElementById('model').dispatchEvent(new Event('change'))")
    assert tab.run(f"{careful}.disabled && {careful}.parentElement.hidden")  # no language model


def test_every_head_of_a_completion_is_a_thumbnail(tab: Page, server: Client) -> None:
    result = opened(tab, server, "generate", "d=1", prompt="a b c d e", tokens=4)
    heads = server.get(f"/api/results/{result}.json").json["heads"]
    assert (heads["heads"], len(heads["rows"]), len(heads["columns"])) == (2, 4, 8)
    tab.wait("document.querySelectorAll('.af-thumb').length === 4")
    tab.click("document.querySelectorAll('.af-thumb')[1]")
    settle(tab)
    said = "[...document.querySelectorAll('.af-said')].map(e => e.textContent).join(' ')"
    assert "Layer 1, head 2: “" in tab.run(said)
    pixels = tab.run(
        "(() => { const c = document.querySelectorAll('.af-thumb canvas')[1]; "
        "return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
        ".filter((v, k) => k % 4 === 3 && v > 0).length; })()"
    )
    assert pixels > 50


# -- chat -----------------------------------------------------------------------------------------


def test_a_conversation_is_held_and_its_messages_are_the_sources(
    tab: Page, server: Client, browser: Browser
) -> None:
    visit(tab, server)
    tab.click("document.querySelector('[name=task][value=chat] + span')")
    assert tab.run("document.getElementById('text').offsetParent") is None
    tab.run("document.querySelector('.message textarea').value = 'a b c'")
    tab.click("document.getElementById('add-message')")
    assert tab.run("document.querySelectorAll('.message select')[1].value") == "assistant"
    tab.run("document.querySelectorAll('.message textarea')[1].value = 'd e'")
    tab.click("document.getElementById('add-message')")
    tab.run("document.querySelectorAll('.message textarea')[2].value = 'f g h'")
    tab.run("document.getElementById('tokens').value = 4")
    tab.click("document.getElementById('go')")
    tab.wait(DONE)
    names = tab.run("[...document.querySelectorAll('.af-card-name')].map(e => e.textContent)")
    assert names  # those that stand out
    assert {*names} <= {"message 1 (user)", "message 2 (assistant)", "message 3 (user)"}
    link = tab.run("document.getElementById('link').href")
    texts = "[...document.querySelectorAll('.message textarea')].map(e => e.value)"
    answer = tab.run("document.querySelector('.af-answer-text').textContent").split()
    tab.click("document.getElementById('reply')")
    assert tab.run(texts)[3].split() == answer
    assert tab.run("document.activeElement.closest('.message') !== null")
    tab.call("Input.insertText", text="a")
    tab.click("document.getElementById('go')")
    tab.wait(f"document.getElementById('ask').hidden && {DONE}")
    settle(tab)
    assert tab.run("document.querySelectorAll('.af-text .af-heading').length") == 5
    linked = browser.new_page()
    linked.size(1280, 900)
    linked.go(link)
    linked.wait(DONE)
    assert linked.run(texts) == ["a b c", "d e", "f g h"]
    assert linked.errors == []


def test_the_chat_switch_changes_the_prompt(tab: Page, server: Client) -> None:
    plain = opened(tab, server, "generate", prompt="a b c", tokens=2, chat=False)
    framed = opened(tab, server, "generate", prompt="a b c", tokens=2, chat=True)
    lengths = [
        len(json.loads(server.get(f"/api/results/{name}.json").body)["sources"]["texts"])
        for name in (plain, framed)
    ]
    assert lengths == [3, 5]
