"""One item on one model: its sources as tokens, what ablations of it say, and the metrics.

What ablations say is measured once for each item, as the log-probability of the completion without
each of many sets of sources, and every method is held against it. All responses stay in the
journal, so that a metric can be changed without running a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution.verdict import takes_away
from attnflow.errors import InputError
from attnflow.evaluation.metrics import (
    STEPS,
    comprehensiveness,
    curve_steps,
    linear_datamodeling_score,
    rank_of,
)
from attnflow.evaluation.subjects.rankings import CompletionCase, PromptText, is_answered
from attnflow.explainers.ablation import ablate, log_odds
from attnflow.explainers.leave_out import random_ablations
from attnflow.explainers.prompts import Prompt, encode_parts, encode_prompts
from attnflow.explainers.questions import given_answer, question_text, uses_chat
from attnflow.explainers.sources import Sources, prompt_tokens, strongest
from attnflow.explainers.writer import write_texts
from attnflow.hosts.model import Model
from attnflow.tokens.documents import named_documents
from attnflow.tokens.units import CharSpan
from attnflow_experiments.bench.data import BenchItem
from attnflow_experiments.bench.texts import BlankedCase, blank_of, text_case

Floats = NDArray[np.float64]
ChosenSources = tuple[int, ...]
METRICS: Final[Mapping[str, str]] = {
    "lds": "LDS",
    "drop": "drop",
    "hold": "hold",
    "aopc": "AOPC",
    "first": "right first",
    "needed": "right first, where needed",
    "recall": "recall",
}
"""The figures that are reported, in this order. In all of them more is better.

"Needed" looks at answers that lose half of their probability without the right sources: another
answer rests on something else, and its right source is not what to find.
"""
_ABLATIONS = 64
_ANSWER_TOKENS = 16  # tokens of an answer that the model writes itself
_TOP_WORDS = 3


@dataclass(frozen=True, eq=False)
class PreparedItem:
    """An item as a model reads it; `right` are the sources that support the answer."""

    case: CompletionCase
    right: ChosenSources
    answer: str

    @property
    def top(self) -> int:
        """How many of the strongest sources the drop takes away and the hold leaves."""
        if self.case.sources.level == "word":
            return _TOP_WORDS
        return max(1, len(self.right))


class NotCountedError(InputError):
    """An item that says nothing about this model: it answers otherwise, or has one source."""


def prepare_item(model: Model, item: BenchItem, seed: int) -> PreparedItem:
    """Encode an item, and let the model write the completion where none is given."""
    writes = model.facts.causal or model.facts.encoder_decoder
    if item.prompt is not None and not writes:
        case, answer = text_case(model, item.prompt.prompt, item.blank == "mask", seed)
        return _several(PreparedItem(case, (), answer))
    if item.question is None:
        ids, sources, right = _of_words(model, item)
        prefix: list[int] = []
        completion, answer = _written(model, ids, 1 if model.facts.causal else _ANSWER_TOKENS)
        expected = item.prompt.expected if item.prompt else None
        if expected is not None and not is_answered(expected, answer, cut_off=True):
            raise NotCountedError(f"The model wrote {answer!r} and not {expected!r}.")
    else:
        ids, sources, right = _of_documents(model, item)
        prefix, completion, answer = _answer(model, item, ids)
    ids = [*ids, *prefix]
    ablation = ablate(model, ids, completion)
    if item.blank != "hide":
        blank = blank_of(model, item.blank == "mask")[1]
        ablation = replace(ablation, by="replace", blank=blank)
    sources = Sources(sources.names, sources.positions, len(ids), sources.level, sources.groups)
    kind = CompletionCase if item.blank == "hide" else BlankedCase
    return _several(PreparedItem(kind(model, ablation, sources, seed), right, answer))


def _several(item: PreparedItem) -> PreparedItem:
    if len(item.case.sources) < 2:
        raise NotCountedError("There is only one source.")
    return item


def _of_words(model: Model, item: BenchItem) -> tuple[list[int], Sources, ChosenSources]:
    assert item.prompt is not None
    (encoded,) = encode_prompts(model, item.prompt.prompt).prompts
    tokens, special = prompt_tokens(model.tokenizer, encoded.ids)
    sources = Sources.of_tokens(
        tokens,
        level="word",
        special=special,
        exclude_first=not model.facts.encoder_decoder,
        exclude_last_word=not model.facts.encoder_decoder,
    )
    right: ChosenSources = ()
    if item.prompt.answer is not None:
        text = PromptText.of(tokens, item.prompt.prompt, encoded.form)
        right = sources.containing(text.tokens_touching(item.prompt.answer))
    return list(encoded.ids), sources, right


def _of_documents(model: Model, item: BenchItem) -> tuple[list[int], Sources, ChosenSources]:
    assert item.question is not None
    chat = uses_chat(model.tokenizer, None)
    documents = named_documents(item.question.documents)
    text, spans = question_text(item.question.question, documents, chat)
    names: Sequence[str] = [document.name for document in documents]
    level, right = "document", item.question.right
    if item.sentences:
        spans, names = _sentence_spans(text, item.sentences, spans[0][0]), item.sentences
        level, right = "sentence", item.right
    prompt = encode_parts(model.tokenizer, text, spans, chat=chat)
    places = [tuple(range(*span)) for span in prompt.spans or () if span is not None]
    return list(prompt.ids), Sources(tuple(names), tuple(places), len(prompt.ids), level), right


def _sentence_spans(text: str, sentences: Sequence[str], start: int) -> list[CharSpan]:
    spans = []
    for sentence in sentences:
        begin = text.index(sentence, start)
        start = begin + len(sentence)
        spans.append((begin, start))
    return spans


def _answer(model: Model, item: BenchItem, ids: Sequence[int]) -> tuple[list[int], list[int], str]:
    """Return what of the answer stands before the explained part, that part, and the answer.

    The right answer is read as if the model had written it, so that every item counts for every
    model. Where there is none, the model's own is.
    """
    question = item.question
    assert question is not None
    if not question.answers:
        completion, text = _written(model, ids, _ANSWER_TOKENS)
        return [], completion, text
    answer = given_answer(model, question.answers[0], uses_chat(model.tokenizer, None))
    if question.span is None:
        return [], answer.ids, answer.text
    ends = np.cumsum([len(piece) for piece in answer.pieces])
    first = int(np.searchsorted(ends, question.span[0], side="right"))
    last = int(np.searchsorted(ends, question.span[1], side="left")) + 1
    return answer.ids[:first], answer.ids[first:last], answer.text


def _written(model: Model, ids: Sequence[int], most: int) -> tuple[list[int], str]:
    batch = encode_prompts(model, Prompt(list(ids)))
    completion = write_texts(model, batch, most, options={"min_new_tokens": 1})[0].ids
    return completion, str(model.tokenizer.decode(completion))


# --- what ablations say --------------------------------------------------------------------------


class Responses:
    """The log-probability of an item's completion without each set of sources, each run once."""

    def __init__(self, item: PreparedItem, known: Mapping[str, float] | None = None) -> None:
        self._item = item
        self._known = {tuple(map(int, k.split())): v for k, v in (known or {}).items()}
        self.new: dict[str, float] = {}

    def __call__(self, sets: Sequence[ChosenSources]) -> Floats:
        """Return one value for each set of sources that is taken away."""
        keys = [tuple(sorted(each)) for each in sets]
        missing = [each for each in dict.fromkeys(keys) if each not in self._known]
        if missing:
            sources = self._item.case.sources
            choice = np.zeros((len(missing), len(sources)), dtype=bool)
            for row, each in zip(choice, missing, strict=True):
                row[list(each)] = True
            values = self._item.case.ablation.log_probs(sources.hidden(choice))
            for each, value in zip(missing, values.tolist(), strict=True):
                self._known[each] = value
                self.new[" ".join(map(str, each))] = value
        return np.array([self._known[each] for each in keys])


