"""The view document and the page that carries it: what they hold, and what they let out."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnflow_connect
from attnflow import (
    AttentionTrace,
    Attribution,
    Flow,
    LayeredGraph,
    Prediction,
    Raw,
    Rollout,
    Tokens,
)
from attnflow.attribution import Verdict
from attnflow.cli.app import _run
from attnflow.errors import FileError, InputError
from attnflow.show.packing import png
from attnflow.show.page import SCRIPTS, VIEWER_FOLDER, answer_html, embedded_json, page
from attnflow.show.view import results_of, unpack_values, view
from attnflow.testing import random_attention, random_trace
from attnflow.tokens.patches import Grid, ImagePatches, patch_names

SERVED_PAGE = Path(attnflow_connect.__file__).parent / "server" / "page"
HOSTILE = [
    "</script>",
    "<script>alert(1)</script>",
    "<!--",
    "&lt;",
    "'\"",
    "\u2028",
    "]]>",
    "`${1}",
]


def result(values: Any, sources: list[str], targets: list[str] | None = None) -> Attribution:
    array = np.array(values, dtype=float)
    named = Tokens.of(sources if targets is None else targets)
    layers = tuple(range(1, len(array) + 1))
    return Attribution(array, layers, named, Tokens.of(sources), Rollout())


class Reader(HTMLParser):
    """A parser's view of a page: elements in order, each with the text that follows its tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.texts.append(("/" + tag, {}, ""))

    def handle_data(self, data: str) -> None:
        if self.texts:
            tag, attributes, text = self.texts[-1]
            self.texts[-1] = (tag, attributes, text + data)

    def find(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.texts if name == tag]


# -- the document ----------------------------------------------------------------------------------


def test_values_survive_to_four_digits_of_their_row() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 4, 7)) * 10.0 ** rng.integers(-8, 3, size=(3, 4, 1))
    values[1, 2] = 0.0
    found = unpack_values(
        json.loads(json.dumps(view(result(values, list("abcdefg"), list("wxyz")))))
    )
    strongest = np.abs(values).max(axis=2, keepdims=True)
    assert (np.abs(found - values) <= strongest / 32_767 * 0.51 + 1e-12).all()
    assert (found[1, 2] == 0).all()


def test_the_bytes_are_what_the_format_says() -> None:
    document = view(result([[[0.5, -0.25]]], ["a", "b"], ["t"]))
    layer = document["results"][0]["values"][0]
    assert struct.unpack("<2h", base64.b64decode(layer["values"])) == (32767, -16384)
    (scale,) = struct.unpack("<f", base64.b64decode(layer["scale"]))
    assert scale == pytest.approx(0.5 / 32767)


def test_a_large_result_keeps_the_strongest_and_says_what_it_left_out() -> None:
    rng = np.random.default_rng(1)
    values = rng.random((2, 900, 600)) ** 8
    names = [f"t{k}" for k in range(900)]
    big = Attribution(values, (1, 2), Tokens.of(names), Tokens.of(names[:600]), Raw())
    document = view(big)
    found = unpack_values(document)
    for layer, target in ((0, 0), (1, 899), (1, 450)):
        row, kept = values[layer, target], found[layer, target]
        strongest = set(np.argsort(row)[-64:].tolist())
        assert set(np.flatnonzero(kept).tolist()) <= strongest
        packed = document["results"][0]["values"][layer]
        rest = np.frombuffer(base64.b64decode(packed["rest"]), "<f4")[target]
        assert kept.sum() + rest == pytest.approx(row.sum(), rel=1e-3)
        assert packed["kept"] == 64


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")  # saturated on purpose
def test_marks_and_mass_elsewhere_and_the_certificate_are_kept() -> None:
    trace = random_trace(layers=5, length=6, seed=3)
    flow = Flow()(trace, threads=1)
    assert flow.saturated is not None
    assert flow.upper is not None
    record = view(flow)["results"][0]
    for layer, packed in enumerate(record["saturated"]):
        bits = np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8), bitorder="little")
        assert (bits[:36].reshape(6, 6).astype(bool) == flow.saturated[layer]).all()
    assert record["gap"] == float((flow.upper - flow.lower).max())
    spans = Rollout()(trace).spans({"start": (0, 2)})
    found = np.frombuffer(base64.b64decode(view(spans)["results"][0]["elsewhere"]), "<f4")
    assert found.reshape(5, 6) == pytest.approx(Rollout()(trace).values[:, :, 2:].sum(axis=-1))


# -- and back --------------------------------------------------------------------------------------


