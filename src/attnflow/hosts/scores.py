"""The scores that an answer is read from, of one token or of several, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from attnflow.errors import (
    CaptureError,
    InputError,
    ModelError,
    UnsupportedModelError,
    did_you_mean,
    shorten,
)
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.restore import Changes, exclusive
from attnflow.trace import Prediction
from attnflow.trace.extras import BALANCED_INPUTS, LOG_PROB, ScoreName

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


_ALTERNATIVES = 5  # choices a prediction names
_SPACES = ("Ġ", "▁", " ")  # how tokenizers write the space before a word


TokenAt = tuple[int, int]
"""The position that predicts a token (of an encoder–decoder: the decoder's), and the token's id."""


@dataclass(frozen=True)
class Scores:
    """The scores (logits) of one example that its answer is read from.

    `logits` has one score for each choice. `position` counts the positions that are no padding;
    that of an encoder–decoder counts the decoder's. `names` turns choices into what people call
    them. `exclusive`: one choice is right (softmax), or any number of them (sigmoid). `each`,
    (positions, choices), are the scores of all positions where each has an answer of its own;
    `next_tokens`, of the same shape, those of a language model for what follows each position.
    `pooled`: the answer is read from all positions together, and `position` is only the first.
    `phrase`: tokens of the text whose scores count together, so that one backward pass serves all.

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
    phrase: tuple[TokenAt, ...] = ()

    def at(self, position: int) -> Scores:
        """Return the scores that another position's answer is read from."""
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
        """Return the number of a choice given by number or by name.

        None is the best one; of a phrase, its first token.
        """
        if answer is None:
            return self.phrase[0][1] if self.phrase else int(self.logits.argmax())
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

    def probabilities(self) -> Tensor:
        """Return the probability of each choice."""
        scores = self.logits.float()
        return scores.softmax(dim=-1) if self.exclusive else scores.sigmoid()

    def score(self, choice: int, name: ScoreName) -> Tensor:
        """Return the number whose gradient is taken of one choice.

        Of a phrase it is the sum over its tokens, the first of which is `choice`.
        """
        if self.phrase and self.next_tokens is not None:
            ((first, _), *rest) = self.phrase
            parts = [
                replace(self, logits=self.next_tokens[row], phrase=()).score(token, name)
                for row, token in [(first, choice), *rest]
            ]
            return torch.stack(parts).sum()
        if self.exclusive:
            return token_scores(self.logits, torch.tensor(choice, device=self.logits.device), name)
        logit = self.logits[choice].float()  # of a sigmoid these are the log odds
        return functional.logsigmoid(logit) if name == LOG_PROB else logit

    def label(self, choice: int) -> str:
        """Return what people call a choice; of a phrase, with its other tokens."""
        return " ".join(self.names([choice, *(token for _, token in self.phrase[1:])]))

    def prediction(self) -> Prediction:
        """Return the most probable choice, and the next ones."""
        shares = self.probabilities()
        best = shares.topk(min(_ALTERNATIVES, len(shares)))
        names = self.names(best.indices.tolist())
        ranked = tuple(zip(names, best.values.tolist(), strict=True))
        return Prediction(*ranked[0], self.position, ranked, self.pooled)


def token_scores(logits: Tensor, tokens: Tensor, name: ScoreName) -> Tensor:
    """Return the score of one choice in each row: logits are (..., choices), tokens are (...)."""
    places, logits = tokens[..., None], logits.float()
    if name == LOG_PROB:
        return logits.log_softmax(dim=-1).gather(-1, places).squeeze(-1)
    score = logits.gather(-1, places).squeeze(-1)
    if name == "logit":
        return score
    return score - logits.scatter(-1, places, -torch.inf).logsumexp(dim=-1)


def phrase_scores(scores: Scores | None, phrase: Sequence[TokenAt], model: nn.Module) -> Scores:
    """Return the same scores, read where these tokens are predicted."""
    if scores is None or scores.next_tokens is None:
        raise InputError(
            f"{type(model).__name__} does not say what follows each position, so several of its "
            "tokens cannot be explained together."
        )
    first = phrase[0][0]
    logits = scores.next_tokens[first]
    return replace(scores, logits=logits, position=first, each=None, phrase=tuple(phrase))


Answer = int | str
Choice = Answer | Sequence[Answer] | None


@contextmanager
def differentiable(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Make a graph in one pass, also of frozen parameters; their flags come back."""
    if not enabled:
        with torch.no_grad():
            yield
        return
    frozen = [p for p in model.parameters() if p.is_floating_point() and not p.requires_grad]
    with exclusive(model) as changes, torch.enable_grad():
        for parameter in frozen:
            changes.set(parameter, "requires_grad", True)
        yield


class Explained(NamedTuple):
    """The choice of each example that gradients are taken of, and what it is held against."""

    scores: Sequence[Scores | None]
    choices: Sequence[int]
    contrasts: Sequence[int | None]

    def labels(self) -> list[str]:
        """Return each example's answer in words."""
        examples = zip(self.scores, self.choices, self.contrasts, strict=True)
        return [
            one.label(k) if other is None else f"{one.label(k)} rather than {one.label(other)}"
            for one, k, other in examples
            if one is not None
        ]

    def total(self, score: ScoreName) -> Tensor:
        """Return the sum over examples, whose gradients stay apart: no weights are shared."""
        parts = []
        for one, k, other in zip(self.scores, self.choices, self.contrasts, strict=True):
            if one is not None:
                against = 0.0 if other is None else one.score(other, score)
                parts.append(one.score(k, score) - against)
        return torch.stack(parts).sum()


def answers_for_each(
    answer: Choice | Sequence[Answer | None], count: int
) -> Sequence[Answer | None]:
    """Return the answer that is named for each example: one for all, or one for each."""
    if not isinstance(answer, Sequence) or isinstance(answer, str):
        return [answer] * count
    if len(answer) != count:
        raise InputError(
            f"answer={shorten(answer)} names {len(answer)} choices for {count} examples."
        )
    return answer


def choose_answers(
    scores: Sequence[Scores | None],
    answer: Choice,
    model: nn.Module,
    contrast: Answer | None = None,
) -> Explained:
    """Choose what gradients are of in each example: its best choice unless one is named."""
    answers = answers_for_each(answer, len(scores))
    choices = [_choice(one, k, model) for one, k in zip(scores, answers, strict=True)]
    contrasts = [None if contrast is None else _choice(one, contrast, model) for one in scores]
    if any(choice == other for choice, other in zip(choices, contrasts, strict=True)):
        raise InputError(
            f"contrast={shorten(contrast)} is the answer itself; name another one, which the "
            "answer is held against."
        )
    return Explained(scores, choices, contrasts)


def _choice(scores: Scores | None, answer: Answer | None, model: nn.Module) -> int:
    if scores is None:
        raise ModelError(
            f"Gradients are taken of the score an answer is read from, and {type(model).__name__} "
            "gives none for this input. Load the model with its task head (a class "
            "...ForSequenceClassification, ...ForCausalLM and the like); a masked language model "
            "also needs its tokenizer and a mask in the text. A head that gives one number, or a "
            "span of the text, has no choice whose score could be taken."
        )
    return scores.choice(answer)


def gradients_of(
    total: Tensor, recorder: Recorder, model: nn.Module, inputs: InputLeaves | None = None
) -> list[NDArray[np.float32]]:
    """Return the gradient of each layer's weights; that of `inputs` is measured on the way."""
    layers = recorder.layers
    parts = [*(layer.in_graph for layer in layers), *(() if inputs is None else [inputs.leaves])]
    every = weight_gradients(total, parts, model)
    if inputs is not None:
        relevance = inputs.relevance(every[-len(inputs.leaves) :])
        nothing = torch.zeros_like(relevance[0])
        for number in range(len(layers)):
            values = relevance[number] if number < len(relevance) else nothing
            recorder.measure(BALANCED_INPUTS, values)
    gradients = iter(every)
    return [
        torch.cat([next(gradients) for _ in layer.in_graph], dim=-2)
        .float()
        .cpu()
        .numpy()
        .reshape(layer.weights.shape)
        for layer in layers
    ]


def weight_gradients(
    total: Tensor, layers: Sequence[Sequence[Tensor]], model: nn.Module
) -> list[Tensor]:
    """Return the gradient of each part of each layer's weights, one after the other."""
    weights = [part for parts in layers for part in parts]
    if all(layers) and total.requires_grad and all(part.requires_grad for part in weights):
        gradients = torch.autograd.grad(total, weights, allow_unused=True)
        if all(gradient is not None for gradient in gradients):
            return list(gradients)
    raise CaptureError(
        f"The attention weights that {type(model).__name__} shows are not part of the graph its "
        "score is computed from, so there are no gradients of them. Methods without gradients work."
    )
