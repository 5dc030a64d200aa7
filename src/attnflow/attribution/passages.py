"""The parts of a prompt that people speak of, and how much a part of an answer draws on each.

A passage is a document, a message or a sentence. Documents and messages that were handed to
`generate` are noted in the result's provenance; other prompts are divided as they show themselves:
numbered blocks, blank lines, messages, and where there is nothing of this, sentences.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import exp
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution.verdict import Kind as VerdictKind
from attnflow.attribution.verdict import Verdict
from attnflow.errors import InputError, percent, shorten
from attnflow.tokens import is_special
from attnflow.tokens.units import Unit, split_units

if TYPE_CHECKING:
    from attnflow.attribution.result import Attribution


DOCUMENTS = "documents"
"""Where the provenance of a result names its documents: [name, first token, one after the last]."""
MESSAGES = "messages"
"""Where it names the messages of a conversation, in the same way."""
SENTENCES = "sentences"
"""Where it has the sentences of each document: [first source, one after the last, where the
sentence begins in the document, its characters].
"""
PAGES = "pages"
"""Where it has the characters at which the pages of each document begin; none if it has no pages.
"""
SELECTION = "selection"
"""Where it says which documents are not whole: [name, passages kept by a search, of how many]."""
STATEMENTS = "statements"
"""Where it has those of the answer, in the same way, by the numbers of the answer's tokens."""
LOG_PROBS = "log_probs"
"""Where it says how likely each token of the completion is, in nats."""
# Of a token, in the mean: below, a model would hardly have written a statement. To 24 of SmolLM2's
# own answers it gave 0.36 and more, to those of other questions 0.057 at most.
_UNLIKELY = 0.06

_ROLES = re.compile(r"^(system|user|assistant|tool)\s*\n")
_HEADING = re.compile(
    r"^\s*(?:(document|passage|source|text|paragraph)\s+(\d+)|\[(\d+)\]|\((\d+)\)|(\d+)[.)])"
    r"(?:\s*\(([^)\n]{1,80})\))?\s*[:.]?",
    re.IGNORECASE,
)
_FLAT = 0.1  # by how much a share must be above the mean of all to stand out
Kind = Literal["document", "message", "sentence"]
_MARKED: dict[str, Kind] = {DOCUMENTS: "document", MESSAGES: "message"}


@dataclass(frozen=True)
class Passage:
    """A document, message or sentence of a prompt: its columns, and those of its sentences.

    is_placed: whether the spans of its sentences are characters of the document as it was given.
    pages: the characters at which its pages begin.
    """

    name: str
    kind: Kind
    columns: tuple[int, ...]
    sentences: tuple[Unit, ...]
    is_placed: bool = False
    pages: tuple[int, ...] = ()

    def place_of(self, number: int) -> str:
        """Return where a sentence stands, counted from 1; where there are pages, on its page."""
        page = self.page_of(number)
        if page is None:
            return self.name if self.kind == "sentence" else f"{self.name}, sentence {number}"
        before = [each for each in self.sentences if each.span[0] < self.pages[page - 1]]
        return f"{self.name}, page {page}, sentence {number - len(before)}"

    def page_of(self, number: int) -> int | None:
        """Return the page on which a sentence begins, counted from 1; None without pages."""
        start = self.sentences[number - 1].span[0]
        return bisect_right(self.pages, start) if self.pages else None


@dataclass(frozen=True)
class RankedSource:
    """A passage, its share of what was drawn from all passages, its kind, its strongest sentence.

    sentence: its number within the passage, from 1; None where the passage is a sentence itself.
    place: the passage, its page and the number of the sentence. text: its characters. start: where
    it begins in its document; page: the page on which. None where that is not known.
    """

    name: str
    share: float
    sentence: int | None
    place: str
    text: str
    passage: int
    start: int | None = None
    kind: Kind = "document"
    page: int | None = None

    def __str__(self) -> str:
        return f"{self.place} ({percent(self.share)})"


@dataclass(frozen=True)
class Statement:
    """A sentence of the answer: its text, its rows, what it draws on, and whether that was checked.

    verdict: what it rests on, from hiding it; None where nothing was hidden. start: where it begins
    in the answer. tokens: the numbers of the answer's tokens that it is made of. likelihood: how
    likely the model finds each of them, in the geometric mean. None where that is not known.
    """

    text: str
    rows: tuple[int, ...]
    sources: tuple[RankedSource, ...]
    verdict: Verdict | None = None
    start: int | None = None
    tokens: tuple[int, ...] = ()
    likelihood: float | None = None

    @property
    def is_unlikely(self) -> bool:
        """True where the model would hardly have written it, so that its sources say little."""
        return self.likelihood is not None and self.likelihood < _UNLIKELY

    def __str__(self) -> str:
        if self.verdict is None:
            return f'"{self.text}" {self.shares}.'
        claim = f'"{self.text}" {self.verdict.linked_claim}: {self.verdict.reason}.'
        return claim if self.verdict.kind == "none" else f"{claim} It {self.shares}."

    @property
    def shares(self) -> str:
        """The sources it draws on, by the shares of those that stand out, two at most.

        One stands out whose share is above what all would have if they were alike.
        """
        if not self.sources:
            return "draws on nothing in the prompt"
        mean = 1 / len(self.sources)
        if len(self.sources) > 1 and max(each.share for each in self.sources) < mean + _FLAT:
            return f"draws on all alike: no {self.sources[0].kind} stands out"
        first, *others = [each for each in self.sources if each.share >= mean]
        rest = ""
        for other in others[:1]:  # the first is what the verdict names, whatever its share
            joined = "then" if other.share <= first.share else "and more on"
            rest = f", {joined} {other.name} ({percent(other.share)})"
        return f"draws on {first}{rest}"


