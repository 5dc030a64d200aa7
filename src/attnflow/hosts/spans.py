"""Rollout of every target onto a few spans of sources, in one forward pass and linear memory.

The spans go up with the model: let C be token × span, 1 where a token belongs to a span. Then
`C ← (1 - r) W C + r C` at every layer, and after the last one C is the exact rollout of every
target onto the spans. Nothing of a layer is kept once it is passed: what is held is C and one
layer. The pass ends with the highest layer's attention: nothing above it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnflow.attribution import Attribution
from attnflow.attribution.operations import resolve_spans
from attnflow.errors import CaptureError, MethodError
from attnflow.errors.arguments import checked_arguments
from attnflow.hosts.adapter import Adapter, Batch
from attnflow.hosts.capture import Model
from attnflow.hosts.factored import single_example, told_memory
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.load import resolve_model
from attnflow.hosts.registry import adapter_for
from attnflow.hosts.restore import at_rest
from attnflow.hosts.texts import checked_text
from attnflow.kernels.layer import FactoredLayer
from attnflow.methods.factored import head_shares
from attnflow.methods.rollout import Rollout
from attnflow.tokens import Tokens
from attnflow.trace.factors import LayerMix

__all__ = ["SpansGoingUp", "roll_out_spans"]


@checked_arguments
def roll_out_spans(
    model: Model,
    text: str | Mapping[str, Any],
    spans: Mapping[str, Any],
    *,
    rollout: Rollout | None = None,
    tokenizer: Any = None,
) -> Attribution:
    """The rollout of every token onto named spans: `(1 layer, tokens, spans)`.

    The same as `Rollout()(capture(model, text)).spans(spans)` at the highest layer, without weights
    and without keeping any layer, while the model's own fused attention runs.

    spans: (start, end) positions or a text, by name, as `Attribution.spans` takes them; what falls
        outside all of them goes to `elsewhere`.
    rollout: how heads are mixed, the residual is weighed and positions are dropped; discarding, a
        receptive field, "max" and "min" are not linear and are refused.

    >>> from attnflow.testing import tiny_decoder
    >>> model, tokenizer = tiny_decoder()
    >>> result = roll_out_spans(model, "the keys to the", {"first": (0, 2)}, tokenizer=tokenizer)
    >>> result.values.shape
    (1, 4, 1)
    """
    host, tokenizer = resolve_model(model, tokenizer)
    adapter = adapter_for(host)
    if isinstance(text, Mapping):
        batch = adapter.wrap(host, text)
    else:
        batch = adapter.encode(host, tokenizer, [checked_text(text)])
    single = single_example(batch, 0)
    length = int(single.inputs["input_ids"].shape[1])
    names = adapter.name_positions(host, tokenizer, single, 0, length)
    members = resolve_spans(names, spans)
    applied = Rollout() if rollout is None else rollout
    going_up = _run(adapter, host, single, applied, names, list(members.values()))
    return _result(host, applied, names, members, going_up)


@dataclass(eq=False)
class SpansGoingUp:
    """C on its way up: every layer that runs is passed once.

    state: (n, spans) in float32. drop: the positions nobody draws on but themselves. count: how
    many layers the model has. passed: how many of them were passed, number: the latest's own.
    """

    rollout: Rollout
    state: Tensor
    drop: tuple[int, ...]
    count: int
    passed: int = 0
    number: int = 0
    way: str = ""

    @property
    def arrived(self) -> bool:
        """Whether the highest layer was passed."""
        return self.passed == self.count

    def pass_layer(self, layer: FactoredLayer, number: int | None) -> None:
        """One layer's matrix times what has come up to it."""
        share = float(self.rollout.residual_shares(self.count)[self.passed])
        self.passed += 1
        self.number = self.passed if number is None else number
        self.way = layer.way
        if self.number < self.rollout.start_layer:
            return
        shares = head_shares(self.rollout.heads, layer.heads) or ()
        self.state = layer.spans(self.state, LayerMix(shares, share, self.drop))


def _run(
    adapter: Adapter,
    model: nn.Module,
    batch: Batch,
    rollout: Rollout,
    names: Tokens,
    members: Sequence[Sequence[int]],
) -> SpansGoingUp:
    linear = not rollout.discard and rollout.receptive_field is None and rollout.top_head is None
    if not linear or rollout.heads in ("max", "min"):
        raise MethodError(
            f"{rollout!r} is not linear in the weights, so it cannot go up with the model. Leave "
            "out discard, receptive_field, top_head and heads='max' or 'min'; or apply it to "
            "capture(model, text)."
        )
    length, layers = len(names), adapter.expected_layers(model)
    belongs = np.zeros((length, len(members)), dtype=np.float32)
    for column, positions in enumerate(members):
        belongs[positions, column] = 1.0
    outside = ~belongs.any(axis=1)
    if outside.any():
        belongs = np.column_stack([belongs, outside]).astype(np.float32)
    state = torch.from_numpy(belongs).to(next(model.parameters()).device)
    drop = tuple(names.occurrences_of(rollout.drop, required=True)) if rollout.drop else ()
    going_up = SpansGoingUp(rollout, state, drop, int(layers or 0))
    with told_memory(model, length), at_rest(model), torch.no_grad():
        adapter.run_in_factors(model, batch.inputs, spans=going_up)
    if not going_up.arrived:
        raise CaptureError(
            f"{type(model).__name__} has {layers} layers with attention and {going_up.passed} were "
            "seen; a result over missing layers would be wrong."
        )
    return going_up


def _result(
    model: nn.Module,
    rollout: Rollout,
    names: Tokens,
    members: Mapping[str, Sequence[int]],
    going_up: SpansGoingUp,
) -> Attribution:
    values = going_up.state.double().cpu().numpy()[None]
    count = len(members)
    elsewhere = values[..., count:].sum(axis=-1)
    sources = Tokens(tuple(members), tuple(names.positions[k[0]] for k in members.values()))
    facts = adapter_for(model).facts(model)
    dtype = str(getattr(model, "dtype", "")).removeprefix("torch.")
    return Attribution(
        values=values[..., :count],
        layers=(going_up.number,),
        targets=names,
        sources=sources,
        method=rollout,
        elsewhere=elsewhere,
        steps=(f"spans({', '.join(map(repr, members))})",),
        provenance={
            **provenance_of(model, dtype),
            "kind": "causal" if facts.causal else "bidirectional",
            "attention": f"factors, {going_up.way}",
        },
    )
