"""Hosts that are watched by hooks on their modules: the models that ship, timm, and plain torch."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnflow.errors import TokensError, UnsupportedModelError, optional_import, shorten
from attnflow.hosts.adapter import (
    Adapter,
    Batch,
    EmbeddingSite,
    ModelFacts,
    Scores,
    Texts,
    TokenIds,
    device_of,
    on_device,
)
from attnflow.hosts.blocks import BLOCK_MEASURES, Parts, measured
from attnflow.hosts.inputs import REFUSED, kept_positions, name_patches, pad_rows, refuse_by_name
from attnflow.hosts.recorder import Intervention, RecordedLayer, Recorder, Session
from attnflow.hosts.restore import Changes, exclusive
from attnflow.models.verb_number import VerbNumberModel, WordVocabulary
from attnflow.tokens import Tokens
from attnflow.trace.extras import MEASURES


class _ProjectionAdapter(Adapter):
    """A host whose attention modules project queries, keys and values in one row."""

    @abstractmethod
    def hook(self, model: nn.Module, session: Session, changes: Changes) -> None:
        """Hook every attention module until the end."""

    @abstractmethod
    def parts(self, model: nn.Module) -> list[Parts]:
        """Return the blocks as they are taken apart."""

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """Watch every attention module, and the blocks where they are measured."""
        session = Session(recorder)
        parts = self.parts(model) if set(recorder.record) & set(self.measures) else []
        layers = [part.block for part in parts]
        with exclusive(model) as changes:
            self.hook(model, session, changes)
            with measured(recorder, session, type(model).__name__, parts, layers):
                return self.forward(model, inputs)


@dataclass(eq=False)
class _ProjectionHooks:
    """Hooks on one such module: it shows and changes values as projected, and shows all weights."""

    module: nn.Module
    heads: int
    session: Session
    values: Tensor = field(default_factory=lambda: torch.empty(0))

    def project(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """Take the values, (batch, heads, n, width), from a row (batch, n, 3 × heads × width)."""
        query, key, value = output.unflatten(-1, (3, self.heads, -1)).unbind(2)
        self.values = value.transpose(1, 2)
        if self.session.intervention is None:
            return output
        values = self.session.intervention.values(self.values, "self").transpose(1, 2)
        return torch.stack([query, key, values], dim=2).flatten(2)

    def end(self, module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        """Show the weights that the attention module returns."""
        self.show(output[1])

    def drop(self, module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor | None:
        """Show the weights that go into the dropout."""
        self.show(inputs[0])
        disturb = getattr(self.session.observer, "disturb", False)
        return torch.full_like(output, 1 / output.shape[-1]) if disturb else None

    def show(self, weights: Tensor) -> None:
        """Show the weights after the softmax to the observer, if there is one."""
        observer = self.session.observer
        if observer is not None:
            layer = RecordedLayer(self.module, self.values, weights.shape[-2])
            observer.see_rows(layer, weights, slice(0, layer.length))
            observer.end_layer(layer)


class EmbeddedAdapter(_ProjectionAdapter):
    """The verb-number classifier, whose attention modules return their weights."""

    name = "attnflow's embedded models"
    measures = tuple(MEASURES)

    def recognises(self, model: nn.Module) -> bool:
        """Our own class."""
        return isinstance(model, VerbNumberModel)

    def encode(
        self, model: nn.Module, tokenizer: Any, texts: Texts, decoder_texts: Texts | None = None
    ) -> Batch:
        """Words to ids, padded on the right; the words travel beside them, as people wrote them."""
        if decoder_texts is not None:
            raise TokensError(
                "The embedded model is an encoder and has no decoder to give text to."
            )
        if not isinstance(tokenizer, WordVocabulary):
            raise TokensError(
                "The embedded model has words of its own: leave tokenizer out, or pass the one "
                f"that load() gives; got {shorten(tokenizer)}."
            )
        try:
            encoded = [tokenizer.encode(text) for text in texts]
        except ValueError as error:
            raise TokensError(f"The embedded model cannot take this text: {error}") from error
        ids, mask = pad_rows([ids for ids, _ in encoded], tokenizer.pad_id)
        return Batch(
            {"input_ids": ids, "attention_mask": mask},
            size=len(texts),
            positions=kept_positions(mask),
            texts=tuple(tuple(words) for _, words in encoded),
        )

    def name_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """Return the user's own words: an unknown one is shown as written, not as its class."""
        if batch.texts is not None:
            return Tokens(batch.texts[example])
        return super().name_positions(model, tokenizer, batch, example, length)

    def hook(self, model: nn.Module, session: Session, changes: Changes) -> None:
        """Hook each block's attention."""
        for part in self.parts(model):
            attention: Any = part.block.attention
            hooks = _ProjectionHooks(attention, attention.heads, session)
            changes.hook(attention.query_key_value.register_forward_hook, hooks.project)
            changes.hook(attention.register_forward_hook, hooks.end)

    def parts(self, model: nn.Module) -> list[Parts]:
        """Return the blocks, which are all alike."""
        blocks: Any = model.blocks
        return [Parts(block, block.attention.projection) for block in blocks]

    def expected_layers(self, model: nn.Module) -> int | None:
        """Six."""
        return len(cast(VerbNumberModel, model).blocks)

    def embedding(self, model: nn.Module, at: EmbeddingSite) -> nn.Module:
        """Return the words' vectors, or (dropped out) their sums with those of the positions."""
        own = cast(VerbNumberModel, model)
        return own.word_embedding if at == "words" else own.dropout

    def token_ids(self, model: nn.Module, tokenizer: Any) -> TokenIds:
        """[UNK] and [PAD]; there is no token for a mask."""
        words = cast(WordVocabulary, tokenizer)
        special = frozenset((words.cls_id, words.eos_id, words.pad_id))
        return TokenIds({"unk": words.unk_id, "pad": words.pad_id}, special)

    def run_with(
        self, model: nn.Module, inputs: Mapping[str, Tensor], intervention: Intervention
    ) -> Any:
        """Zero values as they are projected; keys are not hidden one by one."""
        self.refuse_other_kinds(model, intervention, allowed=("zero_values",))
        with exclusive(model) as changes:  # everyone in the process shares this model
            self.hook(model, Session(intervention=intervention), changes)
            return self.forward(model, inputs)

    def reads_words(self, model: nn.Module) -> bool:
        """It reads nothing else."""
        return True

    def facts(self, model: nn.Module) -> ModelFacts:
        """An encoder that answers at [CLS]."""
        return ModelFacts(answer="first")

    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        """Return the number of the verb, read from the first position, [CLS]."""
        labels = cast(VerbNumberModel, model).labels
        return [Scores(row, 0, lambda ids: [labels[k] for k in ids]) for row in outputs.logits]


