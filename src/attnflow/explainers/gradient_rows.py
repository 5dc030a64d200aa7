"""Gradient attention in one pass: of a completion beside the prompt's cache, and of many texts.

The model writes as it always does, with its own fused attention. Its keys and values are kept, and
when the text is there, one forward and one backward pass over the positions that predicted it give
the row of every generated token. That costs a fraction of writing, where a backward pass for each
token as it comes would double it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.attribution import Attribution
from attnflow.attribution.carrying import carry_on
from attnflow.hosts.adapter import Scores
from attnflow.hosts.factored import Keys, told_memory
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.inputs import tokens_of
from attnflow.hosts.model import Model, adapter_for
from attnflow.hosts.restore import at_rest
from attnflow.hosts.scores import token_scores
from attnflow.hosts.transformers.generate import cache_of, cached_keys
from attnflow.hosts.transformers.row_gradients import (
    NO_CONTRAST,
    PredictingRows,
    gradient_row_parts,
    gradient_rows,
    read_prefix,
)
from attnflow.methods import GradientAttention
from attnflow.methods.base import layers_from
from attnflow.methods.gradients import find_sink
from attnflow.trace.extras import LOG_PROB, ScoreName

_MOST_NUMBERS = 2**24  # of layers × tokens × positions: above, only the sum over layers is kept


@dataclass(frozen=True, eq=False)
class CompletionRows:
    """Rows `[layer, example, generated token, position]` of padded texts, and each token's own mean
    weights over layers and heads and log-probability in nats.

    keys: those of the padded texts, up to the last token but one.
    """

    rows: NDArray[np.float64]
    weights: NDArray[np.float64]
    log_probs: NDArray[np.float64]
    prompt: int
    padding: list[int]
    layers: tuple[int, ...]
    keys: Keys = ()

    def sink(self, example: int, count: int) -> int | None:
        """Return the prompt token that serves as attention sink, counted without padding."""
        position = find_sink(self.weights[example, :count])
        return None if position is None else position - self.padding[example]

    def of(
        self, example: int, count: int, sources: Literal["prompt", "all"] = "prompt"
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return sums up to each layer, to the sources `(layers, count, sources)`, and elsewhere.

        Of all sources the last is the last token but one, which predicted the last.
        """
        rows = np.cumsum(self.rows[:, example, :count], axis=0)
        end = self.prompt if sources == "prompt" else self.prompt + count - 1
        return rows[..., self.padding[example] : end].copy(), rows[..., end:].sum(axis=-1)


def completion_rows(
    model: Any,
    sequences: Tensor,
    mask: Tensor,
    prompt: int,
    lengths: list[int],
    keys: Keys = (),
    *,
    score: ScoreName = LOG_PROB,
    balanced: bool = False,
    contrasts: Mapping[tuple[int, int], int] | None = None,
) -> CompletionRows:
    """Return the rows of what was written after `prompt` positions, padding included.

    sequences: (batch, length), prompts and completions. mask: (batch, prompt). lengths: how many
    tokens of each completion count. keys: what the model kept while it wrote, if it is at hand.
    contrasts: for an example and a number of its completion's tokens, the id of the token that it
    is held against.
    """
    longest = max(lengths)
    ids = sequences[:, : prompt + longest]
    completion = torch.ones_like(ids[:, prompt:])
    explained = torch.zeros(len(ids), longest, device=ids.device)
    for example, length in enumerate(lengths):
        explained[example, :length] = 1.0
    others = torch.full_like(ids[:, prompt:], NO_CONTRAST)
    for place, token in (contrasts or {}).items():
        others[place] = token
    text = PredictingRows(
        ids=ids[:, :-1],
        mask=torch.cat([mask, completion], dim=1)[:, :-1],
        first=prompt - 1,
        tokens=ids[:, prompt:],
        explained=explained,
        contrasts=others if contrasts else None,
    )
    count = int(adapter_for(model).expected_layers(model) or 0)
    summed = count * longest * text.length * len(ids) > _MOST_NUMBERS
    with at_rest(model), told_memory(model, text.length):
        cache = cache_of(keys, text.first) if keys else read_prefix(model, text.ordinary())
        text = replace(text, cache=cache)
        rows = gradient_rows(model, text, score, summed=summed, balanced=balanced)
    return CompletionRows(
        rows=rows.values.double().cpu().numpy(),
        weights=rows.weights.double().cpu().numpy(),
        log_probs=rows.log_probs.double().cpu().numpy(),
        prompt=prompt,
        padding=(prompt - mask.sum(dim=1)).tolist(),
        layers=(count,) if summed else tuple(range(1, len(rows.values) + 1)),
        keys=cached_keys(cache),
    )


