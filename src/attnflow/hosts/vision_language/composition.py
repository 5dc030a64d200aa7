"""One pass through both towers of a vision-language model, as one square stack, vision first.

A layer of the vision tower leaves the positions of the language model with themselves, and the
other way round. The connector is a layer of its own: each image token gives all it has to the
vision positions that feed it. So a row of the whole product is a distribution over patches and
words together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.attribution import Attribution
from attnflow.errors import CaptureError, InputError, TokensError, UnsupportedModelError
from attnflow.hosts.adapter import Batch
from attnflow.hosts.forward_pass import ForwardPass, compose, lacking_rows
from attnflow.hosts.images import Photo, picture_of, reduced_address
from attnflow.hosts.inputs import join_tokens, prefix_names
from attnflow.hosts.recorder import LayerWeights, Recorder
from attnflow.hosts.restore import at_rest
from attnflow.hosts.scores import weight_gradients
from attnflow.hosts.transformers.attention import watch_attention
from attnflow.hosts.vision_language.towers import (
    FLAT,
    Connector,
    checked_towers,
    connector_of,
    pixels_of,
    placeholders,
)
from attnflow.tokens import Tokens
from attnflow.tokens.patches import Grid, ImagePatches, patch_names
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import GRADIENT_ATTENTION, GRADIENTS, ScoreName

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# -- the images that a vision tower saw: each with its grid, its positions in reading order --------
#
# A processor may cut one image into tiles that the tower sees apart; each tile is a view of its
# own, and so is each step of a video. It may also crop and squeeze what it is handed, and a map
# lies right only on what came out of it. So the pictures are made of the pixels themselves.

VIDEO = "pixel_values_videos"
_GRIDS = {"pixel_values": "image_grid_thw", VIDEO: "video_grid_thw"}


@dataclass(frozen=True, eq=False)
class View:
    """One image, tile or video step: its grid, and its vision positions, prefix first.

    source: which of the model's images it is a part of, as far as the shape of the pixels tells.
    """

    name: str
    grid: Grid
    positions: tuple[int, ...]
    source: tuple[str, int]


def views_of(model: Any, connector: Connector, inputs: Mapping[str, Tensor]) -> list[View]:
    """Return every view in the order of the pixels; class tokens stand before its patches."""
    views: list[View] = []
    for name, positions in connector.pixels.items():
        if positions.ndim > 1:
            views += _images(name, positions, connector.blocks)
            continue
        side = int(model.config.vision_config.patch_size)
        for number, rows, columns, step in _steps(model, name, inputs):  # as the processor cut them
            grid = Grid(rows, columns, 0, rows * side, columns * side)
            views.append(View("", grid, tuple(positions[step].tolist()), (name, number)))
    patches = [position for view in views for position in view.positions]
    total = sum(connector.blocks)
    if sorted(patches) != list(range(total)):
        raise CaptureError(
            f"{type(model).__name__} attends over {total} vision positions, of which "
            f"{len(set(patches))} could be placed in its images; a map would be wrong."
        )
    return _numbered(views, connector)


def _images(name: str, positions: NDArray[np.intp], blocks: Sequence[int]) -> list[View]:
    """Tiles (..., height, width): their patches by the pixels that feed them."""
    starts = np.concatenate([[0], np.cumsum(blocks)])
    views, placed = [], set(positions[positions >= 0].tolist())
    each = positions.shape[1] if positions.ndim == 4 else 1  # tiles of an image
    for number, tile in enumerate(positions.reshape(-1, *positions.shape[-2:])):
        patches, rows, columns, size = _reading_order(tile)
        if not patches:
            continue  # a tile that only fills up the batch
        block = int(np.searchsorted(starts, patches[0], side="right")) - 1
        others = [k for k in range(starts[block], starts[block + 1]) if k not in placed]
        placed.update(others)
        grid = Grid(rows, columns, len(others), *size)
        views.append(View("", grid, (*others, *patches), (name, number // each)))
    return views


def _reading_order(tile: NDArray[np.intp]) -> tuple[list[int], int, int, tuple[int, int]]:
    """The positions of a tile row by row, how many rows and columns, and the pixels they cover."""
    tops: dict[int, tuple[int, int]] = {}
    for row, column in zip(*np.nonzero(tile >= 0), strict=True):
        tops.setdefault(int(tile[row, column]), (int(row), int(column)))
    patches = sorted(tops, key=tops.__getitem__)
    rows = len({top for top, _ in tops.values()})
    columns = len({left for _, left in tops.values()})
    if rows * columns != len(patches):
        raise CaptureError(f"{len(patches)} patches make no grid of {rows} × {columns}.")
    covered = np.nonzero(tile >= 0)
    size = (int(covered[0].max()) + 1, int(covered[1].max()) + 1) if patches else (0, 0)
    return patches, rows, columns, size


def _steps(
    model: Any, name: str, inputs: Mapping[str, Tensor]
) -> Iterator[tuple[int, int, int, NDArray[np.intp]]]:
    """Yield each step of each image or video: number, rows, columns, and its patches row by row."""
    merge = int(getattr(model.config.vision_config, "spatial_merge_size", 1))
    start = 0
    for number, (steps, rows, columns) in enumerate(inputs[_GRIDS[name]].tolist()):
        end = start + steps * rows * columns
        blocks = np.arange(start, end).reshape(steps, rows // merge, columns // merge, merge, merge)
        for step in blocks.transpose(0, 1, 3, 2, 4).reshape(steps, rows * columns):
            yield number, rows, columns, step
        start = end


def _numbered(views: Sequence[View], connector: Connector) -> list[View]:
    """Name the views: neighbouring image tokens make parts of one image or frames of a video."""
    runs = np.cumsum(np.diff(np.array(connector.places), prepend=connector.places[0]) > 1)
    sources: list[tuple[int, tuple[str, int]]] = []
    for view in views:
        fed = np.flatnonzero(connector.matrix[:, list(view.positions)].any(axis=1))
        run = int(runs[fed[0]]) if len(fed) and view.source[0] != VIDEO else -1
        sources.append((run, view.source))
    distinct = list(dict.fromkeys(sources))
    numbered = []
    for k, (view, source) in enumerate(zip(views, sources, strict=True)):
        moving = view.source[0] == VIDEO
        same = [one for one in distinct if (one[1][0] == VIDEO) == moving]
        name = f"{'video' if moving else 'image'} {same.index(source) + 1}"
        part = f" {'frame' if moving else 'part'} {sources[: k + 1].count(source)}"
        numbered.append(replace(view, name=name + (part if sources.count(source) > 1 else "")))
    return numbered


def name_views(views: Sequence[View]) -> Tokens:
    """Return the vision positions of all views in one row, each with its place in its image."""
    texts: list[str] = []
    images = []
    for view in views:
        names = patch_names(view.grid, prefix_names(view.grid.prefix))
        images.append(ImagePatches(view.name, view.grid, len(texts)))
        texts.extend(names if len(views) == 1 else (f"{view.name} {name}" for name in names))
    return Tokens(tuple(texts), words=(None,) * len(texts), images=tuple(images))


Picture = NDArray[np.uint8]


def pictures_of(model: nn.Module, inputs: Mapping[str, Any], processor: Any) -> list[Picture]:
    """Return (height, width, 3) of every view, in the order of the pixels."""
    pictures: list[Picture] = []
    for name, pixels in pixels_of(inputs).items():
        part = "video_processor" if name == VIDEO else "image_processor"
        prepare = getattr(processor, part, None) or getattr(processor, "image_processor", None)
        if pixels.ndim == FLAT:
            pictures += _joined(model, name, pixels, inputs, prepare)
        else:
            tiles = pixels.reshape(-1, *pixels.shape[-3:])
            # what fills up a batch is zero throughout, which no picture is
            pictures += [picture_of(tile, prepare) for tile in tiles if bool(tile.any())]
    return pictures


def _joined(
    model: nn.Module, name: str, pixels: Tensor, inputs: Mapping[str, Any], prepare: Any
) -> list[Picture]:
    """Put patches that a processor has cut together again; of several frames the first."""
    config: Any = model.config
    vision = config.vision_config
    side = int(vision.patch_size)
    channels = int(getattr(vision, "in_channels", getattr(vision, "in_chans", 3)))
    patches = pixels.reshape(len(pixels), channels, -1, side, side)[:, :, 0]
    pictures = []
    for _, rows, columns, step in _steps(model, name, inputs):
        square = patches[step].reshape(rows, columns, channels, side, side)
        joined = square.permute(2, 0, 3, 1, 4).reshape(channels, rows * side, columns * side)
        pictures.append(picture_of(joined, prepare))
    return pictures


def with_pictures(
    result: Attribution,
    model: nn.Module,
    inputs: Mapping[str, Any],
    processor: Any,
    photos: Sequence[Photo] = (),
) -> Attribution:
    """Return the result with remarks, and the pictures behind its maps if all fit their grids."""
    images = result.sources.images
    pictures = pictures_of(model, inputs, processor) if images else []
    about = dict(result.provenance)
    if remarks := [remark for photo in photos for remark in photo.remarks]:
        about["image_remarks"] = remarks
    cut = [
        picture[: image.grid.height, : image.grid.width]
        for picture, image in zip(pictures, images, strict=False)
    ]
    fits = [c.shape[:2] == (i.grid.height, i.grid.width) for c, i in zip(cut, images, strict=False)]
    if len(pictures) == len(images) and all(fits):
        about["images"] = [reduced_address(np.ascontiguousarray(picture)) for picture in cut]
    return replace(result, provenance=about)


# -- both towers as one stack ----------------------------------------------------------------------

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Composition:
    """The attention of both towers in one pass, and how they are joined.

    vision, language: the calls of every attention module. A vision tower may be called once for
    each image, and a tower with windows calls its attention once for each window.
    """

    model: nn.Module
    vision: Sequence[Sequence[LayerWeights]]
    language: Sequence[Sequence[LayerWeights]]
    connector: Connector
    views: Sequence[View]

    def check(self) -> None:
        """Check that every layer is over the same positions."""
        name = type(self.model).__name__
        lengths = {
            sum(call.weights.shape[0] * call.weights.shape[2] for call in calls)
            for calls in self.vision
        }
        if len(lengths) != 1 or lengths != {sum(self.connector.blocks)}:
            raise UnsupportedModelError(
                f"The layers of the vision tower of {name} are over {sorted(lengths)} positions: "
                "a tower that merges its patches from layer to layer cannot be followed."
            )
        shapes = {call.weights.shape[-2:] for calls in self.language for call in calls}
        if len(shapes) != 1 or any(len(calls) != 1 for calls in self.language):
            raise UnsupportedModelError(
                f"The language model of {name} attends over {sorted(shapes)}: one that reads the "
                "image through cross attention cannot be followed."
            )

    @property
    def seen(self) -> int:
        """The number of vision positions."""
        return sum(self.connector.blocks)

    @property
    def length(self) -> int:
        """The number of positions in all."""
        return self.seen + int(self.language[0][0].weights.shape[-1])

    @property
    def stages(self) -> tuple[str, ...]:
        """The tower of each layer."""
        return ("vision",) * len(self.vision) + ("connector",) + ("language",) * len(self.language)

    def stack(self, arrays: Sequence[Sequence[Array]], *, idle: float) -> Array:
        """Return `(layers, heads, n, n)` of all calls; untouched positions keep `idle`."""
        order = np.array([position for view in self.views for position in view.positions])
        seeing, reading = arrays[: len(self.vision)], arrays[len(self.vision) :]
        squares = [_diagonal(calls)[:, order[:, None], order] for calls in seeing]
        joint = idle * self._joint(order)
        squares.append(np.broadcast_to(joint, (len(squares[0]), *joint.shape)))
        squares += [calls[0][0] for calls in reading]
        layers = list(zip(self.stages, squares, strict=True))
        return compose(layers, self.seen, self.length - self.seen, idle=idle, sides="The towers")

    def _joint(self, order: NDArray[np.intp]) -> NDArray[np.float64]:
        """The connector over all positions; what stands for no patch stays with itself."""
        joint = np.eye(self.length)
        for place, row in zip(self.connector.places, self.connector.matrix, strict=True):
            if row.any():
                joint[self.seen + place] = 0.0
                joint[self.seen + place, : self.seen] = row[order]
        return joint

    def gradient_weighted(self, total: Tensor) -> Array:
        """Return `(layers, n, n)`: Ā, the mean over heads of relu(A ⊙ ∇A), of one backward pass."""
        modules = [*self.vision, *self.language]
        weights = [call.in_graph for calls in modules for call in calls]
        gradients = iter(weight_gradients(total, weights, self.model))

        def raising(parts: Sequence[Tensor]) -> Array:
            products = [(part.detach() * next(gradients)).clamp_min(0) for part in parts]
            means = [product.mean(dim=1, keepdim=True) for product in products]
            return torch.cat(means, dim=2).float().cpu().numpy()

        arrays = [[raising(call.in_graph) for call in calls] for calls in modules]
        return np.asarray(self.stack(arrays, idle=0.0)[:, 0])


def _diagonal(calls: Sequence[Array]) -> Array:
    """(heads, n, n): parts that attend to themselves only, one after the other."""
    blocks = [block for call in calls for block in call]
    length = sum(block.shape[-1] for block in blocks)
    square = np.zeros((blocks[0].shape[0], length, length), np.float32)
    start = 0
    for block in blocks:
        end = start + block.shape[-1]
        square[:, start:end, start:end] = block
        start = end
    return square


def run_both_towers(model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
    """Run one forward pass in which the recorder sees both towers; return its outputs."""
    host = cast("PreTrainedModel", model)
    checked_towers(host)
    if set(recorder.record) - {GRADIENTS}:
        raise UnsupportedModelError(
            f"{type(model).__name__} has two towers, which are not measured inside: rollout, flow, "
            "raw attention and the gradient methods work on it."
        )
    with watch_attention(host, observer=recorder):
        return host(**inputs)


def two_tower_trace(watched: ForwardPass, score: ScoreName) -> AttentionTrace:
    """Return both towers of a vision-language model as one graph over patches and tokens.

    The towers may have different numbers of heads, so where gradients are taken the heads are
    mixed: `weights` are their mean, and `gradients` what makes the product of both
    `mean over heads of relu(A ⊙ ∇A)`.
    """
    composition = _compose_towers(watched.model.module, watched.batch, watched.recorder)
    modules, count = [*composition.vision, *composition.language], composition.seen
    weights = composition.stack([[call.weights for call in calls] for calls in modules], idle=1.0)
    gradients, measured = None, None
    if watched.explained is not None:
        weighted = composition.gradient_weighted(watched.explained.total(score))
        share = np.zeros_like(weighted)
        np.divide(weighted, weights[:, 0], out=share, where=weights[:, 0] > 0)
        gradients, measured = share[:, None], {GRADIENT_ATTENTION: weighted}
    patches = name_views(composition.views)
    joined = join_tokens(patches, watched.input_tokens(0, composition.length - count))
    sinks = [calls[0].sink for calls in composition.language]
    return AttentionTrace.from_arrays(
        weights,
        Tokens(joined.texts, words=joined.words, images=patches.images),
        kind="cross",
        stages=composition.stages,
        encoder_length=count,
        sinks=lacking_rows(weights, [*[False] * (len(weights) - len(sinks)), *sinks]),
        prediction=watched.prediction(0, shift=count),
        gradients=gradients,
        measured=measured,
        **watched.about(0),
    )


def _compose_towers(model: nn.Module, batch: Batch, recorder: Recorder) -> Composition:
    """Return what was recorded, without layers that the language model skips."""
    host = cast("PreTrainedModel", model)
    if batch.size != 1:
        raise InputError(
            f"{type(model).__name__} was given {batch.size} prompts with images; one at a time is "
            "explained."
        )
    ids = batch.inputs.get("input_ids")
    if ids is None:
        raise TokensError("A prompt with images needs 'input_ids' beside the pixels.")
    towers = checked_towers(host)
    places = placeholders(host, ids[0].tolist())
    with at_rest(model):
        connector = connector_of(host, towers, batch.inputs, places)
    views = views_of(host, connector, batch.inputs)
    modules: dict[nn.Module | None, list[LayerWeights]] = {}
    for call in recorder.layers:
        modules.setdefault(call.module, []).append(call)
    seeing = set(towers.vision.modules())
    vision = [calls for module, calls in modules.items() if module in seeing]
    language = [calls for module, calls in modules.items() if module not in seeing]
    composition = Composition(model, vision[: connector.layers], language, connector, views)
    composition.check()
    return composition
