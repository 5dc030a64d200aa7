"""Images: patches are hidden by the order of a map, and the true thing is where its box is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.attribution.patch_maps import grids_of, patch_maps
from attnflow.errors import InputError, ModelError, optional_import
from attnflow.errors.arguments import check_named
from attnflow.evaluation.faithfulness import Curves
from attnflow.evaluation.metrics import STEPS, Floats, curve_steps
from attnflow.evaluation.records import RANDOM, Record
from attnflow.evaluation.subjects import base
from attnflow.evaluation.subjects.base import RANDOM_ORDERS, Metric, MetricGroup
from attnflow.evaluation.subjects.examples import ImageExample, read_images
from attnflow.hosts.adapter import Scores
from attnflow.hosts.fingerprint import digest_bytes
from attnflow.hosts.images import (
    Hiding,
    Photo,
    PreparedImage,
    cover_patches,
    filling_of,
    prepare_images,
    read_photo,
)
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest
from attnflow.hosts.vision_language.composition import pictures_of
from attnflow.hosts.vision_language.towers import image_prompt, towers_of
from attnflow.tokens import Grid

Cover = tuple[Floats, NDArray[np.bool_]]
Patches = tuple[int, ...]
CENTRE: Final = "centre"
LEAVE_ONE_OUT: Final = "(leave one patch out)"
IMAGE_METHODS: tuple[str, ...] = (
    *("rollout", "alti", "norm-rollout", "gradient-attention", "gradient-rollout", "raw"),
)
"""The methods that are compared when nothing is asked for; flow and value zeroing take long on the
hundreds of patches of an image and can be named."""
QUESTION_METHODS: tuple[str, ...] = ("rollout", "gradient-attention", "gradient-rollout", "raw")
"""The methods that are compared for a vision-language model."""

_METRICS = (
    Metric("deletion", "deletion ↓", higher_is_better=False),
    Metric("insertion", "insertion ↑"),
    Metric("pointing", "pointing ↑"),
    Metric("mass", "mass in box ↑"),
    Metric("density", "mass for area ↑"),
)
_NOTE = (
    "deletion, insertion: areas under the answer's probability while the strongest patches are "
    "hidden first, or shown first; pointing: how often the strongest patch lies in the box; mass "
    "in box: the share of a map that does; mass for area: that share, divided by the box's share "
    "of the image. In brackets: each patch hidden alone, as a ranking of its own."
)
_IMAGE_AXES = 4  # (1, channels, height, width)


@dataclass(frozen=True, kw_only=True)
class Images(base.Subject):
    """Images, and how patches of them are hidden.

    A vision model says what is in each; a vision-language model answers each image's question, and
    its answer's first word is explained. Beside the methods stand random orders, a map that guesses
    the centre, and each patch hidden alone.

    by: what takes the place of a hidden patch: "mean" colour, "blur", or "zero".
    batch_size: how many changed images go through the model at once.

    >>> Images(by="blur").by
    'blur'
    """

    name: ClassVar[str] = "image"
    example_type: ClassVar[type] = ImageExample
    headline: ClassVar[str] = "deletion"
    baselines: ClassVar[tuple[str, ...]] = (RANDOM, CENTRE)
    cost_note: ClassVar[str] = "Of an image by this method alone, beside its passes."

    by: Hiding = "mean"
    batch_size: int = 32

    def __post_init__(self) -> None:
        check_named("by", self.by, get_args(Hiding))

    @property
    def groups(self) -> tuple[MetricGroup, ...]:
        """The areas under two curves, and what boxes say."""
        return (MetricGroup("Maps against hidden patches", _METRICS, _NOTE),)

    read_file = staticmethod(read_images)

    def judge(
        self, model: ModelLike, examples: Sequence[Any], methods: Any, seed: int
    ) -> ImageJudge:
        """Return what judges images, or answers to questions about them."""
        if model is None:
            raise InputError(
                "The examples are images; name a vision model: model=..., --model FOLDER, with its "
                "weights and preprocessor_config.json."
            )
        loaded = as_model(model, needs_tokenizer=False)
        if towers_of(loaded.module) is not None:
            usual, processor = QUESTION_METHODS, loaded.question_processor
            loaded = replace(loaded, tokenizer=processor.tokenizer)
        elif loaded.adapter.reads_images(loaded.module):
            usual, processor = IMAGE_METHODS, loaded.image_processor
        else:
            raise InputError(f"{type(loaded.module).__name__} reads no images.")
        return ImageJudge(
            subject=self,
            model=loaded,
            methods=base.label_methods(usual if methods is None else methods),
            baselines=(LEAVE_ONE_OUT, CENTRE, RANDOM),
            seed=seed,
            processor=processor,
        )

    def describe(self, example: ImageExample) -> tuple[str, str | None]:
        """Return the name of the file, and the label."""
        return example.name, example.label

    def content(self, example: ImageExample) -> bytes:
        """Return the bytes of a file, or of what is in memory, and what is known of the image."""
        about = repr((example.label, example.box, example.question)).encode()
        if isinstance(example.image, (str, os.PathLike)):
            path = Path(example.image)
            return about + (path.read_bytes() if path.is_file() else str(path).encode())
        if isinstance(example.image, (bytes, bytearray)):
            return about + bytes(example.image)
        return about + read_photo(example.image).image.tobytes()

    def settings(self) -> dict[str, Any]:
        """Return the fields, and how many steps and orders there are."""
        return {**super().settings(), "steps": STEPS, "random_orders": RANDOM_ORDERS}


@dataclass(eq=False, kw_only=True)
class ImageJudge(base.Judge):
    """One image after another, seen whole: hidden patches, what methods say, where the box is."""

    subject: Images
    processor: Any

    def settings(self) -> dict[str, Any]:
        """Return everything but the examples that the numbers depend on."""
        processor = self.processor
        fields = processor.to_dict() if hasattr(processor, "to_dict") else repr(processor)
        text = json.dumps(fields, sort_keys=True, default=str)
        return {**super().settings(), "processor": digest_bytes([text.encode()])}

    def _try_examples(self, examples: Sequence[ImageExample]) -> Mapping[str, Any]:
        reasons = []
        for example in examples:
            try:
                photo = read_photo(example.image)
            except (InputError, OSError) as error:
                reasons.append(str(error))
            else:
                return self._prepare(example, photo).inputs
        raise InputError(f"None of {len(examples)} images can be read: {reasons[0]}")

    def _judge(self, number: int, example: ImageExample) -> Record:
        photo = read_photo(example.image)
        inputs = self._prepare(example, photo).inputs
        trace, results, seconds = self._rows(inputs)
        grid = grids_of(trace.tokens)[0]
        ablation = PatchAblation(
            self.model, inputs, grid, by=self.subject.by, batch_size=self.subject.batch_size
        )
        cover = None if example.box is None else self._cover(example, photo, grid)
        maps = {name: patch_maps(result)[0].values for name, result in results.items()}
        maps |= {LEAVE_ONE_OUT: ablation.leave_one_out(), CENTRE: centre_map(grid)}
        scores = {name: _score_map(ablation, values, cover) for name, values in maps.items()}
        scores[RANDOM] = self._mean_of_draws(
            number, lambda rng: _score_map(ablation, rng.random((grid.rows, grid.columns)), cover)
        )
        return Record(
            number=number,
            answer=ablation.answer,
            choice=ablation.choice,
            probability=ablation.probability,
            scores=scores,
            seconds=seconds,
        )

    def _prepare(self, example: ImageExample, photo: Photo) -> PreparedImage:
        """Return what the model takes of the image, and the picture that it sees."""
        module, name = self.model.module, type(self.model.module).__name__
        if towers_of(module) is None:
            return prepare_images(self.model, [photo])[0]
        if example.question is None:
            raise InputError(
                f"{example.name} has no question; {name} answers questions about images: give the "
                "table a column 'question'."
            )
        inputs = image_prompt(module, example.question, [photo], self.processor)
        pixels = inputs.get("pixel_values")
        pictures = pictures_of(module, inputs, self.processor)
        if pixels is None or pixels.ndim != _IMAGE_AXES or len(pictures) != 1:
            raise ModelError(
                f"{name} sees an image in {len(pictures)} parts or as rows of patches; patches are "
                "hidden in models that see it whole (LLaVA, PaliGemma, Gemma 3, InternVL with one "
                "tile)."
            )
        return PreparedImage(inputs, pictures[0], photo.name, photo.remarks)

    def _cover(self, example: ImageExample, photo: Photo, grid: Grid) -> Cover | None:
        """Return how much of each patch the box covers, and whether a patch's centre lies in it.

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
    """Return what somebody would guess who has not seen the image: things are in the middle."""
    rows = (np.arange(grid.rows) + 0.5) / grid.rows - 0.5
    columns = (np.arange(grid.columns) + 0.5) / grid.columns - 0.5
    return np.exp(-8 * (rows[:, None] ** 2 + columns[None, :] ** 2))


