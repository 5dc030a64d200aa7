"""Datasets: columns of citations, by `Dataset.map(CitationColumns(...), batched=True)`.

>>> from attnflow.testing import tiny_decoder
>>> texts = ["the keys to the cabinets .", "the author is old ."]
>>> rows = {"answer": ["the author", ""], "documents": [texts, texts]}
>>> columns = CitationColumns(tiny_decoder())(rows)
>>> columns["grounded"], columns["error"][1]
([0.0, None], "There is nothing to explain: the answer is ''.")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnflow.attribution.passages import Citation
from attnflow.errors import InputError
from attnflow_connect.frameworks import ask_alone, grounded_part

_TYPES = {"int": "int64", "str": "string", "float": "float64"}


@dataclass(frozen=True)
class CitationColumns:
    """A function for `Dataset.map(..., batched=True)` that adds what each row's answer rests on.

    citations: the records; verdicts: the kind of each statement's; grounded: the part of the
    statements that rest on a document; error: why a row could not be used, else None.

    model: a name or folder lets datasets keep what it made and work in several processes.
    question, answer, documents: the columns that are read; one for questions need not be there.
    """

    model: Any = None
    question: str = "question"
    answer: str = "answer"
    documents: str = "documents"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the new columns of a batch."""
        questions = rows.get(self.question) or [None] * len(rows[self.answer])
        entries = zip(questions, rows[self.answer], rows[self.documents], strict=True)
        records = [self._record(*entry) for entry in entries]
        return {name: [record[name] for record in records] for name in records[0]}

    def _record(self, question: str | None, text: str, documents: Any) -> dict[str, Any]:
        record: dict[str, Any] = {"citations": [], "verdicts": [], "grounded": None, "error": None}
        try:
            answer = ask_alone(self.model, question, documents, answer=text, **self.options)
        except InputError as error:
            return {**record, "error": str(error)}
        kinds = [each.verdict and each.verdict.kind for each in answer.statements]
        cited = [citation.to_dict() for citation in answer.citations]
        part = grounded_part(answer.statements)
        return {**record, "citations": cited, "verdicts": kinds, "grounded": part}

    def features(self, features: Any) -> Any:
        """Return a dataset's features with the new columns: no batch need show their types.

        `dataset.map(columns, batched=True, features=columns.features(dataset.features))`
        """
        from datasets import Features, List, Value

        names = {name: str(kind).split()[0] for name, kind in Citation.__annotations__.items()}
        citation = {name: Value(_TYPES.get(kind, "string")) for name, kind in names.items()}
        return Features(
            {
                **features,
                "citations": List(citation),
                "verdicts": List(Value("string")),
                "grounded": Value("float64"),
                "error": Value("string"),
            }
        )
