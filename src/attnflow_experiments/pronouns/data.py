"""Sentences with a pronoun to fill in and two words it may refer to: the paper's, and ours.

The place of the pronoun reads `[MASK]`. The first pronoun goes with the first antecedent, the
second with the second, so the pronoun a model prefers names the antecedent it prefers.

Winogender schemas (Rudinger et al. 2018) and sentences made of them that have a known gender.

In Winogender nothing says the gender of an occupation, so a preferred pronoun does not name an
antecedent. `crossed` makes it so: the occupation becomes a man and the participant a woman, then
the other way round, and everything else stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attnflow.data import Row, find_files, rows
from attnflow.errors import FileError, InputError, TargetError

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
        """The text before the pronoun; all of it where no place is marked."""
        return self.text.partition(PLACE)[0].rstrip()

    @property
    def has_place(self) -> bool:
        """True where the place of the pronoun is marked."""
        return PLACE in self.text

    @property
    def label(self) -> str:
        """A row's name: the sentence as far as a reader of it has come, and its pronouns."""
        return f"{self.before} {'/'.join(self.pronouns[:2])}"


def occurrences(text: str, word: str) -> list[tuple[int, int]]:
    """Where a word stands as a word of its own, in any case: start and end."""
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
    (table,) = find_files(path)
    columns = table.columns()
    if columns[:2] != ["sentid", "sentence"]:
        raise InputError(f"{str(path)!r} begins with {columns or 'nothing'!r}. {_FORMAT}")
    for row in rows(path):
        key, gender = _read_id(row)
        variants.setdefault(key, {})[gender] = row.values["sentence"]
    if not variants:
        raise InputError(f"{str(path)!r} has a header and no rows. {_FORMAT}")
    return [Schema(*key, *_without_pronoun(path, key, texts)) for key, texts in variants.items()]


def _read_id(row: Row) -> tuple[tuple[str, str, int], str]:
    """Read occupation, participant and referent, and the gender."""
    sentid = row.values["sentid"]
    parts = sentid.removesuffix(".txt").split(".")
    if len(parts) != 4 or parts[2] not in ("0", "1") or parts[3] not in _GENDERS:
        raise InputError(f"{row.place} has the id {sentid!r}. {_FORMAT}")
    return (parts[0], parts[1], int(parts[2])), parts[3]


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
