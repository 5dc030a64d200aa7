"""What each host needs so that its attention can be seen: one small class for each.

An adapter recognises a model, turns texts into its inputs, runs one forward pass while handing
every layer's weights to a recorder, and says what was predicted. It leaves the model as it was,
also when the forward pass fails. It knows nothing of methods.

A package adds a host through the entry point group `attnflow.adapters`, whose value is an
`Adapter` class; those are asked before the built-in ones.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from torch import nn

from attnflow.errors import ModelError, UnsupportedModelError
from attnflow.hosts.adapter import Adapter
from attnflow.hosts.hooked import EmbeddedAdapter, TimmAdapter, TorchAdapter
from attnflow.hosts.transformers.adapter import TransformersAdapter

ENTRY_POINTS = "attnflow.adapters"


@cache
def adapters() -> tuple[Adapter, ...]:
    """Installed plug-ins first, so that a host's own adapter wins; then the built-in ones."""
    plug_ins = [_plug_in(point) for point in entry_points(group=ENTRY_POINTS)]
    built_in = [EmbeddedAdapter(), TransformersAdapter(), TimmAdapter(), TorchAdapter()]
    return (*(adapter for adapter in plug_ins if adapter is not None), *built_in)


def _plug_in(point: EntryPoint) -> Adapter | None:
    """A package's adapter; a broken one is named and left out, so that all other models work."""
    try:
        adapter = point.load()()
    except Exception as error:  # whatever another package's code raises
        why = f"{type(error).__name__}: {error}"
    else:
        if isinstance(adapter, Adapter):
            return adapter
        why = f"it is a {type(adapter).__name__} and no attnflow Adapter"
    warnings.warn(
        f"The adapter {point.name!r} ({point.value}) could not be loaded and is left out: {why}. "
        "Mend or uninstall the package that brings it.",
        stacklevel=2,
    )
    return None


def adapter_for(model: nn.Module) -> Adapter:
    """Return the first adapter that recognises the model."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"A model is a torch module, a name, a path or None for the embedded one; got "
            f"{type(model).__name__}."
        )
    for adapter in adapters():
        if adapter.recognises(model):
            return adapter
    raise UnsupportedModelError(
        f"No adapter recognises {type(model).__module__}.{type(model).__qualname__}; there are "
        f"adapters for {', '.join(adapter.name for adapter in adapters())}. If you can get its "
        "attention weights yourself, AttentionTrace.from_arrays takes them; an adapter of your "
        "own is a dozen lines."
    )
