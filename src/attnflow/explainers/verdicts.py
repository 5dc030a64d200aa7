"""Verdicts, what answers rest on: the model reads one again without what its explanation names.

Of an answer over documents each statement has a verdict, on the words of it that tell: its
sentence, its documents and all of them are hidden. Of any other answer the strongest words, or a
region of the image, are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
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
from attnflow.attribution.rescaling import SOURCE_TOKENS
from attnflow.attribution.verdict import (
    CURVE,
    UNCHECKED,
    Kind,
    Part,
    Verdict,
    clearly_takes_away,
    is_little,
    is_unsupported,
    support_of,
    takes_away,
    telling,
)
from attnflow.errors import AttnflowError
from attnflow.errors.progress import tell
from attnflow.explainers.ablation import ablate
from attnflow.explainers.request import Completion
from attnflow.explainers.sources import Sources, strongest
from attnflow.hosts.inputs import tokens_of
from attnflow.hosts.model import Model
from attnflow.tokens import Tokens
from attnflow.tokens.units import Unit, split_units

_MOST_HIDDEN = 3  # sources that are hidden together before it is said that none stands out
_MOST_RANKED = 5  # documents that are tried beside the question and the answer alone
_MOST_TELLING = 3  # words of a statement
_SIGNS = ".,;:!?\"'()[]{}«»“”‘’"


class _Reading:
    """Log-probabilities of an answer's statements, without some positions of its prompt."""

    def __init__(self, result: Attribution, model: Model, completion: Completion) -> None:
        ids, known = completion.ids, result.provenance.get(LOG_PROBS) or ()
        known = known if len(known) == len(ids) else ()
        self.ablation = ablate(
            model, completion.prompt.ids, ids, by=None, keys=completion.keys, known=known
        )
        self.rows: dict[frozenset[int], NDArray[np.float64]] = {}
        if known:
            self.rows[frozenset()] = np.array(known)

    def read(self, sets: Sequence[frozenset[int]]) -> None:
        """Run what is not known yet, all of it in few passes."""
        new = [each for each in dict.fromkeys(sets) if each not in self.rows]
        if new:
            log_probs = self.ablation.token_log_probs([sorted(each) for each in new])
            self.rows.update(zip(new, log_probs, strict=True))

    def read_beside(self, sets: Sequence[frozenset[int]], tokens: Sequence[int]) -> None:
        """Run the same, hidden from the answer only where its prompt's keys are kept.

        The rest of the prompt has read what is hidden, so that some tokens may lose less than for
        good: where they do not clearly lose their probability, it is hidden for good.
        """
        if self.ablation.keys and self.ablation.hides_beside:
            self.read([frozenset()])
            new = [each for each in dict.fromkeys(sets) if each not in self.rows]
            start = len(self.ablation.prompt_ids)
            log_probs = self.ablation.log_probs_beside([sorted(each) for each in new], start)
            for each, row in zip(new, log_probs, strict=True):
                self.rows[each] = row
                if not clearly_takes_away(self.of(tokens, frozenset()) - self.of(tokens, each)):
                    del self.rows[each]
        self.read(sets)

    def of(self, tokens: Sequence[int], hidden: frozenset[int]) -> float:
        return float(np.minimum(self.rows[hidden][list(tokens)], 0.0).sum())


def judge_statements(
    result: Attribution, model: Model, completion: Completion
) -> tuple[tuple[Verdict | None, ...], list[float]]:
    """Return a verdict for each statement of an answer over documents, None where none is named,
    and the log-probability of each token of it.

    result: explains the answer, and says where the documents stand. What is hidden keeps its
    place; the question and the template stay. Judged are the words of a statement that tell most,
    and sources are ranked by what these lose and hold when only the question and the answer are
    read again. Then, for good, a first round hides the sentence that is named, all other documents,
    and all of them; only where that does not decide a second one hides each of the strongest
    documents that the answer reads from, and a third what these leave open. A round hides what all
    statements ask for.
    """
    reading = _Reading(result, model, completion)
    passages = passages_of(result)
    every = frozenset(p for each in passages for p in positions_of(result, each.columns))
    reading.read([frozenset(), every])  # the prompt is read once for all
    words = _new_words(model, completion.prompt.ids, completion.ids, every)
    judged = [
        _Judged(
            statement,
            _telling_words(statement, words, reading, every),
            passages,
            result,
            model.calibration or CURVE,
        )
        if statement.sources
        else None
        for statement in statements_of(result)
    ]
    _rank([each for each in judged if each is not None], reading, every)
    judging = [None if each is None else each.judge(reading, every) for each in judged]
    verdicts = _judge_together(judging, reading)
    return tuple(verdicts), reading.rows[frozenset()].tolist()


Judging = Generator[Sequence[frozenset[int]], None, Verdict]
"""Asks for what is to be hidden next until it can say a verdict."""


