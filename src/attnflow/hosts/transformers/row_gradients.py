"""Gradient attention of every predicting row in one forward and one backward pass.

The row of position t is `mean over heads of relu(A_l[t, j] · ∂ score_t / ∂ A_l[t, j])`, where
`score_t` belongs to the token that position t predicts. While t is the last position nobody reads
it, so this gradient is the same when the keys and values of *other* positions are constants.
Holding them constant for every query at once keeps the rows of a text apart: the gradient of the
sum of all scores, in row t, is that of a pass which ends at t.

A query's own key and value are no constants: `fused.own_terms` brings their gradients back. The
rest is computed by fused kernels, or by the model file's own eager attention where its softmax is
a special one.

The gradient of a weight is `∂/∂A[i, j] = dO_i · v_j`. It is formed layer by layer while the
backward pass runs, and reduced over heads at once. Positions are taken some at a time beside the
cache of those before them, so that never more than a part of the rows is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from attnflow.errors import CaptureError, UnsupportedModelError
from attnflow.hosts.balanced import as_one_operation, attention_shares
from attnflow.hosts.balanced import balanced as balanced_rules
from attnflow.hosts.restore import ordinary
from attnflow.hosts.scores import InputLeaves, token_scores
from attnflow.hosts.transformers.attention import (
    AttentionCall,
    AttentionHandler,
    agree,
    handle_attention,
    has_special_softmax,
)
from attnflow.hosts.transformers.fused import own_terms
from attnflow.trace.extras import LOG_PROB, ScoreName

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

_WEIGHTS_AT_ONCE = 2**27  # over all layers and heads: half a gigabyte of float32
_MOST_ROWS = 512  # that run at once beside the cache
_FEW_WEIGHTS = 2**20  # of a layer, four megabytes: kept for the way back, not formed again
_SAME = 1e-3  # how far recomputed weights may be from the model's own, as a share of the largest

NO_CONTRAST = -1
"""In the place of a token's id: its score is held against no other's."""


@dataclass(frozen=True, eq=False)
class PredictingRows:
    """Texts of one length, and what their positions from `first` on predict.

    ids, mask: (batch, length), padding has the mask 0. tokens: (batch, length - first), the token
    whose score each row explains. explained: the same shape, 0 for rows that do not count, such as
    those after the end of a shorter text. cache: keys and values of the positions before `first`,
    if they are at hand; those of the rows are added to it. contrasts: the shape of `tokens`, the
    token whose score is subtracted, or NO_CONTRAST. counts_positions: each text's positions are
    counted from its first token, as generate() does; else the model counts them in its own way,
    which takes no padding on the left.
    """

    ids: Tensor
    mask: Tensor
    first: int
    tokens: Tensor
    explained: Tensor | None = None
    cache: Any = None
    contrasts: Tensor | None = None
    counts_positions: bool = True

    @property
    def length(self) -> int:
        """Positions, padding included."""
        return int(self.ids.shape[1])

    def ordinary(self) -> PredictingRows:
        """Return the same without tensors that were made in inference mode."""
        explained = None if self.explained is None else ordinary(self.explained)
        ids, mask, tokens = map(ordinary, (self.ids, self.mask, self.tokens))
        return replace(self, ids=ids, mask=mask, tokens=tokens, explained=explained)

    def positions(self, rows: slice) -> dict[str, Tensor]:
        """Return the position that each of some tokens has in its own text, as an input."""
        if not self.counts_positions:
            return {}
        return {"position_ids": (self.mask.cumsum(dim=1) - 1).clamp(min=0)[:, rows]}

    def scores(self, logits: Tensor, rows: slice, name: ScoreName) -> Tensor:
        """Return `(batch, rows)`: each row's score, 0 where it does not count."""
        scores = token_scores(logits, self.tokens[:, rows], name)
        if self.contrasts is not None:
            others = self.contrasts[:, rows]
            difference = scores - token_scores(logits, others.clamp(min=0), name)
            scores = torch.where(others == NO_CONTRAST, scores, difference)
        return scores if self.explained is None else scores * self.explained[:, rows]


