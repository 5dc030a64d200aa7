"""The connector of a vision-language model as a matrix, and where each patch lies in its image.

One pass through the vision tower and the connector alone, which stops where the language model
begins, tells both: which vision positions feed which image token, and which pixels feed which
vision position. For images of the same shape the answer is kept. It is found by asking the
gradient, not by knowing the family.

Between the last attention of the vision tower and the language model's input every step treats
positions apart: projections, norms, merging of neighbours, pooling, reordering. So each vision
position feeds one image token (or none, such as a dropped class token), and the map between them
is found exactly in log2(tokens) backward passes through the connector alone. Pass k weighs token t
by +1 or -1 according to bit k of t; the gradient at a vision position then keeps or changes its
sign according to the number of the token that it feeds. Where the gradients do not agree with any
such map, the token takes from several overlapping sets (an interpolation), and one backward pass
for each token gives how strongly each position feeds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnflow.errors import CaptureError, UnsupportedModelError
from attnflow.hosts.recorder import AttentionObserver, RecordedLayer
from attnflow.hosts.restore import Changes, exclusive
from attnflow.hosts.transformers.attention import watch_attention
from attnflow.hosts.vision_language.towers import Towers, pixels_of

_NOWHERE = -1
_SIGN_TOLERANCE = 0.05  # a sign is +1 or -1; half precision leaves some percent
_MOST_TOKENS = 4096  # one backward pass for each, where positions overlap


def fed_by(outputs: Tensor, leaves: Sequence[Tensor]) -> NDArray[np.intp] | None:
    """Return for each position of the leaves the number of the output that it feeds, -1 for none.

    outputs: (tokens, width). leaves: tensors (..., width) whose last axis belongs to one position;
    their positions are numbered one after the other. None where a position feeds several outputs.
    """
    base = _gradients(outputs, leaves, torch.ones(len(outputs)))
    size = (base * base).sum(dim=-1)
    connected = size > 0
    numbers = torch.zeros(len(base), dtype=torch.long, device=base.device)
    for bit in range(max(1, (len(outputs) - 1).bit_length())):
        signs = 1.0 - 2.0 * ((torch.arange(len(outputs)) >> bit) & 1).float()
        gradient = _gradients(outputs, leaves, signs)
        ratio = (gradient * base).sum(dim=-1) / size.clamp_min(torch.finfo(size.dtype).tiny)
        rest = (gradient - ratio[:, None] * base).pow(2).sum(dim=-1)
        off = ((ratio.abs() - 1).abs() > _SIGN_TOLERANCE) | (rest > _SIGN_TOLERANCE * size)
        if bool((off & connected).any()):
            return None
        numbers += (ratio < 0).long() << bit
    numbers[~connected] = _NOWHERE
    if bool((numbers >= len(outputs)).any()):
        return None
    return numbers.cpu().numpy()


def feeding_matrix(outputs: Tensor, leaves: Sequence[Tensor], name: str) -> NDArray[np.float64]:
    """Return (tokens, positions): the mean of those that feed each token, or gradients' lengths."""
    numbers = fed_by(outputs, leaves)
    if numbers is not None:
        matrix = np.zeros((len(outputs), len(numbers)))
        positions = np.flatnonzero(numbers >= 0)
        matrix[numbers[positions], positions] = 1.0
    elif len(outputs) > _MOST_TOKENS:
        raise UnsupportedModelError(
            f"{name} mixes overlapping patches into {len(outputs)} image tokens; up to "
            f"{_MOST_TOKENS} of them can be told apart. Use a smaller image."
        )
    else:
        each = (_gradients(outputs, leaves, token) for token in torch.eye(len(outputs)))
        matrix = np.stack([part.norm(dim=-1).cpu().numpy() for part in each]).astype(np.float64)
    total = matrix.sum(axis=1, keepdims=True)
    return np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)


def _gradients(outputs: Tensor, leaves: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return (positions, width): gradients of the outputs' sum along one random direction."""
    noise = torch.Generator().manual_seed(0)
    direction = torch.randn(outputs.shape[-1], generator=noise).to(outputs)
    score = ((outputs @ direction) * weights.to(outputs)).sum()
    gradients = torch.autograd.grad(score, list(leaves), retain_graph=True, allow_unused=True)
    parts = [
        torch.zeros_like(leaf) if part is None else part
        for leaf, part in zip(leaves, gradients, strict=True)
    ]
    return torch.cat([part.reshape(-1, part.shape[-1]).float() for part in parts])


FLAT = 2  # axes of pixels that come as one row for each patch


@dataclass(frozen=True, eq=False)
class Connector:
    """`matrix[t, p]`: the share of vision position p in the image token at `places[t]`.

    Rows sum to 1, or to 0 for a token that stands for no patch, such as the end of a row of tiles.
    `layers` counts the layers of the vision tower that the language model reads: a tower whose
    second to last layer is read has one that does not count. `blocks` are the lengths of the parts
    of the vision positions that attend to themselves only, in the first layer. `pixels` has by
    their name the vision position that each pixel feeds, -1 for none: of images (..., height,
    width), of patches that the processor has cut (patches,).
    """

    matrix: NDArray[np.float64]
    places: tuple[int, ...]
    layers: int
    blocks: tuple[int, ...]
    pixels: Mapping[str, NDArray[np.intp]]


_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, Connector]] = WeakKeyDictionary()


def connector_of(
    model: PreTrainedModel, towers: Towers, inputs: Mapping[str, Tensor], places: list[int]
) -> Connector:
    """Return the connector for these inputs; found once for images of the same shape."""
    key = (tuple(places), *((name, _shape(tensor)) for name, tensor in sorted(inputs.items())))
    known = _KNOWN.setdefault(model, {})
    if key not in known:
        with torch.enable_grad():
            known[key] = _Probe(model, towers, inputs, places).run()
    return known[key]


