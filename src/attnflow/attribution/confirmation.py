"""How sure is an explanation? What the answer loses when the sources it names are hidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, fsum, isfinite
from typing import Any

from attnflow.errors import InputError, shorten, whole_number

_MOST_NAMED = 5  # sources that the sentence names
_MOST_OF_IT, _HARDLY = 0.5, 0.1  # parts of the probability


@dataclass(frozen=True)
class Confirmation:
    """What an answer's log-probability is without the sources that its explanation names.

    All of them are hidden together, in one more pass of the model. If hardly anything is lost, the
    explanation does not hold for this answer, however sure its values look.

    sources: the names of what was hidden, strongest first. positions: for each of them the
    positions of its tokens. targets: the tokens of the answer. log_probs, log_probs_without: the
    log-probability of each of these tokens, in nats, with and without the sources.
    by: how they were taken away: "hide" their keys, or "replace" them by a blank token.

    >>> certain = Confirmation(("Rome",), ((3,),), ("Rome",), (-0.1,), (-4.6,))
    >>> print(certain)
    Hiding Rome takes the probability from 0.90 to 0.01.
    >>> round(certain.drop, 6), round(certain.share, 3)
    (4.5, 0.989)
    """

    sources: tuple[str, ...]
    positions: tuple[tuple[int, ...], ...]
    targets: tuple[str, ...]
    log_probs: tuple[float, ...]
    log_probs_without: tuple[float, ...]
    by: str = "hide"

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.positions) or not self.sources:
            raise InputError(
                f"A confirmation has positions for each of its sources, of which there is at least "
                f"one; got {len(self.positions)} for {len(self.sources)}."
            )
        for name in ("log_probs", "log_probs_without"):
            values = getattr(self, name)
            if len(values) != len(self.targets) or not values:
                raise InputError(f"{name} has {len(values)} values for {len(self.targets)} tokens.")
            if not all(isinstance(v, float) and isfinite(v) and v <= 1e-6 for v in values):
                raise InputError(
                    f"{name} are logarithms of probabilities, so at most 0; got {shorten(values)}."
                )
        places = [place for each in self.positions for place in each]
        if not all((whole_number(place) or 0) >= 0 for place in places):
            raise InputError(f"Positions are whole numbers from 0; got {shorten(places)}.")

    @property
    def log_prob(self) -> float:
        """The log-probability of the whole answer, in nats."""
        return fsum(self.log_probs)

    @property
    def log_prob_without(self) -> float:
        """The log-probability of the whole answer without the sources, in nats."""
        return fsum(self.log_probs_without)

    @property
    def drop(self) -> float:
        """How many nats the answer loses; negative where it becomes likelier."""
        return self.log_prob - self.log_prob_without

    @property
    def probability(self) -> float:
        """The probability of a token of the answer; of several, their geometric mean."""
        return exp(min(0.0, self.log_prob / len(self.log_probs)))

    @property
    def probability_without(self) -> float:
        """The same without the sources."""
        return exp(min(0.0, self.log_prob_without / len(self.log_probs)))

    @property
    def share(self) -> float:
        """The part of that probability that is lost; negative where it rises."""
        return 1 - self.probability_without / self.probability if self.probability else 0.0

    @property
    def lost(self) -> float:
        """The part of the whole answer's probability that is gone, from 0 to 1.

        >>> round(Confirmation(("Rome",), ((3,),), ("Rome",), (-0.1,), (-4.6,)).lost, 3)
        0.989
        """
        return 1 - exp(-max(self.drop, 0.0))

    @property
    def verdict(self) -> str:
        """What it means for the explanation: whether half, a tenth or less of the answer's
        probability is lost.

        >>> Confirmation(("Rome",), ((3,),), ("Rome",), (-0.1,), (-4.6,)).verdict
        'Most of it is lost: the answer rests on it.'
        """
        them = "it" if len(self.sources) == 1 else "them"
        if self.lost < _HARDLY:
            return f"Hardly anything is lost: the answer does not need {them}, whatever shares say."
        much = "Most" if self.lost >= _MOST_OF_IT else "Part"
        rests = f"rests on {them}" + ("" if self.lost >= _MOST_OF_IT else " in part")
        if len(self.targets) == 1:
            return f"{much} of it is lost: the answer {rests}."
        factor = exp(min(self.drop, 300.0))
        times = f"{factor:,.0f}" if factor >= 10 else f"{factor:.1f}"
        return f"The whole answer becomes {times} times less likely: it {rests}."

    def __str__(self) -> str:
        verb = "Hiding" if self.by == "hide" else "Blanking"
        rest = len(self.sources) - _MOST_NAMED
        names = ", ".join(self.sources[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
        of = "the probability"
        if len(self.targets) > 1:
            of = f"the mean probability of the answer's {len(self.targets)} tokens"
        before, after = few_digits(self.probability), few_digits(self.probability_without)
        return f"{verb} {names} takes {of} from {before} to {after}."

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "sources": list(self.sources),
            "positions": [list(each) for each in self.positions],
            "targets": list(self.targets),
            "log_probs": list(self.log_probs),
            "log_probs_without": list(self.log_probs_without),
            "by": self.by,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Confirmation:
        """The inverse of `to_dict`."""
        return cls(
            tuple(map(str, record["sources"])),
            tuple(tuple(each) for each in record["positions"]),
            tuple(map(str, record["targets"])),
            tuple(map(float, record["log_probs"])),
            tuple(map(float, record["log_probs_without"])),
            str(record["by"]),
        )


def few_digits(probability: float) -> str:
    """Return a probability as people read it."""
    return f"{probability:.2f}" if probability >= 0.005 else f"{probability:.1g}"
