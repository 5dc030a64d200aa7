"""Images of a corpus, as the model's own image processor prepares them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch

from attnflow.corpus.explainers import TextExplainer
from attnflow.corpus.settings import Settings
from attnflow.corpus.texts import CorpusText
from attnflow.errors import InputError, ModelError, optional_import, shorten
from attnflow.hosts.load import Loaded

__all__ = ["ImageExplainer"]


class ImageExplainer(TextExplainer):
    """A vision model: its sources are patches, its target is where the class is read."""

    def __init__(self, loaded: Loaded, settings: Settings) -> None:
        super().__init__(loaded, settings)
        self._images = optional_import("PIL.Image", extra="corpus", purpose="Reading images")
        self._processor = _processor_of(self.model)

    def _lengths_together(self, texts: Sequence[CorpusText]) -> list[int]:
        """All images have one size, and so one number of patches."""
        config: Any = self.model.config
        size, patch = (_first(config, name) for name in ("image_size", "patch_size"))
        return [max(1, size // max(1, patch)) ** 2 + 1] * len(texts)

    def _inputs(self, texts: Sequence[CorpusText]) -> Any:
        pixels = [self._processor(self._open(text.image), return_tensors="pt") for text in texts]
        return {"pixel_values": torch.cat([each["pixel_values"] for each in pixels])}

    def _open(self, image: str | bytes) -> Any:
        source = io.BytesIO(image) if isinstance(image, bytes) else image
        try:
            return self._images.open(source).convert("RGB")
        except (OSError, ValueError) as error:
            name = f"{len(image):,} bytes" if isinstance(image, bytes) else shorten(image)
            raise InputError(f"The image {name} cannot be read: {error}.") from error


def _first(config: Any, name: str) -> int:
    value = getattr(config, name, 1)
    return int(value[0] if isinstance(value, (tuple, list)) else value)


def _processor_of(model: Any) -> Any:
    transformers = optional_import("transformers", extra="models", purpose="Preparing images")
    name = getattr(getattr(model, "config", None), "name_or_path", "")
    try:
        return transformers.AutoImageProcessor.from_pretrained(name)
    # The library raises many unrelated types where a processor is missing; all mean the same here.
    except Exception as error:
        raise ModelError(
            f"The model {shorten(name)} has no image processor that can be loaded "
            f"({type(error).__name__}: {str(error)[:200]}). Images need one beside the weights "
            "(preprocessor_config.json)."
        ) from error
