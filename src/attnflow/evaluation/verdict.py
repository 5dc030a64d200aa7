"""Which attribution to trust here, in sentences; what chance could have made is said to be so.

A difference is called clear when the 95 % interval of the mean difference on the same texts
excludes zero and the sign-flip test's p is below .05 divided by the number of methods: the best of
many is always a little ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attnflow.evaluation.metrics import PairedDifference
from attnflow.evaluation.results import FAITHFULNESS, RANDOM, Evaluation

__all__ = ["beating", "sentences"]

_LEVEL: Final = 0.05
_FEW: Final = 30  # texts below which intervals are too wide to tell much
_PLAIN: Final = ("rollout", "flow")
_SATURATED: Final = 0.5  # share of saturated values from which a flow is called saturated
_BOTH: Final = ("comprehensiveness", "sufficiency")


def sentences(found: Evaluation) -> tuple[str, ...]:
    """The verdict, the most important first."""
    ranked = sorted(found.methods, key=lambda m: -found.summary(m, FAITHFULNESS).mean)
    trusted = [m for m in ranked if _clear(found, found.compare(m, RANDOM, FAITHFULNESS)) > 0]
    said = [*_most_faithful(found, ranked, trusted), *_against_plain(found)]
    said += [_agrees(found, measure) for measure in found.measures]
    said += [*_worse_than_random(found, ranked), *_saturation(found), *_remarks(found)]
    return tuple(said)


def _clear(found: Evaluation, difference: PairedDifference) -> int:
    """1 or -1 where the difference is clearly above or below zero, 0 where chance could make it."""
    if not difference.n or difference.p >= _LEVEL / len(found.methods):
        return 0
    return 1 if difference.low > 0 else -1 if difference.high < 0 else 0


def _most_faithful(found: Evaluation, ranked: Sequence[str], trusted: Sequence[str]) -> list[str]:
    if not trusted and len(found.used) < _FEW:
        return [f"{len(found.used)} texts are too few to tell any method from a random order."]
    if not trusted:
        return [
            "Trust none of these methods here: none is clearly more faithful than a random order "
            f"of the words on these {len(found.used)} texts."
        ]
    best = ranked[0]
    over = found.compare(best, RANDOM, FAITHFULNESS)
    said = [
        f"Trust {best} most here: with only its strongest words the answer keeps "
        f"{found.summary(best, FAITHFULNESS).mean:.2f} more probability than without them "
        f"(random order: {found.summary(RANDOM, FAITHFULNESS).mean:.2f}; difference "
        f"{_shown(over)})."
    ]
    level = [m for m in ranked[1:] if not _clear(found, found.compare(best, m, FAITHFULNESS))]
    if len(level) == len(ranked) - 1 and level:
        said.append(
            "All methods are within noise of each other: prefer the cheapest, or add texts."
        )
    elif level:
        said.append(f"Its lead over {_listed(level)} could be chance: do not choose by it.")
    elif len(ranked) > 1:
        lead = found.compare(best, ranked[1], FAITHFULNESS)
        said.append(f"It is clearly ahead of the next, {ranked[1]}: by {_shown(lead)}.")
    return said


def beating(found: Evaluation, others: Sequence[str]) -> list[str]:
    """Methods clearly better than all these in comprehensiveness and in sufficiency."""
    return [
        method
        for method in found.methods
        if method not in others
        and all(
            _clear(found, found.compare(method, other, "comprehensiveness")) > 0
            and _clear(found, found.compare(method, other, "sufficiency")) < 0
            for other in others
        )
    ]


def _against_plain(found: Evaluation) -> list[str]:
    plain = [name for name in _PLAIN if name in found.methods]
    if not plain or len(plain) == len(found.methods):
        return []
    better = beating(found, plain)
    named = " and ".join(f"plain {name}" for name in plain)
    if not better:
        return [f"No other method clearly beats {named} in comprehensiveness and sufficiency."]
    verb = "beat" if len(better) > 1 else "beats"
    return [
        f"{_listed(better)} {verb} {named} in both comprehensiveness and sufficiency; the 95 % "
        "intervals of the differences exclude zero."
    ]


def _agrees(found: Evaluation, measure: str) -> str:
    metric = f"{measure} spearman"
    ranked = sorted(found.methods, key=lambda m: -_or_last(found.summary(m, metric).mean))
    best, mean = ranked[0], found.summary(ranked[0], metric)
    if not mean.n or _clear(found, found.compare(best, RANDOM, metric)) <= 0:
        return f"No method clearly agrees with {measure} better than a random order does."
    ahead = f"{best} agrees best with {measure}: Spearman {mean.mean:.2f} "
    ahead += f"({mean.low:.2f} to {mean.high:.2f})"
    level = [m for m in ranked[1:] if not _clear(found, found.compare(best, m, metric))]
    return f"{ahead}, {_listed(level)} not clearly less." if level else f"{ahead}, clearly."


def _or_last(mean: float) -> float:
    return mean if mean == mean else -2.0


def _worse_than_random(found: Evaluation, ranked: Sequence[str]) -> list[str]:
    worse = [m for m in ranked if _clear(found, found.compare(m, RANDOM, FAITHFULNESS)) < 0]
    level = [
        m
        for m in ranked
        if m not in worse and not _clear(found, found.compare(m, RANDOM, FAITHFULNESS))
    ]
    said = []
    if worse:
        said.append(f"Less faithful here than a random order: {_listed(worse)}.")
    if level and len(level) < len(ranked):
        said.append(f"Not clearly more faithful here than a random order: {_listed(level)}.")
    return said


def _saturation(found: Evaluation) -> list[str]:
    return [
        f"{method} is saturated: {share:.0%} of its values at the highest layer would be the same "
        "for any other target, so it says which tokens pass anything on, not what was drawn on."
        for method in found.methods
        if (share := found.saturation(method)) is not None and share >= _SATURATED
    ]


def _remarks(found: Evaluation) -> list[str]:
    said = []
    if len(found.used) < _FEW:
        said.append(f"Intervals are wide with {len(found.used)} texts: add some.")
    accuracy = found.accuracy()
    if accuracy is not None:
        said.append(
            f"The model's answer is the label of {accuracy:.1%} of the texts; what is explained "
            "is its answer, right or wrong."
        )
    said += [f"Left out, {method}: {reason}" for method, reason in found.refused.items()]
    left = [record.left_out for record in found.records if record.left_out]
    if left:
        said.append(
            f"{len(left)} of {len(found.records)} texts were left out; the first: {left[0]}"
        )
    return said


def _shown(difference: PairedDifference) -> str:
    interval = f"{difference.low:+.3f} to {difference.high:+.3f}"
    return f"{difference.difference:+.3f}, 95 % interval {interval}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
