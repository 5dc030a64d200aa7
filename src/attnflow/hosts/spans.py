"""Rollout of every target onto a few spans of sources, in one forward pass and linear memory.

The spans go up with the model: let C be token × span, 1 where a token belongs to a span. Then
`C ← (1 - r) W C + r C` at every layer, and after the last one C is the exact rollout of every
target onto the spans. Nothing of a layer is kept once it is passed: what is in memory is C and one
layer. The pass ends with the highest layer's attention: nothing above it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnflow.attribution import Attribution
from attnflow.attribution.rescaling import resolve_spans
from attnflow.errors import CaptureError, MethodError
from attnflow.errors.arguments import checked_arguments
from attnflow.hosts.adapter import Batch, device_of
from attnflow.hosts.capture import batch_of
from attnflow.hosts.factored import single_example, told_memory
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest, in_step
from attnflow.kernels.layer import FactoredLayer, aside
from attnflow.methods.matrices import ATTENTION
from attnflow.methods.products import head_shares
from attnflow.methods.rollout import Rollout
from attnflow.tokens import Tokens
from attnflow.trace.factored_trace import LayerMix


@in_step
@checked_arguments
def roll_out_spans(
    model: ModelLike,
    text: str | Mapping[str, Any],
    spans: Mapping[str, Any],
    *,
    rollout: Rollout | None = None,
) -> Attribution:
    """Return the rollout of every token onto named spans: `(1 layer, tokens, spans)`.

    The same as `Rollout()(capture(model, text)).spans(spans)` at the highest layer, without weights
    and without keeping any layer, while the model's own fused attention runs.

    spans: (start, end) positions or a text, by name, as `Attribution.spans` takes them; what falls
        outside all of them goes to `elsewhere`.
    rollout: how heads are mixed, the residual is weighed and positions are dropped; discarding, a
        receptive field, "max" and "min" are not linear and are refused.
    """
    loaded = as_model(model)
    batch = single_example(batch_of(loaded, [text]), 0)
    return _roll_out(loaded, batch, spans, Rollout() if rollout is None else rollout)


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
        """True once the highest layer was passed."""
        return self.passed == self.count

    def pass_layer(self, layer: FactoredLayer, number: int | None) -> None:
        """Multiply what has come up to a layer by its matrix."""
        share = float(self.rollout.residual_shares(self.count)[self.passed])
        self.passed += 1
        self.number = self.passed if number is None else number
        self.way = layer.way
        if self.number < self.rollout.start_layer:
            return
        shares = head_shares(self.rollout.heads, layer.heads) or ()
        self.state = layer.spans(self.state, LayerMix(shares, share, self.drop))


def _roll_out(
    model: Model, batch: Batch, spans: Mapping[str, Any], rollout: Rollout
) -> Attribution:
    """Roll one example out; names are looked up while the device computes."""
    _check_linear(rollout)
    module, adapter = model.module, model.adapter
    length = int(batch.inputs["input_ids"].shape[1])
    name = partial(adapter.name_positions, module, model.tokenizer, batch, 0, length)
    by_text = [*spans.values(), *rollout.drop] if isinstance(spans, Mapping) else []
    places = name() if any(isinstance(x, str) for x in by_text) else Tokens(("",) * length)
    members = resolve_spans(places, spans)
    drop = places.occurrences_of(rollout.drop, required=True) if rollout.drop else ()
    layers = adapter.expected_layers(module)
    state = indicators(list(members.values()), length).to(device_of(module))
    going_up = SpansGoingUp(rollout, state, tuple(drop), int(layers or 0))
    with told_memory(module, length), at_rest(module), torch.no_grad():
        run = adapter.run_in_factors(module, batch.inputs, spans=going_up)
        state = aside(going_up.state)
        targets = name()
        dtype = str(getattr(module, "dtype", "")).removeprefix("torch.")
        about = provenance_of(module, dtype)
        run.recording.check()
        if going_up.state.is_cuda:
            torch.cuda.synchronize(going_up.state.device)
    if not going_up.arrived:
        raise CaptureError(
            f"{type(module).__name__} has {layers} layers with attention and "
            f"{going_up.passed} were seen; a result over missing layers would be wrong."
        )
    about["kind"] = "causal" if model.facts.causal else "bidirectional"
    about["attention"] = f"factors, {going_up.way}"
    values = state.double().numpy()[None]
    return Attribution(
        values=values[..., : len(members)],
        layers=(going_up.number,),
        targets=targets,
        sources=Tokens(tuple(members), tuple(k[0] for k in members.values())),
        method=rollout,
        elsewhere=values[..., len(members) :].sum(axis=-1),
        steps=(f"spans({', '.join(map(repr, members))})",),
        provenance=about,
    )


def _check_linear(rollout: Rollout) -> None:
    linear = not rollout.discard and rollout.receptive_field is None and rollout.top_head is None
    if not linear or rollout.heads in ("max", "min") or rollout.matrices != ATTENTION:
        raise MethodError(
            f"{rollout!r} is not linear in the weights, so it cannot go up with the model. Leave "
            "out discard, receptive_field, top_head, matrices and heads='max' or 'min'; or apply "
            "it to capture(model, text)."
        )


def indicators(members: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return `(n, spans + 1)`: 1 where a position belongs to a span; the last is for all others."""
    belongs = torch.zeros(length, len(members) + 1)
    for column, positions in enumerate(members):
        belongs[list(positions), column] = 1.0
    belongs[:, -1] = (belongs.sum(dim=1) == 0).float()
    return belongs
