"""Where each family keeps the parts of a block, and how a block is watched while it runs.

The norm-based measurements need a block's inside: its input, the values, the projection after
attention, and the LayerNorms after it. Values and weights are seen where attention is computed;
the rest is declared here by the paths of its modules. Nothing is patched: hooks read what passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnflow.errors import CaptureError, UnsupportedModelError
from attnflow.hosts.measure.decomposition import BlockState, FixedNorm, measure_block
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.restore import undone

__all__ = ["BLOCK_MEASURES", "DECLARED", "BlockPlan", "Parts", "declared_parts", "watched_blocks"]

BLOCK_MEASURES = (
    *("norms", "norms-residual", "norms-layernorm", "norms-encoder"),
    *("residual-share", "alti"),
)
_AFTER_A_NORM = ("norms-layernorm", "norms-encoder")  # these exist only in post-norm blocks


@dataclass(frozen=True)
class BlockPlan:
    """Module paths: of the list of blocks from the base model, of the rest from a block.

    `norms`: the LayerNorm after attention and the one that ends the block, for post-norm blocks.
    `scale`: the learned vector that attention's output is multiplied by (LayerScale), if any.
    """

    blocks: str
    projection: str
    norms: tuple[str, ...] = ()
    scale: str = ""


_BERT = BlockPlan(
    "encoder.layer",
    "attention.output.dense",
    ("attention.output.LayerNorm", "output.LayerNorm"),
)
_DISTILBERT = BlockPlan(
    "transformer.layer", "attention.out_lin", ("sa_layer_norm", "output_layer_norm")
)
_LLAMA = BlockPlan("layers", "self_attn.o_proj")
_VIT = (
    BlockPlan("layers", "attention.o_proj"),
    BlockPlan("encoder.layer", "attention.output.dense"),
)
_DINO = (
    BlockPlan("encoder.layer", "attention.o_proj", scale="layer_scale1.lambda1"),
    BlockPlan("encoder.layer", "attention.output.dense", scale="layer_scale1.lambda1"),
)
# By the model type of the config. Several plans: the layout differs between versions of the host.
DECLARED: dict[str, tuple[BlockPlan, ...]] = {
    **dict.fromkeys(["bert", "roberta", "electra"], (_BERT,)),
    "distilbert": (_DISTILBERT,),
    "gpt2": (BlockPlan("h", "attn.c_proj"),),
    **dict.fromkeys(["llama", "mistral", "qwen2", "qwen3"], (_LLAMA,)),
    **dict.fromkeys(["vit", "deit"], _VIT),
    **dict.fromkeys(["dinov2", "dinov2_with_registers"], _DINO),
}


@dataclass(frozen=True)
class Parts:
    """The modules of one block that must be known to take it apart."""

    block: nn.Module
    projection: nn.Module
    norms: tuple[nn.LayerNorm, ...] = ()
    scale: Tensor | None = None

    def output_map(self) -> tuple[Tensor, Tensor | None]:
        """W_O and b_O, each multiplied by what the output of attention is multiplied by."""
        matrix, bias = _matrix(self.projection), cast("Tensor | None", self.projection.bias)
        if self.scale is None:
            return matrix, bias
        return matrix * self.scale, None if bias is None else bias * self.scale


def declared_parts(base: nn.Module, model_type: str, model_name: str) -> list[Parts]:
    """The parts of every block of a declared family; other models are refused by name."""
    for plan in DECLARED.get(model_type, ()):
        try:
            blocks = cast(nn.ModuleList, base.get_submodule(plan.blocks))
            return [_parts(block, plan) for block in blocks]
        except AttributeError:
            continue
    raise UnsupportedModelError(
        f"{model_name} (model type {model_type!r}) cannot be taken apart: where its blocks keep "
        f"their projection and norms is not declared. Declared are {', '.join(DECLARED)}. "
        "Gradients (record=('gradients',)) and value zeroing (record=('value-zeroing',)) need no "
        "declaration."
    )


def _parts(block: nn.Module, plan: BlockPlan) -> Parts:
    norms = tuple(cast(nn.LayerNorm, block.get_submodule(path)) for path in plan.norms)
    scale = block.get_parameter(plan.scale) if plan.scale else None
    return Parts(block, block.get_submodule(plan.projection), norms, scale)


@contextmanager
def watched_blocks(blocks: Sequence[Parts], recorder: Recorder, model_name: str) -> Iterator[None]:
    """Measure what the recorder was asked for on every block, as it ends."""
    names = [name for name in recorder.record if name in BLOCK_MEASURES]
    if not names:
        yield
        return
    _refuse_missing_norms(blocks, names, model_name)
    watch = _Watch(recorder, names)
    with undone() as changes:
        for parts in blocks:
            changes.hook(parts.block.register_forward_pre_hook, watch.begin, with_kwargs=True)
            for norm in parts.norms:
                changes.hook(norm.register_forward_hook, watch.normed)
            changes.hook(parts.block.register_forward_hook, watch.end(parts))
        changes.set(recorder, "watch", watch.attended)
        yield


def _refuse_missing_norms(blocks: Sequence[Parts], names: Sequence[str], model_name: str) -> None:
    after_norm = [name for name in names if name in _AFTER_A_NORM]
    if after_norm and not all(parts.norms for parts in blocks):
        raise UnsupportedModelError(
            f"{model_name} normalises before attention, not after it, so there is no LayerNorm to "
            f"fold into {' and '.join(map(repr, after_norm))}: its own is inside the values "
            "already. Use 'norms-residual' (NormRollout(kind='residual')) or 'alti'."
        )


class _Watch:
    """What the running block has shown so far; put together and measured when it ends."""

    def __init__(self, recorder: Recorder, names: Sequence[str]) -> None:
        self.recorder = recorder
        self.names = names
        self.stream = torch.empty(0)
        self.attention: list[tuple[Tensor, Tensor]] = []  # weights and values
        self.norms: list[tuple[nn.LayerNorm, Tensor, Tensor]] = []

    def begin(self, block: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.stream = arguments[0] if arguments else options["hidden_states"]
        self.attention, self.norms = [], []

    def attended(self, weights: Tensor, values: Tensor) -> None:
        self.attention.append((weights, values))

    def normed(self, norm: nn.LayerNorm, arguments: tuple[Any, ...], output: Tensor) -> None:
        self.norms.append((norm, arguments[0], output))

    def end(self, parts: Parts) -> Any:
        def ended(block: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            if len(self.attention) != 1 or len(self.norms) != len(parts.norms):
                raise CaptureError(
                    f"A {type(block).__name__} attended {len(self.attention)} times and normalised "
                    f"{len(self.norms)} times where 1 and {len(parts.norms)} were expected, so it "
                    "cannot be taken apart. Gradient methods work on this model."
                )
            with torch.no_grad():
                self._measure(parts)

        return ended

    def _measure(self, parts: Parts) -> None:
        measured = [
            measure_block(self._inside(parts, example), self.names)
            for example in range(len(self.stream))
        ]
        for name in self.names:
            self.recorder.measure(name, torch.stack([one[name] for one in measured]))

    def _inside(self, parts: Parts, example: int) -> BlockState:
        weights, values = self.attention[0]
        return BlockState.of(
            self.stream[example],
            weights[example],
            values[example],
            *parts.output_map(),
            tuple(
                FixedNorm.of(norm, stream[example], output[example])
                for norm, stream, output in self.norms
            ),
        )


def _matrix(projection: nn.Module) -> Tensor:
    """W_O as (inputs, outputs): torch's Linear keeps it turned over, GPT-2's Conv1D does not."""
    weight = cast(Tensor, projection.weight)
    return weight.T if isinstance(projection, nn.Linear) else weight
