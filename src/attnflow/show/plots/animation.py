"""A result built up layer by layer, as a GIF: one frame for each layer, the last one held."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnflow import storage
from attnflow.attribution import Attribution
from attnflow.errors import FileError, InputError
from attnflow.methods import MixingMethod
from attnflow.show.plots import canvas
from attnflow.show.plots.graphs import attention_graph
from attnflow.show.plots.maps import layers_map
from attnflow.tokens import TokenRef
from attnflow.trace import AttentionTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DOTS_PER_INCH = 100
_SIZE = (11.0, 5.2)
_BARS = 20  # sources, the strongest at any layer


def build_up(
    result: Attribution,
    path: str | os.PathLike[str],
    *,
    target: TokenRef | None = None,
    trace: AttentionTrace | None = None,
    seconds: float = 1.0,
    hold: float = 3.0,
) -> None:
    """Write a GIF of one target's sources from the lowest layer to the highest.

    With the trace the result was made from, the left half is the attention graph up to that
    layer, otherwise the map of layers so far.

    seconds, hold: how long each frame is shown, and how long the last one.

    >>> import tempfile
    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     build_up(Rollout()(trace), Path(folder) / "built.gif", target="key")
    ...     (Path(folder) / "built.gif").read_bytes()[:4]
    b'GIF8'
    """
    file = Path(path)
    if file.suffix.lower() != ".gif":
        raise FileError(f"An animation is written as .gif; got {file.name!r}.")
    if not 0 < seconds <= hold:
        raise InputError(f"seconds is above 0 and at most hold; got {seconds!r} and {hold!r}.")
    row = canvas.one_target(result, target)
    writer = canvas.matplotlib("animation").PillowWriter(fps=1 / seconds)
    figure = canvas.pyplot().figure(figsize=_SIZE, layout="constrained")

    def write(target_file: Path) -> None:
        with writer.saving(figure, str(target_file), _DOTS_PER_INCH):
            for number in row.layers:
                draw_frame(row, number, figure=figure, trace=trace)
                writer.grab_frame()
            for _ in range(round(hold / seconds) - 1):  # equal frames are kept as one, longer
                writer.grab_frame()

    try:
        storage.write_safely(file, write)
    finally:
        canvas.pyplot().close(figure)


def draw_frame(
    row: Attribution, number: int, *, figure: Figure, trace: AttentionTrace | None = None
) -> Figure:
    """Draw the frame of one layer: what lies below it on the left, its sources on the right."""
    figure.clear()
    left, right = figure.subplots(1, 2, width_ratios=[1.4, 1])
    if trace is None:
        _map_so_far(row, number, left)
    else:
        _graph_so_far(row, number, trace, left)
    _bars(row, number, right)
    return figure


def _map_so_far(row: Attribution, number: int, axes: Axes) -> None:
    layers_map(row, ax=axes, title="")
    done = row.layers.index(number) + 1
    values = row.values[:, 0, :].T.copy()
    values[:, done:] = np.nan  # not drawn
    axes.images[0].set_data(values)
    for text in list(axes.texts):
        if text.get_position()[0] >= done:
            text.remove()


def _graph_so_far(row: Attribution, number: int, trace: AttentionTrace, axes: Axes) -> None:
    mixing = row.method if isinstance(row.method, MixingMethod) else None
    start = getattr(row.method, "start_layer", 1)
    layers = [layer for layer in trace.layers if start <= layer <= number]
    attention_graph(trace, target=row.targets.positions[0], layers=layers, mixing=mixing, ax=axes)
    above = sum(layer > number for layer in trace.layers)
    axes.set_ylim(-0.4, len(layers) + above + 0.5)


def _bars(row: Attribution, number: int, axes: Axes) -> None:
    """Draw all layers on one scale and in one order, so that frames can be compared."""
    most = np.abs(row.values[:, 0]).max(axis=0)
    columns = sorted(np.argsort(-most, kind="stable")[:_BARS].tolist())
    index = row.layers.index(number)
    values = row.values[index, 0, columns]
    saturated = None if row.saturated is None else row.saturated[index, 0, columns]
    bars = axes.barh(range(len(columns)), values, color=canvas.BLUE)
    remark = " "
    if saturated is not None and saturated.any():
        remark = "hatched: saturated, the same for any target"
        for bar, full in zip(bars, saturated.tolist(), strict=True):
            bar.set(hatch="///" if full else "", edgecolor="white", linewidth=0)
    axes.set_xlabel(remark, fontsize=canvas.SMALL + 1)
    canvas.name_ticks(axes, "y", [row.sources[k] for k in columns])
    axes.invert_yaxis()
    axes.set_xlim(min(0.0, 1.05 * float(row.values.min())), 1.05 * float(most.max()) or 1.0)
    title = f"{row.method.name} of {canvas.label(row.targets[0])} at layer {number}"
    canvas.heading(axes, title, size=11, fontweight="bold")
    canvas.bare(axes)
