"""How much each token matters to a model's answer, found by changing the input or the inside.

This is what attention is held against. A measure is a frozen value, like a method, and is called
on a model and some texts: `BlankOut(by="unk")(model, texts)`. It knows nothing of attention, and
attention nothing of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.attribution import Contribution
from attnflow.errors import InputError, MethodError, ModelError, optional_import, percent, shorten
from attnflow.errors.arguments import check_count, check_fields, checked_arguments
from attnflow.errors.progress import tell
from attnflow.evaluation.passes import Choices, Passes, Score, Task, Text
from attnflow.explainers.blanks import BlankToken, blank_positions, check_blank, silence_values
from attnflow.hosts.adapter import EmbeddingSite, TokenIds
from attnflow.hosts.load import ModelLike
from attnflow.hosts.restore import at_rest, undone
from attnflow.tokens import Tokens

__all__ = [
    "MEASURES",
    "BlankOut",
    "Importance",
    "InputGradient",
    "IntegratedGradients",
    "Measure",
    "ValueZeroing",
]

Floats = NDArray[np.float64]
Reduce = Literal["abs-sum", "norm", "times-input"]


@dataclass(frozen=True, eq=False)
class Importance:
    """How much each token matters to one answer; nan where it was not measured.

    `is_word` is false where a token only frames the text. `answer` and `probability` are of the
    text as it is; `position` is where the answer was read.

    >>> from attnflow.evaluation.importance import BlankOut
    >>> importance = BlankOut()(None, ["the key to the cabinets"])[0]
    >>> importance.answer, importance.top(1)[0].token
    ('singular', 'to')
    """

    values: Floats
    tokens: Tokens
    is_word: NDArray[np.bool_]
    choice: int
    answer: str
    probability: float
    position: int
    measure: Measure

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.tokens),):
            raise InputError(f"{self.values.shape} values for {len(self.tokens)} tokens.")
        self.values.flags.writeable = False

    def top(self, k: int = 5) -> list[Contribution]:
        """Return the k tokens that matter most, strongest first; those not measured left out."""
        check_count("k", k, 1)
        order = np.argsort(-np.abs(self.values), kind="stable")[:k].tolist()
        return [
            Contribution(self.tokens[i], self.tokens.positions[i], float(self.values[i]))
            for i in order
            if np.isfinite(self.values[i])
        ]

    def __repr__(self) -> str:
        answer = f"{self.answer} ({percent(self.probability, 1)})"
        return f"<Importance of {len(self.tokens)} tokens for {answer}, {self.measure!r}>"


@dataclass(frozen=True, kw_only=True)
class Measure(ABC):
    """The parts that all measures share: the score they are about, and being callable.

    score: "probability" of the choice, or its "logit".

    >>> from attnflow.evaluation.importance import MEASURES
    >>> issubclass(MEASURES["blank-out"], Measure)
    True
    """

    name: ClassVar[str]
    score: Score = "probability"

    def __post_init__(self) -> None:
        check_fields(self)

    @checked_arguments
    def __call__(
        self,
        model: ModelLike,
        texts: Sequence[str],
        *,
        answer: Choices = None,
        batch_size: int = 64,
    ) -> list[Importance]:
        """Return the importance of every token of every text to the model's answer.

        `answer` is the choice to explain, the same for all texts or one for each; None is what the
        model itself says.
        """
        passes = Passes.over(model, batch_size)
        task = Task.of(passes, texts, answer, self.score, self.name)
        about = [(a.choice, a.name, a.probability, a.position, self) for a in task.answers]
        return [
            Importance(values, text.tokens, text.is_word, *answer)
            for values, text, answer in zip(self._measure(task), task.texts, about, strict=True)
        ]

    @abstractmethod
    def _measure(self, task: Task) -> list[Floats]:
        """Return one value for each position of each text."""


@dataclass(frozen=True, kw_only=True)
class BlankOut(Measure):
    """Blank-out: the change of the score when one token is blanked, one pass for each token.

    by: what takes the token's place, "unk", "mask" or "pad"; or "delete" to close the gap.
    keep: "special" leaves the tokens that frame the text alone; or the tokens to leave alone, for
        example ("[EOS]",). A token for a masked word always stays: the answer is read there.
    signed: keep the sign (positive: the token speaks for the answer) instead of the size.

    >>> importance = BlankOut(by="unk")(None, ["the key to the cabinets"])
    >>> importance[0].answer, len(importance[0].values)
    ('singular', 7)
    """

    name: ClassVar[str] = "blank-out"
    by: BlankToken = "unk"
    keep: Literal["special"] | tuple[str, ...] = "special"
    signed: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.keep, str) and self.keep != "special":
            raise MethodError(
                f"keep={shorten(self.keep)}: 'special', or a tuple of tokens: keep=('[EOS]',)."
            )
        super().__post_init__()
        if not isinstance(self.keep, str):
            object.__setattr__(self, "keep", tuple(self.keep))

    def _measure(self, task: Task) -> list[Floats]:
        check_blank(task.ids, self.by)
        places = [(k, i) for k, text in enumerate(task.texts) for i in self._hidden(text, task.ids)]
        rows = [blank_positions(task.texts[k].row, [i], task.ids, self.by) for k, i in places]
        keeps_positions = self.by != "delete"
        return task.effects(places, rows, signed=self.signed, keeps_positions=keeps_positions)

    def _hidden(self, text: Text, ids: TokenIds) -> list[int]:
        if isinstance(self.keep, str):
            is_blanked = text.is_word
        else:
            is_blanked = np.array([token not in self.keep for token in text.tokens])
        is_blanked = is_blanked & (text.row["input_ids"] != ids.blanks.get("mask", -1))
        if self.by == "delete" and len(text.tokens) < 2:
            return []  # an empty text is no text
        return np.flatnonzero(is_blanked).tolist()


@dataclass(frozen=True, kw_only=True)
class ValueZeroing(Measure):
    """Value zeroing: the change of the score when a token's values are zero in every layer.

    The tokens and the attention of the first layer stay as they are, so nothing unseen in training
    is put in their place. A token keeps its own residual stream; nobody else draws on it.

    signed: keep the sign (positive: the token speaks for the answer) instead of the size.

    >>> ValueZeroing()(None, ["the key to the cabinets"])[0].top(1)[0].token
    'key'
    """

    name: ClassVar[str] = "value-zeroing"
    signed: bool = False

    def _measure(self, task: Task) -> list[Floats]:
        places = [(k, i) for k, text in enumerate(task.texts) for i in range(len(text.tokens))]

        def forward(inputs: Mapping[str, Tensor], numbers: Sequence[int]) -> Any:
            silent = silence_values([places[r][1] for r in numbers])
            return task.model.adapter.run_with(task.model.module, inputs, silent)

        rows = [task.texts[k].row for k, _ in places]
        return task.effects(places, rows, signed=self.signed, forward=forward)


@dataclass(frozen=True, kw_only=True)
class InputGradient(Measure):
    """Input gradients: the score's gradient by each token's vector, one pass for each text.

    reduce: how a gradient becomes a number: "abs-sum", the size of the sum over its dimensions (the
        paper's); its "norm"; or "times-input", the size of its product with the vector.
    at: the "words" vectors, or the "stream" that the first block reads.
    allow_noise: return an "abs-sum" also where it is nothing but rounding; otherwise refuse.

    With two classes the gradient of p0 − p1, which the paper takes, is twice that of p0: the same
    order of the tokens.

    Where vectors are read through LayerNorm only, as in every pre-norm model and at the words of
    BERT, "abs-sum" is zero: LayerNorm subtracts the mean, so adding one constant to all dimensions
    of a vector changes nothing, and the sum of the gradient is the derivative in that direction.

    >>> texts = ["the key to the cabinets", "some people in the city"]
    >>> [importance.answer for importance in InputGradient()(None, texts)]
    ['singular', 'plural']
    """

    name: ClassVar[str] = "input-gradient"
    reduce: Reduce = "norm"
    at: EmbeddingSite = "words"
    allow_noise: bool = False

    def _measure(self, task: Task) -> list[Floats]:
        module, values = task.model.module, dict[int, Floats]()
        embedding = task.model.adapter.embedding(module, self.at)
        with at_rest(module), torch.enable_grad():
            for numbers, batch in task.batches([text.row for text in task.texts]):
                with _leaf(embedding) as vectors:
                    scores = task.read_scores(task.run(batch), batch)
                # Examples of a batch do not touch: the gradient of the sum is each one's own.
                total = [task.score_of(each, k) for each, k in zip(scores, numbers, strict=True)]
                gradients = torch.autograd.grad(torch.stack(total).sum(), vectors())[0]
                reduced = self._reduced(gradients, vectors().detach()).double().cpu().numpy()
                if self.reduce == "abs-sum" and not self.allow_noise:
                    _check_sums(gradients, module)
                for b, k in enumerate(numbers):
                    values[k] = reduced[b, : len(task.texts[k].tokens)].copy()
                tell(task.stage, len(values), len(task.texts))
        return [values[k] for k in range(len(task.texts))]

    def _reduced(self, gradients: Tensor, vectors: Tensor) -> Tensor:
        gradients, vectors = gradients.double(), vectors.double()
        if self.reduce == "norm":
            return gradients.norm(dim=-1)
        if self.reduce == "times-input":
            return (gradients * vectors).sum(dim=-1).abs()
        return gradients.sum(dim=-1).abs()


@dataclass(frozen=True, kw_only=True)
class IntegratedGradients(Measure):
    """Integrated gradients (captum): gradients along the way from a blank text to the text.

    The blank text has every word's vector replaced by that of a blank token; the tokens that frame
    the text stay. Signed, the values add up to score of the text − score of the blank text.

    steps: points on the way; more is more exact.
    blank: the token whose vector the way starts from, "unk", "mask" or "pad".
    signed: keep the sign (positive: the token speaks for the answer) instead of the size.

    >>> IntegratedGradients(steps=8)
    IntegratedGradients(score='probability', steps=8, blank='unk', signed=False)
    """

    name: ClassVar[str] = "integrated-gradients"
    steps: int = 32
    blank: Literal["unk", "mask", "pad"] = "unk"
    signed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("steps", self.steps, 1, error=MethodError)

    def _measure(self, task: Task) -> list[Floats]:
        optional_import("captum", extra="evaluate", purpose="Integrated gradients")
        check_blank(task.ids, self.blank)
        values = []
        with at_rest(task.model.module), torch.enable_grad():
            for number in range(len(task.texts)):
                signed = self._integrate(task, number)
                values.append(signed if self.signed else np.abs(signed))
                tell(task.stage, len(values), len(task.texts))
        return values

    def _integrate(self, task: Task, number: int) -> Floats:
        from captum.attr import IntegratedGradients as Captum

        text = task.texts[number]
        embedding = task.model.adapter.embedding(task.model.module, "words")
        words = np.flatnonzero(text.is_word).tolist()
        blank = blank_positions(text.row, words, task.ids, self.blank)
        (_, batch), (_, start) = (next(task.batches([row])) for row in (text.row, blank))

        def score(vectors: Tensor) -> Tensor:
            """Return the score of as many points on the way as captum asks for."""
            count = len(vectors)
            _, batch = next(replace(task, batch_size=count).batches([text.row] * count))
            with undone() as changes:
                changes.hook(embedding.register_forward_hook, lambda *_: vectors)
                scores = task.read_scores(task.run(batch), batch)
            return torch.stack([task.score_of(each, number) for each in scores])

        attributed = Captum(score).attribute(
            embedding(batch.inputs["input_ids"]).detach(),
            baselines=embedding(start.inputs["input_ids"]).detach(),
            n_steps=self.steps,
            internal_batch_size=task.batch_size,
        )
        return attributed[0].sum(dim=-1).double().cpu().numpy()


def _check_sums(gradients: Tensor, model: nn.Module) -> None:
    """Refuse sums over dimensions that are rounding: |Σ g| is about ‖g‖, and at most √d ‖g‖."""
    most = gradients.norm(dim=-1) * gradients.shape[-1] ** 0.5
    share = float((gradients.sum(dim=-1).abs() / most.clamp_min(1e-30)).max())
    if share > torch.finfo(gradients.dtype).eps ** 0.5:
        return
    raise ModelError(
        f"The gradient of {type(model).__name__} sums to zero over the dimensions (its largest sum "
        f"is {share:.0e} of what it could be, which is rounding): the vectors are read through "
        "LayerNorm only, which ignores a constant added to all of them. Use reduce='norm' or "
        "'times-input', or at='stream' where a block reads its input without a norm."
    )


@contextmanager
def _leaf(embedding: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Let the embedding's output start the graph of one forward pass; then it can be had."""
    outputs: list[Tensor] = []

    def begin(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    def vectors() -> Tensor:
        if len(outputs) != 1:
            raise ModelError(
                f"The token embedding, {type(embedding).__name__}, was used {len(outputs)} times "
                "in one pass; input gradients need it used once."
            )
        return outputs[0]

    with undone() as changes:
        changes.hook(embedding.register_forward_hook, begin)
        yield vectors


MEASURES: Mapping[str, type[Measure]] = {
    kind.name: kind for kind in (BlankOut, InputGradient, IntegratedGradients, ValueZeroing)
}
