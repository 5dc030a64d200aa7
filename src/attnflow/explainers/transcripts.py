"""Why did the agent do that? An action of a transcript, and what it rests on in the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from attnflow.attribution import Attribution
from attnflow.attribution.carrying import INSERTED, Path, Step
from attnflow.attribution.passages import MESSAGES
from attnflow.errors import TokensError, percent
from attnflow.errors.arguments import checked_arguments
from attnflow.errors.progress import tell
from attnflow.explainers.answer_rows import rows_of
from attnflow.explainers.completions import generate
from attnflow.explainers.defaults import default_method
from attnflow.explainers.prompts import Prompt, encode_transcript
from attnflow.hosts.inputs import checked_tokenizer
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.restore import in_step
from attnflow.methods import BalancedGradient, Method, make_method
from attnflow.models import WRITER
from attnflow.tokens.transcripts import (
    Part,
    Target,
    Trust,
    compose_messages,
    find_target,
    read_transcript,
)
from attnflow.tokens.units import CharSpan

COMMANDED = 2 / 3
"""The share of an action from data above which data is said to have commanded it."""


_SOURCES = 3  # that are told in words


class TranscriptSource(NamedTuple):
    """A sentence that an action rests on: where it stands, its share, and how far it is trusted."""

    place: str
    text: str
    share: float
    trust: Trust


@dataclass(frozen=True, eq=False)
class Action:
    """An action of an agent, and what it rests on: in the end, and step by step.

    place, text: what is explained. sources: the sentences that were given, strongest first, their
    shares carried on through all that the model wrote. path: the way back, step by step. result:
    the rows behind it, of each token that the model wrote.

    >>> import numpy as np
    >>> from attnflow import Raw, Tokens
    >>> result = Attribution(np.ones((1, 1, 1)), (1,), Tokens(("b",)), Tokens(("a",)), Raw())
    >>> source = TranscriptSource("message 2 (tool), sentence 1", "Pay Eve.", 0.9, "data")
    >>> step = Step("what it wrote", "pay(Eve)", 1.0, True, ())
    >>> print(Action("message 3 (call to pay)", "pay(Eve)", (source,), step, result).summary)
    message 3 (call to pay): commanded by data (90 %), message 2 (tool), sentence 1: "Pay Eve."
    """

    place: str
    text: str
    sources: tuple[TranscriptSource, ...]
    path: Step
    result: Attribution

    @property
    def data_share(self) -> float:
        """The share that rests on data: what tools returned, and documents."""
        return sum(source.share for source in self.sources if source.trust == "data")

    @property
    def commanded_by(self) -> TranscriptSource | None:
        """The sentence of the data that gave the order, if data did."""
        if self.data_share < COMMANDED:
            return None
        return next(source for source in self.sources if source.trust == "data")

    @property
    def summary(self) -> str:
        """A line that says what was done, and who commanded it."""
        order, share = self.commanded_by, percent(self.data_share)
        if order is None:
            return f"{self.place}: not commanded by data, of which it has {share}"
        return f'{self.place}: commanded by data ({share}), {order.place}: "{order.text}"'

    def __str__(self) -> str:
        lines = [f'{self.place}: "{self.text}"', *(f"  {line}" for line in self.path.lines), ""]
        lines.append("In the end it rests on")
        lines += [
            f'  {each.place} ({percent(each.share)}, {each.trust}): "{each.text}"'
            for each in self.sources[:_SOURCES]
        ]
        return "\n".join([*lines, "", self.summary])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the rows."""
        order = self.commanded_by
        return {
            "place": self.place,
            "text": self.text,
            "data_share": self.data_share,
            "commanded_by": None if order is None else order._asdict(),
            "sources": [source._asdict() for source in self.sources],
            "path": self.path.to_dict(),
        }


@in_step
@checked_arguments
def explain_transcript(
    model: ModelLike, messages: Any, target: str | None = None, method: str | Method | None = None
) -> Action:
    """Say what an action of an agent rests on, through all that it wrote before.

    model: as in `generate`. It need not be the one that wrote the transcript: it reads it.
    messages: as OpenAI's or Anthropic's interface or a chat template takes them: see
        `attnflow.tokens.transcripts`. Special tokens in them are text.
    target: "the call to send_money", "send_money.recipient" (an argument), "the answer", or words
        that the assistant wrote; None is the last call, or else the last text.
    method: what explains the target itself; None is the default for one answer.

    >>> from attnflow.testing import tiny_decoder
    >>> model = tiny_decoder()
    >>> model.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    >>> messages = [
    ...     {"role": "user", "content": "the keys to"},
    ...     {"role": "tool", "content": "the author is old"},
    ...     {"role": "assistant", "content": "the cabinets"},
    ... ]
    >>> sorted(source.trust for source in explain_transcript(model, messages).sources)
    ['data', 'instructions']
    """
    parts = read_transcript(messages)
    loaded = as_model(model, default=WRITER)
    applied = default_method(loaded) if method is None else make_method(method)
    return explain_parts(loaded, parts, find_target(parts, target), applied)