def passages_of(result: Attribution) -> tuple[Passage, ...]:
    """Return the documents of a result; without any, the parts its prompt falls into."""
    if result.sources.grid is not None:
        return ()
    for key, kind in _MARKED.items():
        if marks := result.provenance.get(key):
            known = result.provenance.get(SENTENCES) if kind == "document" else None
            if known is not None:
                pages = result.provenance.get(PAGES) or [()] * len(marks)
                return tuple(map(_known_passage, marks, known, pages))
            return tuple(_marked(list(result.sources), mark, kind) for mark in marks)
    texts = list(result.sources)
    framing = [k for k, token in enumerate(texts) if is_special(token)]
    parts = split_units(texts, "document", framing=framing)
    if len(parts) > 1:
        return tuple(_part(texts, number, unit) for number, unit in enumerate(parts, 1))
    sentences = split_units(texts, "sentence", framing=framing)
    return tuple(
        Passage(f"sentence {number}", "sentence", unit.tokens, (unit,))
        for number, unit in enumerate(sentences, 1)
    )


def positions_of(result: Attribution, columns: Sequence[int]) -> list[int]:
    """Return the positions of some sources in the prompt; a measured one may have several."""
    several = result.provenance.get("source_tokens")
    if several is None:
        return [result.sources.positions[k] for k in columns]
    return [int(position) for k in columns for position in several[k]]


def rank_passages(
    result: Attribution, rows: Sequence[int], passages: Sequence[Passage] | None = None
) -> tuple[RankedSource, ...]:
    """Return the passages that these rows together draw on, strongest first, at the highest layer.

    A share is of what speaks for them in all passages. A passage has what its tokens say together,
    for and against; one that speaks against them as a whole has nothing.
    """
    candidates = passages_of(result) if passages is None else passages
    values = result.values[-1, list(rows)].sum(axis=0)
    sums = np.array([max(values[list(each.columns)].sum(), 0.0) for each in candidates])
    total = float(sums.sum())
    if total <= 0:
        return ()
    order = np.argsort(-sums, kind="stable").tolist()
    return tuple(_ranked(candidates[k], k, float(sums[k]) / total, values) for k in order)


def statements_of(result: Attribution) -> tuple[Statement, ...]:
    """Return the sentences of what was generated, each with its ranked passages."""
    passages, parts = passages_of(result), statement_parts(result)
    verdicts = result.verdicts if len(result.verdicts) == len(parts) else [None] * len(parts)
    likely = result.provenance.get(LOG_PROBS)
    statements = []
    for part, verdict in zip(parts, verdicts, strict=True):
        likelihood = None
        if likely is not None:
            likelihood = exp(float(np.mean([likely[k] for k in part.tokens])))
        sources = rank_passages(result, part.rows, passages)
        if verdict is not None:  # before all those that it speaks of
            first = verdict.passages
            sources = tuple(sorted(sources, key=lambda each: each.passage not in first))
        statement = Statement(
            part.text, part.rows, sources, verdict, part.start, part.tokens, likelihood
        )
        statements.append(statement)
    return tuple(statements)


class StatementPart(NamedTuple):
    """A statement in its answer: its text, rows of the result, first character, tokens."""

    text: str
    rows: tuple[int, ...]
    start: int | None
    tokens: tuple[int, ...]


def statement_parts(result: Attribution) -> list[StatementPart]:
    """Return the statements as they were noted; otherwise the sentences that the rows spell.

    A row is a token or several: it begins at its position, and ends where the next one begins.
    """
    first = int(result.provenance.get("prompt_length", len(result.sources)))
    starts = [position - first for position in result.targets.positions]
    noted = result.provenance.get(STATEMENTS)
    if noted is not None:
        return [
            StatementPart(
                text,
                tuple(row for row, number in enumerate(starts) if begin <= number < end),
                start,
                tuple(range(begin, end)),
            )
            for begin, end, start, text in noted
        ]
    ends = [*starts[1:], len(result.provenance.get("completion_ids", result.targets))]
    return [
        StatementPart(
            unit.text,
            unit.tokens,
            None,
            tuple(range(starts[unit.tokens[0]], ends[unit.tokens[-1]])),
        )
        for unit in split_units(list(result.targets), "sentence")
    ]


