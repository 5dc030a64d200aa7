"""ask(): a question over documents, answered by a language model, with the documents it drew on."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.attribution import Attribution
from attnflow.attribution.passages import (
    DOCUMENTS,
    LOG_PROBS,
    SELECTION,
    STATEMENTS,
    Citation,
    Statement,
    citations_of,
    positions_of,
    statements_of,
)
from attnflow.errors import AttributionWarning, InputError, TokensError, percent, shorten
from attnflow.errors.arguments import checked_arguments
from attnflow.explainers.ablation import ablate
from attnflow.explainers.completions import existing_completion, mark_documents, read_completion
from attnflow.explainers.defaults import default_method
from attnflow.explainers.prompts import Prompt, encode_prompts
from attnflow.explainers.questions import (
    Question,
    WrittenAnswer,
    check_question,
    given_answer,
    question_prompt,
    question_title,
    uses_chat,
    write_answer,
)
from attnflow.explainers.verdicts import check_statements
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.restore import in_step
from attnflow.hosts.transformers.generate import checked_generator
from attnflow.methods import BalancedGradient, Method, RerunMethod, make_method
from attnflow.models import WRITER
from attnflow.show.progress import in_notebook
from attnflow.tokens.documents import Document, Documents, named_documents
from attnflow.tokens.units import Unit

if TYPE_CHECKING:
    from attnflow.show.page import InteractiveView

_MOST_CONFIRMED = 5  # documents that are left out, one run each


@dataclass(frozen=True)
class Omission:
    """The answer of the model when one document is left out.

    changed: whether that is another answer. less_likely: how many times less likely the first
    answer is while the document's tokens are hidden from the model.
    """

    document: str
    answer: str
    changed: bool
    less_likely: float

    def __str__(self) -> str:
        verdict = "changes" if self.changed else "stays"
        how = f"the first one is {_times(self.less_likely)} likely"
        return f'without {self.document}: "{self.answer}"; the answer {verdict} ({how})'


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer, and for each statement of it the documents that the model draws on.

    `result` is the attribution behind it: layer × statement × prompt token, or a row for each token
    where the method explains tokens. `str()` gives the answer and a line for each statement; a
    notebook shows the same with the text shaded.

    >>> import numpy as np
    >>> from attnflow import Raw, Tokens
    >>> result = Attribution(
    ...     np.ones((1, 1, 2)) / 2, (1,), Tokens(("45",)), Tokens(("45", "Ġdays")), Raw(),
    ...     provenance={"completion": "45", "documents": [["a.txt", 0, 2]]},
    ... )
    >>> print(Answer("How long?", (Document("a.txt", "45 days"),), result).lines[0])
    "45" draws on a.txt, sentence 1 (100 %).
    """

    question: str
    documents: tuple[Document, ...]
    result: Attribution
    omissions: tuple[Omission, ...] = ()

    @property
    def text(self) -> str:
        """The answer, as it was given or, without spaces around it, as it was written."""
        return str(self.result.provenance["completion"])

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """The sentences of the answer, each with its documents, strongest first."""
        return statements_of(self.result)

    @cached_property
    def citations(self) -> tuple[Citation, ...]:
        """The places in the documents that the statements rest on, in the answer's order."""
        return citations_of(self.result)

    @property
    def lines(self) -> list[str]:
        """A line for each statement, one for each document that was left out, and what was read."""
        return [*map(str, self.statements), *map(str, self.omissions), *self.remarks]

    @property
    def remarks(self) -> list[str]:
        """A sentence where the model read only the passages of documents that a search found."""
        parts = [
            f"{count} of {total} of {name}"
            for name, count, total in self.result.provenance.get(SELECTION, ())
        ]
        about = "The model read only the passages that a lexical search (BM25) found"
        return [f"{about}: {', '.join(parts)}."] if parts else []

    def __str__(self) -> str:
        return "\n".join([self.text, "", *self.lines])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the answer, its statements with their sources, the result."""
        return {
            "question": self.question,
            "answer": self.text,
            "statements": [
                {
                    "text": statement.text,
                    "tokens": list(statement.rows),
                    "likelihood": statement.likelihood,
                    "is_unlikely": statement.is_unlikely,
                    "sources": [vars(source) for source in statement.sources],
                    "verdict": statement.verdict and statement.verdict.to_dict(),
                }
                for statement in self.statements
            ],
            "citations": [citation.to_dict() for citation in self.citations],
            "omissions": [vars(omission) for omission in self.omissions],
            "result": self.result.to_dict(),
        }

    def to_html(self, *, title: str | None = None) -> str:
        """The viewer as one HTML file, the answer first."""
        return self.result.to_html(title=title or self.question)

    def viewer(self, *, height: int = 760) -> InteractiveView:
        """The same viewer in a notebook's cell."""
        return self.result.viewer(title=self.question, height=height)

    def _repr_html_(self) -> str:
        from attnflow.show.page import answer_html, share_lines

        lines = [*share_lines(self.statements), *map(str, self.omissions)]
        return answer_html(self.result, question=self.question, lines=lines)


