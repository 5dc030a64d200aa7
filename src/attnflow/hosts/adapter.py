"""The contract between capture and a host: a batch goes in, recorded layers come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnflow.errors import ModelError, TokensError, UnsupportedModelError, shorten
from attnflow.hosts.recorder import UNIFORM, Intervention, Recorder
from attnflow.hosts.scores import Scores
from attnflow.tokens import Tokens
from attnflow.trace.extras import ScoreName

__all__ = [
    "Adapter",
    "AnswerPosition",
    "Batch",
    "EmbeddingSite",
    "ModelFacts",
    "Scores",
    "Texts",
    "TokenIds",
    "device_of",
    "on_device",
]

AnswerPosition = Literal["first", "last", "mask", "each", "mean"]


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model by its config and class (`Adapter.facts`).

    causal: no position attends to a later one. False for an encoder–decoder, whose decoder is.
    encoder_decoder: the inputs are read by an encoder, the answer is written by a decoder.
    answer: the position the answer is read from: the "first", the "last" that is no padding, the
        first "mask", or "each" where every position has an answer of its own; "mean" where the
        head reads the mean of all positions; None where the model has no head that is known.
    padding_side: where a batch of prompts is padded when the model writes.
    start_token: what the decoder of an encoder–decoder starts with.
    end_token: what ends a text, where the model names it.
    decoder_reads_input: the decoder reads the input once more, shifted by one, and the answer is
        read at its last end token, as the classifiers of encoder–decoders do.
    pad_token: what the model itself takes for padding.
    max_length: the most tokens one text may have, where the model has a limit.

    >>> ModelFacts(causal=True, answer="last").padding_side
    'right'
    """

    causal: bool = False
    encoder_decoder: bool = False
    answer: AnswerPosition | None = None
    padding_side: Literal["left", "right"] = "right"
    start_token: int | None = None
    end_token: int | None = None
    decoder_reads_input: bool = False
    pad_token: int | None = None
    max_length: int | None = None


EmbeddingSite = Literal["words", "stream"]
Positions = tuple[tuple[int, ...], ...]
Texts = Sequence[str]


@dataclass(frozen=True)
class Batch:
    """Some examples as the model takes them.

    `positions[b]` are those of example b that are not padding; None keeps all of them. The
    same for the decoder's side of an encoder–decoder. `words[b]` is the word each position is a
    piece of, where the tokenizer tells; `texts[b]` are the tokens as they were written, where that
    is known.

    >>> batch = Batch({}, size=2, positions=((0, 1), (0, 1, 2)))
    >>> batch.positions_of(0, length=3), batch.positions_of(0, length=2, decoder=True)
    ((0, 1), (0, 1))
    """

    inputs: Mapping[str, Tensor]
    size: int
    positions: Positions | None = None
    decoder_positions: Positions | None = None
    words: tuple[tuple[int | None, ...], ...] | None = None
    texts: tuple[tuple[str, ...], ...] | None = None

    def positions_of(self, example: int, length: int, *, decoder: bool = False) -> tuple[int, ...]:
        """Return the positions of one example that are no padding, of `length`."""
        positions = self.decoder_positions if decoder else self.positions
        return tuple(range(length)) if positions is None else positions[example]


@dataclass(frozen=True)
class TokenIds:
    """The meaning of a tokenizer's ids to whoever changes an input.

    `blanks` are the tokens that can stand for a word that is not shown, by name: "unk", "mask",
    "pad". `special` are the ids that frame a text and are no words of it.

    >>> ids = TokenIds({"unk": 1}, special=frozenset({0, 2}))
    >>> [ids.blanks["unk"] if token not in ids.special else token for token in (0, 7, 8, 2)]
    [0, 1, 1, 2]
    """

    blanks: Mapping[str, int]
    special: frozenset[int]