def _shape(tensor: Tensor) -> Any:
    """Sizes of images count by value (grids, image sizes); pixels and words by their shape."""
    small = not tensor.is_floating_point() and tensor.numel() <= 64 and tensor.ndim != 2
    grid = tensor.ndim == 2 and tensor.shape[-1] in (2, 3) and not tensor.is_floating_point()
    return tuple(tensor.flatten().tolist()) if small or grid else tuple(tensor.shape)


class _LanguageModelReached(Exception):  # noqa: N818 - no error: it ends the pass
    """The language model's input is there; the rest of the pass is not needed."""


@dataclass(eq=False)
class _Probe(AttentionObserver):
    """One pass that stops before the language model, every vision attention's output cut free."""

    model: PreTrainedModel
    towers: Towers
    inputs: Mapping[str, Tensor]
    places: list[int]
    entrances: list[Tensor] = field(default_factory=list)
    leaves: dict[nn.Module, list[Tensor]] = field(default_factory=dict)
    blocks: dict[nn.Module, list[int]] = field(default_factory=dict)
    stream: Tensor | None = None

    def see_rows(self, layer: RecordedLayer, weights: Tensor, rows: slice) -> None:
        """Return the lengths of what attends together, as the first rows of a call show it."""
        if rows.start == 0:
            lengths = self.blocks.setdefault(layer.module, [])
            lengths.extend([layer.length] * len(weights))

    def end_layer(self, layer: RecordedLayer) -> None:
        """Nothing is kept."""

    def run(self) -> Connector:
        """Return the pass, and what its gradients say."""
        pixels, inputs = {}, dict(self.inputs)
        for name, tensor in pixels_of(inputs).items():
            flat = tensor.ndim == FLAT
            leaf = (tensor if flat else tensor.movedim(-3, -1)).detach().clone().requires_grad_()
            pixels[name], inputs[name] = leaf, leaf if flat else leaf.movedim(-1, -3)
        modules = self._attending_modules(inputs)
        with exclusive(self.model) as changes:
            self._hook(modules, changes)
            with suppress(_LanguageModelReached):
                self.model(**inputs, use_cache=False)
        return self._connector(modules, pixels)

    def _attending_modules(self, inputs: Mapping[str, Tensor]) -> list[nn.Module]:
        """Modules of the vision tower that attend, in the order in which they ran."""
        with exclusive(self.model) as changes, torch.no_grad():
            self._stop_at_language(changes)
            with suppress(_LanguageModelReached), watch_attention(self.model, observer=self):
                self.model(**inputs, use_cache=False)
        self.stream = None
        vision = set(self.towers.vision.modules())
        return [module for module in self.blocks if module in vision]

    def _stop_at_language(self, changes: Changes) -> None:
        def stop(module: nn.Module, arguments: Any, by_name: Mapping[str, Any]) -> None:
            self.stream = by_name.get("inputs_embeds")
            raise _LanguageModelReached

        changes.hook(self.towers.language.register_forward_pre_hook, stop, with_kwargs=True)

    def _hook(self, modules: list[nn.Module], changes: Changes) -> None:
        def enter(module: nn.Module, arguments: Any, by_name: Mapping[str, Any]) -> None:
            hidden = arguments[0] if arguments else by_name["hidden_states"]
            self.entrances.append(hidden.reshape(-1, hidden.shape[-1]))

        def leave(module: nn.Module, arguments: Any, output: Any) -> Any:
            mixed = output[0] if isinstance(output, tuple) else output
            leaf = mixed.detach().requires_grad_()
            self.leaves.setdefault(module, []).append(leaf)
            return (leaf, *output[1:]) if isinstance(output, tuple) else leaf

        self._stop_at_language(changes)
        for module in modules:
            changes.hook(module.register_forward_hook, leave)
        if modules:
            changes.hook(modules[0].register_forward_pre_hook, enter, with_kwargs=True)

    def _connector(self, modules: list[nn.Module], pixels: Mapping[str, Tensor]) -> Connector:
        name = type(self.model).__name__
        if self.stream is None or not modules:
            raise UnsupportedModelError(
                f"{name} hands no embeddings to its language model, or its vision tower does not "
                "attend, so its images cannot be followed. A model that reads the image through "
                "cross attention (Mllama) is of this kind."
            )
        tokens = self.stream[0, self.places]
        sources = [module for module in modules if _reach(self.leaves[module], tokens)]
        if not sources:
            raise CaptureError(f"No layer of the vision tower of {name} reaches its image tokens.")
        matrix = feeding_matrix(tokens, self.leaves[sources[-1]], name)
        if not matrix.any():
            raise CaptureError(
                f"No patch changes what the language model of {name} reads: its connector gives "
                "zeros, as that of a model that was never trained may do."
            )
        return Connector(
            matrix,
            tuple(self.places),
            modules.index(sources[-1]) + 1,
            tuple(self.blocks[modules[0]]),
            {name: self._fed_positions(leaf) for name, leaf in pixels.items()},
        )

    def _fed_positions(self, leaf: Tensor) -> NDArray[np.intp]:
        numbers = fed_by(torch.cat(self.entrances), [leaf])
        if numbers is None:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} cuts its images into patches that overlap, so a "
                "pixel belongs to several; its maps could not be drawn."
            )
        return numbers.reshape(leaf.shape[:-1])


def _reach(leaves: Sequence[Tensor], tokens: Tensor) -> bool:
    if not tokens.requires_grad:
        return False
    parts = torch.autograd.grad(tokens.sum(), leaves, retain_graph=True, allow_unused=True)
    return any(part is not None for part in parts)