@in_step
@checked_arguments
@in_notebook
def ask(
    model: ModelLike,
    question: Question,
    documents: Documents,
    method: str | Method | None = None,
    *,
    answer: str | None = None,
    max_new_tokens: int = 64,
    chat: bool | None = None,
    check: bool = True,
    confirm: bool = False,
    **generate_kwargs: Any,
) -> Answer:
    """Answer a question from documents, and say which of them each statement rests on.

    model: a name, a path, what `attnflow.load` gives, a loaded module with its tokenizer as a pair,
        or None for SmolLM2.
    question: a text; or a conversation of messages, where the documents stand before the last
        message of the user; or None for an answer whose question nobody knows.
    documents: texts, or texts by name: ["...", "..."] or {"contract.txt": "..."}. Special tokens
        in them, and in the question, are text.
    answer: an answer that is there already, whoever wrote it. `answer.statements[0].likelihood`
        says how likely the model finds it; a warning tells where it would hardly have written it.
    chat: whether the model's chat template is used; None uses it where there is one. Without it
        the answer is the first line that the model writes.
    check: have the model read each statement again without the sentence that is named, with only
        its document, and with no document: `answer.statements[0].verdict` says what it rests on.
        That takes about as long as reading the prompt.
    confirm: leave out each document that is named, ask again, and note whether the answer changes.

    Everything else is as in `generate`.

    >>> from attnflow.testing import tiny_decoder
    >>> texts = {"a.txt": "the keys to the cabinets .", "b.txt": "the author is old ."}
    >>> answer = ask(tiny_decoder(), "the keys", texts, max_new_tokens=3)
    >>> sorted(source.name for source in answer.statements[0].sources)
    ['a.txt', 'b.txt']
    >>> ask(tiny_decoder(), "the keys", texts, answer="the author").text
    'the author'
    """
    collection = named_documents(documents)
    loaded = as_model(model, default=WRITER)
    if answer is None:
        checked_generator(loaded.module)
    templated = uses_chat(loaded.tokenizer, chat)
    check_question(question, answer, templated)
    prompt = question_prompt(loaded, question, collection, templated)
    _check_window(loaded, prompt, 0 if answer is not None else max_new_tokens)
    if answer is not None:
        _check_given(confirm, generate_kwargs)
        text = given_answer(loaded, answer, templated)
        result = read_answer(loaded, prompt, collection, text, method, check=check)
        _warn_of_unlikely(result)
        return Answer(question_title(question), collection, result)

    def write(prompt: Prompt) -> WrittenAnswer:
        return write_answer(loaded, prompt, templated, max_new_tokens, generate_kwargs)

    result = read_answer(loaded, prompt, collection, write(prompt), method, check=check)
    first = Answer(question_title(question), collection, result)
    if not confirm:
        return first

    def again(others: Sequence[Document]) -> str:
        return write(question_prompt(loaded, question, others, templated)).text

    return replace(first, omissions=_omissions(loaded, first, prompt.ids, again))


@checked_arguments
def grounded(
    model: ModelLike,
    answer: str,
    documents: Documents,
    *,
    question: Question = None,
    chat: bool | None = None,
) -> tuple[Statement, ...]:
    """Return the statements of an answer that exists, each with what it rests on: `.verdict`.

    This is `ask(model, question, documents, answer=answer)` for whoever wants nothing else. A
    statement whose verdict has the kind "none" is as likely without any document.

    >>> from attnflow.testing import tiny_decoder
    >>> texts = {"a.txt": "the keys to the cabinets .", "b.txt": "the author is old ."}
    >>> (statement,) = grounded(tiny_decoder(), "the cabinets", texts, question="the keys")
    >>> statement.text, statement.verdict.kind
    ('the cabinets', 'none')
    """
    return ask(model, question, documents, answer=answer, chat=chat).statements


