"""Visibility: how much an answer depends on each key being seen, in linear memory.

Every key j gets a bias b_j that all layers and heads share; its weight before the softmax is
`m_j = exp(b_j)`, 1 where the key is as it was and 0 where it is hidden. The gradient of the
answer's log-probability with respect to b_j, summed along a path on which the keys fade, says what
hiding j does. The path is even in b: near m = 1 the gradient says almost nothing of what happens
when a key is gone, and most of the change comes at small m.

No n × n matrix is needed. One more column of queries, constant 1/scale, and one more column of
keys, b_j, add b_j to every score, so that the ordinary fused attention gives the scores their bias
and its backward pass returns the bias's gradient. Models whose scores are capped, or whose softmax
has a learned sink, cannot be written so: there the bias goes through the mask of their eager
attention.

With images the keys are those of the language model, image tokens among them. The images stay as
they are: what fades is how much of them the language model sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.masking_utils import sdpa_mask

from attnflow.hosts.restore import at_rest, ordinary
from attnflow.hosts.transformers.attention import (
    AttentionCall,
    AttentionHandler,
    handle_attention,
    has_special_softmax,
)
from attnflow.hosts.transformers.row_gradients import log_probability
from attnflow.hosts.vision_language.towers import checked_towers

_FAINTEST = log(256)  # the path ends at a key weight of 1/256: fainter keys count for nothing
_HEAD_MULTIPLE = 8  # fused kernels want head sizes that are a multiple of this
_TOKENS_AT_ONCE = 4096  # positions over all steps of the path that run in one batch


@dataclass(frozen=True, eq=False)
class _KeyBiases(AttentionHandler):
    """Adds biases, (batch, keys), to the scores of all keys."""

    biases: Tensor

    def make_mask(self, **arguments: Any) -> Any:
        return sdpa_mask(**arguments)

    def attend(self, call: AttentionCall) -> Tensor:
        if has_special_softmax(call.module, call.options):
            return replace(call, mask=self._additive(call)).run_eager()[0]
        query, key, scale = call.query, call.key, call.scaling
        width = query.shape[-1]
        padding = -(width + 1) % _HEAD_MULTIPLE
        constant = query.new_full((*query.shape[:3], 1), 1 / scale)
        column = self.biases[:, None, :, None].to(key.dtype).expand(*key.shape[:3], 1)
        queries = functional.pad(torch.cat([query, constant], dim=-1), (0, padding))
        keys = functional.pad(torch.cat([key, column], dim=-1), (0, padding))
        values = functional.pad(call.value, (0, padding + 1))
        output = functional.scaled_dot_product_attention(
            queries,
            keys.repeat_interleave(call.groups, dim=1),
            values.repeat_interleave(call.groups, dim=1),
            attn_mask=call.mask,
            is_causal=call.mask is None and query.shape[-2] > 1,
            scale=scale,
        )[..., :width]
        return output.transpose(1, 2).contiguous()

    def _additive(self, call: AttentionCall) -> Tensor:
        """Return what is added to eager scores: the mask as numbers, and each key's bias."""
        query, mask = call.query, call.mask
        if mask is None:
            rows, columns = query.shape[-2], call.key.shape[-2]
            visible = torch.ones(rows, columns, dtype=torch.bool, device=query.device)
            mask = visible.tril(columns - rows)[None, None]
        if mask.dtype == torch.bool:
            numbers = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
            mask = numbers.masked_fill(~mask, torch.finfo(query.dtype).min)
        return mask + self.biases[:, None, None, :].to(query.dtype)


def fading_biases(steps: int) -> list[float]:
    """Return the biases of the path: even in log m, at the middle of each step."""
    return [-_FAINTEST * (step + 0.5) / steps for step in range(steps)]


def visibility(
    model: PreTrainedModel,
    ids: Tensor,
    start: int,
    fading: Tensor,
    *,
    steps: int,
    explained: Sequence[int] | None = None,
) -> Tensor:
    """Return `(length - 1,)`: what the answer loses with each key, in nats of its log odds.

    ids: (length,), prompt and answer; the answer begins at `start`. explained: which of its tokens
    count together, by default all. fading: (length - 1,), true for the keys that fade; the others
    stay as they are and get 0.
    """
    ids, fading = ordinary(ids), ordinary(fading)[None].float()
    tokens = list(range(len(ids) - start)) if explained is None else list(explained)
    rows = torch.tensor([start - 1 + token for token in tokens], device=ids.device)
    gradients = []
    biases = torch.tensor(fading_biases(steps), device=ids.device)
    for part in biases.split(max(1, _TOKENS_AT_ONCE // len(ids))):
        keys = (part[:, None] * fading).requires_grad_()
        with torch.enable_grad(), handle_attention(model, _KeyBiases(keys)):
            inputs = ids[None, :-1].expand(len(part), -1)
            logits = model(input_ids=inputs, use_cache=False).logits[:, rows]
            targets = ids[rows + 1][None].expand(len(part), -1)
            gradients.append(_log_odds_gradient(logits, targets, keys) * fading)
    return torch.cat(gradients).mean(dim=0) * _FAINTEST


def image_visibility(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    prompt: int,
    answer: Sequence[tuple[int, int]],
    *,
    steps: int,
) -> Tensor:
    """Return `(length,)`: what the answer loses with each key, in nats of its log odds.

    prompt: the keys before this position fade. answer: the position that predicts each token of
    the answer, and the token's id.
    """
    language = checked_towers(model).language
    length = inputs["input_ids"].shape[1]
    fading = (torch.arange(length) < prompt).float().to(model.device)[None]
    rows = torch.tensor([row for row, _ in answer], device=model.device)
    tokens = torch.tensor([[token for _, token in answer]], device=model.device)
    total = torch.zeros(length, device=model.device)
    with at_rest(model), torch.enable_grad():
        for bias in fading_biases(steps):
            keys = (bias * fading).requires_grad_()
            with handle_attention(model, _KeyBiases(keys), part=language):
                logits = model(**inputs, use_cache=False).logits[:, rows]
            total += (_log_odds_gradient(logits, tokens, keys) * fading)[0]
    return total / steps * _FAINTEST


def _log_odds_gradient(logits: Tensor, tokens: Tensor, keys: Tensor) -> Tensor:
    """The gradient of the tokens' log odds, (batch, rows) together, with respect to the keys."""
    scores = log_probability(logits, tokens).sum(dim=1)
    # d log odds = d log p / (1 - p): near certainty a log-probability hardly moves
    doubt = -torch.expm1(scores.detach()).clamp(max=-1e-6)
    (gradient,) = torch.autograd.grad((scores / doubt).sum(), keys)
    return gradient