def check_round_trip(original: Attribution, folder: Path) -> Attribution:
    """Everything a result holds comes back from the page's JSON, numbers to their digits."""
    path = folder / "page.json"
    path.write_text(json.dumps(view(original)), encoding="utf-8")
    back = Attribution.load(path)
    step = np.abs(original.values).max(axis=2, keepdims=True) / 32_767
    assert (np.abs(back.values - original.values) <= step * 0.51 + 1e-9).all()
    assert (original.lower is None) == (back.lower is None)
    if original.lower is not None and original.upper is not None:
        assert back.lower is not None
        assert back.upper is not None
        assert (back.lower <= original.lower).all()  # rounded outwards: they still enclose
        assert (back.upper >= original.upper).all()
        gap = (original.upper - original.lower).max() / 32_000
        assert (original.lower - back.lower <= 2 * step.max() + gap + 1e-9).all()
        assert (back.upper - original.upper <= 2 * step.max() + gap + 1e-9).all()
    for name in ("elsewhere", "dependence"):
        one, other = getattr(original, name), getattr(back, name)
        assert (one is None) == (other is None)
        assert one is None or other == pytest.approx(one, rel=1e-6, abs=1e-9)
    assert original.saturated is None or (back.saturated == original.saturated).all()
    same = ("layers", "targets", "sources", "method", "steps", "prediction", "verdicts")
    for name in same:
        assert getattr(back, name) == getattr(original, name), name
    assert dict(back.provenance) == dict(original.provenance)
    assert (back.title, back.recipe, back.collapsed) == (
        *(original.title, original.recipe),
        original.collapsed,
    )
    return back


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
def test_the_json_of_a_page_is_the_result_again(tmp_path: Path) -> None:
    from attnflow import ask, explain, generate
    from attnflow.testing import tiny_decoder

    trace = random_trace(layers=4, length=7, seed=2)
    flow = Flow()(trace, threads=1)
    check_round_trip(flow, tmp_path)
    check_round_trip(flow.normalize("max"), tmp_path)
    rollout = Rollout()(trace)
    check_round_trip(rollout.minus(rollout.normalize("max"), name="scaled"), tmp_path)
    check_round_trip(rollout.spans({"start": (0, 2)}), tmp_path)
    assert check_round_trip(explain("verb-number", "the key"), tmp_path).prediction is not None
    model, tokenizer = tiny_decoder()
    written = generate((model, tokenizer), "the keys to", max_new_tokens=3)
    assert len(check_round_trip(written, tmp_path).verdicts) == 1
    texts = {"a": "the author .", "b": "is old ."}
    answer = ask((model, tokenizer), "the keys", texts, max_new_tokens=4)
    assert check_round_trip(answer.result, tmp_path).provenance["documents"]


