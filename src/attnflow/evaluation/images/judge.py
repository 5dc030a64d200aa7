"""One image: what hiding patches does to the answer, what each method says, where the box is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from attnflow.attribution.patch_maps import grids_of, patch_maps
from attnflow.errors import (
    AttnflowError,
    MethodError,
    MissingDependencyError,
    ModelError,
    optional_import,
)
from attnflow.evaluation.images.ablation import Hiding, PatchAblation
from attnflow.evaluation.images.examples import ImageExample
from attnflow.evaluation.records import RANDOM, Record
from attnflow.hosts.capture import capture
from attnflow.hosts.images import Photo, PreparedImage, prepare_images, read_photo
from attnflow.methods import Method, quiet_about_limits
from attnflow.methods.rows import pooled_row
from attnflow.methods.towers import image_sources
from attnflow.tokens import Grid
from attnflow.trace import AttentionTrace

__all__ = ["CENTRE", "LEAVE_ONE_OUT", "RANDOM_ORDERS", "ImageJudge"]

Floats = NDArray[np.float64]
CENTRE = "centre"
LEAVE_ONE_OUT = "(leave one patch out)"
RANDOM_ORDERS = 5
_CANNOT = (ModelError, MethodError, MissingDependencyError)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageJudge:
    """A model, its processor, and by what methods are judged on it."""

    model: nn.Module
    processor: Any
    by: Hiding
    seed: int
    batch_size: int

    def refusals(self, example: ImageExample, methods: Mapping[str, Method]) -> dict[str, str]:
        """Why methods cannot be run, seen on one image."""
        reasons: dict[str, str] = {}
        inputs = self._prepare(example, read_photo(example.image)).inputs
        for name, method in methods.items():
            try:
                self._map(method, self._capture(inputs, [method]))
            except _CANNOT as error:
                reasons[name] = str(error)
        if len(reasons) == len(methods):
            sentences = " ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise ModelError(f"No method can be run on this model. {sentences}")
        return reasons

    def record(self, number: int, example: ImageExample, methods: Mapping[str, Method]) -> Record:
        """Everything that is measured of one image, or why it cannot be used."""
        try:
            photo = read_photo(example.image)
            inputs = self._prepare(example, photo).inputs
            trace = self._capture(inputs, list(methods.values()))
        except AttnflowError as error:
            return Record(number=number, left_out=str(error))
        maps: dict[str, Floats] = {}
        seconds: dict[str, float] = {}
        for name, method in methods.items():
            start = perf_counter()
            maps[name] = self._map(method, trace)
            seconds[name] = perf_counter() - start
        grid = grids_of(trace.tokens)[0]
        ablation = PatchAblation(
            self.model,
            inputs["pixel_values"],
            grid,
            by=self.by,
            batch_size=self.batch_size,
            beside={name: value for name, value in inputs.items() if name != "pixel_values"},
            tokenizer=self.tokenizer,
        )
        cover = None if example.box is None else self._cover(example, photo, grid)
        maps |= {LEAVE_ONE_OUT: ablation.leave_one_out(), CENTRE: centre_map(grid)}
        scores = {name: _scores(ablation, values, cover) for name, values in maps.items()}
        scores[RANDOM] = self._by_chance(number, ablation, cover)
        return Record(
            number=number,
            answer=ablation.answer,
            choice=ablation.choice,
            probability=ablation.probability,
            scores=scores,
            seconds=seconds,
        )

    @property
    def tokenizer(self) -> Any:
        """What names the model's answers; a classifier names its own."""
        return None

    def _prepare(self, example: ImageExample, photo: Photo) -> PreparedImage:
        """What the model takes of the image, and the picture that it sees."""
        return prepare_images(self.model, [photo], self.processor)[0]

    def _capture(self, inputs: Mapping[str, Any], methods: list[Method]) -> AttentionTrace:
        trace = capture(self.model, inputs, tokenizer=self.tokenizer, methods=methods)
        if trace.prediction is None:
            raise ModelError("The model gives no answer, so there is no position to explain.")
        return trace

    def _map(self, method: Method, trace: AttentionTrace) -> Floats:
        """The patches of the row that the answer is read from, at the highest layer."""
        assert trace.prediction is not None  # captured with one
        with quiet_about_limits():
            if trace.prediction.pooled:
                result = pooled_row(method(trace, layers=-1))
            else:
                result = method(
                    trace,
                    targets=[trace.prediction.position],
                    layers=-1,
                    sources=image_sources(trace),
                )
        return patch_maps(result)[0].values

    def _by_chance(
        self, number: int, ablation: PatchAblation, cover: tuple[Floats, NDArray[np.bool_]] | None
    ) -> dict[str, float]:
        """The mean over random orders, drawn anew for each image."""
        rng = np.random.default_rng([self.seed, number])
        shape = (ablation.grid.rows, ablation.grid.columns)
        draws = [_scores(ablation, rng.random(shape), cover) for _ in range(RANDOM_ORDERS)]
        return {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}

    def _cover(
        self, example: ImageExample, photo: Photo, grid: Grid
    ) -> tuple[Floats, NDArray[np.bool_]] | None:
        """How much of each patch the box covers, and whether a patch's centre lies in it.

        The box goes the way of the photo: as a white rectangle through the same processor, so that
        whatever resizes and crops the photo does the same to the box.
        """
        images = optional_import("PIL.Image", extra="images", purpose="Evaluating on images")
        drawing = images.new("RGB", photo.image.size)
        left, top, right, bottom = (round(side) for side in example.box or ())
        drawing.paste((255, 255, 255), (left, top, right, bottom))
        picture = self._prepare(example, Photo(drawing, "box")).picture
        inside = picture[..., 0].astype(np.float64) / 255
        down, across = grid.height // grid.rows, grid.width // grid.columns
        cut = inside[: grid.rows * down, : grid.columns * across]
        cells = cut.reshape(grid.rows, down, grid.columns, across)
        covered = cells.mean(axis=(1, 3))
        if not covered.any():
            return None  # the processor has cropped it away
        return covered, cells[:, down // 2, :, across // 2] >= 0.5


def centre_map(grid: Grid) -> Floats:
    """What somebody would guess who has not seen the image: things are in the middle.

    >>> centre_map(Grid(3, 3, 0, 3, 3)).argmax()
    np.int64(4)
    """
    rows = (np.arange(grid.rows) + 0.5) / grid.rows - 0.5
    columns = (np.arange(grid.columns) + 0.5) / grid.columns - 0.5
    return np.exp(-8 * (rows[:, None] ** 2 + columns[None, :] ** 2))


def _scores(
    ablation: PatchAblation, values: Floats, cover: tuple[Floats, NDArray[np.bool_]] | None
) -> dict[str, float]:
    """Areas for any image; pointing and mass where it is known where the thing is."""
    curves = ablation.curves(values)
    scores = {"deletion": curves.deletion_area, "insertion": curves.insertion_area}
    if cover is None:
        return scores
    covered, centres = cover
    positive = np.maximum(values, 0.0)
    total = float(positive.sum())
    mass = float((positive * covered).sum()) / total if total > 0 else float("nan")
    pointed = float(centres.ravel()[int(values.argmax())])
    return {**scores, "pointing": pointed, "mass": mass, "density": mass / float(covered.mean())}
