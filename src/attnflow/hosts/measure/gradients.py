"""Gradients of the score an answer is read from, with respect to every attention weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.errors import CaptureError, InputError, ModelError, shorten
from attnflow.hosts.adapter import Scores
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.restore import exclusive
from attnflow.trace.extras import ScoreName

__all__ = [
    "Choice",
    "choose_answers",
    "choose_contrasts",
    "differentiable",
    "gradients_of",
    "total_score",
]

Answer = int | str
Choice = Answer | Sequence[Answer] | None


@contextmanager
def differentiable(model: nn.Module, enabled: bool) -> Iterator[None]:
    """A graph for one pass, also of a model whose parameters are frozen; their flags come back.

    Only gradients of the weights are computed later: no parameter's `.grad` is touched.
    """
    if not enabled:
        with torch.no_grad():
            yield
        return
    frozen = [p for p in model.parameters() if p.is_floating_point() and not p.requires_grad]
    with exclusive(model) as changes, torch.enable_grad():
        for parameter in frozen:
            changes.set(parameter, "requires_grad", True)
        yield


def choose_answers(scores: Sequence[Scores | None], answer: Choice, model: nn.Module) -> list[int]:
    """For each example which of its choices the gradients are of: the best one unless named."""
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        answers: Sequence[Answer | None] = answer
    else:
        answers = [answer] * len(scores)
    if len(answers) != len(scores):
        raise InputError(
            f"answer={shorten(answer)} names {len(answers)} choices for {len(scores)} examples."
        )
    return [_choice(one, k, model) for one, k in zip(scores, answers, strict=True)]


def choose_contrasts(
    scores: Sequence[Scores | None], contrast: Answer | None, model: nn.Module
) -> list[int | None]:
    """For each example the choice that its answer is held against, where there is one."""
    if contrast is None:
        return [None] * len(scores)
    return [_choice(one, contrast, model) for one in scores]


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
    scores: Sequence[Scores | None],
    choices: Sequence[int],
    contrasts: Sequence[int | None],
    score: ScoreName,
    recorder: Recorder,
    model: nn.Module,
) -> list[NDArray[np.float32]]:
    """One array for each layer, in the shape of its weights.

    No example's score depends on another's weights, so the gradient of their sum is each one's own.
    """
    total = total_score(scores, choices, contrasts, score)
    weights = [part for layer in recorder.layers for part in layer.in_graph]
    if not total.requires_grad or not all(part.requires_grad for part in weights):
        raise _not_in_graph(model)
    gradients = iter(torch.autograd.grad(total, weights, allow_unused=True))
    return [
        _joined([next(gradients) for _ in layer.in_graph], layer.weights.shape, model)
        for layer in recorder.layers
    ]


def total_score(
    scores: Sequence[Scores | None],
    choices: Sequence[int],
    contrasts: Sequence[int | None],
    score: ScoreName,
) -> Tensor:
    """The sum of what is explained of each example."""
    examples = zip(scores, choices, contrasts, strict=True)
    return torch.stack(
        [
            one.score(k, score) if other is None else one.contrast(k, other, score)
            for one, k, other in examples
            if one
        ]
    ).sum()


def _joined(
    parts: Sequence[Tensor | None], shape: tuple[int, ...], model: nn.Module
) -> NDArray[np.float32]:
    present = [part for part in parts if part is not None]
    if len(present) < len(parts) or not present:
        raise _not_in_graph(model)
    gradient: NDArray[np.float32] = torch.cat(present, dim=-2).float().cpu().numpy()
    return gradient.reshape(shape)


def _not_in_graph(model: nn.Module) -> CaptureError:
    return CaptureError(
        f"The attention weights that {type(model).__name__} shows are not part of the graph its "
        "score is computed from, so there are no gradients of them. Methods without gradients work."
    )