class Adapter(ABC):
    """The declaration of a host: only `recognises` and `run` must be written.

    `attnflow.testing.check_adapter` holds an adapter to this contract. `measures` are the
    measurements its `run` hands to the recorder when they are asked for.

    >>> class MyAdapter(Adapter):
    ...     name = "my host"
    ...     def recognises(self, model):
    ...         return type(model).__name__ == "MyModel"
    ...     def run(self, model, inputs, recorder):
    ...         return model(**inputs, watch=recorder.add)
    >>> MyAdapter().recognises(nn.Linear(2, 2))
    False
    """

    name: str
    measures: tuple[str, ...] = ()

    @abstractmethod
    def recognises(self, model: nn.Module) -> bool:
        """Return whether this adapter is for this model."""

    @abstractmethod
    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """Run one forward pass; each layer's weights go to the recorder. Nothing stays changed."""

    def forward(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
        """Run the same pass without watching: what capture must not change."""
        return model(**inputs)

    def encode(
        self, model: nn.Module, tokenizer: Any, texts: Texts, decoder_texts: Texts | None = None
    ) -> Batch:
        """Texts to inputs, padded on the right to one length."""
        raise TokensError(f"{type(model).__name__} takes prepared inputs, not a text.")

    def wrap(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Batch:
        """Inputs the user prepared: passed on to the model's forward by name."""
        tensors = on_device(inputs, device_of(model))
        sizes = [len(tensor) for tensor in tensors.values() if tensor.ndim]
        if not sizes:
            raise TokensError(
                f"Prepared inputs are tensors by the names of {type(model).__name__}'s forward "
                f"arguments; got {', '.join(map(shorten, inputs)) or 'none'}."
            )
        return Batch(tensors, size=sizes[0])

    def expected_layers(self, model: nn.Module) -> int | None:
        """Return how many layers must have been recorded, if the host says."""
        return None

    def name_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """Return the tokens of the input (of the encoder, of two); `length` counts padding too."""
        return Tokens(tuple(f"position {k}" for k in batch.positions_of(example, length)))

    def name_decoder_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """Return the same for the decoder of an encoder–decoder."""
        return Tokens(tuple(f"output {k}" for k in range(length)))

    def embedding(self, model: nn.Module, at: EmbeddingSite) -> nn.Module:
        """Return the module whose output input gradients are taken of: the "words" embedding, or
        the one that gives the "stream" which the first block reads (positions and norms applied).
        """
        raise UnsupportedModelError(
            f"{type(model).__name__} declares no embedding of tokens, which this needs; an adapter "
            "declares it with `embedding`."
        )

    def token_ids(self, model: nn.Module, tokenizer: Any) -> TokenIds:
        """Return the ids that can blank a token, and those that are no words."""
        raise UnsupportedModelError(
            f"{type(model).__name__} declares no tokens that could be blanked; an adapter declares "
            "them with `token_ids`."
        )

    def facts(self, model: nn.Module) -> ModelFacts:
        """Return what the model's config and class say of it; by default an encoder's."""
        return ModelFacts()

    def run_with(
        self, model: nn.Module, inputs: Mapping[str, Tensor], intervention: Intervention
    ) -> Any:
        """Run one forward pass under an intervention; without more, only uniform attention."""
        self.refuse_other_kinds(model, intervention, allowed=UNIFORM.kinds)
        return self.run(model, inputs, Recorder("mean", disturb=intervention.uniform))

    def refuse_other_kinds(
        self, model: nn.Module, intervention: Intervention, allowed: Sequence[str]
    ) -> None:
        """Raise for an intervention that this adapter cannot make."""
        others = [kind for kind in intervention.kinds if kind not in allowed]
        if others:
            raise UnsupportedModelError(
                f"The adapter for {self.name} cannot run {type(model).__name__} with "
                f"{' and '.join(others)}: what it attends with cannot be reached. Blank-out and "
                "input gradients need no access; an adapter gives it with `run_with`."
            )

    def reads_images(self, model: nn.Module) -> bool:
        """Return whether one image is what the model takes: its positions are patches."""
        return False

    def image_processor(self, model: nn.Module) -> Any:
        """Return the processor, or the function, that turns an image into the model's pixels."""
        raise ModelError(
            f"{type(model).__name__} names no image processor of its own; pass one: "
            "processor=..., or prepared pixels: {'pixel_values': pixels}."
        )

    def reads_words(self, model: nn.Module) -> bool:
        """Return whether the model begins at words, which `embedding` embeds."""
        return False

    def writes_by_attention(self, model: nn.Module) -> bool:
        """Return whether it is a language model in which attention alone connects positions."""
        return self.supports_row_gradients(model)

    def supports_row_gradients(self, model: nn.Module) -> bool:
        """Return whether `gradient_rows` gives each position's own gradient."""
        return False

    def gradient_rows(
        self,
        model: nn.Module,
        batch: Batch,
        choices: Sequence[int],
        contrasts: Sequence[int | None],
        score: ScoreName,
        *,
        balanced: bool = False,
    ) -> Tensor:
        """Return `(layers, batch, n, n)`: gradient attention of each position's next token.

        `choices` are what the last position of each example is explained by, `contrasts` what
        they are held against there. balanced: gradients are those of `hosts.balanced`.
        """
        raise UnsupportedModelError(f"{type(model).__name__} has no row for each answer.")

    def supports_factors(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> bool:
        """Return whether `run_in_factors` can run this model on these inputs."""
        return False

    def run_in_factors(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        gradient_kind: str | None = None,
        spans: Any = None,
        scored: int = 1,
        **options: Any,
    ) -> Any:
        """Run one example by the model's own fused attention and keep its factors.

        spans: passed by every layer as it runs (`pass_layer`), where nothing is to be kept.
        scored: how many of a language model's last positions have scores. options: what a long text
        keeps for the way back.
        """
        raise UnsupportedModelError(
            f"The adapter for {self.name} keeps weights, not factors; use form='weights'."
        )

    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        """Return the scores each example's answer is read from, where the model has a head that
        says something: its prediction, and what gradients are taken of.
        """
        return [None] * batch.size


def on_device(inputs: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    """Prepared inputs as tensors where the model is; what is no tensor is named.

    >>> on_device({"input_ids": [[5, 6]]}, torch.device("cpu"))
    {'input_ids': tensor([[5, 6]])}
    """
    tensors: dict[str, Tensor] = {}
    for name, value in inputs.items():
        try:
            tensors[str(name)] = torch.as_tensor(value).to(device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TokensError(
                f"Prepared inputs are tensors by name; {shorten(name)} is {shorten(value)} "
                f"({type(value).__name__}). A text is passed as it is, not in a mapping."
            ) from error
    return tensors


def device_of(model: nn.Module) -> torch.device:
    """Return where the model's weights are when it runs; inputs go there too.

    Offloaded weights are placeholders till then, and accelerate says where it will run them.

    >>> device_of(nn.Linear(2, 2))
    device(type='cpu')
    """
    hooks = (vars(module).get("_hf_hook") for module in model.modules())
    single = (one for hook in hooks if hook is not None for one in getattr(hook, "hooks", (hook,)))
    devices = (getattr(one, "execution_device", None) for one in single)
    device = next((each for each in devices if each is not None), None)
    if device is not None:
        return torch.device(device)
    places = (parameter.device for parameter in model.parameters())
    return next((place for place in places if place.type != "meta"), torch.device("cpu"))
