"""Agreement sentences from templates, for who has no data at hand.

A subject, then a prepositional phrase or a relative clause, sometimes both; number is drawn for
every noun by itself. They are templates, not natural text: few constructions, no rare words, and
in half of them the noun before the verb has the other number.
"""

from __future__ import annotations

import random
from typing import Final

from attnflow.errors import InputError
from attnflow_experiments.verb_number.agreement import Example

__all__ = ["template_examples"]

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
    """So many different sentences, drawn by seed; each says where its subject stands.

    >>> example = template_examples(1)[0]
    >>> " ".join(example.words), example.words[example.subject]
    ('the small officers that the small results made', 'officers')
    """
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
