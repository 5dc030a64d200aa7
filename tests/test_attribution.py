"""What a result can do: choose, rescale, merge, show, keep."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow import AttentionTrace, Attribution, Flow, LayeredGraph, Raw, Rollout, Tokens
from attnflow.errors import FileError, InputError, MethodError, TargetError
from attnflow.testing import random_attention, random_trace
from attnflow.trace import Prediction

# What these tests are about is not what a deep result says; tests/test_collapse.py is.

TRACE = random_trace(layers=3, heads=2, length=5, seed=11)
FLOW = Flow()(TRACE)


def pieces_trace() -> AttentionTrace:
    tokens = ["[CLS]", "un", "##lock", "book", "[SEP]"]
    return AttentionTrace.from_arrays(random_attention(2, 1, 5, seed=2), tokens)


def test_axes_stay_three_whatever_is_asked() -> None:
    assert FLOW.values.shape == (3, 5, 5)
    assert FLOW.row("t2").values.shape == (3, 1, 5)
    assert FLOW.layer(2).values.shape == (1, 5, 5)
    assert FLOW.row(2).layer(-1).values.shape == (1, 1, 5)
    assert FLOW.row(2).row("t2").lower is not None


def test_row_and_layer_are_the_right_ones() -> None:
    assert np.array_equal(FLOW.row("t3").layer(2).values[0, 0], FLOW.values[1, 3])
    with pytest.raises(InputError, match=r"no layer 7 in this result; it has 1, 2, 3"):
        FLOW.layer(7)
    with pytest.raises(TargetError, match="No token 'x'"):
        FLOW.row("x")


def test_the_highest_layer_is_the_highest_in_any_order() -> None:
    """layer(-1) was the one asked for last."""
    every = Rollout()(TRACE)
    turned = Rollout()(TRACE, layers=[3, 1])
    assert turned.layers == (3, 1)
    assert turned.layer(-1).layers == (3,)
    np.testing.assert_array_equal(turned.layer(-1).values, every.layer(3).values)
    assert turned.top(target=2) == every.top(target=2)
    assert "layer 3" in turned._repr_html_()
    marks = np.zeros((2, 5, 5), dtype=np.bool_)
    marks[0] = True
    assert "100 % of these flows are saturated at layer 3" in (
        replace(turned, saturated=marks)._repr_html_()
    )


def test_top() -> None:
    best = FLOW.top(2, target="t1")
    order = np.argsort(-FLOW.values[-1, 1])
    assert [c.position for c in best] == order[:2].tolist()
    assert best[0].token == f"t{order[0]}"
    assert best[0].value == FLOW.values[-1, 1, order[0]]
    assert FLOW.row("t1").top(2) == best
    assert len(FLOW.row(0).top(99)) == 5
    with pytest.raises(TargetError, match="this result has 5; name it"):
        FLOW.top(2)
    with pytest.raises(InputError, match="at least 1; got 0"):
        FLOW.row(0).top(0)


def test_normalize_keeps_bounds_around_the_value() -> None:
    for how in ("sum", "max"):
        result = FLOW.normalize(how)  # type: ignore[arg-type]
        assert result.lower is not None
        assert result.upper is not None
        assert (result.lower <= result.values + 1e-15).all()
        assert (result.values <= result.upper + 1e-15).all()
        assert result.steps == (f"normalize({how!r})",)
        assert how in result.recipe
    assert np.allclose(FLOW.normalize("sum").values.sum(axis=-1), 1)
    assert np.allclose(FLOW.normalize("max").values.max(axis=-1), 1)
    with pytest.raises(MethodError, match=r"normalize='summ': Did you mean 'sum'"):
        FLOW.normalize("summ")  # type: ignore[arg-type]


def test_merge_words_sums_sources_and_averages_targets() -> None:
    result = Rollout()(pieces_trace())
    merged = result.merge_words()
    assert merged.sources.texts == ("[CLS]", "unlock", "book", "[SEP]")
    assert merged.values.shape == (2, 4, 4)
    expected = result.values[:, 1:3, 1:3].sum(axis=2).mean(axis=1)
    assert np.allclose(merged.values[:, 1, 1], expected)
    assert np.allclose(merged.values.sum(axis=-1), 1)
    assert merged.row("unlock").top(1)


def test_values_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        FLOW.values[0, 0, 0] = 1
    with pytest.raises(AttributeError):
        FLOW.layers = (1,)  # type: ignore[misc]


def test_repr_is_one_line_and_names_the_method() -> None:
    text = repr(FLOW.normalize("sum"))
    assert "\n" not in text
    assert "3 layers × 5 targets × 5 sources" in text
    assert "Flow(heads='mean'" in text
    assert "normalize('sum')" in text


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)
        self.links += [v for k, v in attrs if k in ("src", "href") and v]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_static_and_safe() -> None:
    tokens = ["</td><script>alert(1)</script>", "<b>", "c"]
    trace = AttentionTrace.from_arrays(random_attention(2, 1, 3, seed=0), tokens)
    for result in (Raw()(trace), Raw()(trace).row(2)):
        tags = _Tags()
        tags.feed(result._repr_html_())
        assert not tags.open
        assert tags.seen <= {
            *("div", "span", "strong", "details", "summary", "table", "tr", "th", "td")
        }
        assert not tags.links


def test_html_of_a_long_result_is_cut_and_says_so() -> None:
    result = Raw()(random_trace(layers=1, heads=1, length=1_000))
    page = result._repr_html_()
    assert "the 12 strongest of 1000 as a table" in page
    assert "and 994 more targets" in page
    assert len(page) < 60_000
    one = result.row(999)._repr_html_()
    assert len(one) < 60_000


def test_html_says_what_is_saturated() -> None:
    deep = Flow()(random_trace(layers=6, heads=2, length=8, seed=1))
    assert re.search(r"\d+ % of these flows are saturated at layer 6", deep._repr_html_())
    assert "saturated" not in deep.layer(1)._repr_html_()


def test_to_pandas() -> None:
    frame = FLOW.row("t1").to_pandas()
    assert len(frame) == 3 * 5
    line = frame[(frame.layer == 2) & (frame.source == "t4")].iloc[0]
    assert line.value == FLOW.values[1, 1, 4]
    assert line.target == "t1"
    assert line.lower <= line.value <= line.upper


def test_to_dict_is_json() -> None:
    record = json.loads(json.dumps(FLOW.to_dict()))
    assert record["axes"] == ["layer", "target", "source"]
    assert np.array_equal(record["values"], FLOW.values)
    assert record["method"]["name"] == "flow"


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_results_come_back_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    said = Prediction("singular", 0.9, 0, (("singular", 0.9), ("plural", 0.1)))
    trace = AttentionTrace.from_arrays(TRACE.weights, TRACE.tokens, prediction=said)
    for result in (
        Flow(residual=[0.1, 0.2, 0.3])(trace, targets=[3]).normalize("sum"),
        Rollout()(pieces_trace()).merge_words(),
    ):
        result.save(tmp_path / f"result{suffix}")
        back = Attribution.load(tmp_path / f"result{suffix}")
        assert back.method == result.method
        assert back.title == result.title
        assert (back.layers, back.targets, back.sources) == (
            result.layers,
            result.targets,
            result.sources,
        )
        assert back.prediction == result.prediction
        assert dict(back.provenance) == dict(result.provenance)
        for name in ("values", "lower", "upper"):
            ours, theirs = getattr(result, name), getattr(back, name)
            assert (ours is None) == (theirs is None)
            assert ours is None or ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_traces_and_graphs_come_back_bit_for_bit(tmp_path: Path, suffix: str, dtype: str) -> None:
    weights = random_attention(2, 3, 4, seed=1).astype(dtype)
    sinks = np.full((2, 3, 4), 0.5)
    trace = AttentionTrace.from_arrays(
        weights * np.float32(0.5), list("abcd"), sinks=sinks, layers=[1, 3]
    )
    trace.save(tmp_path / f"trace{suffix}")
    back = AttentionTrace.load(tmp_path / f"trace{suffix}")
    assert back.weights.dtype == dtype
    assert back.weights.tobytes() == trace.weights.tobytes()
    assert back.sinks is not None
    assert (back.tokens, back.layers, back.kind) == (trace.tokens, trace.layers, trace.kind)
    graph = Flow().graph(TRACE)
    graph.save(tmp_path / f"graph{suffix}")
    assert LayeredGraph.load(tmp_path / f"graph{suffix}").capacities.tobytes() == (
        graph.capacities.tobytes()
    )


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    cases = {
        "missing.json": (None, "There is no file"),
        "other.txt": (b"", "must be one of .safetensors, .json"),
        "text.json": (b"hello", "was not written by attnflow: reading it as JSON failed"),
        "list.json": (b"[1, 2]", "was not written by attnflow"),
        "plain.json": (b'{"arrays": {}}', "carries no attnflow header"),
        "noise.safetensors": (b"\x00" * 40, "was not written by attnflow"),
        "future.json": (
            b'{"attnflow": {"format": 99, "kind": "Attribution"}, "arrays": {}}',
            "is in format 99",
        ),
    }
    for name, (content, said) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(FileError, match=said):
            Attribution.load(tmp_path / name)


def test_another_noun_in_the_file_is_named(tmp_path: Path) -> None:
    TRACE.save(tmp_path / "trace.json")
    with pytest.raises(FileError, match="holds a AttentionTrace, not a Attribution"):
        Attribution.load(tmp_path / "trace.json")


@pytest.mark.parametrize("noun", [Attribution, AttentionTrace, LayeredGraph])
def test_a_file_of_ours_that_lost_its_body_is_named(tmp_path: Path, noun: type) -> None:
    stamp = {"attnflow": {"format": 1, "kind": noun.__name__}, "arrays": {}}
    (tmp_path / "x.json").write_text(json.dumps(stamp), encoding="utf-8")
    with pytest.raises(FileError, match=r"is damaged: it has an attnflow header.*KeyError"):
        noun.load(tmp_path / "x.json")  # type: ignore[attr-defined]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    FLOW.save(tmp_path / "result.json")
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(FileError, match="Cannot write"):
        FLOW.save(tmp_path / "no" / "result.json")
    assert (tmp_path / "result.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


# -- signed rows ---------------------------------------------------------------------------------


def made(values: object, **more: object) -> Attribution:
    """A result of these values, over tokens t0, t1, ..."""
    array = np.array(values, dtype=np.float64)
    tokens = [Tokens(tuple(f"t{k}" for k in range(n))) for n in array.shape[1:]]
    layers = tuple(range(1, len(array) + 1))
    return Attribution(array, layers, *tokens, method=Raw(), **more)  # type: ignore[arg-type]


def test_signed_rows_are_shares_of_their_absolute_sum() -> None:
    result = made([[[0.5, -0.25, -0.25], [3.0, 1.0, 0.0], [-1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]])
    shares = result.normalize("sum").values[0]
    assert shares.tolist() == [[0.5, -0.25, -0.25], [0.75, 0.25, 0], [-0.5, -0.5, 0], [0, 0, 0]]
    assert result.normalize("max").values[0, 0].tolist() == [1.0, -0.5, -0.5]
    assert result.normalize("max").values[0, 2].tolist() == [-1.0, -1.0, 0.0]


def test_without_keeps_the_signs_and_the_size_of_a_row() -> None:
    result = made([[[0.6, 0.0405, -0.2], [-0.5, 0.25, 0.25]]])
    rest = result.without([0])
    assert rest.values[0, 0, 0] == pytest.approx(0.0405 * 0.8405 / 0.2405)
    assert rest.values[0, 0, 1] < 0
    assert np.allclose(np.abs(rest.values).sum(axis=-1), np.abs(result.values).sum(axis=-1))
    assert (rest.values[0, 1] > 0).all()


def test_a_row_with_nothing_left_goes_elsewhere() -> None:
    result = made([[[1.0, 0.0], [0.5, 0.5]]], elsewhere=np.array([[0.25, 0.0]]))
    rest = result.without("t0")
    assert rest.values.tolist() == [[[0.0], [1.0]]]
    assert rest.elsewhere is not None
    assert rest.elsewhere.tolist() == [[1.25, 0.0]]
    assert made([[[0.5, 0.5]]]).without("t0").elsewhere is None
    zeros = made([[[0.0, 0.0]]], elsewhere=np.array([[0.5]])).normalize("sum")
    assert zeros.elsewhere is not None
    assert zeros.elsewhere.tolist() == [[0.5]]


def test_every_named_token_must_be_there_to_be_left_out() -> None:
    with pytest.raises(TargetError, match="No token 'foo' here"):
        made([[[0.5, 0.5]]]).without([0, "foo"])


# -- certificates ---------------------------------------------------------------------------------

OPERATIONS = {
    "sum": lambda result: result.normalize("sum"),
    "max": lambda result: result.normalize("max"),
    "without": lambda result: result.without([0, 3]),
    "words": lambda result: result.merge_words(),
    "spans": lambda result: result.spans({"a": (0, 3), "b": (2, 5)}),
    "mean": lambda result: result.mean_over_layers(),
    "row": lambda result: result.row(2).layer(2),
    "chain": lambda result: result.without(1).normalize("sum").merge_words().mean_over_layers(),
    "minus": lambda result: result.minus(result, name="itself"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("signed", [False, True])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_bounds_of_derived_results_enclose_the_exact_ones(
    operation: str, signed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (2, 5, 5)
    exact = rng.uniform(-1 if signed else 0, 1, size=shape) ** 3
    exact[rng.uniform(size=shape) < 0.2] = 0.0
    gap = 10.0 ** rng.integers(-12, 0)
    low = exact - rng.uniform(0, gap, size=shape) * rng.integers(0, 2, size=shape)
    high = exact + rng.uniform(0, gap, size=shape) * rng.integers(0, 2, size=shape)
    low = low if signed else np.maximum(low, 0)
    loose = low + rng.uniform(0, 1, size=shape) * (high - low)
    loose = np.clip(loose, low, high)
    tokens = Tokens(("[CLS]", "un", "##lock", "book", "##s"))

    def result(values: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> Attribution:
        return Attribution(
            values, (1, 2), tokens, tokens, Raw(), lower=lower.copy(), upper=upper.copy()
        )

    change = OPERATIONS[operation]
    truth = change(result(exact, exact, exact))
    derived = change(result(loose, low, high))
    assert derived.lower is not None
    assert derived.upper is not None
    assert (derived.lower <= truth.values).all()
    assert (truth.values <= derived.upper).all()


def test_a_loose_flow_encloses_the_exact_one_after_every_operation() -> None:
    trace = random_trace(layers=4, heads=1, length=5, seed=6)
    exact, loose = Flow(tolerance=1e-9)(trace), Flow(tolerance=0.5)(trace)
    for change in OPERATIONS.values():
        truth, derived = change(exact), change(loose)
        assert derived.lower is not None
        assert derived.upper is not None
        assert (derived.lower <= truth.values + 1e-8).all()
        assert (truth.values - 1e-8 <= derived.upper).all()


def test_values_outside_their_bounds_cannot_be_made() -> None:
    with pytest.raises(InputError, match="1 values lie outside their bounds"):
        made([[[2.0]]], lower=np.zeros((1, 1, 1)), upper=np.ones((1, 1, 1)))
    with pytest.raises(InputError, match="one of them is missing"):
        made([[[1.0]]], lower=np.zeros((1, 1, 1)))
    with pytest.raises(InputError, match=r"values must be finite; values\[0, 0, 0\] is nan"):
        made([[[np.nan]]])
    with pytest.raises(InputError, match="saturated must be a numpy array of truth values"):
        made([[[1.0]]], saturated=np.ones((1, 1, 1)))


# -- differences ----------------------------------------------------------------------------------


def test_minus_compares_layers_targets_and_sources() -> None:
    result = Rollout()(TRACE)
    with pytest.raises(InputError, match="the same layers"):
        result.layer(1).minus(result.layer(2))
    with pytest.raises(InputError, match="the same targets"):
        result.row(1).minus(result.row(2))
    with pytest.raises(InputError, match=r'the same sources.*match="positions"'):
        result.minus(replace(result, sources=Tokens(("a", "b", "c", "d", "e"))))
    other = replace(result, sources=Tokens(("a", "b", "c", "d", "e")))
    assert not result.minus(other, match="positions").values.any()
    moved = replace(result, sources=Tokens(TRACE.tokens.texts, (0, 1, 2, 3, 9)))
    with pytest.raises(InputError, match="the same sources"):
        result.minus(moved, match="positions")
    with pytest.raises(InputError, match="A baseline is an Attribution; got float"):
        result.minus(1.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"match='x'.*'tokens', 'positions'"):
        result.minus(result, match="x")  # type: ignore[arg-type]


def test_merge_words_reads_byte_level_pieces() -> None:
    tokens = ["<s>", "ĠcafÃ©", "s", "Ġ45", "Ċ"]
    result = Rollout()(AttentionTrace.from_arrays(random_attention(1, 1, 5, seed=0), tokens))
    assert result.merge_words().sources.texts == ("<s>", "cafés", "45", "\n")


def test_numbers_of_other_kinds_name_layers_and_ranks() -> None:
    result = Rollout()(TRACE)
    assert result.layer(np.int64(2)).layers == (2,)  # type: ignore[arg-type]
    assert len(result.row(np.array(1)).top(np.int64(2))) == 2  # type: ignore[arg-type]
    for wrong in ("2", 1.5, [1], np.array([1, 2]), True, None):
        with pytest.raises(InputError, match="There is no layer"):
            result.layer(wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"needs k of at least 1|k is a whole number"):
            result.row(0).top(wrong if wrong is not True else "x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one span by name"):
        result.spans([(0, 2)])  # type: ignore[arg-type]
    for span in ((0,), (2, 1), (0, "x"), 5, None):
        with pytest.raises(InputError, match="a span is"):
            result.spans({"a": span})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="none of the sources stands there"):
        result.without([1]).spans({"a": (1, 2)})