class RowContributions(NamedTuple):
    """Gradient attention of some rows, and where they attend.

    values: (layers, batch, rows, keys). weights: (batch, rows, keys), the mean weight over all
    layers and heads. log_probs: (batch, rows), of the token that each row is about.
    """

    values: Tensor
    weights: Tensor
    log_probs: Tensor


class LayerRows(NamedTuple):
    """The part of one layer in some rows: (batch, rows, keys) each, the mean over heads."""

    contributions: Tensor
    weights: Tensor


@dataclass(eq=False)
class _RowHandler(AttentionHandler):
    """Attends with other positions as constants, and keeps what each layer reports on the way back.

    summed: only the sum over all layers is kept. order: the modules that attended.
    """

    summed: bool = False
    balanced: bool = False
    contributions: dict[nn.Module, Tensor] = field(default_factory=dict)
    weights: Tensor | None = None
    reported: int = 0
    order: list[nn.Module] = field(default_factory=list)

    def attend(self, call: AttentionCall) -> Tensor:
        if call.mask is not None:
            call = replace(call, mask=call.mask[..., : call.key.shape[-2]])
        rows = call.query.shape[-2]
        query, key, value = call.query, call.key[:, :, -rows:], call.value[:, :, -rows:]
        if self.balanced:
            query, key, value = attention_shares(query, key, value)
        constant = replace(call, query=query, key=call.key.detach(), value=call.value.detach())
        with as_one_operation():
            output, report = _attend(constant, key, value)
        if output.requires_grad:
            if call.module in self.order:
                raise UnsupportedModelError(
                    f"{type(call.module).__name__} attends more than once in a pass, and what its "
                    "layer makes of both is not known here, so its rows cannot be followed."
                )
            self.order.append(call.module)
            output.register_hook(lambda gradient: self.add(call.module, report(gradient)))
        return output

    def add(self, module: nn.Module, rows: LayerRows) -> None:
        """Keep what one layer reports: for itself, or added to what others reported."""
        self.reported += 1
        self.weights = rows.weights if self.weights is None else self.weights.add_(rows.weights)
        place, part = self.order[0] if self.summed else module, rows.contributions
        earlier = self.contributions.get(place)
        self.contributions[place] = part if earlier is None else earlier.add_(part)

    def take(self, log_probs: Tensor) -> RowContributions:
        """Return what every layer reported."""
        if self.reported < len(self.order) or self.weights is None:
            raise CaptureError(
                f"The gradient reached {self.reported} of {len(self.order)} layers with "
                "attention, so a result would leave some of them out."
            )
        places = self.order[:1] if self.summed else self.order
        return RowContributions(
            torch.stack([self.contributions[module] for module in places]),
            self.weights / len(self.order),
            log_probs,
        )


Report = Callable[[Tensor], LayerRows]


def _attend(constant: AttentionCall, *own: Tensor) -> tuple[Tensor, Report]:
    """Attend with other positions as constants; what each weight adds is told on the way back.

    own: keys and values of the queries' own positions, which are none. A model file's own function
    keeps its weights for that; those of fused kernels are kept where they are few.
    """
    weights_of: Callable[[], Iterable[Tensor]]
    if has_special_softmax(constant.module, constant.options):
        output, weights = constant.run_eager_with_weights()
        _check_scores(constant, weights)
        weights_of = partial(_by_key_heads, weights.detach(), constant.groups)
    else:
        output = _run_fused(constant)
        _check_output(constant, output)
        weights_of = partial(_fused_weights, replace(constant, query=constant.query.detach()))
        if constant.query.shape[:3].numel() * constant.key.shape[-2] <= _FEW_WEIGHTS:
            few = list(weights_of())
            weights_of = partial(iter, few)
    rows, keys = constant.query.shape[-2], constant.key.shape[-2]
    diagonal = torch.arange(rows), torch.arange(keys - rows, keys)
    terms = own_terms(
        constant.query,
        *(part.repeat_interleave(constant.groups, dim=1) for part in own),
        output=output.transpose(1, 2),
        weight=torch.cat([weights[..., *diagonal] for weights in weights_of()], dim=1),
        scaling=constant.scaling,
        softcap=constant.softcap,
    )
    report = partial(_report, weights_of, constant.value)
    return output + terms.to(output.dtype).transpose(1, 2), report


