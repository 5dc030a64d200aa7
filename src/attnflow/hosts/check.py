"""Is what capture sees what the model does? The full set of checks on one model.

Every capture checks shapes, rows and the number of layers. These also compare the model's output
with and without capture, disturb attention to see the output change, and look for anything left
behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnflow.errors import AttnflowError, CaptureError, ModelError, UnsupportedModelError
from attnflow.hosts.adapter import Batch
from attnflow.hosts.blocks import ROUNDING, distance
from attnflow.hosts.capture import batch_of, capture
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.recorder import UNIFORM, Recorder
from attnflow.hosts.restore import at_rest, in_step
from attnflow.trace import AttentionTrace

_DISTURBED = 1e-6  # a change this small (relative) is no change


@dataclass(frozen=True)
class Check:
    """One check: whether it passed (None: it cannot be made on this host) and what was seen."""

    name: str
    passed: bool | None
    detail: str


@in_step
def check_model(model: ModelLike, inputs: str | Mapping[str, Tensor]) -> list[Check]:
    """Run every check on one example; nothing raises, what goes wrong is in the list."""
    try:
        loaded = as_model(model)
        module = loaded.module
        with at_rest(module):  # compressed-tensors unpacks a model for good in any first pass
            pass
        state = model_state(module)
        trace = capture(loaded, inputs) if isinstance(inputs, str) else capture(loaded, [inputs])[0]
        batch = batch_of(loaded, [inputs])
    except AttnflowError as error:
        return [Check("attention was captured", False, str(error))]
    unchanged = model_state(module) == state
    return [
        _captured(loaded, trace),
        _causal(loaded, trace),
        _same_output(loaded, batch, trace),
        _used(loaded, batch),
        Check("the model was given back unchanged", unchanged, "flags, hooks, modes"),
    ]


def _captured(model: Model, trace: AttentionTrace) -> Check:
    layers, heads, n, _ = trace.weights.shape
    sinks = "" if trace.sinks is None else f", up to {trace.sinks.max():.2f} to a learned sink"
    detail = f"{layers} layers × {heads} heads × {n} positions by {model.adapter.name}{sinks}"
    return Check("attention was captured, rows are whole", True, detail)


def _causal(model: Model, trace: AttentionTrace) -> Check:
    """A dropped mask would make a decoder look ahead."""
    if not model.facts.causal or trace.stages is not None:
        return Check("the mask was kept", True, f"{trace.kind} attention")
    past = np.tri(trace.length, dtype=bool)
    ahead = float(abs(trace.weights[..., ~past]).max(initial=0))
    return Check("the mask was kept", ahead == 0, f"attention to later positions: {ahead:.1e}")


def _same_output(model: Model, batch: Batch, trace: AttentionTrace) -> Check:
    run = model.adapter.run
    plain = _output(model, batch)
    watched = _output(model, batch, lambda module, inputs: run(module, inputs, Recorder("mean")))
    apart = distance(plain, watched)
    allowed = ROUNDING.get(str(trace.provenance["dtype"]), 1e-3)
    detail = f"relative difference {apart:.1e}, allowed {allowed:.0e}"
    return Check("the output is the same without capture", apart <= allowed, detail)


def _used(model: Model, batch: Batch) -> Check:
    name, run = "other attention gives another output", model.adapter.run_with
    try:
        disturbed = _output(model, batch, lambda module, inputs: run(module, inputs, UNIFORM))
    except (CaptureError, UnsupportedModelError) as error:
        return Check(name, None, str(error))
    apart = distance(_output(model, batch), disturbed)
    return Check(name, apart > _DISTURBED, f"uniform attention moves the output by {apart:.1e}")


def _output(model: Model, batch: Batch, run: Callable[..., Any] | None = None) -> Tensor:
    """Return the main tensor of one pass, run without watching unless a way to run is given."""
    with at_rest(model.module), torch.no_grad():
        outputs = (run or model.adapter.forward)(model.module, batch.inputs)
    if isinstance(outputs, Tensor):
        return outputs.float()
    for name in ("logits", "last_hidden_state"):
        if getattr(outputs, name, None) is not None:
            return getattr(outputs, name).float()
    if isinstance(outputs, (tuple, list)) and isinstance(outputs[0], Tensor):
        return outputs[0].float()
    raise ModelError(f"The model's output, {type(outputs).__name__}, holds no tensor to compare.")


def model_state(model: nn.Module) -> list[Any]:
    """Everything a capture could leave behind."""
    return [
        (
            module.training,
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            getattr(module, "fused_attn", None),
            getattr(getattr(module, "config", None), "_attn_implementation", None),
        )
        for module in model.modules()
    ]
