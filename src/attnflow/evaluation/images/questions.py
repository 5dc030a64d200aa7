"""One question about an image: the same measures, on the first word of a model's answer."""

from __future__ import annotations

from typing import Any

from attnflow.errors import InputError, ModelError
from attnflow.evaluation.images.examples import ImageExample
from attnflow.evaluation.images.judge import ImageJudge
from attnflow.hosts.images import Photo, PreparedImage
from attnflow.hosts.vision_language.towers import image_prompt
from attnflow.hosts.vision_language.views import pictures_of

__all__ = ["QUESTION_METHODS", "QuestionJudge"]

QUESTION_METHODS = ("rollout", "gradient-attention", "gradient-rollout", "raw")
"""What is held against hidden patches of a vision-language model when nothing is asked for."""

_IMAGE_AXES = 4  # (1, channels, height, width)


class QuestionJudge(ImageJudge):
    """A vision-language model, asked about each image; what is explained is its answer's first
    word. It must see an image whole: patches are hidden in its pixels.
    """

    @property
    def tokenizer(self) -> Any:
        """The processor's own."""
        return self.processor.tokenizer

    def _prepare(self, example: ImageExample, photo: Photo) -> PreparedImage:
        if example.question is None:
            raise InputError(
                f"{example.name} has no question; {type(self.model).__name__} answers questions "
                "about images: give the table a column 'question'."
            )
        inputs = image_prompt(self.model, example.question, [photo], self.processor)
        pixels = inputs.get("pixel_values")
        pictures = pictures_of(self.model, inputs, self.processor)
        if pixels is None or pixels.ndim != _IMAGE_AXES or len(pictures) != 1:
            raise ModelError(
                f"{type(self.model).__name__} sees an image in {len(pictures)} parts or as rows of "
                "patches; patches are hidden in models that see it whole (LLaVA, PaliGemma, "
                "Gemma 3, InternVL with one tile)."
            )
        return PreparedImage(inputs, pictures[0], photo.name, photo.remarks)
