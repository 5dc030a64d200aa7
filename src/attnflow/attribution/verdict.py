"""The verdict on what an answer rests on: measured probabilities, the claim, its one wording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import exp, isfinite, log
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnflow.errors import InputError, percent, shorten

UNCHECKED = "unchecked"
"""Where the provenance of a result says why nothing could be hidden."""

Kind = Literal["rests", "either", "together", "partly", "none"]
Part = Literal["document", "word", "region"]
# How likely support makes it that an answer rests on the documents: the likeliest curve for 319
# answers of SmolLM2, Gemma 3 and Qwen2.5 (`attnflow experiment verdicts`).
CURVE = (0.97, 3.07)  # its middle, and its slope there
# The support from which a source is claimed: of 570 answers that have a source 29 have less, of 175
# that have none 2 have more.
_CLAIMED = 1.5
_HALF = log(2)  # a probability that is halved, in nats
_LITTLE = -log(0.9)  # one that has lost a tenth
_LISTS = ("sources", "passages", "curve")
_LEAST = 0.01  # a part of a probability below which no digit is told


@dataclass(frozen=True)
class Verdict:
    """The sources of an answer's probability, from passes in which the model reads it again.

    kind: the answer "rests" on the one source that is named; on "either" of several, each enough
    alone; on several "together"; "partly" on them; or "none": as likely without.
    sources: the names of what the kind speaks of, strongest first. tokens: how many were judged; a
    class has 1. part: what a source is a part of: a "document" or a sentence of one, a "word" of
    the text, a "region" of the image. word: over documents, that of the statement which tells most
    (see `telling`), of those that are lost where one is; None where all of an answer was judged.

    The log-probabilities of this word, or of the answer, in nats: as it was asked (log_prob);
    without what it took to lose it (without: the sources, and of "either" what ranks between them).
    Over documents also with the sources' documents and no other (alone), and with no document
    (prior). passages: the numbers of the sources among the prompt's documents. curve: middle and
    slope of what support says of where a statement comes from; a model may have one of its own.

    >>> numbers = (-0.2, -4.0, -0.4, -7.0)
    >>> verdict = Verdict("rests", ("a.txt, sentence 1",), 2, *numbers, word="45")
    >>> print(verdict)
    rests on a.txt, sentence 1: without it the probability of “45” goes from 82 % to 2 %
    >>> verdict.rests_on_documents > 0.9
    True
    >>> print(Verdict("none", ("the",), 1, -0.1, -0.15, part="word"))
    no source found, it does not need “the”: without it its probability goes from 90 % to 86 %
    """

    kind: Kind
    sources: tuple[str, ...]
    tokens: int
    log_prob: float
    without: float
    alone: float | None = None
    prior: float | None = None
    passages: tuple[int, ...] = ()
    part: Part = "document"
    word: str | None = None
    curve: tuple[float, float] = CURVE

    def __post_init__(self) -> None:
        for name, value, allowed in (("kind", self.kind, Kind), ("part", self.part, Part)):
            if value not in get_args(allowed):
                raise InputError(
                    f"{name}={shorten(value)}: choose from {', '.join(get_args(allowed))}."
                )
        if self.tokens < 1 or not self.sources:
            raise InputError("A verdict is of a statement with tokens, and names what was hidden.")
        measured = (self.log_prob, self.without, self.alone, self.prior)
        if not all(isfinite(each) for each in measured if each is not None):
            raise InputError(f"Log-probabilities are finite; got {shorten(measured)}.")
        if (self.alone is None) is not (self.prior is None):
            raise InputError("alone and prior are measured over documents; give both, or none.")

    @property
    def support(self) -> float:
        """The nats that the named sources account for: lost without them, or held by them alone."""
        return support_of(self.log_prob, self.without, self.alone, self.prior)

    @property
    def rests_on_documents(self) -> float | None:
        """How likely the statement is to come from the documents, not from memory: 0 to 1.

        None where there were no documents to hide.
        """
        if self.prior is None:
            return None
        middle, slope = self.curve
        return 1 / (1 + exp(-max(-60.0, min(60.0, slope * (self.support - middle)))))

    @property
    def left(self) -> float:
        """The part of the statement's probability that is left without what the claim speaks of.

        That is all documents where none is needed by itself; at most 1.
        """
        return exp(min(0.0, self._hidden - self.log_prob))

    @property
    def bars(self) -> dict[str, tuple[float, str]]:
        """The probability as it was asked and without what is hidden, by label, and in words.

        Of a class or a word they are probabilities; of more they are parts of its own, as a longer
        text is never likely.
        """
        pair = (exp(min(self.log_prob, 0.0)), exp(min(self._hidden, 0.0)))
        if not self._is_plain:
            pair = (1.0, self.left)
        return {
            label: (each, _percent(each))
            for label, each in zip(("as asked", f"without {self._missing}"), pair, strict=True)
        }

    @property
    def claim(self) -> str:
        """The words that may be said of the statement, before any share."""
        quoted = (
            tuple(f"“{name}”" for name in self.sources) if self.part == "word" else self.sources
        )
        names, of_documents = _listed(quoted), self.part == "document"
        return {
            "rests": f"rests on {quoted[0]}",
            "either": f"rests on either of {names}",
            "together": f"rests on {names} together",
            "partly": f"partly from the documents, {quoted[0]} first"
            if of_documents
            else f"rests in part on {names}",
            "none": "no source found, "
            + (self._why_none if of_documents else f"it does not need {names}"),
        }[self.kind]

    @property
    def _why_none(self) -> str:
        """Why documents carry nothing: what is as likely, a guess, or not what the model says."""
        if self._is_plain and exp(self.log_prob) < _LEAST:
            return "the model would hardly say it"
        if takes_away(self.log_prob - self._hidden):
            return "the documents only make it likelier"
        return "it does not need the documents"

    @property
    def reason(self) -> str:
        """The number behind the claim: the same that the bars show."""
        (_, before), (_, after) = self.bars.values()
        if not self._is_plain:
            return f"without {self._missing} {after} of its probability is left"
        verb = "stays at" if before == after else f"goes from {before} to"
        whose = "its probability" if self.word is None else f"the probability of “{self.word}”"
        return f"without {self._missing} {whose} {verb} {after}"

    def __str__(self) -> str:
        return f"{self.claim}: {self.reason}"

    @property
    def linked_claim(self) -> str:
        """The claim, to follow the words of the statement."""
        return f"– {self.claim}" if self.is_verbless else self.claim

    @property
    def is_verbless(self) -> bool:
        """True if the claim stands by itself, and is not said of a subject."""
        return self.kind == "none" or (self.kind == "partly" and self.part == "document")

    @property
    def _is_plain(self) -> bool:
        """True if people read its probability as it is: a class, or one word."""
        return self.word is not None or (self.tokens == 1 and self.part != "document")

    @property
    def _hidden(self) -> float:
        """The log-probability without what the claim speaks of."""
        if self.prior is not None and self.kind in ("none", "either"):
            return self.prior
        return self.without

    @property
    def _missing(self) -> str:
        if self.kind in ("none", "either") and self.part == "document":
            return "any document"
        return "it" if len(self.sources) == 1 else "them"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        record = asdict(self)
        return {**record, **{name: list(record[name]) for name in _LISTS}}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Verdict:
        """The inverse of `to_dict`; what else a record holds is left."""
        record = {"curve": CURVE, **record}
        values = {field.name: record[field.name] for field in fields(cls)}
        return cls(**{**values, **{name: tuple(record[name]) for name in _LISTS}})


def telling(log_prob: float, prior: float) -> float:
    """Return how much a word of an answer tells of where it comes from.

    What the documents add to it, in nats; a word that the model finds unlikely even so, one of many
    that it could have said, counts by the root of its probability.
    """
    return exp(min(log_prob, 0.0) / 2) * (log_prob - prior)


def support_of(
    log_prob: float, without: float, alone: float | None = None, prior: float | None = None
) -> float:
    """Return what some sources account for: what is lost without them, or what they hold alone.

    Counted as `telling` counts.
    """
    if alone is None or prior is None:
        return telling(log_prob, without)
    return telling(log_prob, log_prob - float(lost_or_held(log_prob, without, alone, prior)))


def lost_or_held(
    base: ArrayLike, without: ArrayLike, alone: ArrayLike, prior: ArrayLike
) -> NDArray[np.float64]:
    """Return what is lost without sources or, if more, what they hold alone of all there is."""
    loss, hold = np.subtract(base, without), np.subtract(np.minimum(alone, base), prior)
    return np.maximum(loss, hold)


def is_unsupported(support: float, total: float) -> bool:
    """Return whether nothing carries a statement: neither its source, nor all documents together.

    support: what its source accounts for. total: what all documents do.
    """
    return support < _CLAIMED and total < 2 * _CLAIMED


def takes_away(loss: float, gain: float = 0.0) -> bool:
    """Return whether hiding some sources takes away what the documents gave.

    At least half of the probability, and half of what all documents add to it in nats.
    """
    return loss >= max(_HALF, gain / 2)


def clearly_takes_away(loss: float) -> bool:
    """Return whether so much is lost that a rough measurement is enough: three quarters."""
    return loss >= 2 * _HALF


def is_little(loss: float) -> bool:
    """Return whether less than a tenth of a probability is lost."""
    return loss < _LITTLE


def _percent(share: float) -> str:
    return "less than 1 %" if share < _LEAST else percent(share)


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
