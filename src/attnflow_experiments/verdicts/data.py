"""Questions of which it is known whether an answer can rest on the documents.

Facts that models know (ROME's), asked beside a passage that agrees, one that contradicts, or none
that speaks of them; ordinary documents, as they are and with a copy of the right one; questions
that their passage does not answer. Each kind has a development and a held-out part by the names of
its items.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attnflow.data import rows
from attnflow.errors import InputError
from attnflow.evaluation.subjects.rankings import is_answered
from attnflow_experiments.ablation.data import Part, part_of
from attnflow_experiments.documents.data import SourcedQuestion, ordinary_questions

Kind = Literal["agreeing", "contradicting", "unrelated", "ordinary", "doubled", "unanswerable"]
KINDS: tuple[Kind, ...] = (
    "agreeing", "contradicting", "unrelated", "ordinary", "doubled", "unanswerable",
)  # fmt: skip
OF_FACTS: tuple[Kind, ...] = ("agreeing", "contradicting", "unrelated")
_SEED = 29  # of the draws: another seed would ask other questions
_OTHERS = 3  # statements of other facts beside the one that is asked
FILES = {"facts": "known-facts.jsonl", "unanswerable": "clapnq-unanswerable.jsonl"}
FILLING = "nq.jsonl"


@dataclass(frozen=True)
class GroundedCase:
    """A question over documents, and what its answers would mean.

    question: its answers are those that its right documents state, if any. known: the true answer
    of a fact, which the model may give from memory.
    """

    name: str
    kind: Kind
    question: SourcedQuestion
    known: str | None = None

    def rests(self, answer: str) -> bool | None:
        """Return whether an answer rests on the documents; None where that is not known."""
        case = self.question
        if any(is_answered(one, answer, cut_off=False) for one in case.answers):
            return True
        is_true = self.known is not None and is_answered(self.known, answer, cut_off=False)
        if (is_true or self.kind == "unanswerable") and not self._draws_words(answer):
            return False
        return None

    def _draws_words(self, answer: str) -> bool:
        """Return whether an answer has a word of the documents that the question does not have.

        A document's name stands in the prompt with its text. Only words of at least four letters
        and numbers count; an answer without any tells nothing.
        """
        words = {word for word in _words(answer) if len(word) > 3 or word.isdigit()}
        words -= _words(self.question.question)
        return not words or any(words & _words(" ".join(each)) for each in self.question.documents)


def _words(text: str) -> set[str]:
    return {"".join(filter(str.isalnum, word)).lower() for word in text.split()}


def grounded_cases(
    folder: Path | None, part: Part, kinds: Sequence[Kind], count: int | None
) -> Iterator[GroundedCase]:
    """Yield the cases of each kind, at most so many; those of files only where they are there."""
    if any(kind in OF_FACTS for kind in kinds):
        facts = _read(folder, FILES["facts"])
        own = [fact for fact in facts if part_of(str(fact["subject"])) == part][:count]
        for fact in own:
            yield from (case for case in _fact_cases(fact, facts) if case.kind in kinds)
    for question in ordinary_questions(part)[:count]:
        if "ordinary" in kinds:
            yield GroundedCase(f"ordinary-{question.question}", "ordinary", question)
        if "doubled" in kinds:
            yield GroundedCase(f"doubled-{question.question}", "doubled", doubled(question))
    if "unanswerable" in kinds:
        records = _read(folder, FILES["unanswerable"])
        own = [record for record in records if part_of(str(record["question"])) == part]
        for record in own[:count]:
            documents = tuple(
                (f"{number}. {each['title']}", " ".join(each["sentences"]))
                for number, each in enumerate(record["documents"], start=1)
            )
            question = SourcedQuestion(str(record["question"]), (), documents, (), ())
            yield GroundedCase(f"unanswerable-{record['question']}", "unanswerable", question)


def filling_texts(folder: Path | None) -> list[str]:
    """Return passages to fill up with."""
    records = _read(folder, FILLING)
    return [" ".join(each["sentences"]) for record in records for each in record["documents"]]


def _read(folder: Path | None, name: str) -> list[Mapping[str, Any]]:
    path = None if folder is None else folder / name
    if path is None or not path.is_file():
        where = "no folder was given" if folder is None else f"{str(folder)!r} does not hold it"
        raise InputError(
            f"These questions are read from {name}, and {where}. Give the folder that holds it "
            "with --data, or choose --kind ordinary and doubled, which ship."
        )
    return [row.values for row in rows(path)]


def _fact_cases(
    fact: Mapping[str, Any], facts: Sequence[Mapping[str, Any]]
) -> Iterator[GroundedCase]:
    """Yield a fact beside a statement of it, of its contrary, and of neither."""
    rng = random.Random(f"{_SEED}:{fact['prompt']}")
    true = str(fact["answer"])
    same = {str(one["answer"]) for one in facts if one["relation"] == fact["relation"]} - {true}
    if not same:
        return
    wrong = rng.choice(sorted(same))
    silent = [
        one
        for one in facts
        if one["subject"] != fact["subject"] and one["answer"] not in (true, wrong)
    ]
    others = [_statement(one, str(one["answer"])) for one in rng.sample(silent, _OTHERS + 1)]
    sentence = f'Complete this sentence: "{fact["prompt"]} ..."'
    answers: dict[Kind, str | None] = {"agreeing": true, "contradicting": wrong, "unrelated": None}
    for kind, answer in answers.items():
        own = others[-1] if answer is None else _statement(fact, answer)
        texts = [*others[:-1], own]
        rng.shuffle(texts)
        question = SourcedQuestion(
            sentence,
            () if answer is None else (answer,),
            tuple((f"note {number}.txt", text) for number, text in enumerate(texts, start=1)),
            () if answer is None else (texts.index(own),),
            (),
        )
        known = None if kind == "agreeing" else true
        yield GroundedCase(f"{kind}-{fact['prompt']}", kind, question, known)


def _statement(fact: Mapping[str, Any], answer: str) -> str:
    return f"{fact['prompt']} {answer}."


def doubled(question: SourcedQuestion) -> SourcedQuestion:
    """Return it with a copy of its right document at the other end."""
    (right,) = question.right
    name, text = question.documents[right]
    copy = (f"copy of {name}", text)
    first = right >= len(question.documents) // 2
    documents = (copy, *question.documents) if first else (*question.documents, copy)
    numbers = (0, right + 1) if first else (right, len(documents) - 1)
    return SourcedQuestion(
        question.question, question.answers, documents, numbers, question.evidence
    )
