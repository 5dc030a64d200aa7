"""Sentences with a pronoun to fill in and two words it may refer to: the paper's, and ours.

The place of the pronoun reads `[MASK]`. The first pronoun goes with the first antecedent, the
second with the second, so the pronoun a model prefers names the antecedent it prefers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from attnflow.errors import InputError, TargetError

__all__ = ["OURS", "PAPERS", "PLACE", "PronounSentence", "occurrences", "parse_sentence"]

PLACE: Final = "[MASK]"


@dataclass(frozen=True)
class PronounSentence:
    """One sentence; `frame` names those that differ only in whose gender is whose.

    `antecedents` are two words that occur once. `pronouns` are two, in their order; a third, if
    there is one, goes with neither.
    """

    text: str
    antecedents: tuple[str, str]
    pronouns: tuple[str, ...]
    frame: str = ""

    def __post_init__(self) -> None:
        if len(self.antecedents) != 2 or len({word.lower() for word in self.antecedents}) != 2:
            raise InputError(
                f"Two different antecedents are compared; got {', '.join(self.antecedents)!r}. "
                "Give them as author,Sara."
            )
        if len(self.pronouns) < 2 or len(set(self.pronouns)) != len(self.pronouns):
            raise InputError(
                "Two different pronouns are compared, one for each antecedent in their order; got "
                f"{', '.join(self.pronouns)!r}. Give them as his,her."
            )
        if self.text.count(PLACE) > 1:
            raise InputError(
                f"The sentence has {self.text.count(PLACE)} places {PLACE}, and one is filled: "
                f"{self.text!r}."
            )
        for word in self.antecedents:
            self._check_antecedent(word)

    def _check_antecedent(self, word: str) -> None:
        count = len(occurrences(self.text, word))
        if count != 1:
            raise TargetError(
                f"The antecedent {word!r} occurs {count} times as a word in {self.text!r}; each "
                "must occur once."
            )

    @property
    def before(self) -> str:
        """What stands before the pronoun; all of it where no place is marked."""
        return self.text.partition(PLACE)[0].rstrip()

    @property
    def has_place(self) -> bool:
        """Whether the place of the pronoun is marked."""
        return PLACE in self.text

    @property
    def label(self) -> str:
        """A row's name: the sentence as far as a reader of it has come, and its pronouns."""
        return f"{self.before} {'/'.join(self.pronouns[:2])}"


def occurrences(text: str, word: str) -> list[tuple[int, int]]:
    """Where a word stands as a word of its own, in any case: start and end.

    >>> occurrences("Anna saw an anna.", "Anna")
    [(0, 4), (12, 16)]
    """
    if not word.strip():
        return []
    matches = re.finditer(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE)
    return [match.span() for match in matches]


def parse_sentence(text: str, antecedents: str | None, pronouns: str | None) -> PronounSentence:
    """From the command line, where lists are separated by commas."""
    if not antecedents or not pronouns:
        raise InputError(
            "A sentence needs the two words its pronoun may refer to and the two pronouns, in the "
            "same order: --antecedents author,Sara --pronouns his,her."
        )
    first, second = (_listed(value) for value in (antecedents, pronouns))
    return PronounSentence(text, first, second, text)  # type: ignore[arg-type]


def _listed(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


# --- the sentences --------------------------------------------------------------------------------

_FORMS: Final = {"possessive": ("her", "his"), "subject": ("she", "he"), "object": ("her", "him")}


def _noun_and_name(text: str, noun: str, names: Sequence[str], form: str) -> list[PronounSentence]:
    """With a woman's name, then a man's: the pronoun that is not the name's is the noun's."""
    hers, his = _FORMS[form]
    filled = [text.format(name) for name in names]
    return [
        PronounSentence(filled[0], (noun, names[0]), (his, hers), text),
        PronounSentence(filled[1], (noun, names[1]), (hers, his), text),
    ]


def _two_names(text: str, names: Sequence[str], form: str) -> list[PronounSentence]:
    """The woman first, then the man first."""
    woman, man = names
    hers, his = _FORMS[form]
    return [
        PronounSentence(text.format(woman, man), (woman, man), (hers, his), text),
        PronounSentence(text.format(man, woman), (man, woman), (his, hers), text),
    ]


_AUTHOR: Final = _noun_and_name(
    "The author talked to {} about [MASK] book.", "author", ("Sara", "David"), "possessive"
)
_LOVE: Final = _two_names("{} convinced {} of [MASK] love.", ("Mary", "John"), "possessive")

PAPERS: Final = (_AUTHOR[0], _LOVE[0])
"""The two sentences of Figure 4."""


def _ours() -> Iterator[PronounSentence]:
    yield from _AUTHOR
    yield from _LOVE
    yield from _noun_and_name(
        "The doctor asked {} about [MASK] health.", "doctor", ("Anna", "Tom"), "possessive"
    )
    yield from _noun_and_name(
        "The teacher told {} that [MASK] would be late.", "teacher", ("Lisa", "Paul"), "subject"
    )
    yield from _noun_and_name(
        "The lawyer called {} because [MASK] needed help.", "lawyer", ("Emma", "Peter"), "subject"
    )
    yield from _noun_and_name(
        "The neighbor gave {} a picture of [MASK] house.", "neighbor", ("Laura", "Jack"),
        "possessive",
    )  # fmt: skip
    yield from _two_names("{} told {} that [MASK] had won.", ("Alice", "Robert"), "subject")
    yield from _two_names("{} thanked {} for [MASK] help.", ("Susan", "Mark"), "possessive")
    yield from _two_names("{} left before {} could see [MASK].", ("Julia", "Daniel"), "object")
    yield from _two_names("{} lent {} one of [MASK] books.", ("Helen", "Frank"), "possessive")


OURS: Final = tuple(_ours())
"""The paper's two and eight more of their form, each with the genders both ways."""
