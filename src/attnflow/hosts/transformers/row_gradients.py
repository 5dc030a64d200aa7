"""Gradient attention of every predicting row in one forward and one backward pass.

The row of position t is `mean over heads of relu(A_l[t, j] · ∂ score_t / ∂ A_l[t, j])`, where
`score_t` belongs to the token that position t predicts. While t is the last position nobody reads
it, so this gradient is the same when the keys and values of *other* positions are constants.
Holding them constant for every query at once keeps the rows of a text apart: the gradient of the
sum of all scores, in row t, is that of a pass which ends at t.

A query's own key and value are no constants. They come back as two terms that are zero in value
and right in gradient: `q_i · (k_i - k̄_i)` on the diagonal of the scores (a bar means detached),
and `P_ii (v_i - v̄_i)` in the output. The first goes through the mask, which every model file adds
to its scores; the weights themselves are computed by the model file's own eager attention.

The gradient of a weight is `∂/∂A[i, j] = dO_i · v_j`. It is formed layer by layer while the
backward pass runs, and reduced over heads at once. Positions are taken some at a time beside the
cache of those before them, so that never more than a part of the rows is in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

from attnflow.errors import CaptureError, UnsupportedModelError
from attnflow.hosts.restore import exclusive, ordinary
from attnflow.hosts.transformers.attention import eager_function, own_attention, point_at
from attnflow.hosts.transformers.fused_rows import FusedRows, LayerRows
from attnflow.trace.extras import LOG_PROB, ScoreName

__all__ = [
    "NO_CONTRAST",
    "PredictingRows",
    "RowContributions",
    "gradient_rows",
    "rows_are_exact",
]

_NAME = "attnflow_row_gradients"
_WEIGHTS_AT_ONCE = 2**27  # over all layers and heads: half a gigabyte of float32
_MOST_ROWS = 512  # that run at once beside the cache
_SAME = 1e-3  # how far recomputed weights may be from the model's own, as a share of the largest

NO_CONTRAST = -1
"""In the place of a token's id: its score is held against no other's."""


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """`(batch, rows)`: how likely each token is, in nats."""
    shares = logits.float().log_softmax(dim=-1)
    return shares.gather(-1, tokens[..., None]).squeeze(-1)


def logit(logits: Tensor, tokens: Tensor) -> Tensor:
    """`(batch, rows)`: the score of each token before the softmax."""
    return logits.float().gather(-1, tokens[..., None]).squeeze(-1)


_SCORES: dict[ScoreName, Callable[[Tensor, Tensor], Tensor]] = {
    "log-prob": log_probability,
    "logit": logit,
}


@dataclass(frozen=True, eq=False)
class PredictingRows:
    """Texts of one length, and what their positions from `first` on predict.

    ids, mask: (batch, length), padding has the mask 0. tokens: (batch, length - first), the token
    whose score each row explains. explained: the same shape, 0 for rows that do not count, such as
    those after the end of a shorter text. cache: keys and values of the positions before `first`,
    if they are at hand. contrasts: the shape of `tokens`, the token whose score is subtracted, or
    NO_CONTRAST.
    """

    ids: Tensor
    mask: Tensor
    first: int
    tokens: Tensor
    explained: Tensor | None = None
    cache: Any = None
    contrasts: Tensor | None = None

    @property
    def length(self) -> int:
        """Positions, padding included."""
        return int(self.ids.shape[1])

    def ordinary(self) -> PredictingRows:
        """The same without tensors that were made in inference mode."""
        explained = None if self.explained is None else ordinary(self.explained)
        ids, mask, tokens = map(ordinary, (self.ids, self.mask, self.tokens))
        return replace(self, ids=ids, mask=mask, tokens=tokens, explained=explained)

    def positions(self) -> Tensor:
        """The position each token has in its own text, as generate() counts."""
        return (self.mask.cumsum(dim=1) - 1).clamp(min=0)

    def scores(self, logits: Tensor, rows: slice, name: ScoreName) -> Tensor:
        """`(batch, rows)`: what each of these rows is explained by, 0 where it does not count."""
        score = _SCORES[name]
        scores = score(logits, self.tokens[:, rows])
        if self.contrasts is not None:
            others = self.contrasts[:, rows]
            difference = scores - score(logits, others.clamp(min=0))
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


@dataclass(eq=False)
class _Rows:
    """What the modules of one model report to while a backward pass runs."""

    summed: bool = False
    contributions: dict[nn.Module, Tensor] = field(default_factory=dict)
    weights: Tensor | None = None
    reported: int = 0
    order: list[nn.Module] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    def add_weights(self, module: nn.Module, weights: Tensor, gradient: Tensor) -> None:
        product = weights.float() * gradient.float()
        self.add(module, LayerRows(product.relu().mean(dim=1), weights.float().mean(dim=1)))

    def add(self, module: nn.Module, rows: LayerRows) -> None:
        """Keep what one layer reports: for itself, or added to what others reported."""
        self.reported += 1
        self.weights = rows.weights if self.weights is None else self.weights.add_(rows.weights)
        place = self.order[0] if self.summed else module
        earlier = self.contributions.get(place)
        part = rows.contributions
        self.contributions[place] = part if earlier is None else earlier.add_(part)

    def take(self, log_probs: Tensor) -> RowContributions:
        """What every layer reported."""
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


_ROWS: WeakKeyDictionary[nn.Module, _Rows] = WeakKeyDictionary()


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """Attention in which other positions are constants, watched on its way back."""
    rows = _ROWS.get(module)
    if rows is None or rows.thread != threading.get_ident():
        return own_attention(module)(module, query, key, value, mask, **options)
    if not has_own_softmax(module, options):
        return _attend_fused(module, rows, query, key, value, mask, options), None
    attend = eager_function(module)
    count, length = query.shape[-2], key.shape[-2]
    own = torch.arange(length - count, length, device=query.device)
    constant_key, constant_value = key.detach(), value.detach()
    own_scores = _own_scores(module, query, key, own, options)
    diagonal = query.new_zeros(*query.shape[:3], length)
    diagonal[..., torch.arange(count), own] = own_scores.to(query.dtype)
    shifted = diagonal if mask is None else mask[..., :length] + diagonal
    output, weights = attend(module, query, constant_key, constant_value, shifted, **options)
    if weights is None:
        raise CaptureError(
            f"{type(module).__name__} returned no attention weights: quantised or fused attention "
            "cannot be seen. Load the model without it."
        )
    _check_scores(module, query, constant_key, mask, weights, options)
    groups = query.shape[1] // value.shape[1]
    difference = (value - constant_value)[:, :, own].repeat_interleave(groups, dim=1)
    on_diagonal = weights[..., torch.arange(count), own]
    output = output + (on_diagonal[..., None] * difference).transpose(1, 2)
    if output.requires_grad:
        rows.order.append(module)
        constant = weights.detach()
        output.register_hook(
            lambda gradient: rows.add_weights(
                module, constant, _weight_gradient(gradient, constant_value)
            )
        )
    return output, None


def _attend_fused(
    module: nn.Module,
    rows: _Rows,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    options: dict[str, Any],
) -> Tensor:
    """`(batch, rows, heads, width)`: the same by fused kernels, which keep no weights."""
    scale = _scale(module, query, options)
    mask = None if mask is None else mask[..., : key.shape[-2]]
    output = FusedRows(query, key, value, mask, scale).attend().transpose(1, 2).contiguous()
    _check_output(module, output, query, key, value, mask, options)
    if output.requires_grad:
        rows.order.append(module)
        layer = FusedRows(query.detach(), key.detach(), value.detach(), mask, scale)
        output.register_hook(lambda gradient: rows.add(module, layer.report(gradient)))
    return output


@torch.no_grad()
def _check_output(
    module: nn.Module,
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    options: dict[str, Any],
) -> None:
    """That the model file's own attention gives the same: the last row must be equal."""
    row = None if mask is None else mask[..., -1:, :]
    own, _ = eager_function(module)(module, query[:, :, -1:], key, value, row, **options)
    off = (own.float() - output[:, -1:].float()).abs().amax()
    limit = (1e-3 if query.dtype == torch.float32 else 5e-2) * own.float().abs().amax()
    if bool(off > limit):
        raise _unknown_scores(module)


