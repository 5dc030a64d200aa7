"""Which attribution to trust here, in sentences; what chance could have made is said to be so.

A difference is called clear when the 95 % interval of the mean difference on the same examples
excludes zero and the sign-flip test's p is below .05 divided by the number of methods: the best of
many is always a little ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from attnflow.errors.percent import percent
from attnflow.evaluation.records import RANDOM

if TYPE_CHECKING:
    from attnflow.evaluation.results import Evaluation

__all__ = ["join_names", "sentences"]

_FEW: Final = 30  # examples below which intervals are too wide to tell much
_NAMES: Final = {RANDOM: "a random order", "centre": "the centre of the image"}


def sentences(evaluation: Evaluation) -> tuple[str, ...]:
    """Return the verdict, the most important first."""
    headline = evaluation.subject.headline
    ranked = evaluation.rank_methods(headline) if evaluation.has(headline) else []
    return (
        *(_most_faithful(evaluation, ranked) if ranked else ()),
        *evaluation.subject.findings(evaluation),
        *_not_above_random(evaluation, ranked),
        *_remarks(evaluation),
        *_omissions(evaluation),
    )


def join_names(names: Sequence[str]) -> str:
    """Return names in a sentence.

    >>> join_names(["raw", "rollout", "flow"])
    'raw, rollout and flow'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _most_faithful(evaluation: Evaluation, ranked: Sequence[str]) -> list[str]:
    """Say which method is clearly better than every baseline, and how far it is ahead."""
    subject, count = evaluation.subject, len(evaluation.used)
    clear = [
        method
        for method in ranked
        if all(evaluation.is_better(method, row, subject.headline) for row in subject.baselines)
    ]
    baselines = join_names([_NAMES.get(row, row) for row in subject.baselines])
    if not clear and count < _FEW:
        return [f"{count} {subject.plural} are too few to tell any method from {baselines}."]
    if not clear:
        return [
            f"Trust none of these methods here: none is clearly more faithful than {baselines} on "
            f"these {count} {subject.plural}."
        ]
    trust = f"Trust {clear[0]} most here: {subject.reason(evaluation, clear[0])}."
    others = [method for method in ranked if method != clear[0]]
    return [trust, *_lead(evaluation, clear[0], others)]


def _lead(evaluation: Evaluation, best: str, others: Sequence[str]) -> list[str]:
    """Say how far the best is ahead of the others."""
    metric = evaluation.subject.headline
    level = [method for method in others if not evaluation.is_better(best, method, metric)]
    if not others:
        return []
    if len(level) == len(others):
        more = f"prefer the cheapest, or add {evaluation.subject.plural}"
        return [f"All methods are within noise of each other: {more}."]
    if level:
        return [f"Its lead over {join_names(level)} could be chance: do not choose by it."]
    lead = evaluation.compare(best, others[0], metric)
    return [f"It is clearly ahead of the next, {others[0]}: by {lead.in_words()}."]


def _not_above_random(evaluation: Evaluation, ranked: Sequence[str]) -> list[str]:
    metric = evaluation.subject.headline
    worse = [method for method in ranked if evaluation.is_better(RANDOM, method, metric)]
    level = [method for method in ranked if evaluation.is_level(method, RANDOM, metric)]
    remarks = []
    if worse:
        remarks.append(f"Less faithful here than a random order: {join_names(worse)}.")
    if level and len(level) < len(ranked):
        remarks.append(f"Not clearly more faithful here than a random order: {join_names(level)}.")
    return remarks


def _remarks(evaluation: Evaluation) -> list[str]:
    """Say whether the sample is small, and how often the model was right."""
    count, plural = len(evaluation.used), evaluation.subject.plural
    accuracy = evaluation.accuracy()
    remarks = []
    if count < _FEW:
        remarks.append(f"Intervals are wide with {count} {plural}: add some.")
    if accuracy is not None:
        remarks.append(
            f"The model's answer is the label of {percent(accuracy, 1)} of the {plural}; what is "
            "explained is its answer, right or wrong."
        )
    return remarks


def _omissions(evaluation: Evaluation) -> list[str]:
    """Say which methods could not be run, and how many examples were left out."""
    remarks = [f"Left out, {method}: {reason}" for method, reason in evaluation.refused.items()]
    reasons = [record.left_out for record in evaluation.records if record.left_out]
    if reasons:
        count = f"{len(reasons)} of {len(evaluation.records)} {evaluation.subject.plural}"
        remarks.append(f"{count} were left out; the first: {reasons[0]}")
    return remarks
