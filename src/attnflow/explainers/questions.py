"""A question over documents as a model is asked it, and its answer as tokens, written or given."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from attnflow.errors import InputError, TokensError, shorten
from attnflow.errors.progress import Progress, relaying
from attnflow.explainers.completions import write_completions
from attnflow.explainers.placement import encode_placed, spelled_places
from attnflow.explainers.prompts import Message, Prompt, encode_parts, encode_prompts
from attnflow.explainers.request import completion_ids
from attnflow.hosts.factored import Keys
from attnflow.hosts.inputs import checked_text, checked_tokenizer, tokens_of
from attnflow.hosts.model import Model
from attnflow.tokens.documents import Document, compose_prompt
from attnflow.tokens.units import CharSpan, Unit, pieces_at, text_spans, units

Question = str | Sequence[Message] | None
"""A text; a conversation, before whose last message of the user the documents stand; or nothing."""
STOPS = "stop_strings"
"""The option of generate() that names texts before which an answer ends."""
_CHAT_ENDING = "\nAnswer in a few words."
_ANY_QUESTION = "What do these documents say?"


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
    model: Model, question: Question, documents: Sequence[Document], chat: bool
) -> Prompt:
    """Return the documents and the question, as the model is asked; spans are the documents'.

    Special tokens in them are text. What people wrote as messages stays as they wrote it.
    """
    if question is None or isinstance(question, str):
        text, places = question_text(question or _ANY_QUESTION, documents, chat)
        return encode_parts(model.tokenizer, text, places, chat=chat)
    last = max(k for k, message in enumerate(question) if message["role"] == "user")
    text, places = compose_prompt(question[last]["content"].strip(), documents)
    around = (question[:last], question[last + 1 :])
    return encode_parts(model.tokenizer, text, places, chat=True, around=around)


def question_title(question: Question) -> str:
    """Return the words of the question, for people."""
    if question is None or isinstance(question, str):
        return question or ""
    return next(m["content"] for m in reversed(question) if m["role"] == "user").strip()


def check_question(question: Question, answer: str | None, chat: bool) -> None:
    """Raise unless this is a question that the model can be asked; None goes with an answer."""
    if question is None:
        if answer is None:
            raise InputError("question=None goes with an answer that is there: answer='...'.")
    elif isinstance(question, str):
        if not question.strip():
            raise InputError(f"A question is a text that is not empty; got {shorten(question)}.")
    elif not any(message.get("role") == "user" for message in question):
        raise InputError("A conversation needs a message of the user, before which documents go.")
    elif not chat:
        raise InputError(
            "A conversation needs the model's chat template, and there is none; ask with one text."
        )


@dataclass(frozen=True)
class WrittenAnswer:
    """An answer as the model reads it: token ids, and the text of each; together they are it.

    stop: the text at which it was to end, if it came. keys: those that the model kept while it
    wrote, as `Completion` has them.
    """

    ids: list[int]
    pieces: list[str]
    stop: str | None = None
    keys: Keys = field(default=(), compare=False, repr=False)

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self.pieces)

    @cached_property
    def statements(self) -> list[Unit]:
        """The sentences of the answer; their spans are in characters, their tokens by number."""
        return units(self.pieces, text_spans(self.text, "sentence"))


def given_answer(model: Model, answer: str, chat: bool) -> WrittenAnswer:
    """Return an answer that was written elsewhere as the tokens that the model would write.

    Special tokens in it are text. Without a chat template it stands behind a space.
    """
    checked_tokenizer(model.tokenizer)
    text = checked_text(answer, "explain", "answer")
    body = text.strip()
    if not body:
        raise InputError(f"An answer is a text that is not empty; got {shorten(answer)}.")
    places: list[CharSpan] | None
    lead = 0
    if model.facts.encoder_decoder:
        ids = completion_ids(model, body)
        places = spelled_places(model.tokenizer, ids, body)
    else:
        lead = 0 if chat else 1
        spaced = " " * lead + body
        ids, places = encode_placed(model.tokenizer, spaced, [(0, len(spaced))], frame=False)
    if places is None:
        raise TokensError(
            f"Nothing says which tokens the words of the answer {shorten(body)} have become: the "
            "tokenizer changes them. Use a model with a fast tokenizer."
        )
    offset = len(text) - len(text.lstrip()) - lead
    return WrittenAnswer(ids, pieces_at(text, [start + offset for start, _ in places]))


def first_line(surfaces: Sequence[str]) -> int:
    """Return how many tokens there are up to the end of the first line that says something."""
    begin = next((k for k, surface in enumerate(surfaces) if surface.strip()), len(surfaces))
    ends = (k for k, surface in enumerate(surfaces) if k > begin and "\n" in surface)
    return next(ends, len(surfaces))


def _hear_first_line() -> Callable[[Progress], Progress]:
    """Return what passes on the text of the first line that says something, as it is written."""
    text = ""

    def change(step: Progress) -> Progress:
        nonlocal text
        before = len(text.lstrip().partition("\n")[0])
        text += step.text
        return step._replace(text=text.lstrip().partition("\n")[0][before:])

    return change


def write_answer(
    model: Model, prompt: Prompt, chat: bool, max_new_tokens: int, options: Mapping[str, Any]
) -> WrittenAnswer:
    """Let the model answer. Without a chat template it writes on, another question next: there
    the first line is the answer. The first of the stops in the options is no part of it.
    """
    batch = encode_prompts(model, prompt)
    writing = {"min_new_tokens": 1, **options}
    with nullcontext() if chat else relaying(_hear_first_line()):
        (completion,) = write_completions(model, batch, max_new_tokens, writing)
    # Of one word alone nothing says how its tokenizer marks spaces: it is read behind its prompt.
    before = [] if model.facts.encoder_decoder else prompt.ids
    surfaces = tokens_of(model.tokenizer, [*before, *completion.ids]).surfaces()[len(before) :]
    count = len(surfaces) if chat else first_line(surfaces)
    text, stop = cut_at_stop("".join(surfaces[:count]), options.get(STOPS))
    starts = list(accumulate(map(len, surfaces[:count]), initial=0))[:-1]
    count = max(1, bisect_left(starts, len(text)))  # a token of which nothing is left is none
    begin = len(text) - len(text.lstrip())
    pieces = pieces_at(text.strip(), [start - begin for start in starts[:count]])
    return WrittenAnswer(completion.ids[:count], pieces, stop, completion.keys)


def cut_at_stop(text: str, stops: str | Sequence[str] | None) -> tuple[str, str | None]:
    """Return a text up to the first of the stops in it, and which that is."""
    places = {
        text.find(stop): stop for stop in ([stops] if isinstance(stops, str) else stops or [])
    }
    first = min((place for place in places if place >= 0), default=len(text))
    return text[:first], places.get(first)
