"""What each host needs so that its attention can be seen: one small class for each.

An adapter recognises a model, turns texts into its inputs, runs one forward pass while handing
every layer's weights to a recorder, and says what was predicted. It leaves the model as it was,
also when the forward pass fails. It knows nothing of methods.
"""

from __future__ import annotations

from torch import nn

from attnflow.adapters.embedded import EmbeddedAdapter
from attnflow.adapters.host import Adapter
from attnflow.adapters.transformers import TransformersAdapter
from attnflow.errors import UnsupportedModelError

__all__ = ["ADAPTERS", "Adapter", "adapter_for"]

ADAPTERS: list[Adapter] = [EmbeddedAdapter(), TransformersAdapter()]


def adapter_for(model: nn.Module) -> Adapter:
    """The first adapter that recognises the model."""
    for adapter in ADAPTERS:
        if adapter.recognises(model):
            return adapter
    raise UnsupportedModelError(
        f"No adapter recognises {type(model).__module__}.{type(model).__qualname__}; there are "
        f"adapters for {', '.join(adapter.name for adapter in ADAPTERS)}. If you can get its "
        "attention weights yourself, AttentionTrace.from_arrays takes them."
    )
