"""Visibility with images: what an answer loses while keys of the language model fade.

The keys are those of the prompt, image tokens among them. The images stay as they are: what
fades is how much of them the language model sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.row_gradients import log_probability
from attnflow.hosts.transformers.visibility import biased, fading_biases, path_length
from attnflow.hosts.vision_language.towers import checked_towers

__all__ = ["image_visibility"]


def image_visibility(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    prompt: int,
    answer: Sequence[tuple[int, int]],
    *,
    steps: int,
) -> Tensor:
    """`(length,)`: what the answer loses with each key, in nats of its log odds.

    prompt: the keys before this position fade. answer: the position that predicts each token of
    the answer, and the token's id.
    """
    language = checked_towers(model).language
    length = inputs["input_ids"].shape[1]
    fading = (torch.arange(length) < prompt).float().to(model.device)[None]
    rows = torch.tensor([row for row, _ in answer], device=model.device)
    tokens = torch.tensor([token for _, token in answer], device=model.device)
    total = torch.zeros(length, device=model.device)
    with at_rest(model), torch.enable_grad():
        for bias in fading_biases(steps):
            keys = (bias * fading).requires_grad_()
            with biased(model, keys, part=language):
                logits = model(**inputs, use_cache=False).logits[:, rows]
            score = log_probability(logits, tokens[None]).sum()
            # d log odds = d log p / (1 - p): near certainty a log-probability hardly moves
            doubt = -torch.expm1(score.detach()).clamp(max=-1e-6)
            (gradient,) = torch.autograd.grad(score / doubt, keys)
            total += gradient[0] * fading[0]
    return total / steps * path_length()