def _run_fused(call: AttentionCall) -> Tensor:
    """Attend by a fused kernel: queries that share a key head are rows of one head."""
    batch, heads, rows, width = call.query.shape
    grouped = call.query.reshape(batch, call.key.shape[1], call.groups * rows, width)
    mask = call.mask
    if mask is not None:
        mask = mask.expand(batch, 1, *mask.shape[2:]).repeat(1, 1, call.groups, 1)
    output = nn.functional.scaled_dot_product_attention(
        grouped, call.key, call.value, attn_mask=mask, scale=call.scaling
    )
    return output.reshape(batch, heads, rows, -1).transpose(1, 2).contiguous()


def _by_key_heads(weights: Tensor, groups: int) -> Iterator[Tensor]:
    """For each key head, (batch, groups, rows, keys) in float32."""
    return (part.float() for part in weights.split(groups, dim=1))


@torch.no_grad()
def _fused_weights(call: AttentionCall) -> Iterator[Tensor]:
    """The same where no weights were kept: one key head at a time, formed again.

    So what a layer leaves behind grows with the rows, not with rows × keys.
    """
    mask = None if call.mask is None else call.mask.float()
    queries = call.query.split(call.groups, dim=1)
    for query, key in zip(queries, call.key.split(1, dim=1), strict=True):
        scores = _by_keys(query.float() * call.scaling, key.float())
        yield (scores if mask is None else scores.add_(mask)).softmax(dim=-1)


def _by_keys(part: Tensor, shared: Tensor) -> Tensor:
    """Return the products with what heads share, (batch, groups, rows, keys), as of one head."""
    return (part.flatten(1, 2) @ shared[:, 0].transpose(1, 2)).unflatten(1, part.shape[1:3])


@torch.no_grad()
def _report(
    weights_of: Callable[[], Iterable[Tensor]], value: Tensor, gradient: Tensor
) -> LayerRows:
    """Return what a layer adds, from its output's gradient (batch, rows, heads, width)."""
    upper = gradient.transpose(1, 2).float()
    batch, heads, rows, _ = upper.shape
    raised = torch.zeros(batch, rows, value.shape[2], device=value.device)
    total = torch.zeros_like(raised)
    parts = zip(upper.split(heads // value.shape[1], dim=1), value.split(1, dim=1), strict=True)
    for weights, (part, values) in zip(weights_of(), parts, strict=True):
        total += weights.sum(dim=1)
        change = _by_keys(part, values.float())  # ∂/∂A[i, j] = dO_i · v_j
        raised += change.mul_(weights).relu_().sum(dim=1)
    return LayerRows(raised.div_(heads), total.div_(heads))


@torch.no_grad()
def _check_output(call: AttentionCall, output: Tensor) -> None:
    """Check that the model file's own attention gives the same: the last row must be equal."""
    if not agree(_last_row(call).run_eager()[0], output[:, -1:]):
        raise _unknown_scores(call)


@torch.no_grad()
def _check_scores(call: AttentionCall, weights: Tensor) -> None:
    """Check that scale and soft cap are the model's: the last row recomputed must be its weights.

    What a learned sink takes is left out by comparing shares of what is on the keys.
    """
    scores = _last_row(call).scores()
    row = weights[:, :, -1:].float()
    row = row / row.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    tolerance = _SAME if weights.dtype == torch.float32 else 3e-2
    if float((row - scores.softmax(dim=-1)).abs().max()) > tolerance:
        raise _unknown_scores(call)


def _last_row(call: AttentionCall) -> AttentionCall:
    return call.rows(slice(call.query.shape[-2] - 1, None))


def _unknown_scores(call: AttentionCall) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(call.module).__name__} computes its scores in a way that is not known here, so its "
        "own keys cannot be followed; method='gradient-rollout' takes this model."
    )


