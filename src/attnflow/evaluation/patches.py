"""A model's answer to an image with some patches hidden: what every ranking is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from attnflow.errors import ModelError
from attnflow.errors.arguments import check_named
from attnflow.evaluation.faithfulness import Curves
from attnflow.evaluation.metrics import curve_steps
from attnflow.hosts.adapter import Scores
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest
from attnflow.tokens import Grid

Hiding = Literal["mean", "blur", "zero"]
Patches = tuple[int, ...]
_BLURRED = 4  # patches that a blurred pixel is the mean of, along each side


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
        self.filling = _filling(self.pixels, grid, by)
        self._known: dict[Patches, float] = {}
        scores = self._scores(self.pixels)[0]
        self.choice = int(scores.logits.argmax())
        self.answer = scores.label(self.choice)
        self.probability = float(scores.probabilities()[self.choice])

    @property
    def count(self) -> int:
        """The number of patches."""
        return self.grid.rows * self.grid.columns

    def probabilities(self, hidden: Sequence[Patches]) -> NDArray[np.float64]:
        """Return the probability of the answer without each of these sets of patches, in order."""
        missing = [patches for patches in dict.fromkeys(hidden) if patches not in self._known]
        for start in range(0, len(missing), self.batch_size):
            batch = missing[start : start + self.batch_size]
            scores = self._scores(torch.cat([self._without(patches) for patches in batch]))
            for patches, each in zip(batch, scores, strict=True):
                self._known[patches] = float(each.probabilities()[self.choice])
        return np.array([self._known[patches] for patches in hidden])

    def curves(self, values: NDArray[np.float64]) -> Curves:
        """Return deletion and insertion by a value for each patch; ties in reading order."""
        steps = curve_steps(np.argsort(-values.ravel(), kind="stable").tolist())
        deleted, inserted = (self.probabilities(sets) for sets in zip(*steps, strict=True))
        return Curves(np.array([self.probability]), deleted[None], inserted[None])

    def leave_one_out(self) -> NDArray[np.float64]:
        """Return what the answer loses without each patch alone, (rows, columns)."""
        without = self.probabilities([(k,) for k in range(self.count)])
        return (self.probability - without).reshape(self.grid.rows, self.grid.columns)

    def _without(self, patches: Patches) -> Tensor:
        """Return the pixels with patches filled; what no patch covers stays."""
        (height, width), grid = self.pixels.shape[-2:], self.grid
        mask = torch.zeros(self.count, dtype=torch.bool, device=self.pixels.device)
        mask[list(patches)] = True
        mask = mask.reshape(grid.rows, grid.columns)
        mask = mask.repeat_interleave(height // grid.rows, 0)
        mask = mask.repeat_interleave(width // grid.columns, 1)
        mask = functional.pad(mask, (0, width - mask.shape[1], 0, height - mask.shape[0]))
        return torch.where(mask, self.filling, self.pixels)

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


def _filling(pixels: Tensor, grid: Grid, by: Hiding) -> Tensor:
    if by == "zero":
        return torch.zeros_like(pixels)
    if by == "mean":
        return pixels.mean(dim=(-2, -1), keepdim=True).expand_as(pixels)
    height, width = pixels.shape[-2:]
    sides = (max(1, grid.rows // _BLURRED), max(1, grid.columns // _BLURRED))
    small = functional.adaptive_avg_pool2d(pixels.float(), sides)
    blurred = functional.interpolate(small, (height, width), mode="bilinear", align_corners=False)
    return blurred.to(pixels.dtype)
