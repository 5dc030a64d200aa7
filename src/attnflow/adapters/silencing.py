"""One forward pass of a transformers model in which some positions pass nothing on.

The same seam as recording: an attention function of ours, by name, for one pass. It sets the
value of one position of each example to zero before the model file's own eager function runs.
Queries, keys and so the weights stay as they are; what is gone is what the position says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from attnflow.adapters.recording import implementation
from attnflow.errors import CaptureError

__all__ = ["silencing", "without_values"]

_NAME = "attnflow_silencing"

# Keyed by module, so that two threads that run two models at once do not mix.
_SILENT: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()


def without_values(values: Tensor, silent: Tensor) -> Tensor:
    """`values` (batch, heads, positions, width) with position `silent[b]` of example b zero."""
    changed = values.clone()
    changed[torch.arange(len(silent), device=values.device), :, silent] = 0
    return changed


def _attend_silently(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, None]:
    attend = sys.modules[type(module).__module__].eager_attention_forward
    silent = _SILENT.get(module)
    if silent is not None:
        value = without_values(value, silent)
    output, _ = attend(module, query, key, value, mask, **options)
    return output, None


AttentionInterface.register(_NAME, _attend_silently)
AttentionMaskInterface.register(_NAME, eager_mask)


@contextmanager
def silencing(model: PreTrainedModel, silent: Tensor) -> Iterator[None]:
    """Silence one position of each example in every layer; put everything back."""
    modules = list(model.modules())
    if any(module in _SILENT for module in modules):
        raise CaptureError("This model is at work in another thread; run one at a time.")
    with implementation(model, _NAME):
        try:
            _SILENT.update(dict.fromkeys(modules, silent))
            yield
        finally:
            for module in modules:
                _SILENT.pop(module, None)
