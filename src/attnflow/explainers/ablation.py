"""A language model run again without parts of its prompt: how they are taken away, what is lost.

There are three ways. "hide" makes the keys of tokens invisible to every query in every layer,
through the model's own attention mask, and keeps the position of every other token. "replace" puts
a blank token in their place. "delete" leaves them out, so that positions close up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from attnflow.errors import InputError, ModelError, TokensError, shorten
from attnflow.errors.arguments import check_count, check_fields
from attnflow.errors.progress import tell
from attnflow.explainers.blanks import blank_token
from attnflow.explainers.completion_passes import CompletionPasses, Variant
from attnflow.hosts.adapter import device_of
from attnflow.hosts.factored import Keys
from attnflow.hosts.inputs import check_vocabulary
from attnflow.hosts.model import Model
from attnflow.methods.reruns import By

Floats = NDArray[np.float64]

_ON_CPU, _ON_DEVICE = 1_024, 32_768  # tokens of a batch: a core's cache; a device wants to be full
_TRIED, _TRIED_TOKENS = 64, 4  # tokens of a prompt, of a completion, on which a cache is tried
_SAME = 1e-3  # what rounding may change a log-probability by when a prefix is cached
_ROUNDINGS = 8  # the same in steps of a coarser type
_LARGE_MASK = 2**28  # queries × keys: beside a cache they take a mask, which no whole text needs


def log_odds(log_prob: Floats) -> Floats:
    """Return log p − log(1 − p), from log p."""
    return np.asarray(log_prob - np.log(-np.expm1(np.minimum(log_prob, -1e-12))))


def ablate(
    model: Model,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    *,
    by: By | None = "hide",
    batch_tokens: int | None = None,
    keys: Keys = (),
    known: Sequence[float] = (),
) -> CompletionAblation:
    """Prepare a completion to be run again; its tokenizer says what a blank token is.

    by: None hides, and replaces where hiding would move other tokens.
    """
    others: dict[str, Any] = {"batch_tokens": batch_tokens, "keys": keys, "known": known}
    if by is None:
        try:
            return ablate(model, prompt_ids, completion_ids, **others)
        except ModelError:  # one that counts positions by its mask
            if model.tokenizer is None:
                raise
        by = "replace"
    needs_blank = by == "replace" and model.tokenizer is not None
    return CompletionAblation(
        model=model.module,
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        by=by,
        blank=blank_token(model.tokenizer) if needs_blank else None,
        **others,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class CompletionAblation:
    """One prompt with its completion, run again without parts of the prompt.

    prompt_ids, completion_ids: token ids; of an encoder–decoder the encoder's and the decoder's.
    by: "hide", "replace" (then `blank` is the id of the blank token) or "delete".
    batch_tokens: about how many tokens run at once; default: by the device.
    keys, known: keys and values of each layer over the prompt, and the log-probability of each
    token of the completion, if a pass has left them.

    Sets of prompt positions go in, one response for each comes out. A set is run with the sets of
    equal length, and what stands before the first changed position comes from a cache, where the
    model's own state is nothing but keys and values: that is exact, whatever the window.
    """

    model: Any
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    by: By = "hide"
    blank: int | None = None
    batch_tokens: int | None = None
    keys: Keys = ()
    known: Sequence[float] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.model, nn.Module) or not hasattr(self.model, "config"):
            raise ModelError(
                f"A completion is run again by a transformers language model; got "
                f"{shorten(self.model)}."
            )
        if self.batch_tokens is not None:
            check_count("batch_tokens", self.batch_tokens, 1)
        if not len(self.prompt_ids) or not len(self.completion_ids):
            raise TokensError(
                f"{len(self.prompt_ids)} tokens of prompt and {len(self.completion_ids)} of "
                "completion: both need at least one."
            )
        if self.by == "replace" and self.blank is None:
            raise InputError("by='replace' needs blank=..., the id of the token put in the place.")
        check_vocabulary(self.model, torch.tensor(list(self.prompt_ids)))
        if not self._passes.two_stacks:
            check_vocabulary(self.model, torch.tensor(list(self.completion_ids)))
        if self.by == "hide":
            self._check_mask()

    def _check_mask(self) -> None:
        """Raise unless a mask may have holes, and positions do not follow from it."""
        name, config = type(self.model).__name__, self.model.config
        passes = self._passes
        by_mask = "position_ids" not in passes.accepts or bool(getattr(config, "alibi", False))
        if by_mask and not passes.two_stacks:
            raise ModelError(
                f"{name} counts positions by its attention mask, so hiding a token would move the "
                "others. Take by='replace'."
            )
        attention = str(getattr(config, "_attn_implementation", None))
        if "flash" in attention:
            raise ModelError(
                f"{name} runs {attention!r}, which closes up the gaps of a mask, so windows would "
                "reach further than they do. Load it with attn_implementation='sdpa', or take "
                "by='replace'."
            )

    @cached_property
    def _passes(self) -> CompletionPasses:
        return CompletionPasses(self.model, self.prompt_ids, self.completion_ids, self.keys)

    # -- what is asked ------------------------------------------------------------------------

    def log_probs(self, sets: Sequence[Sequence[int]]) -> Floats:
        """Return the log-probability of the completion, one for each set of prompt positions."""
        return np.asarray(self.token_log_probs(sets).sum(axis=1))

    def token_log_probs(self, sets: Sequence[Sequence[int]]) -> Floats:
        """Return the log-probability of each completion token, `(sets, completion tokens)`."""
        try:
            keys = [tuple(sorted({index(position) for position in each})) for each in sets]
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"Sets of prompt positions are lists of whole numbers; got {shorten(sets)}."
            ) from error
        distinct = list(dict.fromkeys(keys))
        variants = [self._variant(key) for key in distinct]
        rows: dict[tuple[int, ...], Floats] = {}
        new = 0 if self._passes.has_prompt else len(self.prompt_ids)  # tokens, to cache them
        saved = sum(map(self._runs_from, variants)) - new
        cached = saved > 0 and self.takes_prefix_from_cache
        for batch in self._batches(variants, cached):
            members = [variants[k] for k in batch]
            start = min(map(self._runs_from, members)) if cached else None
            for k, row in zip(batch, self._passes.forward(members, start), strict=True):
                rows[distinct[k]] = row
            tell("ablation", len(rows), len(distinct))
        empty = np.empty((0, len(self.completion_ids)))
        return np.stack([rows[key] for key in keys]) if keys else empty

    @property
    def hides_beside(self) -> bool:
        """True where sets may be hidden from the end of the text only, beside one cache."""
        return self.by == "hide" and self.takes_prefix_from_cache

    def log_probs_beside(self, sets: Sequence[Sequence[int]], start: int) -> Floats:
        """Return `token_log_probs` with sets that stand before `start` hidden only from there on.

        Only the end of the text runs again. What stands between has read them, so that less may be
        lost than by hiding them for good; nearly the same where documents do not speak of one
        another. Where no cache can be shared they are hidden from all: see `hides_beside`.
        """
        ids = (*map(int, self.prompt_ids), *map(int, self.completion_ids[:-1]))
        places = tuple(range(len(ids)))
        variants = [
            Variant(ids, places, tuple(k not in absent for k in places), start)
            for absent in map(set, sets)
        ]
        rows = np.empty((len(sets), len(self.completion_ids)))
        for batch in self._batches(variants, cached=True):
            beside = self._beside([variants[k] for k in batch])
            if beside is None:
                return self.token_log_probs(sets)
            rows[batch] = beside
        return rows

    def _beside(self, variants: Sequence[Variant]) -> list[Floats] | Floats | None:
        """Return the rows of some ends of the text; None where it has no cache to be shared."""
        start = self._start(variants[0])
        passes = self._passes
        is_kept = self.by == "hide" and passes.may_share and self.keys and len(self.known)
        if is_kept and "_packs" not in vars(self):  # whose trial is a part of the same pass
            rows = self._tried(variants, start)
            vars(self)["_packs"] = rows is not None
            if rows is not None:
                return rows
        if not self.hides_beside:
            return None
        return (passes.side_by_side if self._packs else passes.forward)(variants, start)

    def read_from(self, start: int) -> CompletionAblation:
        """Return the same with the end of the prompt, from `start` on, read as part of what was
        written after the rest of it.
        """
        if self._passes.two_stacks:
            raise ModelError(
                f"{type(self.model).__name__} reads its prompt in an encoder, which gives no token "
                "of it a probability."
            )
        prompt, end = self.prompt_ids[:start], self.prompt_ids[start:]
        return replace(
            self, prompt_ids=prompt, completion_ids=[*end, *self.completion_ids], known=()
        )

    @cached_property
    def _packs(self) -> bool:
        """True where several ends of a text may run as one, beside one copy of its cache: tried."""
        return self._tried([], len(self.prompt_ids) - 1) is not None

    def _tried(self, variants: Sequence[Variant], start: int) -> list[Floats] | None:
        """Return the rows of ends of a text that run as one; None where the text as it is, which is
        the last of them and would see the others under no mask, does not get what it should.
        """
        if self._passes.has_windows:  # a mask of one's own is taken for every layer
            return None
        text = self._variant(())
        if len(self.known):  # then few tokens of the completion are enough
            expected = np.array(self.known[:_TRIED_TOKENS])
            end = len(self.prompt_ids) + len(expected) - 1
            text = Variant(text.ids[:end], text.positions[:end], text.visible[:end], text.first)
        else:
            (expected,) = self._passes.forward([text], start)
        try:
            *rows, last = self._passes.side_by_side([*(variants or [text]), text], start)
        except (RuntimeError, ValueError, TypeError, IndexError):  # takes no such mask
            return None
        return rows if self._are_same(last, expected) else None

    def _are_same(self, rows: Floats, expected: Floats) -> bool:
        tolerance = max(_SAME, _ROUNDINGS * torch.finfo(self.model.dtype).eps)
        return bool(np.abs(rows - expected).max() <= tolerance)

    @cached_property
    def takes_prefix_from_cache(self) -> bool:
        """True where what stands before a change is run only once: tried, not assumed."""
        if not self._passes.may_share:
            return False
        if self.keys and len(self.known) and self._packs:  # tried on the text itself
            return True
        tried = self
        if not self._passes.has_windows and len(self.prompt_ids) > _TRIED:
            tried = replace(self, prompt_ids=self.prompt_ids[:_TRIED])
        prompt, start, run = tried._variant(()), len(tried.prompt_ids) - 1, tried._passes.forward
        return self._are_same(run([prompt], start), run([prompt], None))

    # -- how it is run ------------------------------------------------------------------------

    @cached_property
    def _skips_hidden(self) -> bool:
        """True where hidden tokens need not run; a window counts tokens, so there must be none."""
        passes = self._passes
        return self.by == "hide" and not (
            passes.two_stacks or passes.has_windows or not passes.is_plain
        )

    def _variant(self, positions: tuple[int, ...]) -> Variant:
        prompt = tuple(int(token) for token in self.prompt_ids)
        if positions and not 0 <= positions[0] <= positions[-1] < len(prompt):
            raise InputError(
                f"Only prompt positions 0 to {len(prompt) - 1} can be taken away; got {positions}."
            )
        absent = set(positions)
        first = positions[0] if positions else len(prompt)
        if self.by == "replace":
            blank = int(self.blank or 0)
            prompt = tuple(blank if k in absent else token for k, token in enumerate(prompt))
        two_stacks = self._passes.two_stacks
        completion = () if two_stacks else tuple(int(t) for t in self.completion_ids[:-1])
        ids = (*prompt, *completion)
        # the last token of the prompt runs even when nobody sees it: the first answer is read there
        if self.by == "delete" or (self._skips_hidden and len(prompt) - 1 not in absent):
            places = tuple(k for k in range(len(ids)) if k not in absent)
            if len(places) == len(completion):
                raise InputError(
                    f"All tokens of the prompt would be gone, by={self.by!r}; leave one."
                )
            ids = tuple(ids[k] for k in places)
            places = tuple(range(len(ids))) if self.by == "delete" else places
            return Variant(ids, places, (True,) * len(ids), first)
        visible = tuple(self.by != "hide" or k not in absent for k in range(len(ids)))
        return Variant(ids, tuple(range(len(ids))), visible, first)

    def _batches(self, variants: Sequence[Variant], cached: bool) -> Iterator[list[int]]:
        """Yield variants of one length together: a window would count padding."""
        device = device_of(self.model)
        budget = self.batch_tokens or (_ON_CPU if device.type == "cpu" else _ON_DEVICE)
        keys = [(len(variant.ids), variant.first) for variant in variants]
        order = sorted(range(len(variants)), key=keys.__getitem__)
        at = 0
        while at < len(order):
            lead = variants[order[at]]
            tokens = len(lead.ids) - (self._runs_from(lead) if cached else 0)
            batch = [
                k
                for k in order[at : at + max(1, budget // tokens)]
                if len(variants[k].ids) == len(lead.ids)
            ]
            yield batch
            at += len(batch)

    def _runs_from(self, variant: Variant) -> int:
        """Return the position to run from: 0 where the end of a long text is much of it.

        Torch's kernels read a whole text without a mask, and half of its pairs; the end alone takes
        a mask of queries × keys, and all of them, so that a quarter of a text costs as much.
        """
        start, length = self._start(variant), len(variant.ids)
        end = length - start
        if end * length <= _LARGE_MASK or 4 * end <= length:
            return start
        fused = getattr(self.model.config, "_attn_implementation", None) == "sdpa"
        needs_mask = self._passes.has_windows or not all(variant.visible)
        return 0 if fused and not needs_mask else start

    def _start(self, variant: Variant) -> int:
        """Return the first position to run: that before the completion must be among them."""
        return min(variant.first, len(variant.ids) - len(self.completion_ids))
