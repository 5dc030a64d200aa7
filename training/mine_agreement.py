"""Mine agreement examples from Wikipedia text: the words before a present-tense verb.

The form of the verb is the label, so no parser is needed to label; the tags only decide which
verbs to take.  Output lines are ``VBZ|VBP <tab> words <tab> tags``.  Example:

    python training/mine_agreement.py --wikipedia DATA/enwik8.gz --brown DATA/brown \\
        --seed 0 --output mined.tsv
"""

from __future__ import annotations

import argparse
import gzip
import html
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from brown_tagger import Tagger, train_tagger

from attnflow.models.verb_number import split_words

# --- from wiki markup to sentences --------------------------------------------------------------

_ARTICLE = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)
_INNERMOST_BRACES = re.compile(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}")
_DROPPED = re.compile(
    r"<!--.*?-->|<(ref|math|pre|code|nowiki|table|gallery)\b[^>]*?(?:/>|>.*?</\1>)",
    re.DOTALL | re.IGNORECASE,
)
_HTML_TAG = re.compile(r"<[^>]+>")
_MEDIA_LINK = re.compile(r"\[\[[^\[\]|]*:(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]")
_PIPED_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]]*)\]\]")
_WEB_LINK = re.compile(r"\[(?:https?|ftp)://\S+\s?([^\]]*)\]|https?://\S+")
_EMPHASIS = re.compile(r"'{2,5}")
_NOT_PROSE = tuple("*#:;|!={}<")
_SENTENCE_END = re.compile(r"(?<![A-Z.]\.)(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z])")
_ABBREVIATION_END = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|Sr|Jr|vs|etc|ca|c|cf|No|Vol|Gen)\.$")


def strip_markup(source: str) -> str:
    """Keep the running text of a wiki page; templates, tables and references go."""
    text = _DROPPED.sub(" ", html.unescape(html.unescape(source)))
    for _ in range(4):  # templates nest; four levels leave hardly any
        text = _INNERMOST_BRACES.sub(" ", text)
    text = _PIPED_LINK.sub(r"\1", _MEDIA_LINK.sub(" ", text))
    text = _WEB_LINK.sub(lambda match: match.group(1) or " ", text)
    return _EMPHASIS.sub("", _HTML_TAG.sub(" ", text))


def split_sentences(text: str) -> Iterator[str]:
    """Split prose lines into sentences; lists, headings and leftovers of markup are skipped."""
    for line in text.splitlines():
        if len(line) < 40 or line.startswith(_NOT_PROSE):
            continue
        pending = ""
        for part in _SENTENCE_END.split(line):
            pending = f"{pending} {part}".strip()
            if not _ABBREVIATION_END.search(pending):
                yield pending
                pending = ""


def read_sentences(path: Path) -> Iterator[list[str]]:
    """Words of every sentence of a (gzipped) Wikipedia dump."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", errors="ignore") as file:
        dump = file.read()
    for article in _ARTICLE.finditer(dump):
        if not article.group(1).startswith("#"):  # redirects
            for sentence in split_sentences(strip_markup(article.group(1))):
                words = split_words(sentence)
                if 4 <= len(words) <= 60:
                    yield words


# --- from tagged sentences to examples ----------------------------------------------------------

_FORMS = {"is": "VBZ", "has": "VBZ", "does": "VBZ", "are": "VBP", "have": "VBP", "do": "VBP"}
_COMMON_NOUNS = frozenset(["NN", "NNS"])
_NOUNS = frozenset(["NN", "NNS", "NNP", "NNPS"])
_IN_NOUN_PHRASE = _NOUNS | frozenset(["DT", "JJ", "JJR", "JJS", "CD", "PRP$", "PDT", "POS", "VBG"])
_PHRASE_STARTS = frozenset(["DT", "PRP$", "PDT"])
_LINKS = frozenset(["VBN", "VBG", "RB", "TO", "RP"])
# Conjunctions that Brown tags like prepositions: a clause starts after them.
_CLAUSE_OPENERS = frozenset([
    "that", "if", "because", "although", "though", "while", "when", "since", "as", "whether",
    "unless", "until", "so", "than", "before", "after", "where", "once", "whereas",
])  # fmt: skip
_CLOSERS = frozenset([")", "]", "''", ","])
_THIRD_PERSON = frozenset(["he", "she", "it", "they"])
_VERB_TAGS = frozenset(["VB", "VBD", "VBG", "VBN", "VBP", "VBZ", "MD"])
_HELPERS = frozenset(["MD", "TO"])
_HELPER_WORDS = frozenset(
    ["do", "does", "did", "let", "make", "makes", "made", "help", "helps", "suggest", "demand"]
)


class Example(NamedTuple):
    """The words before a verb, their tags, and the verb's form (VBZ or VBP)."""

    label: str
    words: tuple[str, ...]
    tags: tuple[str, ...]


def _verb_label(word: str, tag: str) -> str | None:
    """The number a verb shows; frequent forms must agree with the tagger's opinion."""
    expected = _FORMS.get(word.lower())
    if expected is not None:
        return expected if tag in ("VBZ", "VBP") else None
    if tag == "VBZ":
        return tag if word.islower() and word.endswith("s") else None
    return tag if tag == "VBP" and word.islower() and not word.endswith("s") else None


def _before_adverbs(tags: Sequence[str], index: int) -> int:
    """Index of the last word before ``index`` that is not an adverb, or -1."""
    index -= 1
    while index >= 0 and tags[index] in ("RB", "RBR"):
        index -= 1
    return index


