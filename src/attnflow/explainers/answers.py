"""ask(): a question over documents, answered by a language model, with the documents it drew on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.attribution import Attribution
from attnflow.attribution.passages import (
    DOCUMENTS,
    Statement,
    positions_of,
    statements_of,
)
from attnflow.attribution.verdict import VERDICTS
from attnflow.errors import InputError, shorten
from attnflow.errors.arguments import checked_arguments
from attnflow.explainers.ablation import ablate
from attnflow.explainers.completions import generate, mark_documents, write_completions
from attnflow.explainers.defaults import default_method
from attnflow.explainers.prompts import Prompt, encode_parts, encode_prompts
from attnflow.explainers.verdicts import judge_statements
from attnflow.hosts.inputs import tokens_of
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.transformers.generate import checked_generator
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
                    "verdict": statement.verdict and statement.verdict.to_dict(),
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
    check: bool = True,
    confirm: bool = False,
    **generate_kwargs: Any,
) -> Answer:
    """Answer a question from documents, and say which of them each statement rests on.

    model: a name, a path, what `attnflow.load` gives, a loaded module with its tokenizer as a pair,
        or None for SmolLM2.
    documents: texts, or texts by name: ["...", "..."] or {"contract.txt": "..."}. Special tokens
        in them, and in the question, are text.
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
    """
    if not question.strip():
        raise InputError(f"A question is a text that is not empty; got {shorten(question)}.")
    collection = named_documents(documents)
    loaded = as_model(model, default="smollm2")
    templated = uses_chat(loaded.tokenizer, chat)
    writing = {"min_new_tokens": 1, **generate_kwargs}
    prompt = question_prompt(loaded, question, collection, templated)
    applied = default_method(loaded) if method is None else make_method(method)
    ids = _write(loaded, prompt, templated, max_new_tokens, writing)
    targets = None
    if explains_statements(applied):  # once for each statement, not for each token
        targets = statement_slices(list(tokens_of(loaded.tokenizer, ids))) or None
    result = generate(loaded, prompt, applied, completion=ids, targets=targets)
    result = mark_documents(result, collection, prompt)
    if check:
        verdicts = judge_statements(result, loaded, prompt.ids)
        records = [None if each is None else each.to_dict() for each in verdicts]
        result = replace(result, provenance={**result.provenance, VERDICTS: records})
    answer = Answer(question, collection, result)
    if not confirm:
        return answer

    def again(others: Sequence[Document]) -> str:
        shorter = question_prompt(loaded, question, others, templated)
        ids = _write(loaded, shorter, templated, max_new_tokens, writing)
        return "".join(tokens_of(loaded.tokenizer, ids).surfaces()).strip()

    return replace(answer, omissions=_omissions(loaded, answer, prompt.ids, again))


def explains_statements(method: Method) -> bool:
    """Return whether a method explains a statement as one, not token by token."""
    return isinstance(method, RerunMethod | BalancedGradient)


def statement_slices(tokens: list[str]) -> list[slice]:
    """Return the tokens of each sentence of an answer."""
    units = split_units(tokens, "sentence")
    return [slice(unit.tokens[0], unit.tokens[-1] + 1) for unit in units]


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


def _write(
    model: Model, prompt: Prompt, chat: bool, max_new_tokens: int, options: dict[str, Any]
) -> list[int]:
    """Let the model answer. Without a chat template it writes on, another question next: there
    the first line is the answer.
    """
    checked_generator(model.module)
    batch = encode_prompts(model, prompt)
    (completion,) = write_completions(model, batch, max_new_tokens, options)
    ids = list(completion.ids)
    return ids if chat else ids[: first_line(tokens_of(model.tokenizer, ids).surfaces())]


def _omissions(
    model: Model,
    answer: Answer,
    ids: Sequence[int],
    again: Callable[[Sequence[Document]], str],
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
