"""Subject-verb agreement data: how they are read, and which part the embedded model never saw.

Two formats of the data of Linzen, Dupoux and Goldberg (2016) are read: ``VBZ<tab>words before the
verb`` (their "simple" files, ``numpred.*``), and a table with a header that also says where the
subject stands.  Training and experiments share this module, so that "held out" means the same to
both.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from attnflow.data import Row, find_files, rows
from attnflow.errors import FileError, InputError

LABELS: Final = ("VBZ", "VBP")  # in the order of VerbNumberModel.labels
COLUMNS: Final = ("sentence", "subj_idx", "verb_idx", "verb_pos", "verb", "inflected_verb")
NATURAL_DISTINCT: Final = 13_912  # distinct prefixes of numpred.val
DEV: Final = 1_000
TEST: Final = 3_000
Words = tuple[str, ...]

_FORMATS = (
    "Lines read 'VBZ<tab>words before the verb' (VBZ singular, VBP plural), or the file is a "
    f"table with the header {' '.join(COLUMNS)} (tabs between). Such data: Linzen, Dupoux and "
    "Goldberg (2016), github.com/TalLinzen/rnn_agreement."
)


class Example(NamedTuple):
    """Words before a verb, the verb's number as an index of LABELS.

    Tags where they are known; `subject` is the index of the subject among the words where the
    data say it.
    """

    words: Words
    label: int
    tags: Words | None = None
    subject: int | None = None


def read_agreement(path: Path) -> list[Example]:
    """Read either format; which one it is, the first line says."""
    if not path.is_file():
        raise FileError(f"There is no file {str(path)!r}. {_FORMATS}")
    with path.open(encoding="utf-8") as lines:
        first = lines.readline()
    if not first.strip():
        raise InputError(f"{str(path)!r} is empty or begins with an empty line. {_FORMATS}")
    return read_subjects(path) if "sentence" in first.split() else read_examples(path)


def read_examples(path: Path) -> list[Example]:
    """Read ``label <tab> words [<tab> tags]`` lines."""
    text = path.read_text(encoding="utf-8")
    return [_example(path, k, line) for k, line in enumerate(text.splitlines(), start=1)]


def _example(path: Path, number: int, line: str) -> Example:
    label, *columns = line.split("\t")
    if label not in LABELS or not columns or not columns[0].strip():
        raise InputError(f"Line {number} of {str(path)!r} reads {line[:60]!r}. {_FORMATS}")
    known = tuple(columns[1].split(" ")) if columns[1:] else None
    return Example(tuple(columns[0].split(" ")), LABELS.index(label), known)


def read_subjects(path: Path) -> list[Example]:
    """Read the table whose rows also say where the subject and the verb stand in the sentence.

    Files of both habits exist, so whether positions count from 0 or from 1 is told by the verb:
    it must stand where `verb_idx` says (or right after the sentence, if that ends before it)."""
    (table,) = find_files(path)
    missing = [name for name in COLUMNS[:5] if name not in table.columns()]
    if missing:
        raise InputError(f"{str(path)!r} lacks the columns {', '.join(missing)}. {_FORMATS}")
    sentences = [_read_sentence(row) for row in rows(path)]
    if not sentences:
        raise InputError(f"{str(path)!r} has a header and no rows. {_FORMATS}")
    first = _find_first_position(sentences)
    return [_cut_before_verb(sentence, first) for sentence in sentences]


class _Sentence(NamedTuple):
    place: str
    words: Words
    subject: int
    verb_index: int
    label: int
    verb: str


def _read_sentence(row: Row) -> _Sentence:
    words = tuple(row.values["sentence"].split())
    try:
        subject, verb = int(row.values["subj_idx"]), int(row.values["verb_idx"])
        label = LABELS.index(row.values["verb_pos"])
        return _Sentence(row.place, words, subject, verb, label, row.values["verb"])
    except ValueError as error:
        raise InputError(
            f"{row.place}: {error}. subj_idx and verb_idx are positions in the "
            f"sentence, verb_pos is {' or '.join(LABELS)}."
        ) from error


def _find_first_position(sentences: Sequence[_Sentence]) -> int:
    """Return the number that the first word of a sentence has, 0 or 1."""
    fits = {first: [_verb_fits(sentence, first) for sentence in sentences] for first in (0, 1)}
    best = max(fits, key=lambda first: sum(fits[first]))
    if not all(fits[best]):
        wrong = sentences[fits[best].index(False)]
        raise InputError(
            f"{wrong.place}: the verb {wrong.verb!r} is not word {wrong.verb_index} of "
            f"{' '.join(wrong.words)[:60]!r}, counted from {best} as in most lines of the file."
        )
    return best


def _verb_fits(sentence: _Sentence, first: int) -> bool:
    index = sentence.verb_index - first
    if index == len(sentence.words):
        return True
    return (
        0 <= index < len(sentence.words) and sentence.words[index].lower() == sentence.verb.lower()
    )


def _cut_before_verb(sentence: _Sentence, first: int) -> Example:
    words = sentence.words[: sentence.verb_index - first]
    subject = sentence.subject - first
    if not 0 <= subject < len(words):
        raise InputError(
            f"{sentence.place}: subj_idx {sentence.subject} is not before the verb; the "
            f"words before it are {first} to {len(words) - 1 + first}."
        )
    return Example(words, sentence.label, subject=subject)


def distinct(examples: Iterable[Example], exclude: set[Words] | None = None) -> list[Example]:
    """One example for each word sequence that is not taken, with its most frequent label."""
    votes: dict[Words, Counter[int]] = {}
    first: dict[Words, Example] = {}
    for example in examples:
        if exclude is None or example.words not in exclude:
            first.setdefault(example.words, example)
            votes.setdefault(example.words, Counter())[example.label] += 1
    return [
        example._replace(label=votes[words].most_common(1)[0][0])
        for words, example in first.items()
    ]


class Split(NamedTuple):
    """Disjoint parts of one data set."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]