def read_answer(
    model: Model,
    prompt: Prompt,
    documents: Sequence[Document],
    answer: WrittenAnswer,
    method: str | Method | None = None,
    *,
    check: bool = True,
) -> Attribution:
    """Return what each statement of an answer draws on in the documents of its prompt.

    check: add a verdict for each. The result says how likely each token is to the model.
    """
    applied = default_method(model) if method is None else make_method(method)
    targets = None
    if explains_statements(applied):  # once for each statement, not for each token
        targets = statement_slices(answer.statements) or None
    completion = existing_completion(model, encode_prompts(model, prompt), answer.ids)
    completion.keys.extend(answer.keys)
    result = read_completion(model, completion, applied, targets)
    result = mark_documents(result, documents, prompt)
    notes: dict[str, Any] = {"completion": answer.text, STATEMENTS: _marks_of(answer)}
    if answer.stop is not None:
        notes["stop"] = answer.stop
    result = replace(result, provenance={**result.provenance, **notes})
    if check:
        return check_statements(result, model, completion, applied)
    if LOG_PROBS not in result.provenance:
        ablation = ablate(model, prompt.ids, answer.ids, by=None, keys=completion.keys)
        likely = ablation.token_log_probs([()])[0].tolist()
        result = replace(result, provenance={**result.provenance, LOG_PROBS: likely})
    return result


def _check_window(model: Model, prompt: Prompt, new: int) -> None:
    """Raise if the documents do not fit, before anything runs."""
    limit, count = model.facts.max_length, len(prompt.ids)
    if limit is not None and not model.facts.encoder_decoder and count + new > limit:
        raise TokensError(
            f"The documents and the question have {count:,} tokens, and {new:,} are to be written; "
            f"{type(model.module).__name__} takes {limit:,}. Ask over fewer documents, ask a model "
            "with a larger window, or keep the passages that a search finds: --select-passages; in "
            "Python, attnflow.select_passages(model, question, documents)."
        )


def _marks_of(answer: WrittenAnswer) -> list[list[int | str]]:
    """Return the tokens of each statement, where it begins in the answer, and its characters."""
    return [
        [unit.tokens[0], unit.tokens[-1] + 1, unit.span[0], answer.text[slice(*unit.span)]]
        for unit in answer.statements
    ]


def explains_statements(method: Method) -> bool:
    """Return whether a method explains a statement as one, not token by token."""
    return isinstance(method, RerunMethod | BalancedGradient)


def statement_slices(statements: Sequence[Unit]) -> list[slice]:
    """Return the tokens of each statement of an answer."""
    return [slice(unit.tokens[0], unit.tokens[-1] + 1) for unit in statements]


def _check_given(confirm: bool, options: Mapping[str, Any]) -> None:
    """Refuse what only an answer that is still to be written can have."""
    if confirm:
        raise InputError(
            "confirm=True lets the model answer again; answer= was written elsewhere. Its verdicts "
            "(check=True) come from hiding documents."
        )
    if options:
        raise InputError(
            f"{', '.join(options)}: options of the model's generate() say how an answer is "
            "written; answer= is written already."
        )


def _warn_of_unlikely(result: Attribution) -> None:
    """Say which statements the model would hardly have written itself."""
    for statement in statements_of(result):
        if statement.is_unlikely:
            warnings.warn(
                f"This model would hardly have written {shorten(statement.text)}: it gives each "
                f"token {percent(statement.likelihood or 0.0, 1)} in the mean. Its sources only "
                "make it a little less unlikely; ask a larger model, or the one that wrote it.",
                AttributionWarning,
                stacklevel=4,
            )


def _omissions(
    model: Model, answer: Answer, ids: Sequence[int], again: Callable[[Sequence[Document]], str]
) -> tuple[Omission, ...]:
    """Leave each named document out: ask the model again, and take the first answer's odds."""
    names = [source.name for statement in answer.statements for source in statement.sources[:2]]
    strongest = list(dict.fromkeys(names))[:_MOST_CONFIRMED]
    places = {
        str(name): positions_of(answer.result, range(int(first), int(end)))
        for name, first, end in answer.result.provenance[DOCUMENTS]
    }
    ablation = ablate(model, ids, answer.result.provenance["completion_ids"], by=None)
    scores = ablation.log_probs([(), *(places[name] for name in strongest)])
    factors = np.exp(scores[0] - scores[1:]).tolist()
    omissions = []
    for name, factor in zip(strongest, factors, strict=True):
        others = [document for document in answer.documents if document.name != name]
        text = again(others)
        changed = _plain(text) != _plain(answer.text)
        omissions.append(Omission(name, text, changed, factor))
    return tuple(omissions)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w ]", "", text.casefold()).split())


def _times(factor: float) -> str:
    if factor < 1:
        return f"{1 / factor:.1f} times more"
    return f"{factor:,.0f} times less" if factor >= 10 else f"{factor:.1f} times less"
