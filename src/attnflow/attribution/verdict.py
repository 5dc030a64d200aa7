"""Does a statement rest on the documents? What was measured, the verdict, and its one wording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import exp, log
from typing import Any, Literal, get_args

from attnflow.errors import InputError, percent, shorten

VERDICTS = "verdicts"
"""Where the provenance of a result has one verdict for each statement."""

Kind = Literal["rests", "either", "together", "partly", "none"]
# Of SmolLM2's development answers 6 % of those that have a source have less support than this many
# nats, and 17 % of those that have none have more. How steep it is was set, not fitted.
_MIDDLE, _SLOPE = 2.0, 1.5
_HALF = log(2)  # a probability that is halved, in nats


@dataclass(frozen=True)
class Verdict:
    """What a statement's probability rests on, from passes in which the model reads it again.

    kind: "rests" on the one source that is named; on "either" of several, each enough alone; on
    several "together"; "partly" on the documents; or "none": as likely without any document.
    sources: the names of what the kind speaks of, strongest first. tokens: how many the statement
    has. The log-probabilities of the whole statement, in nats: as the prompt is; without what it
    took to lose it (the sources, and of "either" what ranks between them); with the sources'
    documents and no other; with no document at all. passages: the numbers of the sources among
    the prompt's documents.

    >>> verdict = Verdict("rests", ("a.txt, sentence 1",), 2, -0.2, -6.0, -0.4, -7.0)
    >>> print(verdict)
    rests on a.txt, sentence 1: without it less than 1 % of its probability is left
    >>> verdict.rests_on_documents > 0.9
    True
    """

    kind: Kind
    sources: tuple[str, ...]
    tokens: int
    log_prob: float
    without: float
    alone: float
    prior: float
    passages: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"kind={shorten(self.kind)}: choose from {', '.join(get_args(Kind))}.")
        if self.tokens < 1 or not self.sources:
            raise InputError("A verdict is of a statement with tokens, and names what was hidden.")

    @property
    def gain(self) -> float:
        """What the documents add to the statement's log-probability, in nats."""
        return self.log_prob - self.prior

    @property
    def support(self) -> float:
        """What the named sources account for, in nats: lost without them, or held by them alone."""
        return support_of(self.log_prob, self.without, self.alone, self.prior)

    @property
    def rests_on_documents(self) -> float:
        """How likely the statement is to come from the documents, not from memory: 0 to 1."""
        return 1 / (1 + exp(-max(-60.0, min(60.0, _SLOPE * (self.support - _MIDDLE)))))

    @property
    def left(self) -> float:
        """The part of the statement's probability that is left without what the claim speaks of.

        That is all documents where none is needed by itself; at most 1.
        """
        hidden = self.prior if self.kind in ("none", "either") else self.without
        return exp(min(0.0, hidden - self.log_prob))

    @property
    def claim(self) -> str:
        """What may be said of the statement, before any share."""
        first, names = self.sources[0], _listed(self.sources)
        return {
            "rests": f"rests on {first}",
            "either": f"rests on either of {names}",
            "together": f"rests on {names} together",
            "partly": f"partly from the documents, {first} first",
            "none": "no source found, it does not need the documents",
        }[self.kind]

    @property
    def left_text(self) -> str:
        """The same as people read it."""
        return "less than 1 %" if self.left < 0.01 else percent(self.left)

    @property
    def missing(self) -> str:
        """What was hidden for `left`."""
        if self.kind in ("none", "either"):
            return "any document"
        return "it" if len(self.sources) == 1 else "them"

    @property
    def reason(self) -> str:
        """The number behind the claim."""
        return f"without {self.missing} {self.left_text} of its probability is left"

    def __str__(self) -> str:
        return f"{self.claim}: {self.reason}"

    @property
    def linked(self) -> str:
        """The same, to follow the words of the statement."""
        return f"– {self}" if self.kind in ("partly", "none") else str(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        record = asdict(self)
        return {**record, "sources": list(self.sources), "passages": list(self.passages)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Verdict:
        """The inverse of `to_dict`."""
        names, numbers = map(str, record["sources"]), map(int, record["passages"])
        return cls(**{**record, "sources": tuple(names), "passages": tuple(numbers)})


def support_of(log_prob: float, without: float, alone: float, prior: float) -> float:
    """Return what some sources account for: what is lost without them, or what they hold alone.

    A document beside a question helps a little whatever it says, so neither is asked of all
    documents at once.
    """
    return max(log_prob - without, min(alone, log_prob) - prior)


def is_unsupported(support: float, gain: float) -> bool:
    """Return whether nothing carries a statement: neither its source, nor all documents together.

    support: what its source accounts for. gain: what all documents add to it, in nats.
    """
    return support < _MIDDLE and gain < 2 * _MIDDLE


def takes_away(loss: float, gain: float) -> bool:
    """Return whether hiding some sources takes away what the documents gave.

    At least half of the probability, and half of what all documents add to it in nats.
    """
    return loss >= max(_HALF, gain / 2)


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
