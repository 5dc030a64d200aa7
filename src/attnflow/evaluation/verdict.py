"""Which attribution to trust here, in sentences; what chance could have made is said to be so.

A difference is called clear when the 95 % interval of the mean difference on the same texts
excludes zero and the sign-flip test's p is below .05 divided by the number of methods: the best of
many is always a little ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from attnflow.errors.percent import percent
from attnflow.evaluation.metrics import PairedDifference, Summary
from attnflow.evaluation.records import (
    FAITHFULNESS,
    FEW,
    RANDOM,
    Record,
    clear_sign,
    omissions,
    remarks,
)

__all__ = ["Comparisons", "beating", "sentences"]

_PLAIN: Final = ("rollout", "flow")
_SATURATED: Final = 0.5  # share of saturated values, or of collapsed texts, that is told


class Comparisons(Protocol):
    """What a verdict is made of: an `Evaluation`, or anything that answers the same questions."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The rows that are methods."""

    @property
    def measures(self) -> tuple[str, ...]:
        """What the methods were correlated with."""

    @property
    def records(self) -> tuple[Record, ...]:
        """One for each text."""

    @property
    def used(self) -> tuple[Record, ...]:
        """Those of texts that could be used."""

    @property
    def refused(self) -> Mapping[str, str]:
        """Methods that could not be run, with the reason."""

    def summary(self, row: str, metric: str) -> Summary:
        """The mean over texts with its interval."""

    def compare(self, row: str, other: str, metric: str) -> PairedDifference:
        """The mean difference on the same texts: row − other."""

    def saturation(self, method: str) -> float | None:
        """The mean share of saturated values; None if the method is no flow."""

    def collapse(self, method: str) -> float:
        """The share of the texts in which the method's rows hardly depend on the target."""

    def accuracy(self) -> float | None:
        """How often the model's answer is the text's label; None where labels say nothing of it."""


def sentences(evaluation: Comparisons) -> tuple[str, ...]:
    """The verdict, the most important first."""
    ranked = sorted(evaluation.methods, key=lambda m: -evaluation.summary(m, FAITHFULNESS).mean)
    over_random = {
        m: _clear(evaluation, evaluation.compare(m, RANDOM, FAITHFULNESS)) for m in ranked
    }
    return (
        *_most_faithful(evaluation, ranked, any(sign > 0 for sign in over_random.values())),
        *_against_plain(evaluation),
        *(_agrees(evaluation, measure) for measure in evaluation.measures),
        *_not_above_random(over_random),
        *_limits(evaluation),
        *remarks(len(evaluation.used), evaluation.accuracy(), "texts"),
        *omissions(evaluation.refused, evaluation.records, "texts"),
    )


def _clear(evaluation: Comparisons, difference: PairedDifference) -> int:
    """1 or -1 where the difference is clearly above or below zero, 0 where chance could make it."""
    return clear_sign(difference, len(evaluation.methods))


def _most_faithful(evaluation: Comparisons, ranked: Sequence[str], any_clear: bool) -> list[str]:
    count = len(evaluation.used)
    if not any_clear and count < FEW:
        return [f"{count} texts are too few to tell any method from a random order."]
    if not any_clear:
        return [
            "Trust none of these methods here: none is clearly more faithful than a random order "
            f"of the words on these {count} texts."
        ]
    best = ranked[0]
    lead = evaluation.compare(best, RANDOM, FAITHFULNESS)
    trust = (
        f"Trust {best} most here: with only its strongest words the answer keeps "
        f"{evaluation.summary(best, FAITHFULNESS).mean:.2f} more probability than without them "
        f"(random order: {evaluation.summary(RANDOM, FAITHFULNESS).mean:.2f}; difference "
        f"{_in_numbers(lead)})."
    )
    return [trust, *_lead(evaluation, ranked)]


def _lead(evaluation: Comparisons, ranked: Sequence[str]) -> list[str]:
    """How far the best is ahead of the others."""
    best, *others = ranked
    level = [m for m in others if not _clear(evaluation, evaluation.compare(best, m, FAITHFULNESS))]
    if not others:
        return []
    if len(level) == len(others):
        return ["All methods are within noise of each other: prefer the cheapest, or add texts."]
    if level:
        return [f"Its lead over {_listed(level)} could be chance: do not choose by it."]
    lead = evaluation.compare(best, others[0], FAITHFULNESS)
    return [f"It is clearly ahead of the next, {others[0]}: by {_in_numbers(lead)}."]


