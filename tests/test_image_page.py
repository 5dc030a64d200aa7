"""The served page takes an image: by the interface, and by drag and drop in a real browser.

A vision model says what is in it; a vision-language model answers a question about it, and each
word of its answer has a map.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import attnflow
from attnflow.hosts import inputs
from attnflow.hosts.model import Model
from attnflow.show.view import results_of, unpack_values
from attnflow.testing import tiny_vision_model
from attnflow_connect.server.models import Limits, OfferedModel, embedded_models
from attnflow_experiments.scenes.drawn_scenes import random_scene
from browser import Page
from serving import Client, serving
from test_browser import visit

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def seeing() -> Model:
    """A vision model as `attnflow serve --model FOLDER` loads it: its processor beside it."""
    model, processor = tiny_vision_model()
    inputs._PROCESSORS[model] = processor  # type: ignore[index]
    return Model(model, None)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    eye = OfferedModel("tiny-eye", "sees", explains=False, generates=False, sees=True, load=seeing)
    with serving([embedded_models()[0], eye, answering()], Limits(image_bytes=200_000)) as running:
        yield running


def answering() -> OfferedModel:
    """The vision-language model that ships, as every server offers it."""
    return next(model for model in embedded_models() if model.answers)


def png_of(pixels: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


def send(client: Client, **fields: Any) -> Any:
    image = base64.b64encode(png_of(PIXELS)).decode()
    return client.post("/api/image", {"model": "tiny-eye", "image": image, **fields})


def test_an_image_is_explained_as_the_library_does(client: Client) -> None:
    started = send(client, name="noise.png", methods=["rollout", "raw"])
    assert started.status == 202
    job = client.finished(started.json["id"])
    assert job["state"] == "done", job
    document = client.get(f"/api/results/{job['result']}.json").json
    model, processor = tiny_vision_model()
    expected = attnflow.explain((model, processor), PIXELS, "rollout", targets="all")
    np.testing.assert_allclose(unpack_values(document), expected.values, atol=1e-4)
    assert document["title"] == "noise.png"
    assert document["prediction"]["label"] == expected.prediction.label  # type: ignore[union-attr]
    assert document["image"]["picture"].startswith("data:image/jpeg;base64,")
    assert document["request"] == {
        "task": "image", "model": "tiny-eye", "name": "noise.png", "methods": ["rollout", "raw"]
    }  # fmt: skip
    report = client.get(f"/api/results/{job['result']}.html").body.decode()
    assert document["image"]["picture"] in report  # the report holds the image, reduced
    figure = client.get(f"/api/results/{job['result']}.png").body
    assert Image.open(io.BytesIO(figure)).size[0] > 300


def test_what_is_offered_says_who_sees(client: Client) -> None:
    offers = client.get("/api/models").json
    assert {one["name"]: one["sees"] for one in offers["models"]} == {
        "verb-number": False, "tiny-eye": True, "scenes": False
    }  # fmt: skip
    assert [one["name"] for one in offers["models"] if one["answers"]] == ["scenes"]
    (drawing,) = [one["picture"] for one in offers["models"] if one["picture"]]
    assert Image.open(io.BytesIO(base64.b64decode(drawing.partition(",")[2]))).size == (48, 48)
    assert offers["limits"]["image_bytes"] == 200_000


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"image": ""}, "There is no image"),
        ({"image": "%%%"}, "not in base64"),
        ({"model": "verb-number"}, "There is no model 'verb-number' here to look at an image"),
        ({"methods": ["magic"]}, "Unknown method 'magic'"),
        ({"image": 5}, "'image' must be a text; got 5"),
    ],
)
def test_requests_that_cannot_be_met_get_a_sentence(
    client: Client, fields: dict[str, Any], sentence: str
) -> None:
    refused = send(client, **fields)
    assert refused.status == 422
    assert sentence in refused.json["error"]


def test_bytes_that_are_no_image_fail_in_a_sentence(client: Client) -> None:
    started = send(client, image=base64.b64encode(b"no image").decode())
    job = client.finished(started.json["id"])
    assert job["state"] == "failed"
    assert "is not an image that can be read" in job["error"]


def test_only_images_may_be_large(client: Client) -> None:
    large = "A" * 150_000
    refused = client.post("/api/explain", {"model": "verb-number", "text": large})
    assert refused.status == 413
    assert send(client, image=large).status in (202, 422)  # looked at, not turned away
    assert send(client, image="A" * 300_000).status == 413


SCENE = random_scene(seed=3_000_007)
PLACE = SCENE.questions[-1]  # its answer has two words


def ask_about_scene(client: Client, **fields: Any) -> Any:
    image = base64.b64encode(png_of(SCENE.image())).decode()
    body = {"model": "scenes", "image": image, "question": PLACE.text, **fields}
    return client.post("/api/image-question", body)


def test_a_question_about_an_image_is_answered_as_the_library_does(client: Client) -> None:
    started = ask_about_scene(client, methods=["default", "raw"])
    assert started.status == 202
    job = client.finished(started.json["id"])
    assert job["state"] == "done", job
    assert job["text"].split() == PLACE.answer.split()
    document = client.get(f"/api/results/{job['result']}.json").json
    expected = attnflow.generate("scenes", PLACE.text, images=[SCENE.image()])
    np.testing.assert_allclose(unpack_values(document), expected.values, atol=1e-3)
    assert document["request"]["question"] == PLACE.text
    assert "image" not in document["request"]
    (image,) = document["images"]
    assert (image["rows"], image["columns"], image["prefix"], image["start"]) == (6, 6, 1, 0)
    assert image["picture"].startswith("data:image/jpeg;base64,")
    figure = client.get(f"/api/results/{job['result']}.png").body
    assert Image.open(io.BytesIO(figure)).size[0] > 300
    back = results_of(document)[0]
    assert back.sources == expected.sources
    assert len(back.provenance["images"]) == 1


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"question": " "}, "the text is empty"),
        ({"image": ""}, "There is no image"),
        ({"model": "tiny-eye"}, "There is no model 'tiny-eye' here to answer a question about"),
        ({"tokens": 0}, "'tokens' is from 1 to 64"),
        ({"methods": ["altai"]}, "Unknown method 'altai'"),
    ],
)
def test_questions_that_cannot_be_asked_get_a_sentence(
    client: Client, fields: dict[str, Any], sentence: str
) -> None:
    refused = ask_about_scene(client, **fields)
    assert refused.status == 422
    assert sentence in refused.json["error"]


# -- in a browser ---------------------------------------------------------------------------------


_HAND_OVER = """(async () => {
  const bytes = Uint8Array.from(atob(%r), (sign) => sign.charCodeAt(0));
  const file = new File([bytes], %r, { type: %r });
  const carried = new DataTransfer();
  carried.items.add(file);
  %s
})()"""
_DROP = "for (const kind of ['dragenter', 'dragover', 'drop']) document.body.dispatchEvent(new "
_DROP += "DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: carried }));"
_CHOOSE = "const field = document.getElementById('photo-file'); field.files = carried.files; "
_CHOOSE += "field.dispatchEvent(new Event('change', { bubbles: true }));"


def hand_over(tab: Page, content: bytes, name: str, kind: str, how: str) -> None:
    tab.run(_HAND_OVER % (base64.b64encode(content).decode(), name, kind, how))


@pytest.mark.parametrize("how", [_DROP, _CHOOSE], ids=["dropped", "chosen"])
def test_an_image_is_dropped_or_chosen_and_its_map_shown(
    client: Client, tab: Page, how: str
) -> None:
    visit(tab, client)
    tab.wait("document.getElementById('photo')")
    hand_over(tab, png_of(PIXELS), "noise.png", "image/png", how)
    tab.wait("document.querySelector('.af-picture canvas')?.width > 10")
    assert "noise.png" in tab.run("document.body.textContent")
    label = tiny_vision_model().module.config.id2label  # type: ignore[union-attr]
    assert any(name in tab.run("document.body.textContent") for name in label.values())
    assert tab.run("document.getElementById('photo').hidden")  # out of the way of the result
    assert "Image" in tab.run("document.querySelector('.af-head').textContent")


_WARM = """[...document.querySelectorAll('.af-small-map')].map((canvas) => {
  const side = canvas.width / 6;
  const pen = canvas.getContext('2d');
  return Array.from({ length: 36 }, (_, k) => {
    const [x, y] = [(k % 6) * side, Math.floor(k / 6) * side];
    const pixels = pen.getImageData(x + side / 4, y + side / 4, side / 2, side / 2).data;
    let warm = 0;
    for (let p = 0; p < pixels.length; p += 4) warm += pixels[p] - pixels[p + 1] - pixels[p + 2];
    return warm / (pixels.length / 4);
  });
})"""  # for each small map, how red every patch is: where the map is strong


# A photo is loaded after its map is drawn: then even a corner without a map is opaque.
_IS_OPAQUE = """(canvas) =>
  canvas.getContext('2d').getImageData(3, canvas.height - 3, 1, 1).data[3] === 255"""


def test_each_word_of_an_answer_stands_over_its_map(client: Client, tab: Page) -> None:
    visit(tab, client)
    tab.wait("document.getElementById('photo')")
    tab.run("document.querySelector('#photo select').value = 'scenes'")
    tab.run("document.querySelector('#photo select').dispatchEvent(new Event('change'))")
    hand_over(tab, png_of(SCENE.image()), "scene.png", "image/png", _DROP)
    tab.wait("document.querySelector('.photo-preview').naturalWidth === 48")
    tab.run(f"document.getElementById('photo-question').value = {PLACE.text!r}")
    tab.click("document.getElementById('photo-ask')")
    tab.wait("document.querySelector('.af-small-map')?.width > 10")
    words = tab.run("[...document.querySelectorAll('.af-mapped')].map((one) => one.textContent)")
    assert words == PLACE.answer.split()
    assert "Question about an image" in tab.run("document.querySelector('.af-head').textContent")
    expected = attnflow.generate("scenes", PLACE.text, images=[SCENE.image()]).layer(-1)
    tab.wait(f"[...document.querySelectorAll('.af-small-map')].every({_IS_OPAQUE})")
    for row, warm in enumerate(tab.run(_WARM)):  # seen without hovering: a map for each word
        patches = expected.values[0, row][expected.sources.images[0].patches]
        assert patches[np.argmax(warm)] > 0.8 * patches.max()  # patches of one object are close
    assert tab.errors == []


_PHOTO_IS_THERE = f"({_IS_OPAQUE})(document.querySelector('.af-picture canvas'))"
_LARGE = "document.querySelector('.af-picture canvas').toDataURL()"


def test_hover_and_keys_switch_the_large_map(client: Client, tab: Page) -> None:
    job = client.finished(ask_about_scene(client).json["id"])
    tab.go("about:blank")
    tab.go(f"{client.address}#{job['result']}")
    tab.wait("document.querySelector('.af-picture canvas')?.width > 10")
    tab.wait(_PHOTO_IS_THERE)  # it is loaded after the map is drawn
    first = tab.run(_LARGE)
    x, y = tab.place("document.querySelectorAll('.af-small-map')[1]")
    tab.mouse("mouseMoved", x, y)
    tab.wait(f"{_LARGE} !== {first!r}")
    second = PLACE.answer.split()[1]
    tab.wait(f"document.querySelector('.af-spoken').textContent.includes({second!r})")
    hovered = tab.run(_LARGE)
    tab.mouse("mouseMoved", 2, 2)
    tab.wait(f"{_LARGE} === {first!r}")
    tab.run("document.querySelector('.af-answer-text').focus()")
    tab.key("ArrowRight")
    tab.wait(f"{_LARGE} === {hovered!r}")
    chosen = "document.querySelector('.af-mapped:has(.af-chosen)').textContent"
    assert tab.run(chosen) == second


def test_a_question_without_an_image_is_said_on_the_page(client: Client, tab: Page) -> None:
    visit(tab, client)
    tab.wait("document.getElementById('photo')")
    tab.run("document.querySelector('#photo select').value = 'scenes'")
    tab.run("document.querySelector('#photo select').dispatchEvent(new Event('change'))")
    tab.click("document.getElementById('photo-ask')")
    tab.wait("document.getElementById('photo-status').textContent.includes('There is no image')")
    tab.click("document.getElementById('photo-sample')")
    tab.click("document.getElementById('photo-ask')")
    tab.wait("document.getElementById('photo-status').textContent.includes('There is no question')")


def test_what_is_no_image_is_said_on_the_page(client: Client, tab: Page) -> None:
    visit(tab, client)
    tab.wait("document.getElementById('photo')")
    hand_over(tab, b"no image at all", "notes.txt", "text/plain", _DROP)
    tab.wait("document.getElementById('error').textContent.includes('not an image')")
    assert not tab.run("document.getElementById('photo').hidden")  # for another try
