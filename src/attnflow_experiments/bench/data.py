"""Data sets of the bench: each a list of items with sources whose right ones are known, or not.

An item is of one part for ever, by a hash of its question: options are chosen on "development" and
reported once on "held-out". "all" is for a folder that is itself a half.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from attnflow.data import rows
from attnflow.errors import FileError, InputError
from attnflow.errors.arguments import check_named
from attnflow.evaluation import CompletionPrompt
from attnflow_experiments.ablation.data import PARTS, part_of, passages, passages_of_pages
from attnflow_experiments.ablation.data import facts as fact_prompts
from attnflow_experiments.ablation.experiment import DATA_FILES
from attnflow_experiments.documents.data import (
    SourcedQuestion,
    ordinary_questions,
    paragraph_questions,
    supported_questions,
)
from attnflow_experiments.orders.data import poisoned_questions
from attnflow_experiments.verdicts.data import doubled

BenchPart = Literal["development", "held-out", "all"]
BENCH_PARTS: tuple[BenchPart, ...] = (*PARTS, "all")
_SEED = 31  # of the draws: another seed would ask other questions
_PLACED_AMONG = (5, 10, 20)
_LENGTHS = (1_024, 2_048, 4_096, 8_192)
_FRAME = 100  # tokens of the question and of what stands around documents
_BETWEEN = 12  # tokens of a document's name
_SHORTEST, _LONGEST = 5, 40  # words of a text
_CHARACTERS = 4.4  # of a token of English, so that lengths are the same prompts for every model


@dataclass(frozen=True)
class BenchItem:
    """One prompt of a data set: a text whose words are sources, or a question over documents.

    sentences: sources are the sentences of the documents, not the documents. right: the sources
    that support the answer where they are sentences; documents have theirs in the question. note:
    what tables divide by, such as the place of the right document. photos: one, or the four of a
    mosaic; labels: the class of each, -1 where it is not known; boxes: in pixels of the photo's
    middle square. blank: how words are taken away: "hide" their keys, or put the unknown token or
    the mask in their place.
    """

    name: str
    prompt: CompletionPrompt | None = None
    question: SourcedQuestion | None = None
    sentences: tuple[str, ...] = ()
    right: tuple[int, ...] = ()
    note: Mapping[str, int] = field(default_factory=dict)
    photos: tuple[Path, ...] = ()
    labels: tuple[int, ...] = ()
    boxes: tuple[tuple[float, ...], ...] = ()
    blank: Literal["hide", "unk", "mask"] = "hide"


@dataclass(frozen=True)
class DataSet:
    """A data set: what it asks, what makes its items, and how much of them is measured.

    ablated: whether ablations are run beside the scores; without them only the right source is
    looked at, and long prompts cost no more than the methods do. runs: how many items a question
    makes. kind: what reads it: language models "prompts", models of words "texts", others "photos".
    """

    title: str
    load: Callable[[Path, BenchPart], Iterator[BenchItem]]
    ablated: bool = True
    runs: int = 1
    kind: Literal["prompts", "texts", "photos"] = "prompts"


def load_items(name: str, folder: Path, part: BenchPart, count: int | None) -> list[BenchItem]:
    """Return the first `count` items of a part of a data set, each under a name of its own."""
    check_named("data set", name, list(DATA_SETS))
    check_named("part", part, BENCH_PARTS)
    items: dict[str, BenchItem] = {}
    for item in DATA_SETS[name].load(folder, part):
        if count is not None and len(items) >= count * DATA_SETS[name].runs:
            break
        items[item.name] = item
    if not items:
        raise InputError(f"{str(folder)!r} holds nothing for {name} in the {part} part.")
    return list(items.values())


def _is_in(part: BenchPart, name: str) -> bool:
    return part in ("all", part_of(name))


def _facts(_: Path, part: BenchPart) -> Iterator[BenchItem]:
    for prompt in fact_prompts(part if part != "all" else "development"):
        yield BenchItem(prompt.prompt, prompt=prompt)


def _text(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
    """Running text of a dump or a plain file; without one, the paragraphs of the questions."""
    own = part if part != "all" else "development"
    files = [folder / name for name in DATA_FILES["text"] if (folder / name).is_file()]
    if files:
        prompts = passages(files[0], own)
    else:
        texts = {str(row.values["context"]): None for row in rows(_file(folder, "squad"))}
        for name in ("nq", "quotesum"):
            texts |= dict.fromkeys(supported_questions(_file(folder, name), 1)[1])
        pages = [(" ".join(text.split()[:8]).replace(":", ""), text) for text in texts]
        prompts = passages_of_pages(pages, own, "questions.jsonl")
    for prompt in prompts:
        yield BenchItem(prompt.prompt, prompt=prompt)


def _squad(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
    for own in PARTS if part == "all" else (part,):
        for question in paragraph_questions(_file(folder, "squad").parent, own)[0]:
            yield BenchItem(question.question, question=question)


def _supported(name: str) -> Callable[[Path, BenchPart], Iterator[BenchItem]]:
    def load(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
        for number, question in enumerate(supported_questions(_file(folder, name))[0]):
            if question.right and _is_in(part, question.question):
                yield BenchItem(f"{number}: {question.question}", question=question)

    return load


def _sentences(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
    """Questions over one passage whose supporting sentences people picked by hand."""
    for row in rows(_file(folder, "clapnq")):
        values: Any = row.values
        question = str(values["question"])
        (document,) = values["documents"]
        sentences = tuple(str(each).strip() for each in document["sentences"])
        right = tuple(sorted({int(k) for _, k in values["support"] if k is not None}))
        if not _is_in(part, question) or not 0 < len(right) < len(sentences):
            continue
        title = str(document["title"])
        sourced = SourcedQuestion(
            question, tuple(values["answers"]), ((title, " ".join(sentences)),), (0,), ()
        )
        yield BenchItem(question, question=sourced, sentences=sentences, right=right)


def _redundant(_: Path, part: BenchPart) -> Iterator[BenchItem]:
    for own in PARTS if part == "all" else (part,):
        for question in ordinary_questions(own):
            yield BenchItem(question.question, question=doubled(question))


def _conflicting(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
    for question in poisoned_questions(_file(folder, "poisoned-rag").parent):
        if _is_in(part, question.question):
            yield BenchItem(question.question, question=question)


def _no_source(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
    """Questions that their passage does not answer, among others that do not either."""
    path = _file(folder, "clapnq-unanswerable")
    entries: list[Any] = [row.values for row in rows(path)]
    texts = [" ".join(e["documents"][0]["sentences"]) for e in entries]
    for entry, own in zip(entries, texts, strict=True):
        question = str(entry["question"])
        if not _is_in(part, question):
            continue
        rng = random.Random(f"{_SEED}:{question}")
        others = [text for text in dict.fromkeys(texts) if text != own]
        documents = [own, *rng.sample(others, min(4, len(others)))]
        rng.shuffle(documents)
        passages_by_name = tuple((f"passage {k + 1}", text) for k, text in enumerate(documents))
        yield BenchItem(question, question=SourcedQuestion(question, (), passages_by_name, (), ()))


def _placed(folder: Path, part: BenchPart) -> Iterator[tuple[SourcedQuestion, list[str]]]:
    questions, texts = supported_questions(_file(folder, "nq"), 1)
    for question in questions:
        if len(question.right) == 1 and _is_in(part, question.question):
            yield question.alone(), texts


def _positions(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
    """The right passage at every place of 5, 10 and 20."""
    for question, texts in _placed(folder, part):
        for count in _PLACED_AMONG:
            among = _with_others(question, texts, count)
            for place in range(count):
                yield BenchItem(
                    f"{place} of {count}: {question.question}",
                    question=among.at_place(place, count),
                    note={"documents": count, "place": place},
                )


def _with_others(question: SourcedQuestion, texts: Sequence[str], count: int) -> SourcedQuestion:
    return question.filled_up(texts, count, lambda _: 1)


def _lengths(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
    """The right passage in the middle of about 1k to 8k tokens of others."""
    for question, texts in _placed(folder, part):
        there = sum(map(_tokens, texts))
        for length in (each for each in _LENGTHS if each <= there):
            filled = question.filled_up(texts, length - _FRAME, _tokens)
            yield BenchItem(
                f"{length} tokens: {question.question}",
                question=filled.at_place(1, 3),
                note={"length": length},
            )


def _texts(
    file: str, column: str, blank: Literal["unk", "mask"]
) -> Callable[[Path, BenchPart], Iterator[BenchItem]]:
    """Sentences of a table, in an order of their own, for classifiers and encoder–decoders."""

    def load(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
        texts = {str(row.values[column]).strip() for row in rows(folder / file)}
        for text in sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest()):
            if _is_in(part, text) and _SHORTEST <= len(text.split()) <= _LONGEST:
                yield BenchItem(text, prompt=CompletionPrompt(text), blank=blank)

    return load


def _photos(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
    """ImageNet photos, each named by its class."""
    paths = sorted((folder / "photos/imagenet").glob("*.jpg"))
    for path in sorted(paths, key=lambda path: hashlib.sha256(path.name.encode()).digest()):
        if _is_in(part, path.name):
            yield BenchItem(path.name, photos=(path,), labels=(int(path.stem.split("-")[0]),))


def _grids(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
    """Four photos of other classes in each mosaic; each photo in four of them, at other tiles."""
    photos = [(item.photos[0], item.labels[0]) for item in _photos(folder, part)]
    for number in range(len(photos)):
        four = [photos[(number + step * step) % len(photos)] for step in range(4)]
        if len({label for _, label in four}) == len(four):
            paths, labels = zip(*four, strict=True)
            yield BenchItem(" ".join(path.stem for path in paths), photos=paths, labels=labels)


def _boxes(folder: Path, part: BenchPart) -> Iterator[BenchItem]:
    """Photos with boxes around what is shown; its class is not one of the model's."""
    for row in rows(folder / "photos/kangaroo.jsonl"):
        values: Any = row.values
        path = folder / "photos" / values["file"]
        if not _is_in(part, path.name):
            continue
        with Image.open(path) as photo:
            side = min(photo.size)
            left, top = (photo.width - side) // 2, (photo.height - side) // 2
        boxes = tuple((a - left, b - top, c - left, d - top) for a, b, c, d in values["boxes"])
        yield BenchItem(path.name, photos=(path,), labels=(-1,), boxes=boxes)


