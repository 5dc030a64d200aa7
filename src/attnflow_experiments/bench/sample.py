"""A small sample of every data set, in the formats of their files, made of the ordinary documents.

They are of our own writing and ship with the package, so that the whole bench runs without a
download. Real data sets have the same layout: `--data FOLDER`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnflow.storage import write_text
from attnflow.tokens.units import sentence_spans
from attnflow_experiments.documents.data import ordinary_content

_WORDS = 130  # of a paragraph of running text
_POISON = 5


def write_sample(folder: Path) -> Path:
    """Write every file of the sample into a folder, and return it."""
    content = ordinary_content()
    texts = {each["name"]: str(each["text"]) for each in content["documents"]}
    kinds = {each["name"]: str(each["kind"]) for each in content["documents"]}
    questions = content["questions"]
    names = list(texts)
    _write(folder / "squad/questions.jsonl", (_squad(q, texts, kinds) for q in questions))
    single = [_supported(q, [q["document"]], texts) for q in questions]
    _write(folder / "sources/nq.jsonl", single)
    _write(folder / "sources/clapnq.jsonl", (s for s in single if s["support"][0][1] is not None))
    several = [
        _supported(q, [q["document"], *_others(names, q["document"], 4)], texts) for q in questions
    ]
    for each in several:  # the second document counts as a support, as in a question of two hops
        each["support"].append([1, None])
    for name in ("hotpot", "2wiki", "musique"):
        _write(folder / f"sources/{name}.jsonl", several)
    _write(folder / "sources/quotesum.jsonl", map(_quoted, several))
    _write(folder / "sources/poisoned-rag.jsonl", map(_poisoned, questions))
    unanswered = [{**each, "answers": [], "support": []} for each in single]
    _write(folder / "sources/clapnq-unanswerable.jsonl", unanswered)
    sentences = {
        text[slice(*span)].strip() for text in texts.values() for span in sentence_spans(text)
    }
    lines = sorted(" ".join(sentence.split()) for sentence in sentences if '"' not in sentence)
    for name, column in (("sst2/dev.tsv", "text"), ("pronouns/winogender.tsv", "sentence")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / name, "\n".join([f"id\t{column}", *(f"0\t{x}" for x in lines), ""]))
    words = " ".join(texts.values()).split()
    plain = [word for word in words if word.isascii() and word.strip(".,;:!?").isalpha()]
    parts = [plain[at : at + _WORDS] for at in range(0, len(plain) - _WORDS, _WORDS)]
    write_text(folder / "text.txt", "".join(" ".join(part) + "\n" for part in parts))
    return folder


def _write(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def _squad(
    question: Mapping[str, Any], texts: Mapping[str, str], kinds: Mapping[str, str]
) -> dict[str, Any]:
    text = texts[question["document"]]
    answer = next((a for a in question["answers"] if a in text), question["evidence"])
    return {
        "article": kinds[question["document"]],
        "paragraph": question["document"],
        "context": text,
        "question": question["question"],
        "answer": answer,
        "start": text.index(answer),
    }


def _others(names: list[str], name: str, count: int) -> list[str]:
    start = names.index(name)
    return [names[(start + 3 * step) % len(names)] for step in range(1, count + 1)]


def _supported(
    question: Mapping[str, Any], names: list[str], texts: Mapping[str, str]
) -> dict[str, Any]:
    """Return a question over documents, of which the first supports the answer."""
    documents = [
        {"title": name, "sentences": [texts[name][slice(*s)] for s in sentence_spans(texts[name])]}
        for name in names
    ]
    evidence = str(question["evidence"]).strip()
    lines = documents[0]["sentences"]
    holding = [k for k, line in enumerate(lines) if evidence in line or line.strip() in evidence]
    return {
        "id": question["question"],
        "question": question["question"],
        "answers": list(question["answers"]),
        "documents": documents,
        "support": [[0, holding[0] if holding and len(lines) > 1 else None]],
    }


def _quoted(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same with an answer of which a part is quoted from the first document."""
    answer = str(record["answers"][0])
    text = f"One source says {answer}."
    start = text.index(answer)
    entry = {k: v for k, v in record.items() if k != "support"}
    return {**entry, "answers": [text], "spans": [[start, start + len(answer), 0]]}


def _poisoned(question: Mapping[str, Any]) -> dict[str, Any]:
    text, wrong = str(question["question"]), "the blue lantern"
    poison = [f"Note {k}: asked {text} people now say {wrong}." for k in range(1, _POISON + 1)]
    answers = list(question["answers"])
    return {
        "question": text,
        "answers": answers,
        "poisoned_answer": wrong,
        "poison": poison,
    }