def _judge_together(judging: Sequence[Judging | None], reading: _Reading) -> list[Verdict | None]:
    """Return the verdicts; what all statements ask for next is read in the same passes."""
    verdicts: list[Verdict | None] = [None] * len(judging)
    waiting = {number: each for number, each in enumerate(judging) if each is not None}
    while waiting:
        sets: list[frozenset[int]] = []
        for number, each in list(waiting.items()):
            try:
                sets += next(each)
            except StopIteration as end:
                verdicts[number] = end.value
                del waiting[number]
        reading.read(sets)
    return verdicts


def _new_words(
    model: Model, prompt_ids: Sequence[int], ids: Sequence[int], hidden: frozenset[int]
) -> list[Unit]:
    """Return the words of an answer that stand nowhere in its prompt but in what can be hidden."""
    tokenizer = model.tokenizer
    question = tokens_of(tokenizer, [id_ for k, id_ in enumerate(prompt_ids) if k not in hidden])
    known = {_readable(unit.text).casefold() for unit in split_units(list(question), "word")}
    tokens = tokens_of(tokenizer, ids)
    is_sign = [not any(map(str.isalnum, surface)) for surface in tokens.surfaces()]
    words = []
    for unit in split_units(list(tokens), "word"):
        own = [k for k in unit.tokens if not is_sign[k]]
        if own and _readable(unit.text).casefold() not in known:
            # signs around a word are another choice than the word
            words.append(replace(unit, tokens=tuple(range(own[0], own[-1] + 1))))
    return words


def _telling_words(
    statement: Statement, words: Sequence[Unit], reading: _Reading, every: frozenset[int]
) -> list[Unit]:
    """Return the words of a statement that tell most of where it comes from, few of them.

    That is the statement as a whole where it says nothing that the question does not say.
    """
    own = [word for word in words if set(word.tokens) <= set(statement.tokens)]
    own = own or [Unit(statement.text, (0, len(statement.text)), tuple(statement.tokens))]
    weights = [
        telling(reading.of(word.tokens, frozenset()), reading.of(word.tokens, every))
        for word in own
    ]
    order = sorted(range(len(own)), key=weights.__getitem__, reverse=True)[:_MOST_TELLING]
    return [own[k] for k in order if k == order[0] or weights[k] >= weights[order[0]] / 2 > 0]


def _rank(judged: Sequence[_Judged], reading: _Reading, every: frozenset[int]) -> None:
    """Order the sources of each statement by what it loses without them and what they hold."""
    documents = list(dict.fromkeys(place for each in judged for place in each.documents))
    if len(documents) > 1:
        sets = [*documents, *(every - one for one in documents)]
        rows = reading.ablation.log_probs_beside([sorted(each) for each in sets])
        known = dict(zip(sets, np.minimum(rows, 0.0), strict=True))
        known |= {each: np.minimum(reading.rows[each], 0.0) for each in (frozenset[int](), every)}
        for each in judged:
            each.rank_by(known, every)
    for each in judged:
        each.keep(_MOST_HIDDEN)