def test_wide_bounds_of_a_large_result_still_enclose(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    values = rng.random((2, 900, 600)) ** 8
    names = Tokens.of([f"t{k}" for k in range(900)])
    wide = Attribution(
        values,
        (1, 2),
        names,
        names.select(range(600)),
        Raw(),
        lower=values * 0.5,
        upper=values + 0.25,
    )
    path = tmp_path / "page.json"
    path.write_text(json.dumps(view(wide)), encoding="utf-8")
    back = Attribution.load(path)
    assert wide.lower is not None
    assert wide.upper is not None
    assert back.lower is not None
    assert back.upper is not None
    assert (back.lower <= wide.lower).all()
    assert (back.upper >= wide.upper).all()
    strongest = values.argmax(axis=2)[..., None]
    at = [np.take_along_axis(array, strongest, axis=2) for array in (back.upper, wide.upper)]
    assert at[0] == pytest.approx(at[1], abs=1e-3)


def test_one_text_where_targets_are_sources_and_two_where_they_follow() -> None:
    same = view(result(np.ones((1, 2, 2)), ["[CLS]", "key"]))["items"]
    assert [(item["text"], item["source"], item["target"]) for item in same] == [
        ("[CLS]", 0, 0),
        (" key", 1, 1),
    ]
    written = Attribution(
        np.ones((1, 2, 2)),
        (1,),
        Tokens(("ĠRome", "."), (2, 3)),
        Tokens.of(["Tom", "Ġin"]),
        Raw(),
    )
    document = view(written)
    shown = [(item["text"], item["source"], item["target"]) for item in document["items"]]
    assert shown == [("Tom", 0, None), (" in", 1, None), (" Rome", None, 0), (".", None, 1)]
    assert [item["common"] for item in document["items"]] == [False, True, False, True]


def test_names_that_are_no_tokens_stand_apart() -> None:
    spans = Rollout()(random_trace(length=4)).spans({"both": (0, 2), "other": (1, 4)})
    items = view(spans)["items"]
    assert [item["source"] for item in items] == [0, 1, None, None, None, None]
    assert [item["target"] for item in items] == [None, None, 0, 1, 2, 3]


def test_the_view_opens_where_the_prediction_was_read() -> None:
    weights = random_attention(2, 1, 4, seed=0)
    said = Prediction("plural", 0.7, 3)
    trace = AttentionTrace.from_arrays(weights, list("abcd"), prediction=said)
    document = view(Rollout()(trace, targets=[1, 3]))
    assert document["start"] == 1
    assert document["prediction"]["label"] == "plural"


def test_graph_capacities_are_whole_numbers_of_the_strongest() -> None:
    trace = random_trace(layers=2, length=4)
    graph = Flow().graph(trace)
    record = view(Rollout()(trace), graph=graph)["graph"]
    for packed, layer in zip(record["capacities"], graph.capacities, strict=True):
        whole = np.frombuffer(base64.b64decode(packed), "<u2").reshape(4, 4)
        assert whole * record["unit"] == pytest.approx(layer, abs=1e-5)
    large = LayeredGraph.from_capacities(np.ones((2, 200, 200)))
    assert view(result(np.ones((2, 200, 200)), ["a"] * 200), graph=large)["graph"] is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: view([]), "at least one result; got none"),
        (
            lambda: view([result([[[1.0]]], ["a"]), result([[[1.0]]], ["b"])]),
            "about the same targets and sources",
        ),
        (
            lambda: view(
                result([[[1.0]]], ["a"]), graph=LayeredGraph.from_capacities(np.ones((2, 1, 1)))
            ),
            r"2 layers × 1 positions and the result 1 × 1",
        ),
        (lambda: view(result([[[1.0]]], ["a"]), image=np.ones((2, 2))), "over the patches"),
        (lambda: png(np.full((2, 2), -1.0)), "run from -1 to -1. Undo the model's"),
        (lambda: png(np.ones((2, 2, 5))), r"got shape \(2, 2, 5\)"),
    ],
)
def test_what_cannot_be_shown_is_refused(wrong: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        wrong()


def test_a_document_of_another_version_is_refused() -> None:
    with pytest.raises(FileError, match=r"not a view of version 1.*version 9"):
        unpack_values({"format": "attnflow-view", "version": 9})


@pytest.mark.parametrize(
    ("model", "shown"), [("/home/me/secret/bert", "bert"), ("org/model", "org/model")]
)
def test_a_folder_is_not_given_away(model: str, shown: str) -> None:
    named = replace(Rollout()(random_trace(length=3)), provenance={"model": model})
    document = view(named)
    assert document["model"] == document["results"][0]["provenance"]["model"] == shown
    assert "secret" not in named.to_html()


# -- pictures --------------------------------------------------------------------------------------


def test_png_is_read_back_by_another_library() -> None:
    image = pytest.importorskip("PIL.Image")
    import io

    pixels = np.random.default_rng(0).integers(0, 256, size=(5, 7, 3), dtype=np.uint8)
    with image.open(io.BytesIO(png(pixels))) as opened:
        assert (np.asarray(opened) == pixels).all()
    clear = np.random.default_rng(0).integers(0, 256, size=(5, 7, 4), dtype=np.uint8)
    with image.open(io.BytesIO(png(clear))) as opened:
        assert (np.asarray(opened) == clear).all()
    with image.open(io.BytesIO(png(np.full((2, 3), 0.5)))) as opened:
        assert (np.asarray(opened) == 128).all()
    assert zlib.crc32(b"IEND") == int.from_bytes(png(pixels)[-4:], "big")


def test_an_image_carries_its_grid_and_its_picture() -> None:
    grid = Grid(2, 3, 1, 4, 6)
    tokens = Tokens(patch_names(grid, ("[CLS]",)), grid=grid)
    vision = Attribution(np.ones((1, 7, 7)), (1,), tokens, tokens, Raw())
    document = view(vision, image=np.zeros((4, 6, 3), np.uint8))
    assert document["image"]["picture"].startswith("data:image/png;base64,iVBOR")
    assert (document["image"]["rows"], document["image"]["columns"]) == (2, 3)
    assert [item["text"] for item in document["items"]] == ["[CLS]"]
    assert view(vision)["image"]["picture"] is None


# -- the page --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")  # saturated on purpose
def test_images_among_words_are_looked_at_and_the_words_read() -> None:
    grids = Grid(1, 2, 1, 8, 16), Grid(2, 1, 0, 16, 8)
    images = ImagePatches("image 1", grids[0], 0), ImagePatches("image 2", grids[1], 4)
    names = ("[CLS]", "a", "b", "what", "c", "d", "is", "red")
    words = (None, None, None, 3, None, None, 6, 7)
    sources = Tokens(names, words=words, images=images)
    values = np.arange(16.0).reshape(1, 2, 8)
    about = {"completion": "a circle", "images": ["data:image/png;base64,AA", "data:,"]}
    answer = Attribution(values, (1,), Tokens(("a", "circle")), sources, Raw(), provenance=about)
    document = view(answer)
    assert document["title"] == "what is red"
    assert document["image"] is None
    assert [image["start"] for image in document["images"]] == [0, 4]
    assert document["images"][1]["picture"] == "data:,"
    read = [(item["source"], item["target"]) for item in document["items"]]
    assert read == [(3, None), (6, None), (7, None), (None, 0), (None, 1)]
    assert document["passages"] == []
    back = results_of(json.loads(json.dumps(document)))[0]
    assert back.sources == sources
    assert back.provenance["images"] == about["images"]
    assert "images" not in document["results"][0]["provenance"]  # once, not in every result


def test_a_page_is_one_file_that_fetches_nothing_and_is_small() -> None:
    words = [f"word{k}" for k in range(50)]
    trace = AttentionTrace.from_arrays(random_attention(6, 2, 50, seed=0), words)
    results = [method(trace) for method in (Rollout(), Raw(), Flow())]
    text = page(view(results, graph=Flow().graph(trace)))
    assert len(text.encode()) < 300_000
    for _, attributes, _ in Reader(text).texts:
        assert not {"src", "href", "action"} & set(attributes)
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", text)
    assert len(results[0].to_html().encode()) < 150_000


def test_no_token_can_leave_its_place() -> None:
    text = result(np.ones((1, len(HOSTILE), len(HOSTILE))), HOSTILE).to_html(title="</title><b>")
    reader = Reader(text)
    scripts = reader.find("script")
    assert [attributes.get("type") for attributes, _ in scripts] == ["application/json", None]
    document = json.loads(scripts[0][1])
    assert document["sources"]["texts"] == HOSTILE
    assert reader.find("title")[0][1] == "</title><b> · attnflow"
    assert not reader.find("b")
    packed = embedded_json({"a": "\u2028é<!--<script></script>&"})
    assert re.fullmatch(r"[\x20-\x7e]*", packed)
    assert not set("<>&") & set(packed)


def test_the_policy_names_exactly_the_scripts_of_the_page() -> None:
    import hashlib

    reader = Reader(result([[[1.0]]], ["a"]).to_html())
    policy = next(a["content"] for a, _ in reader.find("meta") if "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, which in (("script", 1), ("style", 0)):
        digest = hashlib.sha256(reader.find(tag)[which][1].encode()).digest()
        assert f"'sha256-{base64.b64encode(digest).decode()}'" in policy


def test_the_viewer_never_writes_markup() -> None:
    for path in [*VIEWER_FOLDER.glob("*.js"), *SERVED_PAGE.glob("*.js")]:
        text = path.read_text(encoding="utf-8")
        assert "</" not in text, f"{path.name} would end the script it stands in"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
        assert not re.search(r'setAttribute\("style"', text), "the policy forbids it"
    assert {path.name for path in VIEWER_FOLDER.glob("*.js")} == {*SCRIPTS, "open.js"}


def test_no_text_of_a_result_can_leave_its_place_in_a_notebook() -> None:
    hostile = "</div><script>alert(1)</script><b title='\"'>"
    tokens = Tokens.of([hostile, "key"])
    certain = Verdict("rests", (hostile,), 1, -0.1, -4.6, part="word")
    for about in (
        {"prediction": Prediction(hostile, 0.9, 0)},
        {"provenance": {"completion": hostile}},
    ):
        shown = Attribution(
            np.ones((1, 2, 2)), (1,), tokens, tokens, Raw(), verdicts=(certain,), **about
        )
        for text in (shown._repr_html_(), answer_html(shown, question=hostile, lines=[hostile])):
            reader = Reader(text)
            assert not {"script", "b"} & {tag for tag, *_ in reader.texts}
            assert "alert(1)" in "".join(body for *_, body in reader.texts)


def test_a_notebook_shows_the_static_form_and_the_viewer_on_request() -> None:
    shown = result(np.ones((1, 2, 2)), ["</script>", "b"])
    static = shown._repr_html_()
    assert "<script" not in static
    assert "<iframe" not in static
    reader = Reader(shown.viewer(height=500)._repr_html_())
    frame = reader.find("iframe")[0][0]
    assert frame["sandbox"] == "allow-scripts"
    assert frame["srcdoc"] == shown.to_html()
    assert "height:500px" in (frame["style"] or "")
    assert reader.find("table")


# -- the command line ------------------------------------------------------------------------------


def read_data(path: Path) -> dict[str, Any]:
    return dict(json.loads(Reader(path.read_text(encoding="utf-8")).find("script")[0][1]))


def test_report_compares_methods_on_one_page(tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    assert _run(["report", "the key to the cabinets", "--output", str(output)]) == 0
    document = read_data(output)
    assert [found["name"] for found in document["results"]] == [
        "balanced",
        "rollout",
        "raw",
        "flow",
    ]
    assert document["title"] == "the key to the cabinets"
    assert document["graph"]["length"] == 7
    assert document["start"] == 0


def test_report_takes_methods_and_a_title(tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    chosen = ["--methods", "flow", "--methods", "gradient-rollout", "--title", "Keys"]
    assert _run(["report", "the key", *chosen, "--output", str(output)]) == 0
    document = read_data(output)
    assert [found["name"] for found in document["results"]] == ["flow", "gradient-rollout"]
    assert document["title"] == "Keys"


def test_explain_writes_a_page_of_every_target(tmp_path: Path) -> None:
    output = tmp_path / "x.html"
    assert _run(["explain", "the key to the cabinets", "--output", str(output)]) == 0
    assert unpack_values(read_data(output)).shape == (6, 7, 7)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "r.html"], "give TEXT, or --prompt"),
        (["a", "--prompt", "b", "--output", "r.html"], "give TEXT, or --prompt"),
        (["a", "--output", "r.pdf"], "its ending is .html"),
        (["  ", "--output", "r.html"], "nothing to explain"),
        (["a", "--output", "nowhere/r.html"], "there is no folder 'nowhere'"),
        (["a", "--methods", "flaw", "--output", "r.html"], "Did you mean 'flow'?"),
    ],
)
def test_report_refuses_what_it_cannot_do(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["report", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_report_and_generate_write_completions(tmp_path: Path) -> None:
    from test_server import tiny_writer

    loaded = tiny_writer()
    loaded.module.save_pretrained(tmp_path / "writer")
    loaded.tokenizer.save_pretrained(tmp_path / "writer")
    model = ["--model", str(tmp_path / "writer"), "--max-new-tokens", "4"]
    output = tmp_path / "x.html"
    methods = ["--methods", "rollout", "--methods", "flow"]
    assert _run(["report", "--prompt", "a b c", *model, *methods, "--output", str(output)]) == 0
    document = read_data(output)
    assert [found["name"] for found in document["results"]] == ["rollout", "flow"]
    assert document["model"] == "writer"
    assert [item["target"] for item in document["items"]] == [None, None, None, 0, 1, 2, 3]
    output.unlink()
    assert _run(["generate", "a b c", *model, "--method", "raw", "--output", str(output)]) == 0
    assert unpack_values(read_data(output)).shape == (2, 4, 3)


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")  # saturated on purpose
def test_what_a_reader_must_know_first_stands_once_in_the_document() -> None:
    """What the model says stands in the heading; what a reader must know stands with its result."""
    from attnflow import explain

    result = explain(None, "the key to the cabinets", "flow", targets="all")
    record = view(result)["results"][0]
    assert "saturated at layer 6" in record["caveats"][0]
    assert record["remarks"] == []
    collapsed = view(explain(None, "the key", "raw", targets="all"))["results"][0]["caveats"]
    assert [sentence.split(":")[0] for sentence in collapsed] == [
        "The rows have collapsed at layer 6"
    ]
    trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    assert view(Rollout()(trace))["results"][0]["caveats"] == []


def test_every_module_the_docs_name_exists() -> None:
    import importlib

    root = Path(__file__).parents[1]
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").glob("*.md")]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        for module in re.findall(r"from (attnflow[\w.]*) import", text):
            importlib.import_module(module)
        for dotted in re.findall(r"(?<![\w.-])attnflow((?:\.[a-z_]+\w*)+)", text):
            value: object = importlib.import_module("attnflow")
            for name in dotted[1:].split("."):
                if name in ("adapters", "bench", "commands"):  # names of entry-point groups
                    break
                if not hasattr(value, name):
                    importlib.import_module(f"{value.__name__}.{name}")  # type: ignore[attr-defined]
                value = getattr(value, name)
        for file in re.findall(r"\((?:\.\./)?(src/[\w./-]+)\)", text):
            assert (root / file).is_file(), f"{path.name} names {file}"
