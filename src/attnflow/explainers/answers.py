"""ask(): a question over documents, answered by a language model, with the documents it drew on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.attribution import Attribution
from attnflow.attribution.passages import (
    DOCUMENTS,
    Statement,
    passages_of,
    positions_of,
    statements_of,
)
from attnflow.errors import InputError, shorten
from attnflow.errors.arguments import checked_arguments
from attnflow.explainers.ablation import ablate
from attnflow.explainers.answer_rows import rows_of
from attnflow.explainers.completions import generate, mark_documents
from attnflow.explainers.defaults import default_method
from attnflow.explainers.gradient_rows import LOG_PROBS
from attnflow.explainers.prompts import Prompt, encode_parts
from attnflow.explainers.request import Completion
from attnflow.explainers.reruns import confirm_completion
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.methods import BalancedGradient, Method, RerunMethod, make_method
from attnflow.tokens.documents import (
    Document,
    Documents,
    compose_prompt,
    named_documents,
)
from attnflow.tokens.units import CharSpan, split_units

if TYPE_CHECKING:
    from attnflow.show.page import InteractiveView

_CHAT_ENDING = "\nAnswer in a few words."
_MOST_CONFIRMED = 5  # documents that are left out, one run each


@dataclass(frozen=True)
class Omission:
    """What the model answers when one document is left out.

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
    """What a model answers, and for each statement of it the documents it drew on.

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
    "45" ← a.txt, sentence 1 (100 %)
    """

    question: str
    documents: tuple[Document, ...]
    result: Attribution
    omissions: tuple[Omission, ...] = ()

    @property
    def text(self) -> str:
        """The answer."""
        return str(self.result.provenance["completion"]).strip()

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """The sentences of the answer, each with its documents, strongest first."""
        return statements_of(self.result)

    @property
    def lines(self) -> list[str]:
        """A line for each statement, then one for each document that was left out."""
        return [*map(str, self.statements), *map(str, self.omissions)]

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
                    "sources": [vars(source) for source in statement.sources],
                }
                for statement in self.statements
            ],
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
        from attnflow.show.static_html import answer_html

        return answer_html(self.result, question=self.question, lines=self.lines)


@checked_arguments
def ask(
    model: ModelLike,
    question: str,
    documents: Documents,
    method: str | Method | None = None,
    *,
    max_new_tokens: int = 64,
    chat: bool | None = None,
    confirm: bool = False,
    **generate_kwargs: Any,
) -> Answer:
    """Answer a question from documents, and say which of them each statement came from.

    model: a name, a path, what `attnflow.load` gives, a loaded module with its tokenizer as a pair,
        or None for SmolLM2.
    documents: texts, or texts by name: ["...", "..."] or {"contract.txt": "..."}. Special tokens
        in them, and in the question, are text.
    chat: whether the model's chat template is used; None uses it where there is one. Without it
        the answer is the first line that the model writes.
    confirm: leave out each document that is named, ask again, and note whether the answer changes.

    Everything else is as in `generate`. What the answer loses when the sentences it came from are
    hidden together is in `answer.result.confirmation`: one more pass, always.

    >>> from attnflow.testing import tiny_decoder
    >>> texts = {"a.txt": "the keys to the cabinets .", "b.txt": "the author is old ."}
    >>> answer = ask(tiny_decoder(), "the keys", texts, max_new_tokens=3)
    >>> sorted(source.name for source in answer.statements[0].sources)
    ['a.txt', 'b.txt']
    """
    if not question.strip():
        raise InputError(f"A question is a text that is not empty; got {shorten(question)}.")
    collection = named_documents(documents)
    loaded = as_model(model, default="smollm2")
    templated = uses_chat(loaded.tokenizer, chat)
    writing = {"min_new_tokens": 1, **generate_kwargs, "max_new_tokens": max_new_tokens}
    prompt = question_prompt(loaded, question, collection, templated)
    applied = default_method(loaded) if method is None else make_method(method)
    by_statement = explains_statements(applied)
    first = None if by_statement or method is None else applied
    result = _first_line(generate(loaded, prompt, first, **writing), templated)
    if by_statement:  # once for each statement, not for each token
        targets = statement_slices(list(result.targets))
        ids = result.provenance["completion_ids"]
        likely = {
            name: result.provenance[name] for name in (LOG_PROBS,) if name in result.provenance
        }
        result = generate(loaded, prompt, applied, completion=ids, targets=targets or None)
        result = replace(result, provenance={**result.provenance, **likely})
    result = mark_documents(result, collection, prompt)
    passages = _named_sentences(result)
    if passages:  # how sure is it? what the answer loses when the sentences it names are hidden
        completion = Completion(prompt, list(result.provenance["completion_ids"]))
        confirmation = confirm_completion(result, loaded, completion, passages=passages)
        result = replace(result, confirmation=confirmation)
    answer = Answer(question, collection, result)
    if not confirm:
        return answer
    return replace(answer, omissions=_omissions(loaded, answer, prompt.ids, templated, writing))