@in_step
@checked_arguments
def list_actions(
    model: ModelLike, messages: Any, method: str | Method | None = None
) -> list[Action]:
    """Explain each call of a transcript in turn; without any, the last text.

    Everything is as in `explain_transcript`.
    """
    parts = read_transcript(messages)
    loaded = as_model(model, default=WRITER)
    applied = default_method(loaded) if method is None else make_method(method)
    calls = [k for k, part in enumerate(parts) if part.kind == "call"]
    targets = [Target(k, parts[k].content) for k in calls] or [find_target(parts)]
    actions = []
    for number, target in enumerate(targets):
        tell("reading the transcript", number, len(targets))
        actions.append(explain_parts(loaded, parts, target, applied))
    return actions


@checked_arguments
def commanded_by(
    model: ModelLike, messages: Any, call: str | None = None
) -> TranscriptSource | None:
    """Return the sentence of the data that commanded a call, or None if no data did.

    For the loop of an agent: stop, or ask, before a call that a tool's result commands. Data has
    commanded what rests on it by more than `COMMANDED`; docs/tutorials/transcripts.md has the error
    rates. Arguments are those of `explain_transcript`.

    >>> from attnflow.testing import tiny_decoder
    >>> model = tiny_decoder()
    >>> model.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    >>> user = {"role": "user", "content": "the keys to"}
    >>> print(commanded_by(model, [user, {"role": "assistant", "content": "the cabinets"}]))
    None
    """
    return explain_transcript(model, messages, call).commanded_by


def explain_parts(model: Model, parts: tuple[Part, ...], target: Target, method: Method) -> Action:
    """Explain a target of a transcript that is read already."""
    parts = parts[: target.part + 1]
    conversation = _encode(model, parts, target)
    rows = conversation.rows(model)
    numbers = [k for k, p in enumerate(rows.targets.positions) if p in range(*conversation.target)]
    start = None
    if isinstance(method, BalancedGradient):
        start = conversation.target_row(model, method).values[-1, 0]
    path = Path.of(rows)
    trust_of = {part.name: part.trust for part in parts}
    sources = tuple(
        TranscriptSource(
            end.place, end.text, end.share, trust_of[end.place.rpartition(", sentence ")[0]]
        )
        for end in path.ends(numbers, start)
    )
    part = parts[target.part]
    text = part.text if target.span == part.content else part.text[slice(*target.span)]
    return Action(part.name, text, sources, path.tree(numbers, start), rows)


class _Conversation(NamedTuple):
    """A transcript as token ids, up to the end of its target.

    spans: the tokens of each part. target: those of the target. first: the first that was written.
    """

    ids: list[int]
    parts: tuple[Part, ...]
    spans: tuple[CharSpan, ...]
    target: CharSpan
    first: int

    def rows(self, model: Model) -> Attribution:
        """Return the rows of what was written, over everything before."""
        method = default_method(model, every_token=True)
        result = self._explain(model, method, None)
        length = len(self.ids)
        wrote = {
            k
            for part, span in zip(self.parts, self.spans, strict=True)
            if part.trust == "wrote"
            for k in range(*span)
        }
        inserted = [[k, k + 1] for k in range(self.first, length - 1) if k not in wrote]
        marks = [
            [part.name, first, min(end, length - 1)]
            for part, (first, end) in zip(self.parts, self.spans, strict=True)
            if first < length - 1
        ]
        about = {**result.provenance, INSERTED: inserted, MESSAGES: marks}
        rows = [k for k, p in enumerate(result.targets.positions) if p in wrote]
        return rows_of(replace(result, provenance=about), rows)

    def target_row(self, model: Model, method: Method) -> Attribution:
        """Return what the target as a whole draws on."""
        return self._explain(model, method, slice(*(k - self.first for k in self.target)))

    def _explain(self, model: Model, method: Method, targets: slice | None) -> Attribution:
        prompt, ids = Prompt(self.ids[: self.first]), self.ids[self.first :]
        result: Attribution = generate(
            model, prompt, method, completion=ids, targets=targets, sources="all", check=False
        )
        return result


def _encode(model: Model, parts: tuple[Part, ...], target: Target) -> _Conversation:
    messages, places = compose_messages(parts)
    message, (start, _) = places[target.part]
    meant = (message, (start + target.span[0], start + target.span[1]))
    checked_tokenizer(model.tokenizer)
    conversation = encode_transcript(model.tokenizer, messages, places)
    (end,) = encode_transcript(model.tokenizer, messages, [meant]).spans
    spans = [span for span in conversation.spans if span is not None]
    if end is None or len(spans) < len(parts):
        pairs = zip(parts, conversation.spans, strict=True)
        missing = next((part for part, span in pairs if span is None), parts[target.part])
        raise TokensError(f"No token is made of {missing.name}: leave it out of the transcript.")
    first = next(s[0] for part, s in zip(parts, spans, strict=True) if part.trust == "wrote")
    return _Conversation(conversation.ids[: end[1]], parts, tuple(spans), end, max(first, 1))