class _Judged:
    """One statement: the words that are judged, its documents and their strongest sentences."""

    def __init__(
        self,
        statement: Statement,
        words: Sequence[Unit],
        passages: Sequence[Passage],
        result: Attribution,
        curve: tuple[float, float],
    ) -> None:
        self.words, self.curve = words, curve
        self.sources = [each for each in statement.sources if each.share > 0][:_MOST_RANKED]
        self.documents = [
            frozenset(positions_of(result, passages[each.passage].columns)) for each in self.sources
        ]
        self.sentences = [
            frozenset(positions_of(result, _strongest_tokens(source, passages)))
            for source in self.sources
        ]
        self.idle: set[frozenset[int]] = set()

    def rank_by(
        self, log_probs: Mapping[frozenset[int], NDArray[np.float64]], every: frozenset[int]
    ) -> None:
        """Put the source first whose document is lost most, and holds most alone, together.

        Idle is a document without which no word loses half of what would take it away.
        """
        strengths = []
        for document in self.documents:
            hidden = (frozenset[int](), document, every - document, every)
            self.idle.add(document)
            strengths.append(0.0)
            for word in self.words:
                tokens = list(word.tokens)
                base, without, alone, prior = (float(log_probs[k][tokens].sum()) for k in hidden)
                strengths[-1] += base - without + alone
                if takes_away(2 * (base - without), base - prior):
                    self.idle.discard(document)
        order = sorted(range(len(strengths)), key=strengths.__getitem__, reverse=True)
        self.sources = [self.sources[k] for k in order]
        self.documents = [self.documents[k] for k in order]
        self.sentences = [self.sentences[k] for k in order]

    def keep(self, count: int) -> None:
        """Leave the first few sources."""
        self.sources, self.documents = self.sources[:count], self.documents[:count]
        self.sentences = self.sentences[:count]

    def judge(self, reading: _Reading, every: frozenset[int]) -> Judging:
        """Ask for what is to be hidden, round after round, and return what may be said."""
        yield [self.sentences[0], every - self.documents[0]]
        verdict = self._decide(reading, every)
        if verdict is not None:
            return verdict
        likely = [k for k, place in enumerate(self.documents) if k == 0 or place not in self.idle]
        yield [self.documents[k] for k in likely]
        needed = [k for k in likely if any(self._lost(self.documents[k], reading, every))]
        if not needed:
            return (yield from self._judge_several(reading, every))
        hidden = frozenset[int]().union(*(self.documents[k] for k in needed))
        only = needed[0]
        yield [hidden, every - hidden, *([self.sentences[only]] if len(needed) == 1 else [])]
        if len(needed) > 1:
            return self._said("together", needed, hidden, reading, every)
        if any(self._lost(self.sentences[only], reading, every)):
            return self._rests_on_sentence(only, reading, every)
        return self._said("rests", needed, hidden, reading, every)

    def _decide(self, reading: _Reading, every: frozenset[int]) -> Verdict | None:
        """Return the verdict of the first round, if it is enough for one."""
        hidden = (frozenset[int](), self.sentences[0], every - self.documents[0], every)
        base, without, alone, prior = (reading.of(self.words[0].tokens, each) for each in hidden)
        if is_unsupported(support_of(base, without, alone, prior), telling(base, prior)):
            return self._said("none", [0], self.sentences[0], reading, every)
        is_enough = takes_away(alone - prior, base - prior)
        if is_enough and all(self._lost(self.sentences[0], reading, every)):
            return self._rests_on_sentence(0, reading, every)
        return None

    def _lost(self, hidden: frozenset[int], reading: _Reading, every: frozenset[int]) -> list[bool]:
        """Return which of the words are taken away, the strongest first."""
        is_lost = []
        for word in self.words:
            base, prior = reading.of(word.tokens, frozenset()), reading.of(word.tokens, every)
            is_lost.append(takes_away(base - reading.of(word.tokens, hidden), base - prior))
        return is_lost

    def _judge_several(self, reading: _Reading, every: frozenset[int]) -> Judging:
        """Return the verdict where no document is needed by itself: hide more and more of them."""
        tokens = self.words[0].tokens
        base, prior = reading.of(tokens, frozenset()), reading.of(tokens, every)
        for count in range(2, len(self.documents) + 1):
            hidden = frozenset[int]().union(*self.documents[:count])
            yield [hidden]
            if not self._lost(hidden, reading, every)[0]:
                continue
            yield [every - hidden, *(every - document for document in self.documents[:count])]
            enough = [
                k
                for k, document in enumerate(self.documents[:count])
                if takes_away(reading.of(tokens, every - document) - prior, base - prior)
            ]
            if len(enough) > 1:
                yield [every - frozenset[int]().union(*(self.documents[k] for k in enough))]
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
        word = self.words[0]
        return Verdict(
            kind,
            tuple(self.sources[k].name for k in numbers),
            len(word.tokens),
            log_prob=reading.of(word.tokens, frozenset()),
            without=reading.of(word.tokens, hidden),
            alone=reading.of(word.tokens, alone),
            prior=reading.of(word.tokens, every),
            passages=tuple(self.sources[k].passage for k in numbers),
            word=_readable(word.text),
            curve=self.curve,
        )


def _strongest_tokens(source: RankedSource, passages: Sequence[Passage]) -> Sequence[int]:
    """Return the sources of a passage's strongest sentence, or of all of it where it has none."""
    passage = passages[source.passage]
    if source.sentence is None:
        return passage.columns
    return passage.sentences[source.sentence - 1].tokens


# -- words and regions ------------------------------------------------------------------------

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
    sources = _sources_of(result, model, completion)
    reading = _Reading(result, model, completion)

    def read(sets: Sequence[frozenset[int]]) -> list[float]:
        reading.read_beside(sets, numbers)
        return [reading.of(numbers, each) for each in sets]

    return judge_sources(strongest_words(sources, result), read, len(numbers))


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
        (_readable(sources.names[k]), frozenset(sources.positions[k]))
        for k in strongest(scores, _MOST_HIDDEN)
        if scores[k] > 0
    ]


def _sources_of(result: Attribution, model: Model, completion: Completion) -> Sources:
    """Return the sources that were measured, or the prompt's words."""
    measured = result.provenance.get(SOURCE_TOKENS)
    if measured is None:
        return Sources.of_prompt(model, completion.prompt)
    positions = tuple(tuple(each) for each in measured)
    return Sources(tuple(result.sources), positions, len(completion.prompt.ids))


def _readable(name: str) -> str:
    """Return a name as people read it, without the signs around a word."""
    text = Tokens((name,)).text[0]
    return text.strip(_SIGNS) or text
