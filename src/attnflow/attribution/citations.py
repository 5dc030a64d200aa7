"""The record of a citation: a statement of an answer, and the place in a document it rests on.

Every form in which citations are handed on (the command line, HTTP, frameworks) is made from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from attnflow.attribution.passages import RankedSource, Statement, statements_of
from attnflow.attribution.verdict import Kind

if TYPE_CHECKING:
    from attnflow.attribution.result import Attribution


@dataclass(frozen=True)
class Citation:
    """A statement of an answer, and a sentence of a document that it rests on or draws on.

    start, end: the statement's characters in the answer, which are `text`. document: its name;
    document_index: its number among those that were given, from 0.
    cited_start, cited_end: the sentence's characters in the document, which are `cited_text`.
    share: the document's part of what the statement draws from all. verdict: what hiding it showed,
    and `left`: the part of the statement's probability that is left then; None where nothing was
    hidden. likelihood: how likely the model finds each token of the statement, in the mean. page:
    the page of the document on which the sentence begins; None where it has none.

    >>> Citation(0, 2, "45", "a.txt", 0, 8, 16, "45 days.", 0.9).to_dict()["document"]
    'a.txt'
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
    verdict: Kind | None = None
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