def _ranked(
    passage: Passage, number: int, share: float, values: NDArray[np.float64]
) -> RankedSource:
    if passage.kind == "sentence" or not passage.sentences:
        text = passage.sentences[0].text if passage.sentences else ""
        name = passage.name
        return RankedSource(name, share, None, name, text, number, kind=passage.kind)
    sums = [values[list(sentence.tokens)].sum() for sentence in passage.sentences]
    best = int(np.argmax(sums)) + 1
    sentence = passage.sentences[best - 1]
    return RankedSource(
        passage.name,
        share,
        best,
        passage.place_of(best),
        sentence.text,
        number,
        sentence.span[0] if passage.is_placed else None,
        passage.kind,
        passage.page_of(best),
    )


def _known_passage(
    mark: Sequence[Any], sentences: Sequence[Sequence[Any]], pages: Sequence[int]
) -> Passage:
    """Return a document whose sentences were noted with their places in it."""
    name = mark[0]
    units = tuple(
        Unit(text, (start, start + len(text)), tuple(range(begin, stop)))
        for begin, stop, start, text in sentences
    )
    return Passage(str(name), "document", _columns(mark), units, True, tuple(map(int, pages)))


def _marked(texts: list[str], mark: Sequence[str | int], kind: Kind) -> Passage:
    columns = _columns(mark)
    if columns[-1] >= len(texts):
        raise _no_span(mark)
    return Passage(str(mark[0]), kind, columns, _sentences(texts, columns))


def _columns(mark: Sequence[Any]) -> tuple[int, ...]:
    """Return the columns of a passage as a result notes it; a file may hold anything."""
    first, end = mark[1:]
    if not 0 <= int(first) < int(end):
        raise _no_span(mark)
    return tuple(range(int(first), int(end)))


def _no_span(mark: Sequence[Any]) -> InputError:
    return InputError(
        f"The result notes {shorten(mark[0])} from column {mark[1]} to {mark[2]} of its sources, "
        "which is no span of them: the file was changed, or made by hand. Make it again."
    )


def _part(texts: list[str], number: int, unit: Unit) -> Passage:
    name, kind = f"part {number}", _MARKED[DOCUMENTS]
    if (role := _ROLES.match(unit.text)) is not None:
        name, kind = f"message {number} ({role[1]})", _MARKED[MESSAGES]
    elif (heading := _HEADING.match(unit.text)) is not None:
        digits = next(group for group in heading.groups()[1:5] if group is not None)
        name = heading[6] or f"{(heading[1] or 'document').lower()} {digits}"
    return Passage(name, kind, unit.tokens, _sentences(texts, unit.tokens))


def _sentences(texts: list[str], columns: Sequence[int]) -> tuple[Unit, ...]:
    """Return the sentences within some columns, each by columns of the whole."""
    first = columns[0]
    part = texts[first : columns[-1] + 1]
    return tuple(
        Unit(unit.text, unit.span, tuple(first + k for k in unit.tokens))
        for unit in split_units(part, "sentence")
    )


@dataclass(frozen=True)
class Citation:
    """A statement of an answer, and a sentence of a document that it rests on or draws on.

    Every form in which citations are handed on (the command line, HTTP, frameworks) is made of it.

    start, end: the statement's characters in the answer, which are `text`. document: its name;
    document_index: its number among those that were given, from 0.
    cited_start, cited_end: the sentence's characters in the document, which are `cited_text`.
    share: the document's part of what the statement draws from all. verdict: what hiding it showed,
    and `left`: the part of the statement's probability that is left then; None where nothing was
    hidden. likelihood: how likely the model finds each token of the statement, in the mean. page:
    the page of the document on which the sentence begins; None where it has none.
    """

    start: int
    end: int
    text: str
    document: str
    document_index: int
    cited_start: int
    cited_end: int
    cited_text: str
    share: float
    verdict: VerdictKind | None = None
    left: float | None = None
    likelihood: float | None = None
    page: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def citations_of(result: Attribution) -> tuple[Citation, ...]:
    """Return the citations of an answer, in its order; of a statement, the strongest source first.

    A statement that does not need the documents has none; one that rests on several has several.
    """
    return tuple(each for statement in statements_of(result) for each in _cited(statement))


def _cited(statement: Statement) -> Iterator[Citation]:
    verdict = statement.verdict
    for source in _named(statement):
        if statement.start is None or source.start is None:  # its places were not noted
            continue
        yield Citation(
            start=statement.start,
            end=statement.start + len(statement.text),
            text=statement.text,
            document=source.name,
            document_index=source.passage,
            cited_start=source.start,
            cited_end=source.start + len(source.text),
            cited_text=source.text,
            share=source.share,
            verdict=None if verdict is None else verdict.kind,
            left=None if verdict is None else verdict.left,
            likelihood=statement.likelihood,
            page=source.page,
        )


def _named(statement: Statement) -> tuple[RankedSource, ...]:
    """Return the sources that the verdict speaks of; without one, the strongest."""
    verdict = statement.verdict
    if verdict is None:
        return statement.sources[:1]
    names = () if verdict.kind == "none" else verdict.sources
    return tuple(s for s in statement.sources if s.name in names or s.place in names)