def carried_shares(
    model: Any, ids: Tensor, prompt: int, spans: NDArray[np.float64], method: GradientAttention
) -> NDArray[np.float64]:
    """Return `(generated tokens, spans)`: shares carried on to spans of the prompt.

    ids: (1, length), the prompt and what was written. spans: (prompt, spans), 1 for the positions
    of each. A part of the rows is in memory at a time, so it grows with the length, not its square.
    """
    rest = ids[:, :-1]
    text = PredictingRows(rest, torch.ones_like(rest), prompt - 1, ids[:, prompt:])
    options: dict[str, Any] = {"summed": True, "balanced": method.balanced}

    def blocks() -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        sink: int | None = None
        for number, part in enumerate(gradient_row_parts(model, text, method.score, **options)):
            rows, weights = (a[0].double().cpu().numpy() for a in (part.values[0], part.weights))
            if number == 0 and method.drop_sink:
                sink = find_sink(weights)
            if sink is not None:
                rows[:, sink] = 0.0
            sums = rows.sum(axis=1, keepdims=True)
            rows = np.divide(rows, sums, out=np.zeros_like(rows), where=sums > 0)
            yield rows[:, :prompt] @ spans, rows[:, prompt:]

    with at_rest(model), told_memory(model, text.length):
        return carry_on(blocks())


@dataclass(frozen=True, eq=False)
class _LastRow(PredictingRows):
    """The last position of each text, explained by its likeliest token, read from `logits`."""

    logits: list[Tensor] = field(default_factory=list)

    def scores(self, logits: Tensor, rows: slice, name: ScoreName) -> Tensor:
        """Return that of the likeliest token, `(batch, rows)`."""
        self.logits.append(logits.detach()[:, -1])
        return token_scores(logits, logits.argmax(dim=-1), name)


def explain_last_rows(
    model: Model, texts: Sequence[str], methods: Sequence[GradientAttention], layers: int
) -> list[list[Attribution]]:
    """Return for each of these methods of one score every text's last position at one layer."""
    module, tokenizer = model
    batch = model.adapter.encode(module, tokenizer, texts)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    lengths = mask.sum(dim=1).tolist()
    padding = [ids.shape[1] - length for length in lengths]
    left_ids, left_mask = (  # padding on the left, so that all texts end together
        torch.stack([row.roll(pad) for row, pad in zip(rows, padding, strict=True)])
        for rows in (ids, mask)
    )
    text = _LastRow(ids=left_ids, mask=left_mask, first=ids.shape[1] - 1, tokens=ids[:, :1])
    with at_rest(module):
        rows = gradient_rows(module, text, methods[0].score, balanced=methods[0].balanced)
    values, weights = (array.double().cpu().numpy() for array in (rows.values, rows.weights))
    about = provenance_of(module, str(module.dtype).removeprefix("torch."))
    results: list[list[Attribution]] = [[] for _ in methods]
    for k, (length, pad) in enumerate(zip(lengths, padding, strict=True)):
        tokens = tokens_of(tokenizer, ids[k, :length].tolist())
        scores = Scores(text.logits[-1][k], length - 1, lambda ids: list(tokens_of(tokenizer, ids)))
        sink = find_sink(weights[k, :, pad:]) if length > 2 else None
        frame: dict[str, Any] = {
            "targets": tokens.select([length - 1]),
            "sources": tokens,
            "prediction": scores.prediction(),
            "provenance": {**about, "kind": "causal", "sink": sink},
        }
        for method, column in zip(methods, results, strict=True):
            available = layers_from(tuple(range(1, len(values) + 1)), method.start_layer)
            top = available[-1] if layers == -1 else layers
            sums = values[available[0] - 1 : top, k, :, pad:].sum(axis=0, keepdims=True)
            rest, elsewhere = method.without_sink(sums, np.zeros(sums.shape[:2]), sink)
            frame["elsewhere"] = elsewhere if sink is not None else None
            column.append(Attribution(rest, (top,), method=method, **frame))
    return results
