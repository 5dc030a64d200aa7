"""Where a backward pass ends: the embedded inputs, and what stands in their places further up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.errors import UnsupportedModelError
from attnflow.hosts.restore import Changes

_BLOCK = "GradientCheckpointingLayer"  # what a file of transformers calls one block of a stack
_BLOCKS_TO_A_STREAM = 10


class InputLeaves:
    """The embedded inputs of a model, cut off as leaves of the graph: one for each stack.

    What stands in their places behind the first tenth of the blocks is watched beside them: little
    has moved there from one position to another.
    """

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []
        self.streams: dict[int, Tensor] = {}
        self._begun = 0

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Keep the output as a leaf, and give the model a copy, which it may change in place."""
        embedded, *rest = output if isinstance(output, tuple) else (output,)
        self.leaves.append(embedded.detach().requires_grad_())
        copy = self.leaves[-1].clone()
        return (copy, *rest) if rest else copy

    def watch(
        self, model: nn.Module, words: nn.Module, changes: Changes, *, streams: bool = False
    ) -> None:
        """Stand behind a model's embedding of words and its decoder's, wherever they are used.

        streams: and behind the first tenth of its blocks.
        """
        if isinstance(words, nn.ModuleList):
            raise UnsupportedModelError(
                f"{type(model).__name__} reads {len(words)} rows of tokens at once, each by an "
                "embedding of its own, so no gradient is that of one token. Rollout works."
            )
        decoder = getattr(model, "get_decoder", lambda: None)()
        find = getattr(decoder, "get_input_embeddings", None)  # some call their head a decoder
        sides = (words, words if find is None else find())
        weights = {id(getattr(one, "weight", one)) for one in sides}
        shared = [m for m in model.modules() if id(getattr(m, "weight", None)) in weights]
        # An adapter stands around the embedding that it adds to: the sum of both is the input.
        holders = {inside: one for one in sides for inside in one.modules()}
        embeddings = [holders.get(m, m) for m in shared if isinstance(m, nn.Embedding)]
        for module in dict.fromkeys(embeddings or [words]):
            changes.hook(module.register_forward_hook, self)
        if not streams:
            return
        blocks = [m for m in model.modules() if _BLOCK in map(_name, type(m).__mro__)]
        for block in blocks[: round(len(blocks) / _BLOCKS_TO_A_STREAM)]:
            changes.hook(block.register_forward_hook, self._watch_stream)

    def _watch_stream(self, module: nn.Module, inputs: Any, output: Any) -> None:
        stream = output[0] if isinstance(output, tuple) else output
        if not self.leaves or stream.shape != self.leaves[-1].shape or not stream.requires_grad:
            return
        number, values = self._begun, stream.detach().clone()
        self._begun += 1

        def keep(gradient: Tensor) -> None:
            self.streams[number] = _summed_product(values, gradient)

        stream.register_hook(keep)

    def relevance(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return `(batch, positions)` each: value × gradient of the inputs, then of each stream.

        Inputs of several stacks stand one after the other, and have no streams.
        """
        pairs = zip(self.leaves, gradients, strict=True)
        inputs = torch.cat([_summed_product(*pair) for pair in pairs], dim=1)
        streams = self.streams if len(self.leaves) == 1 else {}
        return [inputs, *(streams[number] for number in sorted(streams))]


def _summed_product(values: Tensor, gradient: Tensor) -> Tensor:
    return (values.detach() * gradient).float().sum(dim=-1)


def _name(kind: type) -> str:
    return kind.__name__
