"""Which attribution to trust here, in sentences; what chance could have made is said to be so.

A difference is called clear when the 95 % interval of the mean difference on the same examples
excludes zero and the sign-flip test's p is below .05 divided by the number of methods: the best of
many is always a little ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from attnflow.errors import percent
from attnflow.evaluation.records import FAITHFULNESS, RANDOM

if TYPE_CHECKING:
    from attnflow.evaluation.results import Evaluation

_FEW: Final = 30  # examples below which intervals are too wide to tell much
_PLAIN: Final = ("rollout", "flow")
_MOSTLY: Final = 0.5  # share of saturated values, or of collapsed texts, that is told
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
    """Return names in a sentence."""
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


# -- what is said of texts only --------------------------------------------------------------------


def beating(evaluation: Evaluation, others: Sequence[str]) -> list[str]:
    """Return the methods clearly better than all these in comprehensiveness and sufficiency."""
    return [
        method
        for method in evaluation.methods
        if method not in others
        and all(
            evaluation.is_better(method, other, metric)
            for other in others
            for metric in ("comprehensiveness", "sufficiency")
        )
    ]


def against_plain(evaluation: Evaluation) -> list[str]:
    """Say who is ahead of plain rollout and flow: in both metrics, or only by their difference.

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
        and all(evaluation.is_better(method, name, FAITHFULNESS) for name in plain)
    ]
    names = " and ".join(f"plain {name}" for name in plain)
    sentences = []
    if both:
        sentences.append(
            f"{join_names(both)} {'beat' if len(both) > 1 else 'beats'} {names} in both "
            "comprehensiveness and sufficiency; the 95 % intervals of the differences exclude zero."
        )
    if together:
        sentences.append(
            f"{join_names(together)} {'are' if len(together) > 1 else 'is'} clearly more faithful "
            f"than {names} by comprehensiveness and sufficiency together, but not clearly by each "
            "of the two alone."
        )
    return sentences or [f"No other method is clearly more faithful than {names}."]


def agreement(evaluation: Evaluation, measure: str) -> str:
    """Say which method agrees best with a measure of importance."""
    metric = f"{measure} spearman"
    ranked = evaluation.rank_methods(metric)
    best, mean = ranked[0], evaluation.summary(ranked[0], metric)
    if not mean.n or not evaluation.is_better(best, RANDOM, metric):
        return f"No method clearly agrees with {measure} better than a random order does."
    ahead = f"{best} agrees best with {measure}: Spearman {mean.mean:.2f} "
    ahead += f"({mean.low:.2f} to {mean.high:.2f})"
    level = [method for method in ranked[1:] if evaluation.is_level(best, method, metric)]
    return f"{ahead}, {join_names(level)} not clearly less." if level else f"{ahead}, clearly."


def limits(evaluation: Evaluation) -> list[str]:
    """Say which methods hardly depend on the target."""
    sentences = [
        f"{method} is saturated: {percent(share)} of its values at the highest layer would be the "
        "same for any other target. It says which tokens pass anything on, not what was drawn on."
        for method in evaluation.methods
        if (share := evaluation.saturation(method)) is not None and share >= _MOSTLY
    ]
    collapsed = [m for m in evaluation.methods if evaluation.collapse(m) >= _MOSTLY]
    if collapsed:
        sentences.append(
            f"Collapsed at the highest layer in most texts: {join_names(collapsed)}. Such rows are "
            "nearly the same for every target."
        )
    return sentences
