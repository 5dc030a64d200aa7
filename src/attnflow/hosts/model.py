"""A model as every function of attnflow takes it: loaded once, with what prepares its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import nn

from attnflow.errors import ModelError, TokensError, shorten

if TYPE_CHECKING:
    from attnflow.hosts.adapter import Adapter, ModelFacts

__all__ = ["Model"]


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
        from attnflow.hosts.registry import adapter_for

        return adapter_for(self.module)

    @cached_property
    def facts(self) -> ModelFacts:
        """Facts that the model's config and class say of it, such as where its answer is read."""
        return self.adapter.facts(self.module)

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
    config: Any = model.config
    name = getattr(config, "name_or_path", "")
    if not name:
        raise TokensError(
            "Text and images need the model's processor: pass "
            "processor=AutoProcessor.from_pretrained(...), or the model's name or path."
        )
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(name)
    except Exception as error:  # the library raises many unrelated types
        raise ModelError(
            f"The processor of {shorten(name)} could not be loaded ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:300] if str(error) else ''}). Pass processor=..."
        ) from error