def _score_map(ablation: PatchAblation, values: Floats, cover: Cover | None) -> dict[str, float]:
    """Return areas for any image; pointing and mass where it is known where the thing is."""
    curves = ablation.curves(values)
    areas = curves.deletion_area[0], curves.insertion_area[0]
    scores = {"deletion": float(areas[0]), "insertion": float(areas[1])}
    if cover is None:
        return scores
    covered, centres = cover
    positive = np.maximum(values, 0.0)
    total = float(positive.sum())
    mass = float((positive * covered).sum()) / total if total > 0 else float("nan")
    pointed = float(centres.ravel()[int(values.argmax())])
    return {**scores, "pointing": pointed, "mass": mass, "density": mass / float(covered.mean())}


# -- one image, run again with patches hidden ------------------------------------------------------


class PatchAblation:
    """One image and the answer to it; `probabilities` runs it again with patches hidden.

    inputs: what the model takes of one image, its question too where it answers one.
    by: what takes a patch's place: the image's "mean" colour, the image much "blur"red, or "zero",
    the middle of the range the model was trained on. Each set of patches is run once.
    """

    def __init__(
        self,
        model: Model,
        inputs: Mapping[str, Tensor],
        grid: Grid,
        *,
        by: Hiding = "mean",
        batch_size: int = 32,
    ) -> None:
        check_named("by", by, get_args(Hiding))
        self.model, self.grid, self.batch_size = model, grid, batch_size
        self.inputs = model.adapter.wrap(model.module, inputs).inputs
        self.pixels = self.inputs["pixel_values"]
        self.filling = filling_of(self.pixels, grid, by)
        self._known: dict[Patches, float] = {}
        scores = self._scores(self.pixels)[0]
        self.choice = int(scores.logits.argmax())
        self.answer = scores.label(self.choice)
        self.probability = float(scores.probabilities()[self.choice])

    @property
    def count(self) -> int:
        """The number of patches."""
        return self.grid.rows * self.grid.columns

    def probabilities(self, hidden: Sequence[Patches]) -> Floats:
        """Return the probability of the answer without each of these sets of patches, in order."""
        missing = [patches for patches in dict.fromkeys(hidden) if patches not in self._known]
        for start in range(0, len(missing), self.batch_size):
            batch = missing[start : start + self.batch_size]
            scores = self._scores(torch.cat([self._cover(patches) for patches in batch]))
            for patches, each in zip(batch, scores, strict=True):
                self._known[patches] = float(each.probabilities()[self.choice])
        return np.array([self._known[patches] for patches in hidden])

    def curves(self, values: Floats) -> Curves:
        """Return deletion and insertion by a value for each patch; ties in reading order."""
        steps = curve_steps(np.argsort(-values.ravel(), kind="stable").tolist())
        deleted, inserted = (self.probabilities(sets) for sets in zip(*steps, strict=True))
        return Curves(np.array([self.probability]), deleted[None], inserted[None])

    def leave_one_out(self) -> Floats:
        """Return what the answer loses without each patch alone, (rows, columns)."""
        without = self.probabilities([(k,) for k in range(self.count)])
        return (self.probability - without).reshape(self.grid.rows, self.grid.columns)

    def _cover(self, patches: Patches) -> Tensor:
        return cover_patches(self.pixels, self.grid, patches, self.filling)

    def _scores(self, pixels: Tensor) -> list[Scores]:
        (module, tokenizer), adapter = self.model, self.model.adapter
        count = len(pixels)
        rows = {name: x.expand(count, *x.shape[1:]) for name, x in self.inputs.items()}
        batch = adapter.wrap(module, {**rows, "pixel_values": pixels})
        with at_rest(module), torch.no_grad():
            outputs = adapter.forward(module, batch.inputs)
        scores = adapter.scores(module, tokenizer, outputs, batch)
        answers = [each for each in scores if each is not None]
        if len(answers) < count:
            raise ModelError(
                f"{type(module).__name__} gives no answer to an image (it has no classes), so "
                "there is nothing to lose when patches are hidden."
            )
        return answers
