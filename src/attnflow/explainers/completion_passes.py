"""The passes of a language model over a completion and what is left of its prompt.

A pass runs whole texts, or their ends beside a cache of the prompt, several of them one after
another in one text where the model takes a mask of one's own. An encoder–decoder has what is left
in its encoder, and the completion in its decoder.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.errors import ModelError
from attnflow.hosts.adapter import device_of
from attnflow.hosts.factored import Keys, told_memory
from attnflow.hosts.model import adapter_for
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.generate import cache_of, cached_keys

Floats = NDArray[np.float64]
_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
_CACHEABLE = {"full_attention", "sliding_attention"}


class Variant(NamedTuple):
    """A text with parts taken away; `first` is the first position that is not as it was."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    visible: tuple[bool, ...]
    first: int


@dataclass(frozen=True, eq=False)
class CompletionPasses:
    """The passes over one prompt with its completion.

    keys: keys and values of each layer over the prompt, if a pass has left them.
    """

    model: Any
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    keys: Keys = ()

    @cached_property
    def accepts(self) -> frozenset[str]:
        """The arguments that the model's forward takes by name."""
        return frozenset(inspect.signature(self.model.forward).parameters)

    @cached_property
    def two_stacks(self) -> bool:
        """True for an encoder–decoder."""
        return adapter_for(self.model).facts(self.model).encoder_decoder

    @cached_property
    def is_plain(self) -> bool:
        """True where keys and values are all that a later token reads of earlier ones."""
        config = self.model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or _CACHEABLE)
        return kinds <= _CACHEABLE and not getattr(self.model, "_is_stateful", False)

    @cached_property
    def has_windows(self) -> bool:
        """True where a layer sees less than the whole text."""
        config = self.model.config.get_text_config()
        windows = [getattr(config, name, None) for name in _WINDOWS]
        length = len(self.prompt_ids) + len(self.completion_ids)
        return any(window is not None and window < length for window in windows)

    @property
    def may_share(self) -> bool:
        """True unless it is known beforehand that no cache of a text's beginning serves others."""
        return not self.two_stacks and self.is_plain and "past_key_values" in self.accepts

    @property
    def has_prompt(self) -> bool:
        """True if the keys of the prompt are there: it need not be read for them."""
        return bool(self.keys) or "prompt_keys" in vars(self)

    def forward(self, variants: Sequence[Variant], start: int | None) -> Floats:
        """Return `(variants, completion tokens)`; `start`: run from there on, beside the cache."""
        device = device_of(self.model)
        ids = torch.tensor([variant.ids for variant in variants], device=device)
        mask = torch.tensor([variant.visible for variant in variants], device=device).long()
        with told_memory(self.model, ids.shape[1]), at_rest(self.model), torch.no_grad():
            if self.two_stacks:
                logits = self._decoded(ids, mask)
            else:
                places = torch.tensor([variant.positions for variant in variants], device=device)
                logits = self._continued(ids, mask, places, start or 0)
        return self._of_completion(logits[:, -len(self.completion_ids) :])

    def _of_completion(self, logits: Tensor) -> Floats:
        """Return what `(variants, tokens, vocabulary)` give the completion's first tokens."""
        completion = torch.tensor(list(self.completion_ids), device=logits.device)
        index = completion[: logits.shape[1]].expand(len(logits), -1).unsqueeze(-1)
        rows = logits.float().log_softmax(dim=-1).gather(-1, index)
        return rows.squeeze(-1).double().cpu().numpy()

    def side_by_side(self, variants: Sequence[Variant], start: int) -> list[Floats]:
        """Return the same as `forward`, the ends of all variants one after another in one text.

        Each end sees what its variant lets it see of the one copy of the cache, and itself. One
        may stop before the last token of the completion.
        """
        device = device_of(self.model)
        ends = [len(each.ids) - start for each in variants]
        ids = torch.tensor([k for each in variants for k in each.ids[start:]], device=device)
        places = torch.tensor([k for one in variants for k in one.positions[start:]], device=device)
        before = torch.tensor([each.visible[:start] for each in variants], device=device)
        after = torch.tensor([k for each in variants for k in each.visible[start:]], device=device)
        own = torch.block_diag(*[torch.ones(end, end, device=device).tril() for end in ends])
        before = before.repeat_interleave(torch.tensor(ends, device=device), dim=0)
        allowed = torch.cat([before, own.bool() & after], dim=1)
        lowest = torch.finfo(self.model.dtype).min
        mask = torch.zeros(allowed.shape, dtype=self.model.dtype, device=device)
        mask = mask.masked_fill(~allowed, lowest)[None, None]
        needed = (places >= len(self.prompt_ids) - 1).nonzero().flatten()
        keeps = "logits_to_keep" in self.accepts
        with at_rest(self.model), torch.no_grad():
            logits = self.model(
                input_ids=ids[None],
                attention_mask=mask,
                position_ids=places[None],
                past_key_values=cache_of(self.prompt_keys, start),
                use_cache=True,
                **({"logits_to_keep": needed} if keeps else {}),
            ).logits[0]
        logits = logits if keeps else logits[needed]
        parts = logits.split([len(each.ids) - len(self.prompt_ids) + 1 for each in variants])
        return [self._of_completion(part[None])[0] for part in parts]

    def _continued(self, ids: Tensor, mask: Tensor, places: Tensor, start: int) -> Tensor:
        options: dict[str, Any] = {"use_cache": start > 0}
        if "position_ids" in self.accepts:
            options["position_ids"] = places[:, start:]
        if "logits_to_keep" in self.accepts:
            options["logits_to_keep"] = len(self.completion_ids)
        if start:
            options["past_key_values"] = cache_of(self.prompt_keys, start, len(ids))
        return self.model(input_ids=ids[:, start:], attention_mask=mask, **options).logits

    @cached_property
    def prompt_keys(self) -> Keys:
        """Keys and values of the prompt, every layer. A cache without the model's settings keeps
        all keys of a layer with a window too; the mask still hides those outside it.
        """
        if self.keys:
            return self.keys
        from transformers import DynamicCache

        cache = DynamicCache()
        ids = torch.tensor([list(self.prompt_ids)], device=device_of(self.model))
        self.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            use_cache=True,
            **({"logits_to_keep": 1} if "logits_to_keep" in self.accepts else {}),
        )
        return cached_keys(cache)

    def _decoded(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Run an encoder–decoder: what is hidden is masked in the encoder and for the decoder."""
        start = self.model.generation_config.decoder_start_token_id
        start = self.model.config.decoder_start_token_id if start is None else start
        if start is None:
            raise ModelError(
                f"{type(self.model).__name__} names no decoder_start_token_id in its config."
            )
        row = [int(start), *(int(token) for token in self.completion_ids[:-1])]
        completion = torch.tensor(row, device=ids.device).expand(len(ids), -1)
        return self.model(
            input_ids=ids, attention_mask=mask, decoder_input_ids=completion, use_cache=False
        ).logits
