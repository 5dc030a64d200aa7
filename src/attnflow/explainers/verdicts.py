"""Verdicts on the statements of an answer over documents: it is read again without its sources.

Judged are the words of a statement that tell: its sentence, its documents and all are hidden.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

import numpy as np

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
from attnflow.attribution.verdict import (
    CURVE,
    Kind,
    Verdict,
    clearly_takes_away,
    is_unsupported,
    support_of,
    takes_away,
    telling,
)
from attnflow.explainers.defaults import measures_documents
from attnflow.explainers.request import Completion
from attnflow.explainers.rereading import Reading, measure_documents
from attnflow.hosts.inputs import tokens_of
from attnflow.hosts.model import Model
from attnflow.methods import Method
from attnflow.tokens import Tokens
from attnflow.tokens.units import Unit, split_units

MOST_HIDDEN = 3  # sources that are hidden together before it is said that none stands out
_MOST_RANKED = 5  # documents that are tried beside the question and the answer alone
_MOST_TELLING = 3  # words of a statement
_SIGNS = ".,;:!?\"'()[]{}«»“”‘’"


def check_statements(
    result: Attribution, model: Model, completion: Completion, method: Method
) -> Attribution:
    """Return an answer over documents with what they are worth to it, and with verdicts.

    It says how likely each token is to the model, too. method: what explained the answer.
    """
    reading = Reading(result, model, completion)
    if measures_documents(method):
        result = measure_documents(result, reading)
    verdicts, likely = judge_statements(result, model, reading)
    provenance = {**result.provenance, LOG_PROBS: likely}
    return replace(result, verdicts=verdicts, provenance=provenance)


def judge_statements(
    result: Attribution, model: Model, reading: Reading
) -> tuple[tuple[Verdict | None, ...], list[float]]:
    """Return a verdict for each statement of an answer over documents, None where none is named,
    and the log-probability of each token of it.

    result: explains the answer, and says where the documents stand. What is hidden keeps its
    place; the question and the template stay. Judged are the words of a statement that tell most,
    and sources are ranked by what these lose and hold when only the question and the answer are
    read again, as the sentence that is named is hidden first: other documents may have read it, so
    that what is lost would be lost for good, too. Then, for good, all other documents are hidden;
    only where that does not decide the sentence is, each of the strongest documents that the
    answer reads from, and what these leave open. A round hides what all statements ask for.
    """
    completion = reading.completion
    passages = passages_of(result)
    every = frozenset(p for each in passages for p in positions_of(result, each.columns))
    reading.read([frozenset(), every])  # the prompt is read once for all
    prompt_ids = completion.prompt.ids
    words = _new_words(model, prompt_ids, completion.ids, every)
    holding = Counter[str]()
    for each in passages:
        ids = [prompt_ids[place] for place in positions_of(result, each.columns)]
        holding.update(_words_of(tokens_of(model.tokenizer, ids)))
    judged = [
        _Judged(
            statement,
            _telling_words(statement, words, reading, every, holding),
            passages,
            result,
            model.calibration or CURVE,
        )
        if statement.sources
        else None
        for statement in statements_of(result)
    ]
    statements = [each for each in judged if each is not None]
    _rank(statements, reading, every)
    reading.read_ends([each.sentences[0] for each in statements], max(every) + 1)
    judging = [None if each is None else each.judge(reading, every) for each in judged]
    verdicts = _judge_together(judging, reading)
    return tuple(verdicts), reading.rows[frozenset()].tolist()


Judging = Generator[Sequence[frozenset[int]], None, Verdict]
"""Asks for what is to be hidden next until it can say a verdict."""


def _judge_together(judging: Sequence[Judging | None], reading: Reading) -> list[Verdict | None]:
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
    """Return the words of an answer that stand nowhere in its prompt but in what can be hidden.

    They are read behind the prompt: one word alone may not show how its tokens mark a beginning.
    """
    tokenizer, first = model.tokenizer, len(prompt_ids)
    question = tokens_of(tokenizer, [id_ for k, id_ in enumerate(prompt_ids) if k not in hidden])
    known = _words_of(question)
    tokens = tokens_of(tokenizer, [*prompt_ids, *ids])
    surfaces, words = tokens.surfaces(), []
    for unit in split_units(list(tokens), "word"):
        members = [k for k in unit.tokens if k >= first]
        own = [k - first for k in members if any(map(str.isalnum, surfaces[k]))]
        text = "".join(surfaces[k] for k in members).strip()
        if own and readable(text).casefold() not in known:
            # signs around a word are another choice than the word
            words.append(replace(unit, text=text, tokens=tuple(range(own[0], own[-1] + 1))))
    return words


def _words_of(tokens: Sequence[str]) -> set[str]:
    return {readable(unit.text).casefold() for unit in split_units(list(tokens), "word")}


def _telling_words(
    statement: Statement,
    words: Sequence[Unit],
    reading: Reading,
    every: frozenset[int],
    holding: Mapping[str, int],
) -> list[Unit]:
    """Return the words of a statement that tell most of where it comes from, few of them.

    holding: in how many documents a word stands. The more have it, the less it tells of which: in
    "59 euros" it is the number. That is the statement as a whole where it says nothing that the
    question does not say.
    """
    own = [word for word in words if set(word.tokens) <= set(statement.tokens)]
    own = own or [Unit(statement.text, (0, len(statement.text)), tuple(statement.tokens))]
    weights = [
        telling(reading.of(word.tokens, frozenset()), reading.of(word.tokens, every))
        / max(1, holding.get(readable(word.text).casefold(), 0))
        for word in own
    ]
    order = sorted(range(len(own)), key=weights.__getitem__, reverse=True)[:_MOST_TELLING]
    return [own[k] for k in order if k == order[0] or weights[k] >= weights[order[0]] / 2 > 0]


def _rank(judged: Sequence[_Judged], reading: Reading, every: frozenset[int]) -> None:
    """Order the sources of each statement by what it loses without them and what they hold."""
    documents = list(dict.fromkeys(place for each in judged for place in each.documents))
    if len(documents) > 1:
        reading.read_ends([*documents, *(every - one for one in documents)], max(every) + 1)
        for each in judged:
            each.rank_by(reading, every)
    for each in judged:
        each.keep(MOST_HIDDEN)


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

    def rank_by(self, reading: Reading, every: frozenset[int]) -> None:
        """Put the source first whose document is lost most, and holds most alone, together.

        Idle is a document without which no word loses half of what would take it away.
        """
        strengths = []
        for document in self.documents:
            self.idle.add(document)
            strengths.append(0.0)
            for word in self.words:
                base, prior = (reading.of(word.tokens, k) for k in (frozenset[int](), every))
                pair = (document, every - document)
                without, alone = (reading.of(word.tokens, k, ends=True) for k in pair)
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

    def judge(self, reading: Reading, every: frozenset[int]) -> Judging:
        """Ask for what is to be hidden, round after round, and return what may be said."""
        yield [every - self.documents[0]]
        verdict = self._decide(reading, every, ends=True)
        if verdict is None:
            yield [self.sentences[0]]
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

    def _decide(
        self, reading: Reading, every: frozenset[int], *, ends: bool = False
    ) -> Verdict | None:
        """Return the verdict of the first sentence, if it is enough for one.

        ends: it is hidden from the question and the answer alone. More may be lost for good, so
        that nothing is found to be unsupported unless all documents account for little.
        """
        sentence, tokens = self.sentences[0], self.words[0].tokens
        if not any(self._is_carried(word, reading, every, ends=ends) for word in self.words):
            return self._said("none", [0], sentence, reading, every, ends=ends)
        hidden = (frozenset[int](), every - self.documents[0], every)
        base, alone, prior = (reading.of(tokens, each) for each in hidden)
        is_enough = takes_away(alone - prior, base - prior)
        if is_enough and all(self._lost(sentence, reading, every, ends=ends)):
            return self._rests_on_sentence(0, reading, every, ends=ends)
        return None

    def _is_carried(
        self, word: Unit, reading: Reading, every: frozenset[int], *, ends: bool
    ) -> bool:
        """Return whether the first sentence, or all documents together, carry a word."""
        hidden = (frozenset[int](), every - self.documents[0], every)
        base, alone, prior = (reading.of(word.tokens, each) for each in hidden)
        without, total = reading.of(word.tokens, self.sentences[0], ends=ends), telling(base, prior)
        support = support_of(base, without, alone, prior)
        return not is_unsupported(max(support, total) if ends else support, total)

    def _lost(
        self,
        hidden: frozenset[int],
        reading: Reading,
        every: frozenset[int],
        *,
        ends: bool = False,
    ) -> list[bool]:
        """Return which of the words are taken away, the strongest first."""
        is_lost = []
        for word in self.words:
            base, prior = reading.of(word.tokens, frozenset()), reading.of(word.tokens, every)
            without = reading.of(word.tokens, hidden, ends=ends)
            is_lost.append(takes_away(base - without, base - prior))
        return is_lost

    def _judge_several(self, reading: Reading, every: frozenset[int]) -> Judging:
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
                if _is_held(base, reading.of(tokens, every - document), prior)
            ]
            if len(enough) > 1:
                yield [every - frozenset[int]().union(*(self.documents[k] for k in enough))]
                return self._said("either", enough, hidden, reading, every)
            if enough:
                yield [self.documents[enough[0]], self.sentences[enough[0]]]
                if takes_away(base - reading.of(tokens, self.sentences[enough[0]])):
                    return self._rests_on_sentence(enough[0], reading, every)
                if takes_away(base - reading.of(tokens, self.documents[enough[0]])):
                    without = self.documents[enough[0]]
                    return self._said("rests", enough, without, reading, every)
            return self._said("together", list(range(count)), hidden, reading, every)
        return self._said("partly", [0], self.documents[0], reading, every)

    def _rests_on_sentence(
        self, number: int, reading: Reading, every: frozenset[int], *, ends: bool = False
    ) -> Verdict:
        sentence = self.sentences[number]
        verdict = self._said("rests", [number], sentence, reading, every, ends=ends)
        return replace(verdict, sources=(self.sources[number].place,))

    def _said(
        self,
        kind: Kind,
        numbers: Sequence[int],
        hidden: frozenset[int],
        reading: Reading,
        every: frozenset[int],
        *,
        ends: bool = False,
    ) -> Verdict:
        """The verdict on the documents of these numbers; `hidden` is what was taken away.

        It tells of the first word, or of the first that is lost where a source is named for that.
        """
        alone = every - frozenset[int]().union(*(self.documents[k] for k in numbers))
        word = self.words[0]
        if kind in ("rests", "together"):
            places = np.flatnonzero(self._lost(hidden, reading, every, ends=ends))
            word = self.words[int(places[0])] if len(places) else word
        return Verdict(
            kind,
            tuple(self.sources[k].name for k in numbers),
            len(word.tokens),
            log_prob=reading.of(word.tokens, frozenset()),
            without=reading.of(word.tokens, hidden, ends=ends),
            alone=reading.of(word.tokens, alone),
            prior=reading.of(word.tokens, every),
            passages=tuple(self.sources[k].passage for k in numbers),
            word=readable(word.text),
            curve=self.curve,
        )


def _is_held(base: float, alone: float, prior: float) -> bool:
    """Return whether a document alone holds what all give: most of it, and nothing clearly lost."""
    return takes_away(alone - prior, base - prior) and not clearly_takes_away(base - alone)


def _strongest_tokens(source: RankedSource, passages: Sequence[Passage]) -> Sequence[int]:
    """Return the sources of a passage's strongest sentence, or of all of it where it has none."""
    passage = passages[source.passage]
    if source.sentence is None:
        return passage.columns
    return passage.sentences[source.sentence - 1].tokens


def readable(name: str) -> str:
    """Return a name as people read it, without the signs around a word."""
    text = Tokens((name,)).text[0]
    return text.strip(_SIGNS) or text
