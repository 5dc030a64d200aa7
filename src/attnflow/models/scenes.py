"""The small vision-language model that ships with the package, for drawn scenes.

It answers questions about two to four coloured shapes ("what colour is the circle?"). It is
transformers' own LlavaForConditionalGeneration: a CLIP vision tower of three layers over 6 × 6
patches, a projection, a Llama of three layers. ``scenes/README.md`` is its card, and
``training/scenes.py`` trains it.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import torch

from attnflow.errors import ModelError

__all__ = ["load_scenes", "scenes_folder"]

_WEIGHTS = "model.safetensors"


def scenes_folder() -> Path:
    """The folder of the model, as `from_pretrained` takes it.

    >>> scenes_folder().name
    'scenes'
    """
    return Path(str(resources.files("attnflow.models"))) / "scenes"


def load_scenes(folder: Path | None = None) -> tuple[Any, Any]:
    """The model in single precision and in eval mode, and its processor.

    folder: another one, as ``training/scenes.py`` writes it.

    >>> model, processor = load_scenes()
    >>> type(model).__name__
    'LlavaForConditionalGeneration'
    """
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    place = scenes_folder() if folder is None else Path(folder)
    if not (place / _WEIGHTS).is_file():
        raise ModelError(
            f"The folder {str(place)!r} holds no model of drawn scenes: {_WEIGHTS} is missing. "
            "training/scenes.py --output FOLDER writes one."
        )
    model = LlavaForConditionalGeneration.from_pretrained(place, dtype=torch.float32)
    return model.eval(), AutoProcessor.from_pretrained(place)