def _unknown_scores(module: nn.Module) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(module).__name__} computes its scores in a way that is not known here, so its own "
        "keys cannot be followed; method='gradient-rollout' takes this model."
    )


def has_own_softmax(module: nn.Module, options: dict[str, Any]) -> bool:
    """Whether scores are capped, biased, or a learned sink takes part: fused attention differs."""
    caps = (options.get("softcap"), getattr(module, "attn_logit_softcapping", None))
    sinks = (options.get("s_aux"), getattr(module, "sinks", None))
    return any(one is not None for one in (*caps, *sinks, options.get("position_bias")))


def _weight_gradient(gradient: Tensor, value: Tensor) -> Tensor:
    """`(batch, heads, rows, keys)`: dO_i · v_j, from dO of shape (batch, rows, heads, width)."""
    upper = gradient.transpose(1, 2)
    batch, heads, count, width = upper.shape
    grouped = upper.reshape(batch, value.shape[1], heads // value.shape[1] * count, width)
    return (grouped @ value.transpose(2, 3)).reshape(batch, heads, count, value.shape[2])


def _own_scores(
    module: nn.Module, query: Tensor, key: Tensor, own: Tensor, options: dict[str, Any]
) -> Tensor:
    """`(batch, heads, rows)`: zero in value, with the gradient of each query's own score.

    A soft cap c·tanh(s/c) passes the share 1 - tanh²(s/c) of a change on.
    """
    groups = query.shape[1] // key.shape[1]
    own_key = key[:, :, own].repeat_interleave(groups, dim=1)
    scale = _scale(module, query, options)
    change = (query * (own_key - own_key.detach())).sum(dim=-1) * scale
    cap = _softcap(module, options)
    if cap is None:
        return change
    score = (query * own_key).sum(dim=-1).detach() * scale
    return change * (1 - torch.tanh(score / cap) ** 2)


def _scale(module: nn.Module, query: Tensor, options: dict[str, Any]) -> float:
    scale = options.get("scaling")
    if scale is None:
        scale = getattr(module, "scaling", None)
    return float(query.shape[-1] ** -0.5 if scale is None else scale)


def _softcap(module: nn.Module, options: dict[str, Any]) -> float | None:
    cap = options.get("softcap")
    return getattr(module, "attn_logit_softcapping", None) if cap is None else cap


def _check_scores(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Any,
    weights: Tensor,
    options: dict[str, Any],
) -> None:
    """That scale and soft cap are the model's: the last row recomputed must be its weights.

    What a learned sink takes is left out by comparing shares of what is on the keys.
    """
    with torch.no_grad():
        groups = query.shape[1] // key.shape[1]
        grouped = query[:, :, -1:].reshape(query.shape[0], key.shape[1], groups, -1)
        scores = (grouped @ key.transpose(2, 3)).float() * _scale(module, query, options)
        scores = scores.reshape(query.shape[0], query.shape[1], 1, -1)
        cap = _softcap(module, options)
        if cap is not None:
            scores = torch.tanh(scores / cap) * cap
        if mask is not None:
            scores = scores + mask[..., -1:, : key.shape[-2]].float()
        expected = scores.softmax(dim=-1)
        row = weights[:, :, -1:].float()
        row = row / row.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        tolerance = _SAME if weights.dtype == torch.float32 else 3e-2
        if float((row - expected).abs().max()) > tolerance:
            raise _unknown_scores(module)


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, eager_mask)


