"""What the strongest words are worth to an answer: each is blanked, and that joins the gradients.

One backward pass says which words an answer draws on. How much is measured for the strongest of
them, as `Careful` does for language models that only decode: a text without one of them runs in one
batch with the others. So an answer costs ten passes, whatever the number of its words. Of several
targets each has its own strongest words, and all of them are read from the same texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnflow.attribution import Attribution
from attnflow.attribution.operations import WORDS_MEASURED
from attnflow.errors import InputError
from attnflow.explainers.ablation import CompletionAblation, log_odds
from attnflow.explainers.blanks import word_blank
from attnflow.explainers.request import Completion, CompletionTarget
from attnflow.explainers.rereading import ReadSets, scale_as_measured
from attnflow.explainers.sources import Sources, strongest
from attnflow.hosts.model import Model

_STRONGEST = 8  # words that are blanked
_MEASURED = 0.5  # of their shares; the rest is the gradients', which see more than one word at once


def measure_words(
    result: Attribution,
    words: Sources,
    statements: Sequence[tuple[Sequence[int], Sequence[int]]],
    read: ReadSets,
) -> Attribution:
    """Return the result with its strongest words scaled to what the answer loses without each.

    words: of the prompt, by positions that are sources of the result. statements: the rows of each,
    and its tokens. The words that are measured keep the size that they have together.
    """
    column = {position: k for k, position in enumerate(result.sources.positions)}
    parts = [[column[position] for position in each] for each in words.positions]
    values = result.values.copy()
    top = np.stack([values[-1, list(rows)].sum(axis=0) for rows, _ in statements])
    sums = np.stack([top[:, part].sum(axis=1) for part in parts], axis=1)
    best = [strongest(row, _STRONGEST) for row in sums]
    blanked = sorted({word for each in best for word in each})
    log_probs = read([frozenset(), *(frozenset(words.positions[word]) for word in blanked)])
    for (rows, tokens), each in zip(statements, best, strict=True):
        response = log_odds(np.minimum(log_probs[:, list(tokens)], 0.0).sum(axis=1))
        losses = dict(zip(blanked, response[0] - response[1:], strict=True))
        measured = np.array([losses[word] for word in each])
        groups = [parts[word] for word in each]
        scale_as_measured(values, list(rows), groups, measured, share=_MEASURED)
    return replace(result, values=values, steps=(*result.steps, WORDS_MEASURED))


def measure_completion_words(
    result: Attribution,
    model: Model,
    completion: Completion,
    targets: Sequence[CompletionTarget],
) -> Attribution:
    """Return the same of a completion, a row for each target; as it was where nothing can blank."""
    blank = word_blank(model)
    if blank is None:
        return result
    try:
        words = Sources.of_prompt(model, completion.prompt)
    except InputError:  # nothing but special tokens
        return result
    ablation = CompletionAblation(
        model=model.module,
        prompt_ids=completion.prompt.ids,
        completion_ids=completion.ids,
        by="replace",
        blank=blank[1],
    )
    statements = [((row,), target.tokens) for row, target in enumerate(targets)]
    return measure_words(
        result,
        words,
        statements,
        lambda sets: ablation.token_log_probs([sorted(each) for each in sets]),
    )
