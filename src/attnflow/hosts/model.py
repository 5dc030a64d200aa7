"""A model as every function of attnflow takes it, and the adapter of its host library.

An adapter recognises a model, turns texts into its inputs, runs one forward pass while handing
every layer's weights to a recorder, and says what was predicted. It leaves the model as it was,
also when the forward pass fails. It knows nothing of methods.

A package adds a host through the entry point group `attnflow.adapters`, whose value is an
`Adapter` class; those are asked before the built-in ones.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from math import isfinite, nan
from pathlib import Path
from typing import Any

from torch import nn

from attnflow.errors import FileError, ModelError, TokensError, UnsupportedModelError, shorten
from attnflow.hosts.adapter import Adapter, ModelFacts
from attnflow.hosts.inputs import saved_processor

__all__ = ["Model"]

ENTRY_POINTS = "attnflow.adapters"
CALIBRATION = "attnflow-verdicts.json"
"""The file in a model's folder that holds the curve of its verdicts."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model ready to run, with its tokenizer and processor, and what is known of it.

    It unpacks into the module and its tokenizer: `module, tokenizer = attnflow.load("gpt2")`.

    module: the torch module.
    tokenizer: what turns text into its inputs; None where it reads none, or none is at hand.
    processor: what turns images into its inputs, where another than the model's own is wanted.

    >>> from attnflow import load
    >>> model = load()
    >>> type(model.module).__name__, model.facts.encoder_decoder
    ('VerbNumberModel', False)
    """

    module: nn.Module
    tokenizer: Any = None
    processor: Any = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.module, self.tokenizer))

    @cached_property
    def adapter(self) -> Adapter:
        """The adapter of the model's host library."""
        return adapter_for(self.module)

    @cached_property
    def facts(self) -> ModelFacts:
        """Facts that the model's config and class say of it, such as where its answer is read."""
        return self.adapter.facts(self.module)

    @cached_property
    def calibration(self) -> tuple[float, float] | None:
        """Middle and slope of the curve of its verdicts, if its folder holds one of its own.

        `attnflow experiment verdicts --calibrate` fits and writes it.
        """
        folder = str(getattr(getattr(self.module, "config", None), "_name_or_path", "") or "")
        file = Path(folder, CALIBRATION)
        if not folder or not file.is_file():
            return None
        try:
            curve = json.loads(file.read_text(encoding="utf-8"))
            middle, slope = float(curve["middle"]), float(curve["slope"])
        except (OSError, ValueError, TypeError, KeyError):
            middle, slope = nan, nan
        if not (isfinite(middle) and isfinite(slope) and slope > 0):
            raise FileError(
                f"{file} holds no curve of verdicts, a middle and a slope above 0. Make it again "
                "with attnflow experiment verdicts --calibrate, or delete it."
            )
        return middle, slope

    @cached_property
    def image_processor(self) -> Any:
        """The processor of a vision model's photos: the one given, else the model's own."""
        if self.processor is not None:
            return self.processor
        return self.adapter.image_processor(self.module)

    @cached_property
    def question_processor(self) -> Any:
        """The processor of a question with its images: the one given, else the model's own."""
        return processor_of(self.module, self.processor)


def processor_of(model: nn.Module, processor: Any = None) -> Any:
    """Return the processor that was handed in, or that which was saved with the model."""
    if processor is not None:
        if hasattr(processor, "image_processor") and hasattr(processor, "tokenizer"):
            return processor
        raise TokensError(
            f"processor={shorten(processor)} prepares no text and images together; pass "
            "processor=AutoProcessor.from_pretrained(...)."
        )
    return saved_processor(model, "AutoProcessor", "Text and images")


@cache
def adapters() -> tuple[Adapter, ...]:
    """Installed plug-ins first, so that a host's own adapter wins; then the built-in ones."""
    from attnflow.hosts.hooked import EmbeddedAdapter, TimmAdapter, TorchAdapter
    from attnflow.hosts.transformers.adapter import TransformersAdapter

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