def beating(evaluation: Comparisons, others: Sequence[str]) -> list[str]:
    """Methods clearly better than all these in comprehensiveness and in sufficiency."""
    return [
        method
        for method in evaluation.methods
        if method not in others
        and all(
            _clear(evaluation, evaluation.compare(method, other, "comprehensiveness")) > 0
            and _clear(evaluation, evaluation.compare(method, other, "sufficiency")) < 0
            for other in others
        )
    ]


def _against_plain(evaluation: Comparisons) -> list[str]:
    """Who is ahead of plain rollout and flow: in both metrics, or only in what they make together.

    The second is what "Trust ..." goes by, so that it is never said of a method that is trusted
    that none beats the plain ones.
    """
    plain = [name for name in _PLAIN if name in evaluation.methods]
    others = [name for name in evaluation.methods if name not in plain]
    if not plain or not others:
        return []
    both = beating(evaluation, plain)
    together = [
        method
        for method in others
        if method not in both
        and all(_clear(evaluation, evaluation.compare(method, p, FAITHFULNESS)) > 0 for p in plain)
    ]
    names = " and ".join(f"plain {name}" for name in plain)
    verdict = []
    if both:
        verdict.append(
            f"{_listed(both)} {'beat' if len(both) > 1 else 'beats'} {names} in both "
            "comprehensiveness and sufficiency; the 95 % intervals of the differences exclude zero."
        )
    if together:
        verdict.append(
            f"{_listed(together)} {'are' if len(together) > 1 else 'is'} clearly more faithful "
            f"than {names} by comprehensiveness and sufficiency together, but not clearly by each "
            "of the two alone."
        )
    return verdict or [f"No other method is clearly more faithful than {names}."]


def _agrees(evaluation: Comparisons, measure: str) -> str:
    metric = f"{measure} spearman"
    ranked = sorted(evaluation.methods, key=lambda m: -_or_last(evaluation.summary(m, metric).mean))
    best, mean = ranked[0], evaluation.summary(ranked[0], metric)
    if not mean.n or _clear(evaluation, evaluation.compare(best, RANDOM, metric)) <= 0:
        return f"No method clearly agrees with {measure} better than a random order does."
    ahead = f"{best} agrees best with {measure}: Spearman {mean.mean:.2f} "
    ahead += f"({mean.low:.2f} to {mean.high:.2f})"
    level = [m for m in ranked[1:] if not _clear(evaluation, evaluation.compare(best, m, metric))]
    return f"{ahead}, {_listed(level)} not clearly less." if level else f"{ahead}, clearly."


def _or_last(mean: float) -> float:
    return mean if mean == mean else -2.0


def _not_above_random(over_random: Mapping[str, int]) -> list[str]:
    worse = [method for method, sign in over_random.items() if sign < 0]
    level = [method for method, sign in over_random.items() if sign == 0]
    verdict = []
    if worse:
        verdict.append(f"Less faithful here than a random order: {_listed(worse)}.")
    if level and len(level) < len(over_random):
        verdict.append(f"Not clearly more faithful here than a random order: {_listed(level)}.")
    return verdict


def _limits(evaluation: Comparisons) -> list[str]:
    saturated = [
        f"{method} is saturated: {percent(share)} of its values at the highest layer would be the "
        "same for any other target. It says which tokens pass anything on, not what was drawn on."
        for method in evaluation.methods
        if (share := evaluation.saturation(method)) is not None and share >= _SATURATED
    ]
    collapsed = [m for m in evaluation.methods if evaluation.collapse(m) >= _SATURATED]
    if collapsed:
        saturated.append(
            f"Collapsed at the highest layer in most texts: {_listed(collapsed)}. Such rows are "
            "nearly the same for every target."
        )
    return saturated


def _in_numbers(difference: PairedDifference) -> str:
    interval = f"{difference.low:+.3f} to {difference.high:+.3f}"
    return f"{difference.difference:+.3f}, 95 % interval {interval}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
