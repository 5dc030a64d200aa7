"""An answer over documents, and the document that it is said to draw on, as `ask` says it.

`ask` writes an answer for each method. Here it is written once, or given, and several read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attnflow.attribution.passages import (
    STATEMENTS,
    RankedSource,
    rank_passages,
    statements_of,
)
from attnflow.evaluation.subjects.rankings import is_answered
from attnflow.explainers.ablation import ablate
from attnflow.explainers.answers import explains_statements, statement_slices
from attnflow.explainers.completions import mark_documents, read_completion
from attnflow.explainers.defaults import default_method
from attnflow.explainers.leave_out import AblationTask, function_of
from attnflow.explainers.prompts import Prompt, encode_prompts
from attnflow.explainers.questions import first_line, question_prompt, uses_chat
from attnflow.explainers.request import Completion, completion_ids
from attnflow.explainers.sources import Sources
from attnflow.explainers.verdicts import check_statements
from attnflow.explainers.writer import write_texts
from attnflow.hosts.model import Model
from attnflow.methods import Method, RerunMethod, make_method
from attnflow.tokens import Tokens
from attnflow.tokens.documents import named_documents
from attnflow.tokens.text import parts_in
from attnflow.tokens.units import split_units
from attnflow_experiments.documents.data import SourcedQuestion

DEFAULT = "default"
CHECKED = "checked"
"""The documents that `ask` names after its check, by the default; "checked+NAME": by another."""
_MOST_WRITTEN = 24  # tokens of an answer


def method_name(name: str) -> str:
    """Return the name of the method that explains, whether or not its answer is checked."""
    return DEFAULT if name == CHECKED else name.removeprefix(f"{CHECKED}+")


@dataclass(frozen=True, eq=False)
class AnswerReading:
    """An answer to a question, and the tokens of it that are traced to documents.

    ids: the answer's tokens. target: those of the statement with the answer, or of the given span.
    """

    model: Model
    case: SourcedQuestion
    ids: list[int]
    target: slice

    @classmethod
    def of_given(cls, model: Model, case: SourcedQuestion) -> AnswerReading:
        """Read the first accepted answer as if the model had written it."""
        answer = case.answers[0]
        ids = completion_ids(model, answer if uses_chat(model.tokenizer, None) else f" {answer}")
        surfaces = _surfaces(model, _prompt(model, case), ids)
        start = max("".join(surfaces).find(answer), 0)
        first, end = case.span or (0, len(answer))
        return cls(model, case, ids, slice(*parts_in(surfaces, start + first, start + end)))

    @classmethod
    def of_written(cls, model: Model, case: SourcedQuestion) -> AnswerReading:
        """Let the model write, and take the statement that gives the answer, or else the first."""
        prompt = _prompt(model, case)
        batch = encode_prompts(model, prompt)
        ids = write_texts(model, batch, _MOST_WRITTEN, options={"min_new_tokens": 1})[0].ids
        if not uses_chat(model.tokenizer, None):
            ids = ids[: first_line(_surfaces(model, prompt, ids))]
        surfaces = _surfaces(model, prompt, ids)
        statements = statement_slices(split_units(_names(model, ids), "sentence"))
        statements = statements or [slice(0, len(ids))]
        telling = (each for each in statements if _answers(case, "".join(surfaces[each])))
        return cls(model, case, ids, next(telling, statements[0]))

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(_surfaces(self.model, self.prompt, self.ids)).strip()

    @property
    def is_right(self) -> bool:
        """True where it holds an accepted answer."""
        return _answers(self.case, self.text)

    def named(self, name: str) -> tuple[int | None, str]:
        """Return the document that a method names first, and its strongest sentence."""
        sources = self._ranked(name)
        return (sources[0].passage, sources[0].text.strip()) if sources else (None, "")

    def ranking(self, name: str) -> list[int]:
        """Return all documents as a method ranks them, strongest first.

        One that runs the model again takes whole documents away.
        """
        method = self._method(name)
        if not isinstance(method, RerunMethod):
            return [source.passage for source in self._ranked(name)]
        prompt = self.prompt
        places = [tuple(range(*span)) for span in prompt.spans if span is not None]
        names = tuple(document for document, _ in self.case.documents)
        sources = Sources(names, tuple(places), len(prompt.ids), "document")
        ablation = ablate(self.model, prompt.ids, self.ids)
        target = tuple(range(len(self.ids))[self.target])
        values, _ = function_of(method)(method, AblationTask(ablation, sources, (target,)))
        return np.argsort(-values[0], kind="stable").tolist()

    def _method(self, name: str) -> Method:
        method = method_name(name)
        return default_method(self.model) if method == DEFAULT else make_method(method)

    def _ranked(self, name: str) -> tuple[RankedSource, ...]:
        method = self._method(name)
        by_statement = explains_statements(method)
        targets = [self.target] if by_statement else None
        completion = Completion(self.prompt, self.ids)
        result = read_completion(self.model, completion, method, targets)
        result = mark_documents(result, named_documents(self.case.documents), self.prompt)
        rows = [0] if by_statement else range(len(self.ids))[self.target]
        if not name.startswith(CHECKED):
            return rank_passages(result, rows)
        first, end, _ = self.target.indices(len(self.ids))
        noted = {**result.provenance, STATEMENTS: [[first, end, 0, self.text]]}
        result = replace(result, provenance=noted)
        checked = check_statements(result, self.model, completion, method)
        return statements_of(checked)[0].sources

    def most_needed(self) -> int:
        """Return the document whose hiding costs the target most."""
        ablation = ablate(self.model, self.prompt.ids, self.ids)
        places = [range(*span) for span in self.prompt.spans if span is not None]
        log_probs = ablation.token_log_probs(places)
        return int(np.argmin(log_probs[:, self.target].sum(axis=1)))

    @cached_property
    def prompt(self) -> Prompt:
        """The documents and the question, as the model is asked."""
        return _prompt(self.model, self.case)


def _prompt(model: Model, case: SourcedQuestion) -> Prompt:
    documents = named_documents(case.documents)
    return question_prompt(model, case.question, documents, uses_chat(model.tokenizer, None))


def _answers(case: SourcedQuestion, text: str) -> bool:
    return any(is_answered(answer, text, cut_off=False) for answer in case.answers)


def _names(model: Model, ids: Sequence[int]) -> list[str]:
    return [str(token) for token in model.tokenizer.convert_ids_to_tokens(ids)]


def _surfaces(model: Model, prompt: Prompt, ids: Sequence[int]) -> list[str]:
    """Return the tokens of an answer as they stand in it: one word alone may not show its kind."""
    tokens = Tokens(tuple(_names(model, [*prompt.ids, *ids])))
    return tokens.surfaces()[len(prompt.ids) :]
