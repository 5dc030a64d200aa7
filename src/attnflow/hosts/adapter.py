"""The contract between capture and a host: a batch goes in, recorded layers come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnflow.errors import (
    InputError,
    ModelError,
    TokensError,
    UnsupportedModelError,
    did_you_mean,
    shorten,
)
from attnflow.hosts.facts import ModelFacts
from attnflow.hosts.intervention import UNIFORM, Intervention
from attnflow.hosts.recorder import Recorder
from attnflow.tokens import Tokens
from attnflow.trace import Prediction
from attnflow.trace.extras import ScoreName

__all__ = [
    "Adapter",
    "EmbeddingSite",
    "Batch",
    "Scores",
    "Texts",
    "TokenIds",
    "device_of",
    "on_device",
]

EmbeddingSite = Literal["words", "stream"]
Positions = tuple[tuple[int, ...], ...]
Texts = Sequence[str]
_ALTERNATIVES = 5  # choices a prediction names
_SPACES = ("Ġ", "▁", " ")  # how tokenizers write the space before a word


@dataclass(frozen=True)
class Batch:
    """Some examples as the model takes them.

    `positions[b]` are those of example b that are not padding; None keeps all of them. The
    same for the decoder's side of an encoder–decoder. `words[b]` is the word each position is a
    piece of, where the tokenizer tells.

    >>> batch = Batch({}, size=2, positions=((0, 1), (0, 1, 2)))
    >>> batch.positions_of(0, length=3), batch.positions_of(0, length=2, decoder=True)
    ((0, 1), (0, 1))
    """

    inputs: Mapping[str, Tensor]
    size: int
    positions: Positions | None = None
    decoder_positions: Positions | None = None
    words: tuple[tuple[int | None, ...], ...] | None = None

    def positions_of(self, example: int, length: int, *, decoder: bool = False) -> tuple[int, ...]:
        """The positions of one example that are no padding, of the `length` that were run."""
        positions = self.decoder_positions if decoder else self.positions
        return tuple(range(length)) if positions is None else positions[example]


@dataclass(frozen=True)
class Scores:
    """The scores (logits) of one example that its answer is read from.

    `logits` has one score for each choice. `position` counts the positions that are no padding;
    that of an encoder–decoder counts the decoder's. `names` turns choices into what people call
    them. `exclusive`: one choice is right (softmax), or any number of them (sigmoid). `each`,
    (positions, choices), are the scores of all positions where each has an answer of its own;
    `next_tokens`, of the same shape, those of a language model for what follows each position.
    `pooled`: the answer is read from all positions together, and `position` is only the first.

    >>> scores = Scores(torch.tensor([0.0, 2.0]), 0, lambda ids: [("no", "yes")[k] for k in ids])
    >>> print(scores.prediction())
    yes (88.1 %)
    """

    logits: Tensor
    position: int
    names: Callable[[Sequence[int]], list[str]]
    exclusive: bool = True
    each: Tensor | None = None
    next_tokens: Tensor | None = None
    pooled: bool = False

    def at(self, position: int) -> Scores:
        """The scores that another position's answer is read from."""
        if self.each is None:
            if position == self.position:
                return self
            raise InputError(
                f"This model has one answer, read from position {self.position}; there is none at "
                f"position {position}."
            )
        if not 0 <= position < len(self.each):
            raise InputError(
                f"There is no position {position}; the text has {len(self.each)}, numbered from 0."
            )
        return replace(self, logits=self.each[position], position=position)

    def choice(self, answer: int | str | None) -> int:
        """The number of a choice that is given by number or by name; None is the best one."""
        if answer is None:
            return int(self.logits.argmax())
        if isinstance(answer, str):
            return self._named_choice(answer)
        number = int(answer)
        if not 0 <= number < len(self.logits):
            raise InputError(
                f"answer={answer!r}: the answer is one of {len(self.logits)} choices, 0 to "
                f"{len(self.logits) - 1}."
            )
        return number

    def _named_choice(self, answer: str) -> int:
        """By name; a word also fits a token that has a mark for the space before it."""
        names = self.names(range(len(self.logits)))
        for name in (answer, *(mark + answer.strip() for mark in _SPACES)):
            if name in names:
                return names.index(name)
        some = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
        raise InputError(
            f"answer={shorten(answer)}: there is no such choice.{did_you_mean(answer, names)} "
            f"There are {len(names)}: {some}."
        )

    def shares(self) -> Tensor:
        """The probability of each choice."""
        scores = self.logits.float()
        return scores.softmax(dim=-1) if self.exclusive else scores.sigmoid()

    def score(self, choice: int, name: ScoreName) -> Tensor:
        """The number whose gradient is taken of one choice."""
        logits = self.logits.float()
        if name == "logit":
            return logits[choice]
        shares = logits.log_softmax(dim=-1) if self.exclusive else functional.logsigmoid(logits)
        return shares[choice]

    def label(self, choice: int) -> str:
        """What people call a choice."""
        return self.names([choice])[0]

    def contrast(self, choice: int, other: int, name: ScoreName) -> Tensor:
        """How much more one choice is said than another: the difference of their scores.

        >>> scores = Scores(torch.tensor([0.0, 2.0]), 0, list)
        >>> float(scores.contrast(1, 0, "log-prob"))
        2.0
        """
        return self.score(choice, name) - self.score(other, name)

    def prediction(self) -> Prediction:
        """The most probable choice, and the next ones."""
        shares = self.shares()
        best = shares.topk(min(_ALTERNATIVES, len(shares)))
        names = self.names(best.indices.tolist())
        ranked = tuple(zip(names, best.values.tolist(), strict=True))
        return Prediction(*ranked[0], self.position, ranked, self.pooled)


