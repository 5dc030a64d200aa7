"""Figures: what their artists say, and how they look beside committed baselines.

ATTNFLOW_NEW_BASELINES=1 writes the baselines anew; look at them before they are committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import networkx as nx
import numpy as np
import pytest
from matplotlib import colors
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.testing.compare import compare_images
from matplotlib.text import Text
from PIL import Image

from attnflow import (
    AttentionTrace,
    Attribution,
    Flow,
    LayeredGraph,
    Prediction,
    Raw,
    Rollout,
    Tokens,
    plots,
)
from attnflow.errors import FileError, InputError, TargetError
from attnflow.show.plots import canvas, graphs
from attnflow.show.plots.animation import draw_frame
from attnflow.show.plots.canvas import BLUE, VERMILION
from attnflow.testing import random_attention, random_trace
from attnflow.tokens.patches import Grid, patch_names

BASELINES = Path(__file__).parent / "baselines"
# Root mean square over 0 to 255 of figures without their letters, which every version of matplotlib
# draws differently: 3.8 and 3.10 are at most 3.7 from 3.11, other attention at least 13.
TOLERANCE = 6.0
WORDS = ["[CLS]", "the", "key", "to", "cabinets"]
TRACE = AttentionTrace.from_arrays(
    random_attention(3, 2, 5, seed=4, shape="peaked"),
    WORDS,
    prediction=Prediction("singular", 0.7, 0, (("singular", 0.7), ("plural", 0.3))),
)
ODD = ["$x$ and $y$", "$", "a_b^{c}", "<script>&", "\\frac{", "Ġkey", "Ċ", "", "\t", "w" * 60]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with mpl.rc_context():
        mpl.rcdefaults()
        yield
    plt.close("all")


def small(width: float = 4.5, height: float = 3.2) -> Axes:
    """Axes at a fixed place: no layout may move them when a letter is wider."""
    figure = plt.figure(figsize=(width, height), dpi=60)
    return figure.add_axes((0.2, 0.2, 0.7, 0.6))


def patches_result(values: np.ndarray[Any, Any], height: int, width: int) -> Attribution:
    rows, columns = values.shape
    grid = Grid(rows, columns, 1, height, width)
    tokens = Tokens(patch_names(grid, ("[CLS]",)), grid=grid)
    whole = np.concatenate([[0.5], values.ravel()])[None, None]
    cls = Tokens(("[CLS]",))
    return Attribution(values=whole, layers=(1,), targets=cls, sources=tokens, method=Rollout())


def labels(axes: Axes, side: str) -> list[str]:
    found = axes.get_xticklabels() if side == "x" else axes.get_yticklabels()
    return [text.get_text() for text in found]


def arrows(axes: Axes, colour: str) -> dict[tuple[int, int, int], float]:
    """(level, target, source) to the width of the arrow, of one colour."""
    found = {}
    for patch in axes.patches:
        if isinstance(patch, FancyArrowPatch) and colors.same_color(
            patch.get_edgecolor()[:3], colour
        ):
            _, level, target, source = str(patch.get_gid()).split("-")
            found[int(level), int(target), int(source)] = float(patch.get_linewidth())
    return found


def shaded(axes: Axes, colour: str) -> set[tuple[int, int]]:
    """(level, position) of the cells in one colour."""
    return {
        (round(patch.get_y() + 0.5), round(patch.get_x() + 0.5))
        for patch in axes.patches
        if isinstance(patch, Rectangle) and colors.same_color(patch.get_facecolor()[:3], colour)
    }


# -- how they look ----------------------------------------------------------------------------


def draw_layers(trace: AttentionTrace = TRACE) -> Axes:
    return plots.layers_map(Rollout()(trace), target=0, ax=small())


def draw_pairs(trace: AttentionTrace = TRACE) -> Axes:
    return plots.pairs_map(Raw()(trace), ax=small())


def draw_difference(trace: AttentionTrace = TRACE) -> Axes:
    result = Rollout()(trace).minus(Raw()(trace), name="raw")
    return plots.pairs_map(result, layer=3, ax=small())


def draw_graph(trace: AttentionTrace = TRACE) -> Axes:
    return plots.attention_graph(trace, mixing=Raw(), ax=small())


def draw_paths(trace: AttentionTrace = TRACE) -> Axes:
    return plots.attention_graph(trace, target="[CLS]", ax=small())


def draw_cut(trace: AttentionTrace = TRACE) -> Axes:
    return plots.cut_graph(Flow(), trace, target="[CLS]", source="key", ax=small())


def draw_answers(trace: AttentionTrace = TRACE) -> Axes:
    results = [method(trace, targets=[0]) for method in (Raw(), Rollout(), Flow())]
    return plots.method_bars(results, ax=small())


def draw_bars(trace: AttentionTrace = TRACE) -> Axes:
    return plots.source_bars(Rollout()(trace), target=0, ax=small())


def draw_overlay(trace: AttentionTrace = TRACE) -> Axes:
    ramp = np.outer(np.linspace(0, 1, 48), np.ones(64))
    values = Raw()(trace).values[0, :3, :4]
    return plots.image_overlay(patches_result(values, 48, 64), ramp, scale="full", ax=small())


def draw_film(trace: AttentionTrace = TRACE) -> Axes:
    figure = plt.figure(figsize=(8, 3.2), dpi=60)
    return draw_frame(Flow()(trace, targets=[0]), 2, figure=figure, trace=trace).axes[0]


DRAWN: list[Callable[[], Axes]] = [
    *(draw_layers, draw_pairs, draw_difference, draw_graph, draw_paths),
    *(draw_cut, draw_answers, draw_bars, draw_overlay, draw_film),
]


def save_without_letters(axes: Axes, file: Path) -> None:
    for each in axes.figure.axes:
        if (legend := each.get_legend()) is not None:
            legend.remove()
    for text in axes.figure.findobj(Text):
        text.set_visible(False)
    axes.figure.savefig(file, dpi=60, metadata={"Software": None})


def compared(axes: Axes, name: str, folder: Path) -> str | None:
    """None when the figure looks like its baseline, else what differs."""
    made = folder / f"{name}.png"
    save_without_letters(axes, made)
    return compare_images(str(BASELINES / f"{name}.png"), str(made), tol=TOLERANCE)


@pytest.mark.parametrize("draw", DRAWN, ids=lambda draw: draw.__name__)
def test_figures_look_as_they_did(draw: Callable[[], Axes], tmp_path: Path) -> None:
    name = draw.__name__.removeprefix("draw_")
    if os.environ.get("ATTNFLOW_NEW_BASELINES"):
        save_without_letters(draw(), BASELINES / f"{name}.png")
    difference = compared(draw(), name, tmp_path)
    assert difference is None, difference


@pytest.mark.parametrize("draw", DRAWN, ids=lambda draw: draw.__name__)
def test_baselines_see_other_attention(draw: Callable[..., Axes], tmp_path: Path) -> None:
    """The same figure of other weights, here each row backwards, is another figure."""
    other = AttentionTrace.from_arrays(TRACE.weights[..., ::-1], WORDS, prediction=TRACE.prediction)
    assert compared(draw(other), draw.__name__.removeprefix("draw_"), tmp_path)


def test_baselines_see_a_transposed_map_and_another_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Raw()(TRACE)
    turned = replace(result, values=result.values.transpose(0, 2, 1).copy())
    assert compared(plots.pairs_map(turned, ax=small()), "pairs", tmp_path)
    monkeypatch.setattr(canvas, "COLOURS", "Greens")
    assert compared(draw_pairs(), "pairs", tmp_path)
    monkeypatch.setattr(canvas, "VERMILION", "#888888")
    assert compared(draw_cut(), "cut", tmp_path)


def test_type_is_never_smaller_than_eight_points() -> None:
    drawn = [draw().figure for draw in DRAWN]
    drawn.append(plots.answer_figure([Rollout()(TRACE, targets=[0])]))
    drawn.append(plots.completion_figure(Rollout()(TRACE), 0))
    lines = [[method(TRACE, targets=[k]) for method in (Raw(), Rollout())] for k in (0, 2)]
    drawn.append(plots.methods_figure(lines, names=["raw", "rollout"], headings=["$1", "$2"]))
    long = random_trace(length=120)
    drawn.append(plots.pairs_map(Raw()(long)).figure)
    drawn.append(plots.layers_map(Raw()(long), target=3).figure)
    for figure in drawn:
        sizes = [t.get_fontsize() for t in figure.findobj(Text) if t.get_text()]  # type: ignore[attr-defined]
        assert min(sizes) >= 8


# -- tokens as labels -------------------------------------------------------------------------


def test_tokens_are_text_whatever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(parser: object, text: str, *args: object, **kwargs: object) -> None:
        raise AssertionError(f"{text!r} was read as mathematics")

    monkeypatch.setattr("matplotlib.mathtext.MathTextParser.parse", refuse)
    trace = AttentionTrace.from_arrays(random_attention(2, 1, len(ODD), seed=0), ODD)
    made = [
        plots.layers_map(Raw()(trace), target=0),
        plots.pairs_map(Raw()(trace)),
        plots.source_bars(Raw()(trace), target=2),
        plots.attention_graph(trace, target=0),
        plots.cut_graph(Flow(), trace, target=0, source=1),
    ]
    shown = ["$x$ and $y$", "$", "a_b^{c}", "<script>&", "\\frac{", "key", "⏎", "␣", "\\t"]
    for k, axes in enumerate(made):
        file = tmp_path / f"{k}.svg"
        axes.figure.savefig(file)
        assert b"<script>" not in file.read_bytes()
        side = "x" if axes in (made[1], *made[3:]) else "y"
        assert labels(axes, side) == [*shown, "w" * 17 + "…"]


def test_a_character_no_font_has_is_a_box_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canvas, "_OTHER_SCRIPTS", ())
    canvas._can_draw.cache_clear()
    trace = AttentionTrace.from_arrays(random_attention(2, 1, 3, seed=0), ["中文", "ключ", "clé"])
    with pytest.warns(UserWarning, match="No installed font can draw '.', so a box stands for it"):
        axes = plots.layers_map(Raw()(trace), target=1)
    assert labels(axes, "y") == ["□□", "ключ", "clé"]
    axes.figure.savefig(os.devnull, format="png")  # matplotlib has nothing to warn of


@pytest.mark.parametrize("count", [1, 12, 60, 400])
def test_labels_of_many_tokens_are_right_and_apart(count: int) -> None:
    names = [f"token{k}" for k in range(count)]
    values = np.random.default_rng(0).uniform(size=(1, count, count))
    tokens = Tokens(tuple(names))
    result = Attribution(
        values=values, layers=(1,), targets=tokens, sources=tokens, method=Rollout()
    )
    axes = plots.pairs_map(result)
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]
    for side, ticks in (("x", axes.get_xticks()), ("y", axes.get_yticks())):
        assert labels(axes, side) == [names[int(k)] for k in ticks]
        shown = axes.get_xticklabels() if side == "x" else axes.get_yticklabels()
        boxes = [text.get_window_extent() for text in shown]
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))
    assert len(axes.get_yticks()) > min(count, 20) / 2


# -- maps -------------------------------------------------------------------------------------


def test_maps_hold_the_values() -> None:
    result = Rollout()(TRACE)
    axes = plots.layers_map(result, target="key")
    np.testing.assert_array_equal(axes.images[0].get_array(), result.values[:, 2, :].T)
    assert (labels(axes, "x"), labels(axes, "y")) == (["1", "2", "3"], WORDS)
    axes = plots.pairs_map(result, layer=2)
    np.testing.assert_array_equal(axes.images[0].get_array(), result.values[1])
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("target", "source")
    assert axes.images[0].get_clim() == (0, result.values[1].max())
    given = small()
    assert plots.pairs_map(result, ax=given) is given


def test_numbers_above_one_keep_their_digits() -> None:
    """10.25 was written 1.25."""
    values = np.array([[[10.25, 0.25, -20.5]]])
    tokens = Tokens(("a", "b", "c"))
    axes = plots.layers_map(Attribution(values, (1,), Tokens(("t",)), tokens, Rollout()))
    assert [text.get_text() for text in axes.texts] == ["10.25", ".25", "-20.50"]


def test_negative_values_diverge_from_zero() -> None:
    less = Rollout()(TRACE).minus(Raw()(TRACE))
    for axes in (plots.layers_map(less, target=0), plots.pairs_map(less)):
        image = axes.images[0]
        low, high = image.get_clim()
        assert -low == high == np.abs(np.asarray(image.get_array())).max()
        assert image.get_cmap().name == "RdBu"
    numbers = [text.get_text() for text in plots.layers_map(less, target=0).texts]
    assert numbers[0] == f"{less.values[0, 0, 0]:.2f}".replace("0.", ".", 1)


def test_results_name_their_kinds() -> None:
    result = Rollout()(TRACE)
    pairs = result.plot("pairs", layer=1).images[0].get_array()
    np.testing.assert_array_equal(pairs, result.values[0])
    bars = result.plot("bars", target="key", layer=2)
    assert [bar.get_width() for bar in bars.patches] == result.values[1, 2].tolist()
    with pytest.raises(InputError, match=r"kind='pair': Did you mean 'pairs'"):
        result.plot("pair")  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="shows one target and this result has 5"):
        result.plot("bars")


def test_nothing_and_one_token() -> None:
    one = AttentionTrace.from_arrays(np.ones((2, 1, 1)), ["alone"])
    result = Flow()(one)
    for axes in (
        *(plots.layers_map(result), plots.pairs_map(result), plots.source_bars(result)),
        *(plots.attention_graph(one), plots.attention_graph(one, target=0)),
        *(plots.cut_graph(Flow(), one, target=0, source=0), plots.method_bars([result])),
    ):
        axes.figure.draw_without_rendering()  # type: ignore[union-attr]
    empty = replace(result, values=np.zeros((2, 1, 0)), sources=Tokens(()), **_BOUNDLESS)
    for draw in (plots.layers_map, plots.pairs_map, plots.source_bars):
        with pytest.raises(InputError, match="There is nothing to draw"):
            draw(empty)


_BOUNDLESS: dict[str, Any] = {"lower": None, "upper": None, "saturated": None}


# -- graphs -----------------------------------------------------------------------------------


def test_arrows_are_as_wide_as_their_weights() -> None:
    axes = plots.attention_graph(TRACE, top=2)
    weights = Rollout().layer_matrices(TRACE)
    expected = {}
    for layer, target in product(range(3), range(5)):
        row = weights[layer, target]
        for source in sorted(range(5), key=lambda j: -row[j])[:2]:
            if row[source] > 0.01 * weights.max():
                expected[layer + 1, target, source] = row[source]
    found = arrows(axes, canvas.GREY)
    assert set(found) == set(expected)
    scale = max(found.values()) / max(expected.values())
    for edge, width in found.items():
        assert width == pytest.approx(scale * expected[edge])
    assert labels(axes, "y") == ["input", "layer 1", "layer 2", "layer 3"]
    assert labels(axes, "x") == WORDS


def test_what_passes_along_an_edge_is_a_sum_over_paths() -> None:
    weights = Rollout().layer_matrices(TRACE)
    passed = graphs.passing(weights, 3)
    expected = np.zeros_like(weights)
    for below in product(range(5), repeat=3):  # positions at layers 2, 1 and 0
        path = (3, *below)
        share = np.prod([weights[2 - k, path[k], path[k + 1]] for k in range(3)])
        for k in range(3):
            expected[2 - k, path[k], path[k + 1]] += share
    np.testing.assert_allclose(passed, expected, atol=1e-12)
    rollout = Rollout()(TRACE, targets=[3], layers=[3]).values[0, 0]
    np.testing.assert_allclose(passed[0].sum(axis=0), rollout, atol=1e-12)


def test_paths_of_a_target_start_there() -> None:
    blue = arrows(plots.attention_graph(TRACE, target="key", top=5), BLUE)
    assert {edge[1] for edge in blue if edge[0] == 3} == {2}
    passed = graphs.passing(Rollout().layer_matrices(TRACE), 2)
    for (level, target, source), width in blue.items():
        assert width == pytest.approx(12 * passed[level - 1, target, source])
    pipes = arrows(plots.attention_graph(TRACE, target="key", mixing=Flow(), top=5), BLUE)
    capacities = Flow().layer_matrices(TRACE)
    assert {edge[1] for edge in pipes if edge[0] == 3} == {2}
    for (level, target, source), width in pipes.items():
        assert width == pytest.approx(
            4.5 * capacities[level - 1, target, source] / capacities.max()
        )


def test_layers_of_a_graph() -> None:
    axes = plots.attention_graph(TRACE, layers=range(2, 4))
    assert labels(axes, "y") == ["layer 1", "layer 2", "layer 3"]
    widths = arrows(axes, canvas.GREY)
    assert {edge[0] for edge in widths} == {1, 2}
    with pytest.raises(InputError, match=r"layers=\[1, 3\]: a graph needs consecutive layers"):
        plots.attention_graph(TRACE, layers=[1, 3])
    with pytest.raises(InputError, match="top is at least 1"):
        plots.attention_graph(TRACE, top=0)
    with pytest.raises(InputError, match="a result has no edges"):
        plots.attention_graph(Raw()(TRACE))  # type: ignore[arg-type]
    big = random_trace(layers=12, length=120)
    with pytest.raises(InputError, match="arrows cannot be read; draw fewer layers"):
        plots.attention_graph(big)


def test_a_graph_of_capacities_alone() -> None:
    graph = LayeredGraph.from_capacities([[[0.0, 2.0], [1.0, 0.0]]])
    axes = plots.attention_graph(graph, tokens=["a", "b"])
    assert arrows(axes, canvas.GREY) == {(1, 0, 1): 4.5, (1, 1, 0): 2.25}
    assert labels(plots.attention_graph(graph), "x") == ["0", "1"]
    with pytest.raises(InputError, match="3 tokens for a graph of 2 positions"):
        plots.attention_graph(graph, tokens=list("abc"))


@pytest.mark.parametrize("shape", ["dense", "causal", "peaked", "window"])
@pytest.mark.parametrize("layer", [1, 3, 4])
def test_the_cut_that_is_drawn_is_the_cut(shape: Any, layer: int) -> None:
    trace = random_trace(layers=4, length=6, seed=3, shape=shape)
    cut = Flow().minimum_cut(trace, target=5, source=2, layer=layer)
    axes = plots.cut_graph(Flow(), trace, target=5, source=2, layer=layer)
    crossing = {(edge.layer, edge.target, edge.source) for edge in cut.edges}
    assert set(arrows(axes, VERMILION)) == crossing
    assert not set(arrows(axes, canvas.GREY)) & crossing
    graph = LayeredGraph.from_capacities(Flow().graph(trace).capacities[:layer])
    whole = graph.to_networkx()
    left = nx.DiGraph(whole)
    left.remove_edges_from((graph.node(m, i), graph.node(m - 1, j)) for m, i, j in crossing)
    top, bottom = graph.node(layer, 5), graph.node(0, 2)
    seen = {top, *nx.descendants(whole, top)}
    ours = {top, *nx.descendants(left, top)}
    theirs = {bottom, *nx.ancestors(left, bottom)} & seen
    target_side = shaded(axes, graphs._TARGET_SIDE)
    source_side = shaded(axes, graphs._SOURCE_SIDE)
    assert target_side == {graph.place(node) for node in ours}
    assert source_side == {graph.place(node) for node in theirs}
    assert not target_side & source_side
    assert all((m, i) in target_side and (m - 1, j) in source_side for m, i, j in crossing)


# -- images, answers, films -------------------------------------------------------------------


def test_an_image_lies_under_its_map() -> None:
    values = np.array([[0.0, 1.0], [2.0, 4.0]])
    result = patches_result(values, 8, 8)
    picture = np.random.default_rng(0).integers(0, 255, size=(8, 8, 3)).astype(np.uint8)
    axes = plots.image_overlay(result, picture, scale="full", alpha=0.5)
    under, over = axes.images
    np.testing.assert_allclose(under.get_array() * 255, picture)  # the photo keeps its colours
    np.testing.assert_array_equal(over.get_array(), result.image())
    cover = over.to_rgba(np.array([0.0, 2.0, 4.0]))
    np.testing.assert_allclose(cover[:, 3], [0, 0.25, 0.5], atol=0.01)
    assert (cover[:, 0] > cover[:, 2] + 0.5).all()  # warm
    assert (np.diff(cover[:, 1]) < 0).all()  # from yellow to red
    difference = result.minus(patches_result(values.T, 8, 8))
    two = plots.image_overlay(difference, picture[..., 0], scale="full")
    less, none, more = two.images[1].to_rgba(np.array([-1.0, 0.0, 1.0]))
    assert less[2] > less[0]
    assert more[0] > more[2]
    assert none[3] < 0.02


def test_an_image_must_be_the_one_the_model_saw() -> None:
    result = patches_result(np.ones((2, 2)), 8, 6)
    with pytest.raises(InputError, match=r"saw an image of 8 × 6 .* Resize and crop"):
        plots.image_overlay(result, np.zeros((16, 12)))
    with pytest.raises(InputError, match=r"shape \(3, 8, 6\). Channels come last"):
        plots.image_overlay(result, np.zeros((3, 8, 6)))
    with pytest.raises(InputError, match="alpha is above 0"):
        plots.image_overlay(result, np.zeros((8, 6)), alpha=0)
    with pytest.raises(InputError, match="sources that are the patches of an image"):
        plots.image_overlay(Raw()(TRACE), np.zeros((8, 6)), target=0)


def test_answers_beside_attributions() -> None:
    results = [method(TRACE, targets=[0]) for method in (Raw(), Rollout(), Flow())]
    figure = plots.answer_figure(results, sources=["key", "cabinets"])
    left, right = figure.axes
    assert [bar.get_width() for bar in left.patches] == [0.7, 0.3]
    assert labels(left, "y") == ["singular", "plural"]
    assert [text.get_text() for text in left.texts] == ["70.0 %", "30.0 %"]
    assert labels(right, "x") == ["key", "cabinets"]
    for result, bars in zip(results, right.containers, strict=True):
        values = result.values[-1, 0]
        heights = [bar.get_height() for bar in bars]  # type: ignore[attr-defined]
        assert heights == pytest.approx([values[2] / values.max(), values[4] / values.max()])
    assert isinstance(figure, Figure)
    with pytest.raises(InputError, match="carry no prediction"):
        plots.answer_figure([Raw()(random_trace(), targets=[0])])


@pytest.mark.parametrize(("method", "with_trace"), [(Rollout(), True), (Flow(), False)])
def test_a_film_has_a_frame_for_each_layer(tmp_path: Path, method: Any, with_trace: bool) -> None:
    file = tmp_path / "film.gif"
    result = method(TRACE)
    trace = TRACE if with_trace else None
    plots.build_up(result, file, target="key", trace=trace, seconds=0.2, hold=0.4)
    with Image.open(file) as film:
        assert film.n_frames == 3  # type: ignore[attr-defined]
        times, frames = [], []
        for k in range(3):
            film.seek(k)
            times.append(film.info["duration"])
            frames.append(np.asarray(film.convert("L"), dtype=float))
    assert times == [200, 200, 400]
    assert all(np.abs(one - other).max() > 50 for one, other in pairwise(frames))


def test_a_frame_shows_its_layer_and_nothing_above() -> None:
    row = Flow()(TRACE, targets=[0])
    assert row.saturated is not None
    for index, number in enumerate(row.layers):
        left, right = draw_frame(row, number, figure=plt.figure(), trace=TRACE).axes
        assert [bar.get_width() for bar in right.patches] == row.values[index, 0].tolist()
        hatched = [bar.get_hatch() == "///" for bar in right.patches]
        assert hatched == row.saturated[index, 0].tolist()
        assert max(edge[0] for edge in arrows(left, BLUE)) == number
        left, _ = draw_frame(row, number, figure=plt.figure()).axes
        drawn = np.ma.filled(left.images[0].get_array().astype(float), np.nan)  # type: ignore[union-attr]
        assert np.isnan(drawn[:, number:]).all()
        np.testing.assert_array_equal(drawn[:, :number], row.values[:number, 0].T)
    limits = {draw_frame(row, n, figure=plt.figure()).axes[1].get_xlim() for n in row.layers}
    assert len(limits) == 1


def test_films_that_cannot_be_written(tmp_path: Path) -> None:
    result = Rollout()(TRACE, targets=[0])
    with pytest.raises(FileError, match=r"An animation is written as .gif; got 'x.mp4'"):
        plots.build_up(result, tmp_path / "x.mp4")
    with pytest.raises(InputError, match="seconds is above 0"):
        plots.build_up(result, tmp_path / "x.gif", seconds=0)
    with pytest.raises(FileError, match="Cannot write"):
        plots.build_up(result, tmp_path / "no" / "x.gif")
    with pytest.raises(TargetError, match="shows one target"):
        plots.build_up(Rollout()(TRACE), tmp_path / "x.gif")


def test_a_cut_above_the_first_layer_names_the_layer_it_stands_on() -> None:
    """With a start layer, and with a hybrid's numbers, the lowest row is not the input."""
    trace = random_trace(4, 1, 5, seed=3)
    hybrid = AttentionTrace.from_arrays(trace.weights, trace.tokens, layers=[2, 4, 6, 8])
    for one, start, lowest in ((trace, 3, "layer 2"), (hybrid, 6, "layer 4"), (hybrid, 2, "input")):
        flow = Flow(start_layer=start)
        cut = flow.minimum_cut(one, target=4, source=1)
        axes = plots.cut_graph(flow, one, target=4, source=1)
        assert axes.get_yticklabels()[0].get_text() == lowest
        assert {edge.layer for edge in cut.edges} <= set(one.layers)
        assert "layer 1" not in cut.place
        plt.close("all")