def _noun_phrase_start(tags: Sequence[str], end: int) -> int:
    """Index of the first word of the plain noun phrase whose last word is at ``end``."""
    start = end
    while start > 0 and tags[start - 1] in _IN_NOUN_PHRASE and tags[start] not in _PHRASE_STARTS:
        start -= 1
    return start


def _subject_head(words: Sequence[str], tags: Sequence[str], end: int) -> int | None:
    """Index of the probable subject: the last noun of the leftmost linked noun phrase.

    Walks back over "NP preposition NP" chains.  ``None`` when the chain hangs on a preposition
    at the start of a clause ("among the birds are ..."): then the verb comes before its subject.
    """
    head = end
    while True:
        start = _noun_phrase_start(tags, head)
        link = start - 1
        if link < 0 or tags[link] not in ("IN", "TO") or words[link] in _CLAUSE_OPENERS:
            return head
        previous = link - 1
        while previous >= 0 and tags[previous] in _LINKS:
            previous -= 1
        if previous < 0 or tags[previous] not in _NOUNS:
            return None
        head = previous


def _has_helper(words: Sequence[str], tags: Sequence[str], index: int) -> bool:
    """A modal, "to" or "do" shortly before: a base form there is no present tense."""
    near = slice(max(0, index - 5), index)
    return any(tag in _HELPERS for tag in tags[near]) or any(
        word in _HELPER_WORDS for word in words[near]
    )


class Subject(NamedTuple):
    """What stands before a verb: its kind, and where its head is when that can be told."""

    kind: str  # "common", "name", "pronoun", or "closed" after a bracket, quote or comma
    head: int | None = None


def _find_subject(words: Sequence[str], tags: Sequence[str], verb: int) -> Subject | None:
    """The subject of a verb as far as tags tell it; None to leave the verb alone."""
    last = _before_adverbs(tags, verb)
    if last < 0:
        return None
    if words[last] in _THIRD_PERSON:
        return Subject("pronoun")
    if words[last] in _CLOSERS:
        after_noun = any(tag in _COMMON_NOUNS for tag in tags[:last])
        # After a verb and a comma stands a further verb of the same list, not its subject.
        return Subject("closed") if after_noun and tags[last - 1] not in _VERB_TAGS else None
    head = _subject_head(words, tags, last) if tags[last] in _NOUNS else None
    if head is None:
        return None
    return Subject("common" if tags[head] in _COMMON_NOUNS else "name", head)


def _is_credible(
    label: str, verb: int, subject: Subject, words: Sequence[str], tags: Sequence[str]
) -> bool:
    """Whether a verb is one indeed: nouns ("the genome maps") are tagged as verbs now and then.

    Forms of be, have and do are sure.  Any other verb must agree with the head of its subject,
    which says nothing about the nouns between the two.
    """
    if words[verb] in _FORMS or subject.kind == "pronoun":
        return True
    if subject.head is None:
        return False
    plural = tags[subject.head] in ("NNS", "NNPS")
    if label == "VBZ":
        return not plural
    return plural or "and" in words[max(0, subject.head - 6) : verb]


def examples_of(words: Sequence[str], tags: Sequence[str]) -> Iterator[tuple[str, Example]]:
    """Every verb of a sentence that can serve, with the kind of its subject."""
    lower = [word.lower() for word in words]
    for verb in range(1, min(len(words), _LONGEST + 1)):
        label = _verb_label(words[verb], tags[verb])
        if label is None or (label == "VBP" and _has_helper(lower, tags, verb)):
            continue
        subject = _find_subject(lower, tags, verb)
        if subject is not None and _is_credible(label, verb, subject, lower, tags):
            yield subject.kind, Example(label, tuple(lower[:verb]), tuple(tags[:verb]))


# The agreement data have common nouns as subjects; a few of the others keep the model from being
# helpless with names and pronouns.
_KEPT_SHARE = {"common": 1.0, "closed": 1.0, "name": 0.08, "pronoun": 0.02}
_LONGEST = 50
_USUAL_LENGTH = 10


def _share_to_keep(kind: str, length: int) -> float:
    """Encyclopedia sentences are longer than those of the agreement data: thin out the long."""
    return _KEPT_SHARE[kind] * min(1.0, _USUAL_LENGTH / length)


def mine(sentences: Iterable[list[str]], tagger: Tagger, seed: int) -> Iterator[Example]:
    """Tag sentences in blocks and yield distinct examples."""
    generator = random.Random(seed)
    known: set[tuple[str, ...]] = set()
    remaining = iter(sentences)
    while block := list(islice(remaining, 2000)):
        for words, tags in zip(block, tagger.tag(block), strict=True):
            for kind, example in examples_of(words, tags):
                keep = generator.random() < _share_to_keep(kind, len(example.words))
                if keep and example.words not in known:
                    known.add(example.words)
                    yield example


def write_examples(examples: Iterable[Example], path: Path) -> Counter[str]:
    """Write the examples and count them by label."""
    counts: Counter[str] = Counter()
    with path.open("w", encoding="utf-8") as file:
        for label, words, tags in examples:
            file.write(f"{label}\t{' '.join(words)}\t{' '.join(tags)}\n")
            counts[label] += 1
            if counts.total() % 20_000 == 0:
                print(f"{counts.total()} examples", flush=True)
    return counts


def main() -> None:
    """Train the tagger, mine, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--wikipedia", type=Path, required=True, help="enwik8, gzipped or not")
    parser.add_argument("--brown", type=Path, required=True, help="folder with ca01 ... cr09")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # one thread makes the sums, and so the result, repeatable
    tagger = train_tagger(arguments.brown, seed=arguments.seed)
    examples = mine(read_sentences(arguments.wikipedia), tagger, arguments.seed)
    print(dict(write_examples(examples, arguments.output)))


if __name__ == "__main__":
    main()
