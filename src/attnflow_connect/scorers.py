"""Grounded: the part of an answer's statements that rest on a document. No model is asked to judge.

A scorer for MLflow and a metric for Ragas: both count what `attnflow.grounded` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnflow.errors import InputError, optional_import, shorten
from attnflow_connect.frameworks import ask_alone, grounded_part

_QUESTIONS = ("question", "query", "input", "request", "user_input")
_DOCUMENTS = ("documents", "context", "contexts", "retrieved_contexts")


def mlflow_scorer(model: Any = None, *, name: str = "grounded") -> Any:
    """Return a scorer for `mlflow.genai.evaluate`: a number, and why, statement by statement.

    The documents are those of the trace's retriever spans; without any, the inputs' "documents" or
    "context". model: as `attnflow.load` takes it; None is SmolLM2.
    """
    genai = optional_import("mlflow.genai", extra="mlflow", purpose="mlflow_scorer")
    entities = optional_import("mlflow.entities", extra="mlflow", purpose="mlflow_scorer")
    source = entities.AssessmentSource(source_type="CODE", source_id="attnflow")

    @genai.scorer(name=name)
    def score(inputs: Any = None, outputs: Any = None, trace: Any = None) -> Any:
        fields = inputs if isinstance(inputs, Mapping) else {}
        documents = _retrieved(trace) or _first(fields, _DOCUMENTS)
        question = inputs if isinstance(inputs, str) else _first(fields, _QUESTIONS)
        value, reason = _score(model, question, _text(outputs), documents)
        return entities.Feedback(name=name, value=value, rationale=reason, source=source)

    return score


def ragas_metric(model: Any = None, *, name: str = "grounded") -> Any:
    """Return a metric for Ragas, from 0 to 1: of user_input, response and retrieved_contexts.

    model: as `attnflow.load` takes it; None is SmolLM2.
    """
    metrics = optional_import("ragas.metrics", extra="ragas", purpose="ragas_metric")

    @metrics.numeric_metric(name=name, allowed_values=(0.0, 1.0))
    def score(response: str, retrieved_contexts: list[str], user_input: str | None = None) -> Any:
        value, reason = _score(model, user_input, response, retrieved_contexts)
        return metrics.MetricResult(value=value, reason=reason)

    return score


def _score(
    model: Any, question: str | None, answer: str, documents: Sequence[str] | None
) -> tuple[float, str]:
    """Return the part of the statements that rest on a document, and a line for each of them."""
    if not documents:
        raise InputError(
            f"There are no documents for the answer {shorten(answer)}: give inputs "
            f"{' or '.join(map(repr, _DOCUMENTS[:2]))}, or a trace with retriever spans."
        )
    statements = ask_alone(model, question, documents, answer=answer).statements
    return grounded_part(statements), "\n".join(map(str, statements))


def _retrieved(trace: Any) -> list[str]:
    """Return the texts that the retrievers of a trace gave, in their order."""
    if trace is None:
        return []
    spans = trace.search_spans(span_type="RETRIEVER")
    chunks = [chunk for span in spans for chunk in span.outputs or ()]
    texts = [_first(each, ("page_content", "content", "text")) for each in chunks]
    return list(dict.fromkeys(text for text in texts if text))  # one may be found twice


def _text(outputs: Any) -> str:
    if isinstance(outputs, Mapping):
        outputs = _first(outputs, ("response", "answer", "output", "content", "text"))
    return str(outputs or "")


def _first(fields: Any, names: Sequence[str]) -> Any:
    """Return the first of these fields that is there; of what has no fields, itself."""
    if not isinstance(fields, Mapping):
        return fields
    return next((fields[name] for name in names if fields.get(name)), None)
