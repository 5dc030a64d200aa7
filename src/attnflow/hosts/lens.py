"""The model's own head, read at every patch of an image: how probable is the answer there?

What enters a block is kept while the model runs. In one more forward pass it takes the place of
what the last block gives: each vector stands alone at all positions of an example of its own, so
the norm and the head that follow read it, wherever they read the answer from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.errors import UnsupportedModelError
from attnflow.hosts.adapter import Batch
from attnflow.hosts.blocks import outermost_layers
from attnflow.hosts.model import Model
from attnflow.hosts.restore import Changes, undone


def blocks_of(model: Model) -> list[nn.Module]:
    """Return the blocks of an image classifier, as many as it has layers; else none."""
    module = model.module
    own: Any = getattr(module, "blocks", None)  # timm keeps them in a Sequential
    blocks = outermost_layers(module) if own is None else list(own)
    reads = model.adapter.reads_images(module) and model.facts.answer is not None
    return blocks if reads and len(blocks) == model.adapter.expected_layers(module) else []


class Lens:
    """What enters each block, and what the head would say of it."""

    def __init__(self, model: Model) -> None:
        self.model, self.blocks = model, blocks_of(model)
        self.streams: list[Tensor] = []
        if not self.blocks:
            raise UnsupportedModelError(
                "lens=true reads the patches of an image by the head of a classifier with one "
                f"stack of blocks, which {type(model.module).__name__} is not. Gradient attention "
                "works without it."
            )

    def watch(self, changes: Changes) -> None:
        """Keep what enters each block."""
        for block in self.blocks:
            changes.hook(block.register_forward_pre_hook, self._keep, with_kwargs=True)

    def _keep(self, _: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        stream = arguments[0] if arguments else options["hidden_states"]
        self.streams.append(stream.detach().clone())

    def read(self, batch: Batch, choices: Sequence[int]) -> list[NDArray[np.float32]]:
        """Return `(batch, n)` of each layer: the answer's probability, read at each position."""
        module, adapter = self.model.module, self.model.adapter
        streams = torch.stack(self.streams)  # (layers, batch, n, width)
        *sizes, width = streams.shape
        grid = adapter.name_positions(module, None, batch, 0, sizes[-1]).grid
        shortest = 1 if grid is None else grid.prefix + 1  # some heads leave the prefix out
        alone = streams.reshape(-1, 1, width).expand(-1, shortest, -1)

        def give(_: nn.Module, __: Any, output: Any) -> Any:
            return (alone, *output[1:]) if isinstance(output, tuple) else alone

        with torch.no_grad(), undone() as changes:
            changes.hook(self.blocks[-1].register_forward_hook, give)
            outputs = adapter.forward(module, batch.inputs)
        logits = outputs if isinstance(outputs, Tensor) else outputs.logits
        shares = logits.float().softmax(dim=-1).reshape(*sizes, -1)
        each = [shares[:, k, :, choice] for k, choice in enumerate(choices)]
        return list(torch.stack(each, dim=1).cpu().numpy())