def reference_sets(sources: int, seed: int, count: int = _ABLATIONS) -> list[ChosenSources]:
    """Return the sets that LDS is taken over: all there are, if few, or random ones of 30 %."""
    if 2**sources - 2 <= count:
        sizes = range(1, sources)
        return [each for size in sizes for each in combinations(range(sources), size)]
    choice = random_ablations(count, sources, hidden=0.3, seed=seed)
    return list(dict.fromkeys(tuple(np.flatnonzero(row).tolist()) for row in choice))


def measure_sets(scores: Floats, top: int) -> dict[str, list[ChosenSources]]:
    """Return the sets that a method's own order asks for: drop, hold and the deletion curve."""
    order = strongest(scores, len(scores))
    drop = tuple(sorted(order[:top]))
    hold = tuple(sorted(order[top:]))
    curve = [deleted for deleted, _ in curve_steps(order, min(STEPS, len(order)))][1:]
    return {"drop": [drop], "hold": [hold], "curve": curve}


def score_item(
    scores: Floats,
    right: ChosenSources,
    top: int,
    reference: Mapping[ChosenSources, float] | None,
    measured: Mapping[str, Floats],
    tokens: int,
    loss: float | None = None,
) -> dict[str, float]:
    """Return the metrics of a method on one item; what is not known of it is left out.

    reference: the log-probability for each set that LDS is taken over, and for none and all.
    measured: that for the sets of `measure_sets`. tokens: how many the completion has. loss: what
    it loses, in nats, without the right sources.
    """
    values: dict[str, float] = {}
    if reference is not None:
        count = len(scores)
        all_left, nothing = reference[()], reference[tuple(range(count))]
        sets = [each for each in reference if 0 < len(each) < count]
        hidden = np.zeros((len(sets), count), dtype=bool)
        for row, each in zip(hidden, sets, strict=True):
            row[list(each)] = True
        odds = log_odds(np.array([reference[each] for each in sets]))
        ends = log_odds(np.array([all_left, nothing]))
        values["lds"] = linear_datamodeling_score(scores, hidden, odds)
        values["drop"] = float(ends[0] - log_odds(measured["drop"])[0])
        values["hold"] = float(log_odds(measured["hold"])[0] - ends[1])
        curve = np.exp(measured["curve"] / tokens)
        values["aopc"] = comprehensiveness(float(np.exp(all_left / tokens)), curve)
    if right:
        values["first"] = float(rank_of(scores, right) == 1)
        if loss is not None and takes_away(loss):
            values["needed"] = values["first"]
        values["recall"] = _recall(scores, right)
    return values


def _recall(scores: Floats, right: ChosenSources) -> float:
    """Return the share of the right sources among as many strongest; ties count against them."""
    hits = 0
    for source in right:
        others = np.delete(scores, list(right))
        before = int((others >= scores[source]).sum()) + _above(scores, right, source)
        hits += before < len(right)
    return hits / len(right)


def _above(scores: Floats, right: ChosenSources, source: int) -> int:
    """Return how many other right sources stand before one, the earlier first where equal."""
    own = float(scores[source])
    return sum(scores[k] > own or (scores[k] == own and k < source) for k in right if k != source)


def as_reference(responses: Mapping[str, Any]) -> dict[ChosenSources, float]:
    """Return the responses of a journal by their sets."""
    return {tuple(map(int, key.split())): float(value) for key, value in responses.items()}
