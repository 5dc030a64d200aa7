"""Checks of an answer without documents: the strongest words, or an image's region, are hidden.

A completion, as the one token that a causal language model adds to a text, is read again without
the words. In the text of any other model a blank token stands in their place; the region of an
image gets its mean colour. By the same passes the words of an encoder–decoder are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnflow.attribution import Attribution, Verdict
from attnflow.attribution.patch_maps import patch_maps, region_of
from attnflow.attribution.rescaling import SOURCE_TOKENS
from attnflow.attribution.verdict import (
    UNCHECKED,
    Kind,
    Part,
    clearly_takes_away,
    is_little,
    takes_away,
)
from attnflow.errors import AttnflowError, InputError, ModelError, TokensError
from attnflow.errors.progress import tell
from attnflow.explainers.answer_rows import answer_row, as_one
from attnflow.explainers.blanks import word_blank
from attnflow.explainers.measured_words import measure_words
from attnflow.explainers.request import Completion
from attnflow.explainers.rereading import Reading
from attnflow.explainers.sources import Sources, strongest
from attnflow.explainers.verdicts import MOST_HIDDEN, readable
from attnflow.hosts.adapter import Batch, Scores
from attnflow.hosts.capture import batch_of
from attnflow.hosts.images import cover_patches, filling_of, image_of
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest
from attnflow.hosts.vision_language.towers import after_prompt
from attnflow.tokens import is_special
from attnflow.trace.extras import LOG_PROB

Inputs = Mapping[str, Tensor]
Change = Callable[[frozenset[int]], Inputs]
"""Gives the inputs that are others when some positions, or patches, are hidden."""

_PIXELS = "pixel_values"
_IMAGE_AXES = 4  # (1, channels, height, width)

NamePositions = tuple[str, frozenset[int]]
"""A part that may be hidden: its name, and its positions."""


def with_verdict(result: Attribution, judge: Callable[[], Verdict | None]) -> Attribution:
    """Return the result with its verdict, or with the reason why there can be none."""
    tell("hiding the strongest sources", 0, 1)
    try:
        verdict = judge()
    except AttnflowError as error:  # what was explained stays, and is not called checked
        return replace(result, provenance={**result.provenance, UNCHECKED: str(error)})
    return result if verdict is None else replace(result, verdicts=(verdict,))


def judge_completion(
    result: Attribution,
    model: Model,
    completion: Completion,
    *,
    tokens: Sequence[int] | None = None,
) -> Verdict | None:
    """Return what some tokens of a completion rest on, together; None where no word speaks for it.

    result: over the prompt's tokens, or over sources that were measured; words are ranked by the
    sum over its targets at its highest layer. tokens: by number; default: all.
    """
    numbers = range(len(completion.ids)) if tokens is None else tokens
    words = strongest_words(_sources_of(result, model, completion), result)
    reading = Reading(result, model, completion)

    def read(sets: Sequence[frozenset[int]]) -> list[float]:
        if reading.ablation.keys:  # of the prompt, so that the completion alone is read again
            reading.read([frozenset()])
            new = [each for each in sets if each not in reading.rows]
            # the first word beside all of them: two ends in one pass cost less than in two
            reading.read_ends([*new, words[0][1]], len(reading.ablation.prompt_ids))
            base = reading.of(numbers, frozenset())
            clear = [
                each
                for each in new
                if clearly_takes_away(base - reading.of(numbers, each, ends=True))
            ]
            reading.rows.update({each: reading.ends[each] for each in clear})
        reading.read(sets)  # where that is not clear, for good
        return [reading.of(numbers, each) for each in sets]

    return judge_sources(words, read, len(numbers))


def judge_sources(
    sources: Sequence[NamePositions],
    read: Callable[[Sequence[frozenset[int]]], list[float]],
    tokens: int = 1,
    part: Part = "word",
) -> Verdict | None:
    """Hide some sources together and, where that takes the answer away, the first of them alone.

    read: gives the log-probability of the answer without each of some sets of positions.
    """
    if not sources:
        return None
    names = tuple(name for name, _ in sources)
    base, without = read([frozenset(), frozenset[int]().union(*(each for _, each in sources))])
    kind: Kind = "none" if is_little(base - without) else "partly"
    if takes_away(base - without):
        (alone,) = read([sources[0][1]])
        kind = "rests" if takes_away(base - alone) else "together"
        names, without = (names[:1], alone) if kind == "rests" else (names, without)
    return Verdict(kind, names, tokens, base, without, part=part)


def strongest_words(sources: Sources, result: Attribution) -> list[NamePositions]:
    """Return the sources that speak most for all targets of a result, few of them."""
    scores = sources.scores(result)
    return [
        (readable(sources.names[k]), frozenset(sources.positions[k]))
        for k in strongest(scores, MOST_HIDDEN)
        if scores[k] > 0
    ]


def _sources_of(result: Attribution, model: Model, completion: Completion) -> Sources:
    """Return the sources that were measured, or the prompt's words."""
    measured = result.provenance.get(SOURCE_TOKENS)
    if measured is None:
        return Sources.of_prompt(model, completion.prompt)
    positions = tuple(tuple(each) for each in measured)
    return Sources(tuple(result.sources), positions, len(completion.prompt.ids))


def judge_answer(
    result: Attribution, model: Model, text: Any, answer: int | str | None = None
) -> Verdict | None:
    """Return what the answer to a text, a pair or an image rests on; None without its own row.

    text: as `explain` takes it. answer: the class or token that is explained.
    """
    row = answer_row(result, model)
    if row is None:
        return None
    image = None if isinstance(text, Mapping) else image_of(model, text)
    batch = batch_of(model, [text if image is None else image.inputs])
    if batch.size != 1:
        raise TokensError(f"One example is checked at a time; got a batch of {batch.size}.")
    prediction = result.prediction
    position = row.targets.positions[0] if prediction is None else prediction.position
    if row.sources.grid is not None or row.sources.images:
        read = _reader(model, batch, _cover(row, batch.inputs), position, answer)
        return _judge_region(row, read)
    change, count = _blank(model, batch)
    read = _reader(model, batch, change, position, answer)
    return judge_sources(strongest_words(_words_of(row, count, model), row), read)


