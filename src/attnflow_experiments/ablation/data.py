"""The data of the ablation experiment: stated facts, running text, questions among documents.

Each kind has two parts that share no item. Options are chosen on "development" and reported once on
"held-out". Facts are divided by their wording, everything else by a hash of its name, so that an
item stays in its part whatever else is in the file.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import random
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from attnflow.data import rows
from attnflow.errors import FileError, InputError
from attnflow.evaluation import CompletionPrompt
from attnflow_experiments.known_answer.data import Wording, fact_prompts

Part = Literal["development", "held-out"]
PARTS: tuple[Part, ...] = ("development", "held-out")

_SEED = 13  # of the split and the draws: another seed would mix the parts
_FACTS, _BLOCK = 960, 96
_PASSAGES = 60  # of each part, after those that are skipped
_PASSAGE_WORDS = 70  # the last words of a passage: what is run
_PARAGRAPH = (115, 220)  # words of a paragraph that a passage is taken from
_LARGEST_DUMP = 60_000_000  # characters that are read of a large file
_QUESTION = ("article", "paragraph", "context", "question", "answer", "start")
_DOCUMENTS = 5
_DOCUMENT_WORDS = 55
_WORDINGS: dict[Part, Wording] = {"development": "development", "held-out": "test"}
_PAGE = re.compile(r"<title>([^<]*)</title>.*?<text[^>]*>(.*?)</text>", re.DOTALL)
_ODD = re.compile(r"[\[\]{}|=<>*]|http|[^\x20-\x7e]")  # what is left of markup, or not English


def part_of(name: str) -> Part:
    """The part an item belongs to, for ever."""
    digest = hashlib.sha256(f"{_SEED}:{name}".encode()).digest()
    return "development" if digest[0] % 2 == 0 else "held-out"


# --- facts ---------------------------------------------------------------------------------------


def facts(part: Part) -> list[CompletionPrompt]:
    """Prompts that state a fact and ask for it, each once; the two parts are worded differently."""
    prompts = []
    for fact in fact_prompts(_FACTS, seed=_SEED, wording=_WORDINGS[part]):
        places = [match.start() for match in re.finditer(rf"\b{fact.answer}\b", fact.text)]
        question = fact.text.rindex("\nQ: " if part == "development" else " So ")
        prompts.append(
            CompletionPrompt(
                fact.text,
                answer=(places[0], places[0] + len(fact.answer)),
                expected=fact.answer,
                stated=(0, question),
            )
        )
    blocks = [_mixed(prompts[at : at + _BLOCK]) for at in range(0, _FACTS, _BLOCK)]
    by_text: dict[str, CompletionPrompt] = {}
    for prompt in chain.from_iterable(blocks):
        by_text.setdefault(prompt.prompt, prompt)
    return list(by_text.values())


def _mixed(prompts: list[CompletionPrompt]) -> list[CompletionPrompt]:
    """Neighbours differ in kind only; every third prompt first gives a few a mix of all lengths."""
    return [*prompts[::3], *prompts[1::3], *prompts[2::3]]


# --- running text --------------------------------------------------------------------------------


def clean_wiki_text(text: str) -> str:
    """Wiki markup as plain text: comments, formulas, references, tables and templates go, links
    leave the words they show, and bold and italics lose their marks.
    """
    text = html.unescape(html.unescape(text))
    markup = r"<!--.*?-->|<math>.*?</math>|<ref[^>]*?/>|<ref.*?</ref>|<table.*?</table>"
    text = re.sub(markup, " ", text, flags=re.DOTALL)
    for _ in range(4):  # templates stand in templates
        text = re.sub(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}", " ", text)
    spaces = r"\[\[(?:Image|File|Category|[a-z-]{2,12}):[^\[\]]*(?:\[\[[^\]]*\]\][^\[\]]*)*\]\]"
    text = re.sub(spaces, " ", text)
    text = re.sub(r"\[\[[^\[\]|]*\|([^\[\]]*)\]\]|\[\[([^\[\]]*)\]\]", _words_of_link, text)
    text = re.sub(r"\[(?:https?|ftp)://\S*\s*([^\]]*)\]", r"\1", text)
    return re.sub(r"'{2,}|<[^>]+>", "", text)


def _words_of_link(link: re.Match[str]) -> str:
    return link[1] or link[2] or ""


def passages(path: Path, part: Part, *, skip: int = 0) -> list[CompletionPrompt]:
    """The last words of passages that break off within a sentence, one of each page; all up to 60
    after the first `skip`.

    path: a dump of wiki pages (`<title>`, `<text>`, such as enwik8), or plain text with a paragraph
    a line; .gz is unpacked.
    """
    return passages_of_pages(_pages(_read(path)), part, path.name, skip=skip)


def passages_of_pages(
    pages: list[tuple[str, str]], part: Part, name: str, *, skip: int = 0
) -> list[CompletionPrompt]:
    """Return the same from titles and texts; `name` is what an error calls them by."""
    rng = random.Random(_SEED)
    rng.shuffle(pages)
    passages: dict[Part, list[str]] = {name: [] for name in PARTS}
    for title, text in pages:
        if ":" in title or text[:12].upper().startswith("#REDIRECT"):
            continue
        paragraphs = list(_paragraphs(text))
        if not paragraphs:
            continue
        passages[part_of(title)].append(_broken_off(rng, rng.choice(paragraphs)))
        if all(len(texts) >= skip + _PASSAGES for texts in passages.values()):
            break
    if not passages[part]:
        raise InputError(
            f"{name!r} holds no paragraph of {_PARAGRAPH[0]} to {_PARAGRAPH[1]} plain words "
            f"for the {part} part."
        )
    ends = [text.split()[-_PASSAGE_WORDS:] for text in passages[part][: skip + _PASSAGES]]
    return [CompletionPrompt(" ".join(words)) for words in ends]


def _read(path: Path) -> str:
    if not path.is_file():
        raise FileError(f"There is no file {str(path)!r} to take running text from.")
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8", errors="ignore") as text:
                return text.read(_LARGEST_DUMP)
        with path.open(encoding="utf-8", errors="ignore") as text:
            return text.read(_LARGEST_DUMP)
    except OSError as error:
        raise FileError(f"{str(path)!r} cannot be read: {error}.") from error


def _pages(text: str) -> list[tuple[str, str]]:
    """Titles and texts; of plain text every line is a page, called by its first words."""
    if "<title>" in text:
        return _PAGE.findall(text)
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return [(" ".join(line.split()[:8]).replace(":", ""), line) for line in lines]


def _paragraphs(text: str) -> Iterator[list[str]]:
    for paragraph in clean_wiki_text(text).split("\n"):
        words = paragraph.split()
        plain = paragraph[:1].isalpha() and not _ODD.search(paragraph)
        if _PARAGRAPH[0] <= len(words) <= _PARAGRAPH[1] and plain:
            yield words


def _broken_off(rng: random.Random, words: Sequence[str]) -> str:
    """100 to 160 words, not up to the end of a sentence: what follows is a matter of the text."""
    end = rng.randrange(100, min(160, len(words)) + 1)
    while end > 100 and re.search(r"[.!?]$", words[end - 1]):
        end -= 1
    return " ".join(words[:end])


# --- questions among documents -------------------------------------------------------------------


def questions(path: Path, part: Part) -> list[CompletionPrompt]:
    """Questions with the paragraph that answers them among four others, as documents.

    path: lines of JSON with article, paragraph, context, question, answer and start, the answer's
    place in the context. Paragraphs are cut to whole sentences of about 55 words.
    """
    rng = random.Random(_SEED)
    entries = _read_questions(path)
    paragraphs = {(row["article"], row["paragraph"]): row["context"] for row in entries}
    prompts_of: dict[Part, list[CompletionPrompt]] = {name: [] for name in PARTS}
    for row in entries:
        own = _crop(row["context"], _DOCUMENT_WORDS, row["start"])
        answer = row["answer"]
        if len(own.split()) > _DOCUMENT_WORDS + 25 or answer not in own or len(answer.split()) > 5:
            continue
        others = [
            text
            for key, text in paragraphs.items()
            if key != (row["article"], row["paragraph"]) and answer.lower() not in text.lower()
        ]
        crops = [_crop(text, _DOCUMENT_WORDS) for text in rng.sample(others, min(30, len(others)))]
        fitting = [text for text in crops if 25 <= len(text.split()) <= _DOCUMENT_WORDS + 10]
        documents = fitting[: _DOCUMENTS - 1]
        place = rng.randrange(_DOCUMENTS)
        documents.insert(place, own)
        if len(documents) == _DOCUMENTS:
            prompt = _among_documents(documents, place, row["question"], answer)
            prompts_of[part_of(row["question"])].append(prompt)
    for prompts in prompts_of.values():
        rng.shuffle(prompts)
    if not prompts_of[part]:
        raise InputError(f"{path.name!r} holds no question for the {part} part.")
    return prompts_of[part]


def _read_questions(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise FileError(f"There is no file {str(path)!r} to take questions from.")
    questions = []
    for row in rows(path):
        try:
            values = {name: row.values[name] for name in _QUESTION}
            values |= {"start": int(values["start"]), "answer": str(values["answer"])}
            questions.append(values)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{row.place} is not a question with {', '.join(_QUESTION[:-1])} and "
                f"{_QUESTION[-1]} ({error!r})."
            ) from error
    return questions


def _among_documents(
    documents: Sequence[str], place: int, question: str, answer: str
) -> CompletionPrompt:
    text = ""
    spans = []
    for number, document in enumerate(documents, start=1):
        text += f"Document {number}: "
        spans.append((len(text), len(text) + len(document)))
        text += f"{document}\n\n"
    start = spans[place][0] + documents[place].index(answer)
    return CompletionPrompt(
        f"{text}Question: {question}\nAnswer:",
        answer=(start, start + len(answer)),
        expected=answer,
        inside=tuple(spans),
        documents=tuple(spans),
    )


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z\"(])", text.strip()) if part]


def _crop(text: str, words: int, around: int | None = None) -> str:
    """Whole sentences, at most about so many words, that hold the character `around`."""
    starts, at = [], 0
    parts = _sentences(text)
    for part in parts:
        starts.append(text.index(part, at))
        at = starts[-1] + len(part)
    first = 0 if around is None else max(k for k, start in enumerate(starts) if start <= around)
    last = first + 1
    lengths = [len(part.split()) for part in parts]
    while True:
        if last < len(parts) and sum(lengths[first : last + 1]) <= words:
            last += 1
        elif around is not None and first > 0 and sum(lengths[first - 1 : last]) <= words:
            first -= 1
        else:
            return " ".join(parts[first:last])