def rows_are_exact(model: PreTrainedModel, layers: int | None) -> bool:
    """Whether attention alone carries one position to another: every block of the model attends.

    A layer that mixes positions otherwise (a convolution, a recurrent state) would pass gradients
    between rows.
    """
    blocks = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    return layers is not None and blocks == layers


def gradient_rows(
    model: PreTrainedModel,
    text: PredictingRows,
    score: ScoreName = LOG_PROB,
    *,
    summed: bool = False,
) -> RowContributions:
    """Row r is that of position `first + r`, over all `length` keys.

    summed: only the sum over all layers is kept, as one layer.
    """
    text = text.ordinary()
    cache = text.cache if text.cache is not None else _prefix(model, text)
    parts: list[RowContributions] = []
    step = _rows_at_once(model, text)
    for begin in range(text.first, text.length, step):
        end = min(begin + step, text.length)
        part = _part(model, text, cache, begin, end, score, summed)
        unseen = (0, text.length - end)
        values, weights = (nn.functional.pad(array, unseen) for array in part[:2])
        parts.append(RowContributions(values, weights, part.log_probs))
        _detach(cache)
    return RowContributions(
        torch.cat([part.values for part in parts], dim=2),
        torch.cat([part.weights for part in parts], dim=1),
        torch.cat([part.log_probs for part in parts], dim=1),
    )