class TimmAdapter(_ProjectionAdapter):
    """timm models whose blocks attend over all tokens: ViT, DeiT, EVA, registers, no-CLS.

    timm is not imported: its modules are recognised by where their classes live. Each attention
    module passes its weights through `attn_drop` after the softmax, unless `fused_attn` is set; so
    for one forward pass that flag is cleared on each module and `attn_drop` is watched.
    """

    name = "timm"
    measures = BLOCK_MEASURES

    def recognises(self, model: nn.Module) -> bool:
        """Classes defined in timm."""
        return type(model).__module__.split(".")[0] == "timm"

    def wrap(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Batch:
        """Pixels of shape (batch, channels, height, width), by any name."""
        kind = type(model).__name__.lower()
        refuse_by_name(next((k for k in REFUSED if kind.startswith(k)), ""), type(model).__name__)
        pixels = next(iter(on_device(inputs, device_of(model)).values()), None)
        if pixels is None or pixels.ndim != 4:
            raise TokensError("A timm model takes one tensor (batch, channels, height, width).")
        return Batch({"pixel_values": pixels}, len(pixels))

    def forward(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
        """timm takes the pixels by position."""
        return model(inputs["pixel_values"])

    def hook(self, model: nn.Module, session: Session, changes: Changes) -> None:
        """Clear `fused_attn` on each attention module and hook its dropout."""
        for module in model.modules():
            dropout = getattr(module, "attn_drop", None)
            if not hasattr(module, "fused_attn") or not isinstance(dropout, nn.Module):
                continue
            hooks = _ProjectionHooks(module, cast(int, module.num_heads), session)
            changes.set(module, "fused_attn", False)
            changes.hook(dropout.register_forward_hook, hooks.drop)
            projection = getattr(module, "qkv", None)
            if isinstance(projection, nn.Module):
                changes.hook(projection.register_forward_hook, hooks.project)

    def parts(self, model: nn.Module) -> list[Parts]:
        """Return the blocks of a plain pre-norm transformer; other kinds are refused by name."""
        parts = []
        for block in getattr(model, "blocks", ()):
            attention: Any = getattr(block, "attn", None)
            kind = type(block).__name__
            if kind != "Block" or not _is_plain(attention):
                raise UnsupportedModelError(
                    f"{type(model).__name__} cannot be taken apart: its {kind} with "
                    f"{type(attention).__name__} is not the plain one (qkv, softmax, proj). "
                    "Rollout, flow and the gradient methods work."
                )
            scale = getattr(getattr(block, "ls1", None), "gamma", None)
            parts.append(Parts(block, attention.proj, scale=scale))
        return parts

    def expected_layers(self, model: nn.Module) -> int | None:
        """Count the blocks."""
        blocks = getattr(model, "blocks", None)
        return None if blocks is None else len(blocks)

    def name_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """Prefix tokens, then patches; the grid follows the image, which need not be square."""
        host: Any = model
        possible = (("[CLS]", "cls_token"), ("[DIST]", "dist_token"))
        special = [name for name, key in possible if getattr(host, key, None) is not None]
        pixels = batch.inputs["pixel_values"]
        return name_patches(pixels, host.patch_embed.patch_size, length, special)

    def facts(self, model: nn.Module) -> ModelFacts:
        """Return where the class is read, if there are classes."""
        if not getattr(model, "num_classes", 0):
            return ModelFacts()
        return ModelFacts(answer="mean" if _is_pooled(model) else "first")

    def reads_images(self, model: nn.Module) -> bool:
        """Return True: all of timm's models read images."""
        return True

    def image_processor(self, model: nn.Module) -> Any:
        """timm's own transform, by what the model's configuration says of its data."""
        return TimmTransform.of(model)

    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        """Return the classes of a classification head, read from the first position or from all."""
        scores = isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] > 1
        if not scores or not getattr(model, "num_classes", 0):
            return [None] * batch.size
        return [
            Scores(row, 0, lambda ids: [f"class {k}" for k in ids], pooled=_is_pooled(model))
            for row in outputs
        ]


@dataclass(frozen=True)
class TimmTransform:
    """timm's transform of an image to pixels, and what undoes its last step."""

    transform: Callable[[Any], Tensor]
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]

    @classmethod
    def of(cls, model: Any) -> TimmTransform:
        """As the model's `pretrained_cfg` says, at the size its patches were made for."""
        data = optional_import("timm.data", extra="models", purpose="Preparing an image for timm")
        height, width = model.patch_embed.img_size or model.pretrained_cfg["input_size"][1:]
        config = data.resolve_data_config({"input_size": (3, height, width)}, model=model)
        return cls(data.create_transform(**config), config["mean"], config["std"])

    def __call__(self, image: Any) -> Tensor:
        """Return the pixels of one image, (channels, height, width)."""
        return self.transform(image)