@dataclass(frozen=True)
class TokenIds:
    """What a tokenizer's ids mean to who changes an input.

    `blanks` are the tokens that can stand for a word that is not shown, by name: "unk", "mask",
    "pad". `special` are the ids that frame a text and are no words of it.

    >>> ids = TokenIds({"unk": 1}, special=frozenset({0, 2}))
    >>> [ids.blanks["unk"] if token not in ids.special else token for token in (0, 7, 8, 2)]
    [0, 1, 1, 2]
    """

    blanks: Mapping[str, int]
    special: frozenset[int]


class Adapter(ABC):
    """What a host declares: only `recognises` and `run` must be written.

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
        """Whether this adapter is for this model."""

    @abstractmethod
    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """One forward pass; every layer's weights go to the recorder, in order.

        The model is given back as it was, also when the pass fails.
        """

    def forward(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
        """The same pass without watching: what capture must not change."""
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
        """How many layers must have been recorded, if the host says."""
        return None

    def name_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """The tokens of the input (of the encoder, if there are two), padding left out.

        `length` is the number of positions that attention was seen over, padding included.
        """
        return Tokens(tuple(f"position {k}" for k in batch.positions_of(example, length)))

    def name_decoder_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """The same for the decoder of an encoder–decoder."""
        return Tokens(tuple(f"output {k}" for k in range(length)))

    def embedding(self, model: nn.Module, at: EmbeddingSite) -> nn.Module:
        """The module whose output input gradients are taken of: the "words" embedding, or the one
        that gives the "stream" which the first block reads (positions and norms applied).
        """
        raise UnsupportedModelError(
            f"{type(model).__name__} declares no embedding of tokens, which this needs; an adapter "
            "declares it with `embedding`."
        )

    def token_ids(self, model: nn.Module, tokenizer: Any) -> TokenIds:
        """The ids that can blank a token, and those that are no words."""
        raise UnsupportedModelError(
            f"{type(model).__name__} declares no tokens that could be blanked; an adapter declares "
            "them with `token_ids`."
        )

    def facts(self, model: nn.Module) -> ModelFacts:
        """What the model's config and class say of it; by default an encoder's."""
        return ModelFacts()

    def run_with(
        self, model: nn.Module, inputs: Mapping[str, Tensor], intervention: Intervention
    ) -> Any:
        """One forward pass under an intervention, watched by nobody.

        Without more, only uniform attention is possible, which `run` makes for a recorder.
        """
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
        """Whether one image is what the model takes: its positions are patches."""
        return False

    def image_processor(self, model: nn.Module) -> Any:
        """What turns an image into the model's pixels: a processor, or a function of an image."""
        raise ModelError(
            f"{type(model).__name__} names no image processor of its own; pass one: "
            "processor=..., or prepared pixels: {'pixel_values': pixels}."
        )

    def takes_apart(self, model: nn.Module) -> bool:
        """Whether it is a text encoder with an answer whose blocks can be taken apart."""
        return False

    def explains_rows(self, model: nn.Module) -> bool:
        """Whether every position has an answer of its own whose gradient `gradient_rows` gives."""
        return False

    def gradient_rows(
        self,
        model: nn.Module,
        batch: Batch,
        choices: Sequence[int],
        contrasts: Sequence[int | None],
        score: ScoreName,
    ) -> Tensor:
        """`(layers, batch, n, n)`: gradient attention of the token that follows each position.

        `choices` are what the last position of each example is explained by, `contrasts` what
        they are held against there.
        """
        raise UnsupportedModelError(f"{type(model).__name__} has no row for each answer.")

    def holds_factors(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> bool:
        """Whether `run_in_factors` can run this model on these inputs."""
        return False

    def run_in_factors(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        gradient_kind: str | None = None,
        spans: Any = None,
    ) -> Any:
        """One forward pass of one example by the model's own fused attention, factors kept.

        spans: passed by every layer as it runs (`pass_layer`), where nothing is to be kept.
        """
        raise UnsupportedModelError(
            f"The adapter for {self.name} keeps weights, not factors; use form='weights'."
        )

    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        """The scores each example's answer is read from, where the model has a head that says
        something: its prediction, and what gradients are taken of.
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
    """Where the model's weights are; inputs go there too.

    >>> device_of(nn.Linear(2, 2))
    device(type='cpu')
    """
    return next((p.device for p in model.parameters()), torch.device("cpu"))