def split(examples: Sequence[Example], *, dev: int, test: int, seed: int) -> Split:
    """Shuffle distinct examples and cut them in three."""
    shuffled = list(examples)
    random.Random(seed).shuffle(shuffled)
    return Split(shuffled[dev + test :], shuffled[:dev], shuffled[dev : dev + test])


def held_out(examples: Sequence[Example]) -> list[Example]:
    """Return the 3,000 prefixes that decided nothing in training, of all in ``numpred.val``."""
    examples = distinct(examples)
    if len(examples) != NATURAL_DISTINCT:
        raise InputError(
            "The held-out sentences are a part of numpred.val, the validation part of the "
            f"'simple' agreement data, with {NATURAL_DISTINCT:,} distinct prefixes; these data "
            f"have {len(examples):,}. For other data leave the option out."
        )
    return split(examples, dev=DEV, test=TEST, seed=0).test


# Singular and plural, all of them words the embedded model knows.
NOUNS: Final = (
    ("author", "authors"), ("officer", "officers"), ("teacher", "teachers"),
    ("student", "students"), ("writer", "writers"), ("doctor", "doctors"),
    ("player", "players"), ("king", "kings"), ("artist", "artists"), ("soldier", "soldiers"),
    ("report", "reports"), ("book", "books"), ("picture", "pictures"), ("key", "keys"),
    ("letter", "letters"), ("name", "names"), ("building", "buildings"), ("song", "songs"),
    ("house", "houses"), ("river", "rivers"), ("village", "villages"), ("school", "schools"),
    ("machine", "machines"), ("system", "systems"), ("method", "methods"), ("result", "results"),
)  # fmt: skip
PREPOSITIONS: Final = ("of", "near", "about", "behind", "with", "from", "by", "in")
ADJECTIVES: Final = ("", "", "old", "new", "large", "famous", "small", "local")
VERBS: Final = ("knew", "saw", "made", "found", "left", "used")


def template_examples(count: int, *, seed: int = 0) -> list[Example]:
    """So many different sentences, drawn by seed; each says where its subject stands."""
    if count < 1:
        raise InputError(f"At least one sentence is needed; got {count}.")
    rng = random.Random(seed)
    examples: dict[tuple[str, ...], Example] = {}
    while len(examples) < count:
        example = _sentence(rng)
        examples.setdefault(example.words, example)
    return list(examples.values())


def _sentence(rng: random.Random) -> Example:
    number = rng.randrange(2)
    words = _noun_phrase(rng, number)
    subject = len(words) - 1
    shape = rng.randrange(3)
    if shape != 1:
        words += [rng.choice(PREPOSITIONS), *_noun_phrase(rng, rng.randrange(2))]
    if shape != 0:
        words += ["that", *_noun_phrase(rng, rng.randrange(2)), rng.choice(VERBS)]
    return Example(tuple(words), number, subject=subject)


def _noun_phrase(rng: random.Random, number: int) -> list[str]:
    adjective = rng.choice(ADJECTIVES)
    noun = rng.choice(NOUNS)[number]
    return ["the", adjective, noun] if adjective else ["the", noun]
