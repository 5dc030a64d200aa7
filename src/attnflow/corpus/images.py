"""Images of a corpus, as the model's own image processor prepares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from attnflow.corpus.explainers import TextExplainer
from attnflow.corpus.settings import Settings
from attnflow.corpus.texts import CorpusText
from attnflow.errors import ModelError, optional_import, shorten
from attnflow.hosts.images import read_photo
from attnflow.hosts.model import Model

__all__ = ["ImageExplainer"]


class ImageExplainer(TextExplainer):
    """A vision model: its sources are patches, its target is where the class is read."""

    def __init__(self, loaded: Model, settings: Settings) -> None:
        super().__init__(loaded, settings)
        self._processor = _processor_of(self.model)

    def _lengths_together(self, texts: Sequence[CorpusText]) -> list[int]:
        """All images have one size, and so one number of patches."""
        config: Any = self.model.config
        size, patch = (_first(config, name) for name in ("image_size", "patch_size"))
        return [max(1, size // max(1, patch)) ** 2 + 1] * len(texts)

    def _inputs(self, texts: Sequence[CorpusText]) -> Any:
        pixels = [
            self._processor(read_photo(text.image).image, return_tensors="pt") for text in texts
        ]
        return {"pixel_values": torch.cat([each["pixel_values"] for each in pixels])}


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