def gradient_rows(
    model: PreTrainedModel,
    text: PredictingRows,
    score: ScoreName = LOG_PROB,
    *,
    summed: bool = False,
    balanced: bool = False,
) -> RowContributions:
    """Row r is that of position `first + r`, over all `length` keys.

    summed: only the sum over all layers is kept, as one layer. balanced: gradients are those of
    `hosts.balanced`.
    """
    parts: list[RowContributions] = []
    for part in gradient_row_parts(model, text, score, summed=summed, balanced=balanced):
        unseen = (0, text.length - part.values.shape[-1])
        values, weights = (nn.functional.pad(array, unseen) for array in part[:2])
        parts.append(RowContributions(values, weights, part.log_probs))
    return RowContributions(
        torch.cat([part.values for part in parts], dim=2),
        torch.cat([part.weights for part in parts], dim=1),
        torch.cat([part.log_probs for part in parts], dim=1),
    )


def gradient_row_parts(
    model: PreTrainedModel,
    text: PredictingRows,
    score: ScoreName = LOG_PROB,
    *,
    summed: bool = False,
    balanced: bool = False,
) -> Iterator[RowContributions]:
    """Yield some rows at a time, in order, each over the keys up to the last of them."""
    text = text.ordinary()
    cache: Any = text.cache if text.cache is not None else read_prefix(model, text)
    step = _rows_at_once(model, text)
    for begin in range(text.first, text.length, step):
        rows = slice(begin, min(begin + step, text.length))
        yield _part(model, text, cache, rows, score, _RowHandler(summed, balanced))
        for layer in cache.layers:  # forget the graph behind keys and values that were added
            layer.keys, layer.values = layer.keys.detach(), layer.values.detach()


def _rows_at_once(model: PreTrainedModel, text: PredictingRows) -> int:
    """As many as fit: eager attention keeps the weights of all layers, fused of one group."""
    config = model.config.get_text_config()
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    if not any(has_special_softmax(module, {}) for module in model.modules()):
        heads, layers = heads // (getattr(config, "num_key_value_heads", None) or heads), 1
    width = layers * heads * text.length * len(text.ids)
    return max(1, min(_MOST_ROWS, _WEIGHTS_AT_ONCE // width))


def read_prefix(model: PreTrainedModel, text: PredictingRows) -> DynamicCache:
    """Return the cache of all positions before the first row, by the model's own attention."""
    from transformers import DynamicCache

    cache = DynamicCache()
    end = text.first
    if end:
        with torch.no_grad():
            model.base_model(
                input_ids=text.ids[:, :end],
                attention_mask=text.mask[:, :end],
                **text.positions(slice(end)),
                past_key_values=cache,
                use_cache=True,
            )
    return cache


def _part(
    model: PreTrainedModel,
    text: PredictingRows,
    cache: Any,
    rows: slice,
    score: ScoreName,
    handler: _RowHandler,
) -> RowContributions:
    """These positions' rows; their keys are added to the cache."""
    inputs = InputLeaves()
    with handle_attention(model, handler) as changes, torch.enable_grad():
        inputs.watch(model, model.get_input_embeddings(), changes)
        with balanced_rules(model, changes) if handler.balanced else nullcontext():
            logits = model(
                input_ids=text.ids[:, rows],
                attention_mask=text.mask[:, : rows.stop],
                **text.positions(rows),
                past_key_values=cache,
                use_cache=True,
            ).logits
        part = slice(rows.start - text.first, rows.stop - text.first)
        torch.autograd.grad(text.scores(logits, part, score).sum(), inputs.leaves)
        return handler.take(token_scores(logits.detach(), text.tokens[:, part], LOG_PROB))