def _tokens(text: str) -> int:
    return int(len(text) / _CHARACTERS) + _BETWEEN


def _file(folder: Path, name: str) -> Path:
    """Return the file of a data set, in the folder or in the one that `sources/` is."""
    names = (
        DATA_FILES["documents"] if name == "squad" else (f"sources/{name}.jsonl", f"{name}.jsonl")
    )
    path = next((folder / each for each in names if (folder / each).is_file()), None)
    if path is None:
        raise FileError(
            f"{str(folder)!r} does not hold {' or '.join(names)}. Give the folder with --data, or "
            "leave the data set out."
        )
    return path


DATA_SETS: dict[str, DataSet] = {
    "facts": DataSet("Stated facts: the word that states the answer", _facts),
    "text": DataSet("Running text: the next token", _text),
    "squad": DataSet("SQuAD: the paragraph among five", _squad),
    "nq": DataSet("Natural Questions: the passage among five", _supported("nq")),
    "clapnq": DataSet("CLAPNQ: the sentences of a passage", _sentences),
    "quotesum": DataSet("QuoteSum: the passage of each quotation", _supported("quotesum")),
    "hotpot": DataSet("HotpotQA: both supports", _supported("hotpot")),
    "2wiki": DataSet("2WikiMultihopQA: all supports", _supported("2wiki")),
    "musique": DataSet("MuSiQue: all supports", _supported("musique")),
    "redundant": DataSet("Redundant: the right document stands there twice", _redundant),
    "conflicting": DataSet("Conflicting: five poisoned passages of ten", _conflicting),
    "no-source": DataSet("No source: no passage answers", _no_source),
    "positions": DataSet(
        "Positions: every place of 5, 10 and 20", _positions, False, sum(_PLACED_AMONG)
    ),
    "lengths": DataSet("Lengths: 1k to 8k tokens", _lengths, False, len(_LENGTHS)),
    "reviews": DataSet(
        "SST-2: words blanked by the unknown token",
        _texts("sst2/dev.tsv", "text", "unk"),
        kind="texts",
    ),
    "reviews-masked": DataSet(
        "SST-2: words blanked by the mask", _texts("sst2/dev.tsv", "text", "mask"), kind="texts"
    ),
    "pronouns": DataSet(
        "Winogender: words blanked by the unknown token",
        _texts("pronouns/winogender.tsv", "sentence", "unk"),
        kind="texts",
    ),
    "pronouns-masked": DataSet(
        "Winogender: words blanked by the mask",
        _texts("pronouns/winogender.tsv", "sentence", "mask"),
        kind="texts",
    ),
    "photos": DataSet("ImageNet photos: hidden patches", _photos, kind="photos"),
    "boxes": DataSet("Kangaroos: hidden patches and boxes", _boxes, kind="photos"),
    "grid": DataSet("Grid pointing game: four photos", _grids, kind="photos"),
}
