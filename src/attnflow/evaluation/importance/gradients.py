"""Input gradients: how the score answers to a small change of each token's vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.errors import MethodError, ModelError, optional_import
from attnflow.errors.arguments import check_named
from attnflow.evaluation.importance.base import Answer, Measure, Task
from attnflow.evaluation.importance.blanking import BlankToken, blank_positions, check_blank
from attnflow.evaluation.importance.passes import Passes, Text, score_of
from attnflow.hosts.adapter import EmbeddingSite
from attnflow.hosts.restore import at_rest, undone

__all__ = ["InputGradient", "IntegratedGradients", "Reduce"]

Reduce = Literal["abs-sum", "norm", "times-input"]
_BLANKS = tuple(name for name in get_args(BlankToken) if name != "delete")


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

    def __post_init__(self) -> None:
        check_named("reduce", self.reduce, get_args(Reduce))
        check_named("at", self.at, get_args(EmbeddingSite))
        super().__post_init__()

    def _measure(self, task: Task) -> list[NDArray[np.float64]]:
        passes, values = task.passes, dict[int, NDArray[np.float64]]()
        with at_rest(passes.model), torch.enable_grad():
            for numbers, batch in passes.batches([text.row for text in task.texts]):
                with _leaf(passes.adapter.embedding(passes.model, self.at)) as vectors:
                    outputs = passes.adapter.forward(passes.model, batch.inputs)
                scores = passes.scores(outputs, batch)
                # Examples of a batch do not touch: the gradient of the sum is each one's own.
                total = torch.stack(
                    [task.score_of(scores[b], k) for b, k in enumerate(numbers)]
                ).sum()
                gradients = torch.autograd.grad(total, vectors())[0]
                reduced = self._reduced(gradients, vectors().detach()).double().cpu().numpy()
                if self.reduce == "abs-sum" and not self.allow_noise:
                    _check_sums(gradients, passes.model)
                for b, k in enumerate(numbers):
                    values[k] = reduced[b, : len(task.texts[k].tokens)].copy()
                task.tell(len(values), len(task.texts))
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
        check_named("blank", self.blank, _BLANKS)
        super().__post_init__()
        if not isinstance(self.steps, int) or self.steps < 1:
            raise MethodError(f"steps is a number of at least 1; got {self.steps!r}.")

    def _measure(self, task: Task) -> list[NDArray[np.float64]]:
        optional_import("captum", extra="evaluate", purpose="Integrated gradients")
        check_blank(task.passes.ids, self.blank)
        values = []
        with at_rest(task.passes.model), torch.enable_grad():
            for text, answer in zip(task.texts, task.answers, strict=True):
                signed = self._one(task.passes, text, answer)
                values.append(signed if self.signed else np.abs(signed))
                task.tell(len(values), len(task.texts))
        return values

    def _one(self, passes: Passes, text: Text, answer: Answer) -> NDArray[np.float64]:
        from captum.attr import IntegratedGradients as Captum

        embedding = passes.adapter.embedding(passes.model, "words")
        words = np.flatnonzero(text.is_word).tolist()
        blank = blank_positions(text.row, words, passes.ids, self.blank)
        (_, batch), (_, start) = (next(passes.batches([row])) for row in (text.row, blank))
        attributed = Captum(self._scores(passes, text, answer)).attribute(
            embedding(batch.inputs["input_ids"]).detach(),
            baselines=embedding(start.inputs["input_ids"]).detach(),
            n_steps=self.steps,
            internal_batch_size=passes.batch_size,
        )
        return attributed[0].sum(dim=-1).double().cpu().numpy()

    def _scores(self, passes: Passes, text: Text, answer: Answer) -> Callable[[Tensor], Tensor]:
        """The score as a function of the vectors, for as many points of the way as captum asks."""
        embedding = passes.adapter.embedding(passes.model, "words")

        def scores(vectors: Tensor) -> Tensor:
            batch = next(batch for _, batch in _repeated(passes, text, len(vectors)))
            with _replaced(embedding, vectors):
                outputs = passes.adapter.forward(passes.model, batch.inputs)
            return torch.stack(
                [
                    score_of(each, answer.choice, self.score, answer.position)
                    for each in passes.scores(outputs, batch)
                ]
            )

        return scores


def _check_sums(gradients: Tensor, model: nn.Module) -> None:
    """Refuse sums over dimensions that are rounding: their share of what they could be is tiny.

    |Σ g| is at most √d ‖g‖, and about ‖g‖ for a gradient in no special direction.
    """
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


def _repeated(passes: Passes, text: Text, count: int) -> Iterator[tuple[list[int], Any]]:
    """One batch of the same text `count` times, however large."""
    return Passes(
        passes.model, passes.tokenizer, passes.adapter, passes.ids, batch_size=count
    ).batches([text.row] * count)


@contextmanager
def _leaf(embedding: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """During one forward pass, what the embedding gives starts the graph; then it can be had."""
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


@contextmanager
def _replaced(embedding: nn.Module, vectors: Tensor) -> Iterator[None]:
    """During one forward pass, the embedding gives these vectors, whatever the tokens."""
    with undone() as changes:
        changes.hook(embedding.register_forward_hook, lambda *_: vectors)
        yield