def measure_answer(
    result: Attribution, model: Model, text: Any, answer: int | str | None = None
) -> Attribution:
    """Return the result, its answer's own row joined to what blanking its strongest words loses.

    It is as it was without that row, words, or a token that can stand in their place.
    """
    row = answer_row(result, model)
    if row is None or result.prediction is None or word_blank(model) is None:
        return result
    batch = batch_of(model, [text])
    change, count = _blank(model, batch)
    position = result.prediction.position
    number = 0 if len(result.targets) == 1 else result.targets.positions.index(position)
    log_probs = _reader(model, batch, change, position, answer)
    try:
        words = _words_of(row, count, model)
    except InputError:  # nothing but special tokens
        return result

    def read(sets: Sequence[frozenset[int]]) -> NDArray[np.float64]:
        return np.array(log_probs(sets))[:, None]

    return measure_words(result, words, [((number,), (0,))], read)


def _words_of(row: Attribution, count: int, model: Model) -> Sources:
    """Return the words of a text: the sources of a row, of which the first `count` were read."""
    tokens = list(row.sources)
    return Sources.of_tokens(
        tokens,
        level="token" if model.tokenizer is None else "word",
        special=[k for k, token in enumerate(tokens) if is_special(token) or k >= count],
        exclude_first=False,
    )


def judge_image_completion(
    result: Attribution, model: Model, completion: Completion, extra: Inputs
) -> Verdict | None:
    """Return what an answer about an image rests on: the region that all its words draw on most.

    extra: the inputs of the prompt beside its tokens, the pixels among them.
    """
    ids, module = completion.ids, cast(Any, model.module)
    inputs = after_prompt(module, extra, completion.prompt.ids, ids[:-1])
    row = as_one(result)
    change = _cover(row, inputs)

    def read(sets: Sequence[frozenset[int]]) -> list[float]:
        log_probs = []
        for hidden in sets:
            with at_rest(module), torch.no_grad():
                logits = module(**{**inputs, **change(hidden)}).logits[0, -len(ids) :]
            tokens = torch.tensor(ids, device=logits.device)[:, None]
            log_probs.append(float(logits.float().log_softmax(-1).gather(-1, tokens).sum()))
        return log_probs

    return _judge_region(row, read, len(ids))


def _judge_region(
    row: Attribution, read: Callable[[Sequence[frozenset[int]]], list[float]], tokens: int = 1
) -> Verdict | None:
    region = region_of(patch_maps(row)[0].values)
    if region is None:
        return None
    return judge_sources([(region.name, frozenset(region.patches))], read, tokens, "region")


def _cover(row: Attribution, inputs: Inputs) -> Change:
    """Return how patches are hidden in the pixels of a model that sees one image whole."""
    maps, pixels = patch_maps(row), inputs.get(_PIXELS)
    if len(maps) != 1 or pixels is None or pixels.ndim != _IMAGE_AXES or len(pixels) != 1:
        raise ModelError(
            "A region is hidden in the pixels of one image that the model sees whole, not in "
            f"{len(maps)} images, parts of one or rows of patches."
        )
    grid = maps[0].grid
    filling = filling_of(pixels, grid)
    return lambda hidden: {_PIXELS: cover_patches(pixels, grid, hidden, filling)}


def _blank(model: Model, batch: Batch) -> tuple[Change, int]:
    """Return how words are hidden, a blank token in their place, and how many tokens can be.

    What the decoder of an encoder–decoder has read is no source.
    """
    blank, ids = word_blank(model), batch.inputs.get("input_ids")
    if blank is None or ids is None:
        raise TokensError("This tokenizer has no unknown token and no mask to hide a word with.")
    places = batch.positions_of(0, ids.shape[1])

    def change(hidden: frozenset[int]) -> Inputs:
        changed = ids.clone()
        changed[0, [places[position] for position in sorted(hidden)]] = blank[1]
        return {"input_ids": changed}

    return change, len(places)


def _reader(
    model: Model, batch: Batch, change: Change, position: int, answer: int | str | None
) -> Callable[[Sequence[frozenset[int]]], list[float]]:
    """Return what gives the answer's log-probability without each of some sets, in one pass."""
    module, tokenizer, adapter = model.module, model.tokenizer, model.adapter
    choices: list[int] = []

    def scores_of(sets: Sequence[frozenset[int]]) -> list[Scores]:
        rows = [{**batch.inputs, **change(hidden)} for hidden in sets]
        inputs = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
        plain = {name: torch.cat([values] * len(sets)) for name, values in batch.inputs.items()}
        with at_rest(module), torch.no_grad():
            outputs = adapter.forward(module, inputs)
        # where the answer is read follows from the text as it is: a blank may be a mask
        answers = adapter.scores(module, tokenizer, outputs, adapter.wrap(module, plain))
        present = [scores for scores in answers if scores is not None]
        return [one if one.each is None else one.at(position) for one in present]

    def read(sets: Sequence[frozenset[int]]) -> list[float]:
        scores = scores_of(sets)
        if len(scores) < len(sets):
            raise ModelError(f"{type(module).__name__} gives no answer that could be lost.")
        if not choices:  # the first set is empty: the text as it is
            choices.append(scores[0].choice(answer))
        return [min(0.0, float(one.score(choices[0], LOG_PROB))) for one in scores]

    return read