def _rows_at_once(model: PreTrainedModel, text: PredictingRows) -> int:
    """As many as fit: eager attention keeps the weights of all layers, fused of one group."""
    config = model.config.get_text_config()
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    if not any(has_own_softmax(module, {}) for module in model.modules()):
        heads, layers = heads // (getattr(config, "num_key_value_heads", None) or heads), 1
    width = layers * heads * text.length * len(text.ids)
    return max(1, min(_MOST_ROWS, _WEIGHTS_AT_ONCE // width))


def _prefix(model: PreTrainedModel, text: PredictingRows) -> DynamicCache:
    """The cache of all positions before the first row, by the model's own attention."""
    cache = DynamicCache()
    end = text.first
    if end:
        with torch.no_grad():
            model.base_model(
                input_ids=text.ids[:, :end],
                attention_mask=text.mask[:, :end],
                position_ids=text.positions()[:, :end],
                past_key_values=cache,
                use_cache=True,
            )
    return cache


def _part(
    model: PreTrainedModel,
    text: PredictingRows,
    cache: Any,
    begin: int,
    end: int,
    score: ScoreName,
    summed: bool,
) -> RowContributions:
    """Rows of the positions from begin up to end; their keys are added to the cache."""
    rows = _Rows(summed)
    with torch.enable_grad(), _collecting(model, rows) as leaf:
        logits = model(
            input_ids=text.ids[:, begin:end],
            attention_mask=text.mask[:, :end],
            position_ids=text.positions()[:, begin:end],
            past_key_values=cache,
            use_cache=True,
        ).logits
        part = slice(begin - text.first, end - text.first)
        torch.autograd.grad(text.scores(logits, part, score).sum(), leaf())
        return rows.take(log_probability(logits.detach(), text.tokens[:, part]))


@contextmanager
def _collecting(model: PreTrainedModel, rows: _Rows) -> Iterator[Callable[[], Tensor]]:
    """Every attention module reports to one collection; the model is given back as it was.

    The embedded tokens are cut off as the one leaf that gradients are taken of, which the yielded
    function gives: no parameter is touched.
    """
    leaves: list[Tensor] = []

    def cut(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    with exclusive(model) as changes:
        modules = list(model.modules())
        changes.add(lambda: [_ROWS.pop(module, None) for module in modules])
        for module in modules:
            _ROWS[module] = rows
        changes.hook(model.get_input_embeddings().register_forward_hook, cut)
        point_at(model, _NAME, changes)
        yield lambda: leaves[-1]


def _detach(cache: Any) -> None:
    """Forget the graph behind keys and values that were added."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.detach(), layer.values.detach()


def cropped(cache: Any, length: int) -> Any:
    """The cache of the first positions, or None where this kind of cache cannot be cut."""
    layers: Sequence[Any] = getattr(cache, "layers", ())
    lengths = {layer.get_seq_length() for layer in layers}
    full = all(
        layer.keys.shape[-2] == layer.get_seq_length() for layer in layers if layer.keys is not None
    )
    if not layers or len(lengths) != 1 or not full or lengths.pop() < length:
        return None
    cut = DynamicCache()
    for number, layer in enumerate(layers):
        keys, values = ordinary(layer.keys), ordinary(layer.values)
        cut.update(keys[..., :length, :], values[..., :length, :], number)
    return cut
