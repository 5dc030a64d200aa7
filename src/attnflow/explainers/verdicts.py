"""Is a statement grounded in the documents? The model reads it again without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.passages import (
    LOG_PROBS,
    Passage,
    RankedSource,
    Statement,
    passages_of,
    positions_of,
    statements_of,
)
from attnflow.attribution.verdict import Kind, Verdict, is_unsupported, support_of, takes_away
from attnflow.explainers.ablation import CompletionAblation, ablate
from attnflow.hosts.model import Model

_MOST_HIDDEN = 3  # documents that are hidden together before it is said that none stands out


class _Reading:
    """Log-probabilities of an answer's statements, without some positions of its prompt."""

    def __init__(self, ablation: CompletionAblation, known: Sequence[float] | None) -> None:
        self.ablation = ablation
        self.rows: dict[frozenset[int], NDArray[np.float64]] = {}
        if known is not None and len(known) == len(ablation.completion_ids):
            self.rows[frozenset()] = np.array(known)

    def read(self, sets: Sequence[frozenset[int]]) -> None:
        """Run what is not known yet, all of it in few passes."""
        new = [each for each in dict.fromkeys(sets) if each not in self.rows]
        if new:
            log_probs = self.ablation.token_log_probs([sorted(each) for each in new])
            self.rows.update(zip(new, log_probs, strict=True))

    def of(self, tokens: Sequence[int], hidden: frozenset[int]) -> float:
        return float(np.minimum(self.rows[hidden][list(tokens)], 0.0).sum())


def judge_statements(
    result: Attribution, model: Model, prompt_ids: Sequence[int]
) -> list[Verdict | None]:
    """Return a verdict for each statement of an answer over documents; None where none is named.

    result: explains the answer, and says where the documents stand. What is hidden keeps its
    place; the question and the template stay. A first round hides the sentence that is named, all
    other documents, and all of them; only where that does not decide a second one hides each of
    the strongest documents, by itself and with those before it: shares are near one another at
    times, and what the answer loses says which of them it rests on.
    """
    ids = list(result.provenance["completion_ids"])
    reading = _Reading(ablate(model, prompt_ids, ids, by=None), result.provenance.get(LOG_PROBS))
    passages = passages_of(result)
    every = frozenset(p for each in passages for p in positions_of(result, each.columns))
    judged = [
        _Judged(statement, passages, result) if statement.sources else None
        for statement in statements_of(result)
    ]
    present = [each for each in judged if each is not None]
    reading.read(
        [
            hidden
            for each in present
            for hidden in (frozenset[int](), every, each.sentences[0], every - each.documents[0])
        ]
    )
    undecided = [each for each in present if each.decide(reading, every) is None]
    reading.read([hidden for each in undecided for hidden in each.further(every)])
    return [None if each is None else each.verdict(reading, every) for each in judged]


class _Judged:
    """One statement: its tokens, the sentence that is named, its documents, strongest first."""

    def __init__(
        self, statement: Statement, passages: Sequence[Passage], result: Attribution
    ) -> None:
        self.tokens = statement.tokens
        self.sources = [each for each in statement.sources if each.share > 0][:_MOST_HIDDEN]
        self.documents = [
            frozenset(positions_of(result, passages[each.passage].columns)) for each in self.sources
        ]
        self.sentences = [
            frozenset(positions_of(result, _strongest_tokens(source, passages)))
            for source in self.sources
        ]

    def decide(self, reading: _Reading, every: frozenset[int]) -> Verdict | None:
        """Return the verdict of the first round, if it is enough for one."""
        hidden = (frozenset[int](), self.sentences[0], every - self.documents[0], every)
        base, without, alone, prior = (reading.of(self.tokens, each) for each in hidden)
        if is_unsupported(support_of(base, without, alone, prior), base - prior):
            return self._said("none", [0], self.sentences[0], reading, every)
        if takes_away(base - without, base - prior):
            return self._rests_on_sentence(0, reading, every)
        return None

    def further(self, every: frozenset[int]) -> list[frozenset[int]]:
        """Return what a second round hides: the strongest documents, each, together, all but it."""
        together = [
            frozenset[int]().union(*self.documents[: k + 1]) for k in range(len(self.documents))
        ]
        return [
            *together,
            *self.documents[1:],
            *self.sentences[1:],
            *(every - one for one in self.documents),
        ]

    def verdict(self, reading: _Reading, every: frozenset[int]) -> Verdict:
        """Return what may be said, after both rounds."""
        decided = self.decide(reading, every)
        if decided is not None:
            return decided
        base, prior = reading.of(self.tokens, frozenset()), reading.of(self.tokens, every)
        gain = base - prior
        needed = [
            number
            for number, document in enumerate(self.documents)
            if takes_away(base - reading.of(self.tokens, document), gain)
        ]
        if len(needed) == 1:
            (only,) = needed
            if takes_away(base - reading.of(self.tokens, self.sentences[only]), gain):
                return self._rests_on_sentence(only, reading, every)
            return self._said("rests", needed, self.documents[only], reading, every)
        if needed:
            hidden = frozenset[int]().union(*(self.documents[k] for k in needed))
            reading.read([hidden])
            return self._said("together", needed, hidden, reading, every)
        for count in range(2, len(self.documents) + 1):
            hidden = frozenset[int]().union(*self.documents[:count])
            if not takes_away(base - reading.of(self.tokens, hidden), gain):
                continue
            enough = [
                k
                for k, document in enumerate(self.documents[:count])
                if takes_away(reading.of(self.tokens, every - document) - prior, gain)
            ]
            if len(enough) > 1:
                return self._said("either", enough, hidden, reading, every)
            return self._said("together", list(range(count)), hidden, reading, every)
        return self._said("partly", [0], self.documents[0], reading, every)

    def _rests_on_sentence(self, number: int, reading: _Reading, every: frozenset[int]) -> Verdict:
        verdict = self._said("rests", [number], self.sentences[number], reading, every)
        return replace(verdict, sources=(self.sources[number].place,))

    def _said(
        self,
        kind: Kind,
        numbers: Sequence[int],
        hidden: frozenset[int],
        reading: _Reading,
        every: frozenset[int],
    ) -> Verdict:
        """The verdict on the documents of these numbers; `hidden` is what was taken away."""
        alone = every - frozenset[int]().union(*(self.documents[k] for k in numbers))
        reading.read([alone])
        return Verdict(
            kind,
            tuple(self.sources[k].name for k in numbers),
            len(self.tokens),
            reading.of(self.tokens, frozenset()),
            reading.of(self.tokens, hidden),
            reading.of(self.tokens, alone),
            reading.of(self.tokens, every),
            tuple(self.sources[k].passage for k in numbers),
        )


def _strongest_tokens(source: RankedSource, passages: Sequence[Passage]) -> Sequence[int]:
    """Return the sources of a passage's strongest sentence, or of all of it where it has none."""
    passage = passages[source.passage]
    if source.sentence is None:
        return passage.columns
    return passage.sentences[source.sentence - 1].tokens