def _is_pooled(model: nn.Module) -> bool:
    """Return whether the class is read from all positions together."""
    return getattr(model, "global_pool", "token") in ("avg", "avgmax", "max")


def _is_plain(attention: Any) -> bool:
    """Return whether values go straight from `qkv` through the weights to `proj`."""
    return (
        isinstance(getattr(attention, "qkv", None), nn.Linear)
        and isinstance(getattr(attention, "proj", None), nn.Linear)
        and isinstance(getattr(attention, "norm", nn.Identity()), nn.Identity)
        and getattr(attention, "gate", None) is None
    )


class TorchAdapter(Adapter):
    """Any module built from `nn.MultiheadAttention` as self-attention, `nn.TransformerEncoder` too.

    A hook before each one asks for its weights, head by head, and a hook after it reads them. Hooks
    also keep torch's fused encoder path away, which would compute attention without either. Models
    whose `forward` takes other things than tensors by name are for an adapter of their own.
    """

    name = "torch's nn.MultiheadAttention"

    def recognises(self, model: nn.Module) -> bool:
        """There is one inside."""
        return bool(self.expected_layers(model))

    def wrap(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Batch:
        """Vectors go in as (batch, positions, width), by torch's default as (positions, batch,
        width), or as (positions, width) of one example.
        """
        batch = super().wrap(model, inputs)
        modules = _attention_modules(model)
        vectors = next(iter(batch.inputs.values()))
        if not vectors.is_floating_point() or vectors.shape[-1] != modules[0].embed_dim:
            return batch
        if vectors.ndim == 2:
            return replace(batch, size=1)
        first = all(module.batch_first for module in modules)
        return batch if first or vectors.ndim != 3 else replace(batch, size=vectors.shape[1])

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """Run one forward pass with the inputs passed by name."""
        with exclusive(model) as changes:
            ask, read = partial(_ask, recorder), partial(_read, recorder)
            for module in _attention_modules(model):
                changes.hook(module.register_forward_pre_hook, ask, with_kwargs=True, prepend=True)
                changes.hook(module.register_forward_hook, read)
            return self.forward(model, inputs)

    def expected_layers(self, model: nn.Module) -> int | None:
        """Each attention module once."""
        return len(_attention_modules(model))


def _attention_modules(model: nn.Module) -> list[nn.MultiheadAttention]:
    return [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]


def _ask(
    recorder: Recorder, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arguments = inspect.signature(module.forward).bind(*inputs, **options).arguments
    query, padding = arguments["query"], arguments.get("key_padding_mask")
    _refuse_cross_attention(query, arguments["key"])
    if padding is not None:  # torch marks it by True, or by minus infinity
        padding = padding if padding.dtype == torch.bool else padding == -torch.inf
        recorder.positions = kept_positions(~padding.reshape(-1, padding.shape[-1])) or ()
    if recorder.disturb:  # a query of zeros scores every key alike, whatever its bias adds
        zeros = torch.zeros_like(query)
        options = {**options, "query": zeros} if "query" in options else options
        inputs = (zeros, *inputs[1:]) if inputs else inputs
    return inputs, {**options, "need_weights": True, "average_attn_weights": False}


def _refuse_cross_attention(query: Tensor, key: Tensor) -> None:
    """Self-attention asks and answers with the same positions; shapes may agree by chance."""
    if query is key or (query.shape == key.shape and torch.equal(query, key)):
        return
    raise UnsupportedModelError(
        f"An nn.MultiheadAttention attends from {query.shape[-2]} queries to {key.shape[-2]} keys "
        "that are not the same positions; only self-attention makes one stack of layers. For cross "
        "attention write an adapter that records each stage."
    )


def _read(
    recorder: Recorder, module: nn.Module, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]
) -> None:
    weights = output[1] if output[1].ndim == 4 else output[1][None]
    # What is handed out is a view made for the caller; the model goes on with its base.
    recorder.add(weights, in_graph=weights._base)
