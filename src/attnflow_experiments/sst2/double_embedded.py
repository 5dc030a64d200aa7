"""The pass behind the paper's Table 3: what the embedding layer gives goes through it once more.

The authors' published script computes the output of the embedding layer, hands it to the model as
the word vectors, and takes the gradient with respect to it. The model then adds its positions and
normalises a second time, so what it reads is not what it was trained on; and because these vectors
are read through a LayerNorm only, the gradient's sum over dimensions, which the table is about, is
zero but for rounding: LayerNorm ignores a constant added to all dimensions, and the sum is the
derivative in just that direction.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.hosts.capture import capture
from attnflow.hosts.registry import adapter_for
from attnflow.hosts.restore import at_rest, undone
from attnflow.trace import AttentionTrace

__all__ = ["GradientSums", "capture_double_embedded", "gradient_sums", "in_double_precision"]


@dataclass(frozen=True, eq=False)
class GradientSums:
    """Of the gradient at each position: |Σ_d|, its norm, and how many dimensions there are."""

    sums: NDArray[np.float64]
    norms: NDArray[np.float64]
    dimensions: int

    @property
    def largest_share(self) -> float:
        """The largest sum as a share of what it could be, √d times the norm."""
        most = self.norms * self.dimensions**0.5
        return float(np.divide(self.sums, most, out=np.zeros_like(most), where=most > 0).max())


def capture_double_embedded(model: nn.Module, tokenizer: Any, text: str) -> AttentionTrace:
    """The attention of the second pass, heads averaged."""
    return capture(model, _second_inputs(model, tokenizer, text), heads="mean")


def gradient_sums(model: nn.Module, tokenizer: Any, text: str, label: int) -> GradientSums:
    """The gradient of a label's logit with respect to what the second pass is given."""
    inputs = _second_inputs(model, tokenizer, text)
    vectors = inputs["inputs_embeds"].requires_grad_()
    with at_rest(model), torch.enable_grad():
        outputs = adapter_for(model).forward(model, {**inputs, "inputs_embeds": vectors})
        (gradient,) = torch.autograd.grad(outputs.logits[0, label], vectors)
    # In double precision from here on: the rounding to be seen is the model's, not ours.
    exact = gradient[0].double().cpu()
    return GradientSums(
        exact.sum(dim=-1).abs().numpy(), exact.norm(dim=-1).numpy(), exact.shape[-1]
    )


def in_double_precision(model: nn.Module) -> nn.Module:
    """A copy of the model with twice the digits: what is left of a sum there is no rounding."""
    return copy.deepcopy(model).double()


def _second_inputs(model: nn.Module, tokenizer: Any, text: str) -> dict[str, Tensor]:
    adapter = adapter_for(model)
    first = adapter.encode(model, tokenizer, [text]).inputs
    second = {"inputs_embeds": _stream(model, first)}
    if "attention_mask" in first:
        second["attention_mask"] = first["attention_mask"]
    return second


def _stream(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """What the first block reads in a plain pass."""
    adapter = adapter_for(model)
    streams: list[Tensor] = []

    def keep(module: nn.Module, arguments: Any, output: Tensor) -> None:
        streams.append(output.detach())

    with at_rest(model), undone() as changes, torch.no_grad():
        changes.hook(adapter.embedding(model, "stream").register_forward_hook, keep)
        adapter.forward(model, inputs)
    return streams[0]
