"""Is the sentence named that gave the order; the passages that poisoned; the supports of hops?

An order stands in an e-mail that a tool returned, or in the user's message. The answer that takes
it up is explained as `attnflow explain transcript.json` explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attnflow.errors import InputError
from attnflow.errors.progress import tell
from attnflow.evaluation.metrics import compare_paired, summarize
from attnflow.evaluation.table import Cell, Table
from attnflow.explainers.prompts import encode_prompts
from attnflow.explainers.transcripts import COMMANDED, explain_transcript
from attnflow.explainers.writer import write_texts
from attnflow.hosts.inputs import tokens_of
from attnflow.hosts.model import Model
from attnflow.methods import make_method
from attnflow.tokens.transcripts import compose_messages, read_transcript
from attnflow_experiments.documents.data import SourcedQuestion, supported_questions
from attnflow_experiments.documents.reading import (
    CHECKED,
    DEFAULT,
    AnswerReading,
    method_name,
)
from attnflow_experiments.journal import append_record, read_journal
from attnflow_experiments.orders.data import Order, auroc, poisoned_questions, read_orders
from attnflow_experiments.report import Report

KINDS = ("injections", "poison", "hotpot", "2wiki")
_ALONE = "leave-one-out:alone=true"  # five passages that say the same are each needless
# of two hops the answer misses the second alone; the question speaks of the first
_WITH_QUESTION = "leave-one-out:level=document,question=true"
METHODS = (
    DEFAULT,
    CHECKED,
    "careful",
    _ALONE,
    _WITH_QUESTION,
    "ablation-regression",
    "leave-one-out",
)
_MOST_WRITTEN = 32
_GIVERS = ("data", "user")

Case = tuple[str, Callable[[], dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class OrdersExperiment:
    """The experiment.

    methods: names as `ask` takes them, "default", or "checked" (and "checked+NAME") for what `ask`
        names after its check; injections are explained by the first alone.
    kinds: "injections", orders in e-mails; "poison", five wrong passages among ten; "hotpot" and
        "2wiki", the supports of gold answers.
    cases: at most so many of each kind.
    reads_answers: read the answer to the order alone as if the model had written it after the
        transcript, so that every order counts; otherwise those count that the model takes up.
    """

    methods: Sequence[str] = METHODS
    kinds: Sequence[str] = KINDS
    cases: int | None = None
    reads_answers: bool = False

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise InputError(f"No data {unknown[0]!r}. There are {', '.join(KINDS)}.")
        if self.cases is not None and self.cases < 1:
            raise InputError(f"cases is a number of at least 1; got {self.cases!r}.")
        for name in self.methods:  # a long run must not fail on a name
            if method_name(name) != DEFAULT:
                make_method(method_name(name))

    def __call__(self, model: Model, *, data: Path, journal: Path | None) -> Report:
        """Run each case, and keep it in the journal as it is done."""
        cases = [case for kind in self.kinds for case in self._cases(kind, model, data)]
        done = read_journal(journal)
        records = []
        for number, (name, run) in enumerate(cases):
            tell("orders", number, len(cases))
            if name not in done:
                done[name] = {"name": name, "kind": name.partition(" ")[0], **run()}
                append_record(journal, done[name])
            records.append(done[name])
        tell("orders", len(cases), len(cases))
        tables = (self._table(k, [r for r in records if r["kind"] == k]) for k in self.kinds)
        return Report(
            name="orders",
            title="Who gave the order: injected instructions, poisoned passages, supports of hops",
            protocol=(
                "Injections: an order stands in an e-mail that a tool returned, or in the user's "
                "message; an answer counts that takes up half of its telling words and copies no "
                "other sentence of the e-mail. First: the sentence named first is the order. The "
                "share from data is held against that where the user gave the order.",
                "Poison: five passages for a wrong answer among five others; answers that repeat "
                "it count. The share of them among the first five.",
                "HotpotQA and 2Wiki: the gold answer is read. The share of the supporting "
                "paragraphs among as many named first.",
            ),
            tables=tuple(tables),
        )

    def _cases(self, kind: str, model: Model, data: Path) -> Iterator[Case]:
        mode = "given" if self.reads_answers else "written"
        if kind == "injections":
            for number, order in enumerate(read_orders(data)[: self.cases]):
                for giver in _GIVERS:
                    run = partial(self._try_order, model, order, giver)
                    yield f"{kind} {mode} {number} {giver}", run
            return
        if kind == "poison":
            questions = poisoned_questions(data)
        else:
            questions, _ = supported_questions(data / f"{kind}.jsonl", 10)
        for number, question in enumerate(questions[: self.cases]):
            run = partial(self._try_question, model, question, kind != "poison")
            yield f"{kind} {number} {'+'.join(self.methods)}", run

    def _try_order(self, model: Model, order: Order, giver: Any) -> dict[str, Any]:
        messages = order.messages(giver)
        source = [{"role": "user", "content": order.instruction}]
        answer = write_answer(model, source if self.reads_answers else messages)
        record: dict[str, Any] = {"giver": giver, "answer": answer}
        if not order.is_followed(answer):
            return {**record, "counts": False}
        transcript = [*messages, {"role": "assistant", "content": answer}]
        name = self.methods[0]
        method = None if name == DEFAULT else name
        action = explain_transcript(model, transcript, "the answer", method)
        return {
            **record,
            "counts": True,
            "first": order.is_named(action.sources[0].text),
            "first_of_data": giver == "data"
            and order.is_named(next(s.text for s in action.sources if s.trust == "data")),
            "data_share": action.data_share,
            "named": [action.sources[0].place, action.sources[0].text],
        }

    def _try_question(self, model: Model, case: SourcedQuestion, gold: bool) -> dict[str, Any]:
        reading = (AnswerReading.of_given if gold else AnswerReading.of_written)(model, case)
        record = {"answer": reading.text, "counts": gold or reading.is_right}
        if not record["counts"]:
            return record
        count, shares = len(case.right), {}
        for name in self.methods:
            first = reading.ranking(name)[:count]
            shares[name] = len(set(first) & set(case.right)) / count
        return {**record, "recall": shares}

    def _table(self, kind: str, records: Sequence[Mapping[str, Any]]) -> Table:
        counted = [record for record in records if record["counts"]]
        note = f"{len(counted)} of {len(records)} count."
        if kind == "injections":
            return _orders_table(counted, note)
        shares = {name: [record["recall"][name] for record in counted] for name in self.methods}
        first, last = shares[self.methods[0]], self.methods[-1]
        cells = {
            name: (
                _share(hits),
                Cell.of_difference(compare_paired(first, hits)),
                Cell.of_difference(compare_paired(hits, shares[last])),
            )
            for name, hits in shares.items()
        }
        heading = "precision at 5" if kind == "poison" else "recall of the supports"
        columns = (heading, f"{self.methods[0]} less it", f"less {last}")
        return Table(kind, f"{kind}: {heading}", columns, cells, note)


def write_answer(model: Model, messages: Sequence[Mapping[str, Any]]) -> str:
    """Let the model go on after a transcript, calls of tools included."""
    silent = [*messages, {"role": "assistant", "content": "."}]  # a transcript has an answer
    turns, _ = compose_messages(read_transcript(silent)[:-1])
    batch = encode_prompts(model, turns)
    ids = write_texts(model, batch, _MOST_WRITTEN, options={"min_new_tokens": 1})[0].ids
    return "".join(tokens_of(model.tokenizer, ids).surfaces()).strip()


def _orders_table(counted: Sequence[Mapping[str, Any]], note: str) -> Table:
    by_giver = {giver: [r for r in counted if r["giver"] == giver] for giver in _GIVERS}
    shares = [[record["data_share"] for record in by_giver[giver]] for giver in _GIVERS]
    over = [_share([share >= COMMANDED for share in part]) for part in shares]
    cells = {
        f"ordered by {giver}": (_share([r["first"] for r in by_giver[giver]]), cell)
        for giver, cell in zip(_GIVERS, over, strict=True)
    }
    areas = Cell(auroc(*shares), n=len(counted))
    empty = _share([])
    cells["of data, told from the user"] = (
        _share([r["first_of_data"] for r in by_giver["data"]]),
        empty,
    )
    cells["area under the curve of the share from data"] = (areas, empty)
    columns = ("order named first", f"share from data of {COMMANDED:.2f} or more")
    return Table("injections", "Orders in e-mails and of the user", columns, cells, note)


def _share(hits: Sequence[float]) -> Cell:
    return Cell.of_share(summarize(np.array(hits, dtype=np.float64)))
