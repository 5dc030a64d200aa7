"""A vision model's own processor, and its positions: what stands before the patches, then these."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from transformers import AutoImageProcessor, PreTrainedModel

from attnflow.errors import CaptureError, ModelError, shorten
from attnflow.tokens import Tokens
from attnflow.tokens.patches import Grid, patch_names

__all__ = ["name_patches", "own_processor"]

_PROCESSORS: WeakKeyDictionary[PreTrainedModel, Any] = WeakKeyDictionary()


def own_processor(model: PreTrainedModel) -> Any:
    """The image processor that was saved beside the model's weights; loaded once."""
    if model not in _PROCESSORS:
        _PROCESSORS[model] = _load_processor(model)
    return _PROCESSORS[model]


def _load_processor(model: PreTrainedModel) -> Any:
    name = str(getattr(model.config, "name_or_path", ""))
    hint = "pass one: processor=..., for example AutoImageProcessor.from_pretrained(...)."
    if not name:
        raise ModelError(
            f"This {type(model).__name__} was not loaded from a folder or a name, so there is no "
            f"image processor beside it; {hint}"
        )
    try:
        # Pillow's: the same pixels whether or not torchvision is installed.
        return AutoImageProcessor.from_pretrained(name, backend="pil")
    # The library raises many unrelated types where a processor is missing; all mean the same here.
    except Exception as error:
        raise ModelError(
            f"The model {shorten(name)} has no image processor that can be loaded "
            f"({type(error).__name__}: {str(error)[:200]}). Images need one beside the weights "
            f"(preprocessor_config.json); or {hint}"
        ) from error


def name_patches(config: Any, pixels: Tensor, length: int) -> Tokens:
    """Names of `length` positions over pixels (batch, channels, height, width)."""
    vision = getattr(config, "vision_config", None) or getattr(config, "encoder", config)
    size = vision.patch_size
    down, across = size if isinstance(size, (tuple, list)) else (size, size)
    height, width = pixels.shape[-2:]
    rows, columns = height // down, width // across
    prefix = length - rows * columns
    if prefix < 0:
        raise CaptureError(f"{length} positions for {rows} × {columns} patches.")
    grid = Grid(rows, columns, prefix, height, width)
    return Tokens(patch_names(grid, _prefix_names(prefix, config.model_type == "deit")), grid=grid)


def _prefix_names(count: int, distilled: bool) -> tuple[str, ...]:
    """Class token, then the distillation token or registers."""
    if distilled:
        return ("[CLS]", "[DIST]")
    return (*["[CLS]"][:count], *(f"[REG{k}]" for k in range(1, count)))