def explains_statements(method: Method) -> bool:
    """Return whether a method explains a statement as one, not token by token."""
    return isinstance(method, RerunMethod | BalancedGradient)


def statement_slices(tokens: list[str]) -> list[slice]:
    """Return the tokens of each sentence of an answer."""
    units = split_units(tokens, "sentence")
    return [slice(unit.tokens[0], unit.tokens[-1] + 1) for unit in units]


def _named_sentences(result: Attribution) -> list[tuple[str, list[int]]]:
    """Return the strongest sentence of each statement: its name, its positions in the prompt."""
    passages = passages_of(result)
    sentences: dict[str, list[int]] = {}
    for statement in statements_of(result):
        for source in statement.sources[:1]:
            if source.sentence is not None and source.share > 0:
                name = f"{source.name}, sentence {source.sentence}"
                unit = passages[source.passage].sentences[source.sentence - 1]
                sentences[name] = positions_of(result, unit.tokens)
    return list(sentences.items())


def uses_chat(tokenizer: Any, chat: bool | None) -> bool:
    """Return whether the chat template is used: as asked, otherwise if there is one."""
    return bool(getattr(tokenizer, "chat_template", None)) if chat is None else chat


def question_text(
    question: str, documents: Sequence[Document], chat: bool
) -> tuple[str, list[CharSpan]]:
    """Return the documents and the question as one text, and where each document stands in it."""
    ending = _CHAT_ENDING if chat else "\nAnswer:"
    return compose_prompt(f"Question: {question.strip()}", documents, ending=ending)


def question_prompt(
    model: Model, question: str, documents: Sequence[Document], chat: bool
) -> Prompt:
    """Return the documents and the question, as the model is asked; spans are the documents'.

    Special tokens in them are text.
    """
    text, places = question_text(question, documents, chat)
    return encode_parts(model.tokenizer, text, places, chat=chat)


def first_line(surfaces: Sequence[str]) -> int:
    """Return how many tokens there are up to the end of the first line that says something."""
    begin = next((k for k, surface in enumerate(surfaces) if surface.strip()), len(surfaces))
    ends = (k for k, surface in enumerate(surfaces) if k > begin and "\n" in surface)
    return next(ends, len(surfaces))


def _first_line(result: Attribution, chat: bool) -> Attribution:
    """Keep the first line: without a chat template a model writes on, another question next."""
    surfaces = result.targets.surfaces()
    count = len(surfaces) if chat else first_line(surfaces)
    if count == len(surfaces):
        return result
    lists = {
        name: list(result.provenance[name])[:count]
        for name in ("completion_ids", LOG_PROBS)
        if name in result.provenance
    }
    provenance = {**result.provenance, **lists, "completion": "".join(surfaces[:count])}
    return replace(rows_of(result, range(count)), provenance=provenance)


def _omissions(
    model: Model, answer: Answer, ids: Sequence[int], chat: bool, writing: dict[str, Any]
) -> tuple[Omission, ...]:
    """Leave each named document out: ask the model again, and take the first answer's odds."""
    names = [source.name for statement in answer.statements for source in statement.sources[:2]]
    strongest = list(dict.fromkeys(names))[:_MOST_CONFIRMED]
    places = {
        str(name): positions_of(answer.result, range(int(first), int(end)))
        for name, first, end in answer.result.provenance[DOCUMENTS]
    }
    ablation = ablate(model, ids, answer.result.provenance["completion_ids"])
    scores = ablation.log_probs([(), *(places[name] for name in strongest)])
    factors = np.exp(scores[0] - scores[1:]).tolist()
    omissions = []
    for name, factor in zip(strongest, factors, strict=True):
        others = [document for document in answer.documents if document.name != name]
        prompt = question_prompt(model, answer.question, others, chat)
        again = _first_line(generate(model, prompt, **writing), chat)
        text = str(again.provenance["completion"]).strip()
        changed = _plain(text) != _plain(answer.text)
        omissions.append(Omission(name, text, changed, factor))
    return tuple(omissions)


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w ]", "", text.casefold()).split())


def _times(factor: float) -> str:
    if factor < 1:
        return f"{1 / factor:.1f} times more"
    return f"{factor:,.0f} times less" if factor >= 10 else f"{factor:.1f} times less"
