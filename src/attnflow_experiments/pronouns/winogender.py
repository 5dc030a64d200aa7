"""Winogender schemas (Rudinger et al. 2018) and sentences made of them that have a known gender.

In Winogender nothing says the gender of an occupation, so a preferred pronoun does not name an
antecedent. `crossed` makes it so: the occupation becomes a man and the participant a woman, then
the other way round, and everything else stays.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attnflow.errors import FileError, InputError
from attnflow_experiments.pronouns.data import PLACE, PronounSentence

__all__ = ["FILLERS", "SOMEONE", "Schema", "crossed", "read_winogender"]

SOMEONE: Final = "someone"  # stands for a participant without a name
FILLERS: Final = (("man", "woman"), ("boy", "girl"))

_GENDERS: Final = ("male", "female", "neutral")
_FORMAT: Final = (
    "A Winogender table has the header sentid<tab>sentence, and ids such as "
    "accountant.taxpayer.0.male.txt: occupation, participant, referent (0 the occupation, 1 the "
    "participant), and male, female or neutral."
)


@dataclass(frozen=True)
class Schema:
    """One sentence with its pronoun taken out; `pronouns` are he, she, they in the right case.

    referent: 0 where the pronoun refers to the occupation, 1 to the participant.
    """

    occupation: str
    participant: str
    referent: int
    text: str
    pronouns: tuple[str, ...]

    @property
    def sentence(self) -> PronounSentence:
        """The sentence as it is."""
        words = (self.occupation, self.participant)
        return PronounSentence(self.text, words, self.pronouns, self.text)


def crossed(schema: Schema) -> list[PronounSentence]:
    """The sentence with a man and a woman in it, in both roles: the occupation's comes first."""
    he, she = schema.pronouns[:2]
    sentences = []
    for man, woman in FILLERS:
        for (one, its), (other, theirs) in (
            ((man, he), (woman, she)),
            ((woman, she), (man, he)),
        ):
            text = _replaced(schema.text, {schema.occupation: one, schema.participant: other})
            sentences.append(PronounSentence(text, (one, other), (its, theirs), schema.text))
    return sentences


def _replaced(text: str, words: Mapping[str, str]) -> str:
    pattern = "|".join(re.escape(word) for word in words)
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda match: words[match.group()], text)


def read_winogender(path: Path) -> list[Schema]:
    """The schemas of a table; the variants of a sentence become one."""
    if not path.is_file():
        raise FileError(f"There is no file {str(path)!r}. {_FORMAT}")
    variants: dict[tuple[str, str, int], dict[str, str]] = {}
    for number, sentid, sentence in _rows(path):
        occupation, participant, referent, gender = _id(path, number, sentid)
        variants.setdefault((occupation, participant, referent), {})[gender] = sentence
    if not variants:
        raise InputError(f"{str(path)!r} has a header and no rows. {_FORMAT}")
    return [Schema(*key, *_without_pronoun(path, key, texts)) for key, texts in variants.items()]


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        table = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if list(table.fieldnames or ())[:2] != ["sentid", "sentence"]:
            raise InputError(
                f"{str(path)!r} begins with {table.fieldnames or 'nothing'!r}. {_FORMAT}"
            )
        for number, row in enumerate(table, start=2):
            yield number, row["sentid"] or "", row["sentence"] or ""


def _id(path: Path, number: int, sentid: str) -> tuple[str, str, int, str]:
    parts = sentid.removesuffix(".txt").split(".")
    if len(parts) != 4 or parts[2] not in ("0", "1") or parts[3] not in _GENDERS:
        raise InputError(f"Line {number} of {str(path)!r} has the id {sentid!r}. {_FORMAT}")
    return parts[0], parts[1], int(parts[2]), parts[3]


def _without_pronoun(
    path: Path, key: tuple[str, str, int], variants: Mapping[str, str]
) -> tuple[str, tuple[str, ...]]:
    """The text with a place for the pronoun, and the pronouns: the one word variants differ in.

    The neutral variant may differ in the verb after it too (they were): the male one's is kept.
    """
    name = ".".join(map(str, key))
    missing = [gender for gender in _GENDERS[:2] if gender not in variants]
    if missing:
        raise InputError(f"{str(path)!r} has no {' and no '.join(missing)} variant of {name}.")
    words = {gender: variants[gender].split() for gender in _GENDERS if gender in variants}
    male, female = words["male"], words["female"]
    at = [k for k, (one, other) in enumerate(zip(male, female, strict=False)) if one != other]
    if len(at) != 1 or len({len(variant) for variant in words.values()}) != 1:
        raise InputError(
            f"The variants of {name} in {str(path)!r} must differ in one word, the pronoun; got "
            f"{variants['male']!r} and {variants['female']!r}."
        )
    place = PLACE + male[at[0]].removeprefix(_bare(male[at[0]]))  # with its punctuation
    text = " ".join([*male[: at[0]], place, *male[at[0] + 1 :]])
    return text, tuple(_bare(variant[at[0]]) for variant in _in_order(words))


def _in_order(words: Mapping[str, Sequence[str]]) -> list[Sequence[str]]:
    return [words[gender] for gender in _GENDERS if gender in words]


def _bare(word: str) -> str:
    return word.strip(".,;:!?")
