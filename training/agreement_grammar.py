"""Sentences whose subject is known, from a small grammar: what running text hardly ever shows.

In running text the noun before a verb nearly always has its number, and subjects with a clause of
their own ("the author that the guards like") are too rare to learn from. These are drawn by a
seed: a subject, then phrases and clauses with nouns of either number, or two subjects with *and*.
Nouns are those of the mined text; the nouns and the verbs of clauses by which the model
is judged later (`attnflow_experiments.verb_number.data`) are none of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from attnflow_experiments.verb_number.data import LABELS, NOUNS, VERBS, Example

_FEWEST = 20  # times that both numbers of a noun stand in the mined text
_DETERMINERS = (("the", "this", "that", "each", "his", "every"), ("the", "these", "some", "many"))
_DETERMINER_WEIGHTS = ((8, 2, 1, 1, 1, 1), (9, 2, 2, 2))
_ADJECTIVES = (
    *("young", "great", "common", "early", "original", "second", "modern", "american"),
    *("important", "long", "strong", "different", "main", "single", "natural", "red"),
)
_PREPOSITIONS = (
    *("of", "of", "in", "for", "on", "with", "from", "near", "about", "to", "by", "behind"),
    *("between", "under", "beside", "against", "at", "next to", "in front of", "without"),
)
_PAST = (
    *("liked", "wrote", "wanted", "described", "called", "gave", "took", "built", "killed"),
    *("kept", "won", "held", "lost", "bought", "brought", "followed", "supported", "told"),
    *("played", "designed", "married", "developed", "produced", "sold", "visited", "loved"),
)
_PRESENT = (("likes", "wants", "knows", "sees", "uses", "makes", "finds", "needs", "calls"),
            ("like", "want", "know", "see", "use", "make", "find", "need", "call"))  # fmt: skip
_RELATIVES = ("that", "that", "that", "which", "who", "")  # "" is no word: the author they liked
_ADVERBS = ("", "", "", "", "yesterday", "again", "first", "together")
_ADJECTIVE_SHARE = 0.35
_BOTH_SHARE = 0.1  # two subjects with "and"
_MODIFIERS = ((0, 1, 2, 3), (2, 6, 3, 1))


class Noun(NamedTuple):
    """A noun, singular and plural."""

    singular: str
    plural: str


def nouns_of(mined: Iterable[Example]) -> list[Noun]:
    """Return the nouns that stand in the mined text in both numbers, in the order of letters."""
    counts: Counter[tuple[str, str]] = Counter()
    for example in mined:
        counts.update(zip(example.words, example.tags or (), strict=True))
    judged = {word for noun in NOUNS for word in noun}
    found = []
    for word, tag in sorted(counts):
        for plural in (f"{word}s", f"{word}es", f"{word[:-1]}ies"):
            pair = counts[word, tag], counts[plural, "NNS"]
            known = counts[word, "NNS"] == 0 and not {word, plural} & judged
            if tag == "NN" and min(pair) >= _FEWEST and known and word.isalpha():
                found.append(Noun(word, plural))
    return found


def generate_examples(nouns: Sequence[Noun], count: int, *, seed: int) -> list[Example]:
    """Return different sentences, as many of them singular as plural; none without nouns."""
    if not nouns:
        return []
    grammar = _Grammar(nouns, random.Random(seed))
    examples: dict[tuple[str, ...], Example] = {}
    while len(examples) < count:
        example = grammar.sentence()
        examples.setdefault(example.words, example)
    return list(examples.values())


class _Grammar:
    def __init__(self, nouns: Sequence[Noun], generator: random.Random) -> None:
        self.nouns, self.random = nouns, generator
        known = {verb for verbs in _PRESENT for verb in verbs} | {*_PAST}
        assert not known & {*VERBS}

    def sentence(self) -> Example:
        number = self.random.randrange(2)
        if number == LABELS.index("VBP") and self.random.random() < _BOTH_SHARE:
            words = [*self._phrase(self._number()), "and", *self._phrase(self._number())]
            return Example(tuple(words), number)
        words = self._phrase(number)
        for _ in range(self.random.choices(*_MODIFIERS)[0]):
            words += self.random.choice((self._place, self._clause, self._own_clause))(number)
        return Example(tuple(words), number)

    def _number(self) -> int:
        return self.random.randrange(2)

    def _phrase(self, number: int) -> list[str]:
        words = self.random.choices(_DETERMINERS[number], _DETERMINER_WEIGHTS[number])
        if self.random.random() < _ADJECTIVE_SHARE:
            words.append(self.random.choice(_ADJECTIVES))
        return [*words, self.random.choice(self.nouns)[number]]

    def _verb(self, number: int) -> str:
        return self.random.choice(self.random.choice((_PAST, _PRESENT[number])))

    def _place(self, _: int) -> list[str]:
        return [*self.random.choice(_PREPOSITIONS).split(), *self._phrase(self._number())]

    def _clause(self, _: int) -> list[str]:
        """A clause about the subject with a subject of its own: "that the guards like"."""
        other = self._number()
        words = [self.random.choice(_RELATIVES), *self._phrase(other), self._verb(other)]
        return [word for word in (*words, self.random.choice(_ADVERBS)) if word]

    def _own_clause(self, number: int) -> list[str]:
        """A clause that the subject is the subject of: "that likes the guards"."""
        words = [self.random.choice(_RELATIVES) or "that", self._verb(number)]
        return [*words, *self._phrase(self._number())]
