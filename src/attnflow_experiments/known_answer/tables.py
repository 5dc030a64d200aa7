"""How often each method ranks a true source first, summed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnflow.errors.progress import tell
from attnflow.evaluation.metrics import compare_paired, summarize
from attnflow.evaluation.table import Cell, Table
from attnflow.hosts.capture import capture
from attnflow.methods import Method, quiet_about_limits
from attnflow.tokens.common_words import common_tokens
from attnflow_experiments.known_answer.contenders import LESS_NEUTRAL, RELATIVES, Contender
from attnflow_experiments.known_answer.observe import Known
from attnflow_experiments.layers import Floats

__all__ = [
    "less_neutral_table",
    "distractor_table",
    "rank_of",
    "rank_table",
    "ranks_of",
    "relatives_table",
]

_RELATED = 60  # prompts: zeroing every value in 30 layers takes seconds for each


@quiet_about_limits()
def ranks_of(
    known: Sequence[Known],
    contenders: Mapping[str, Contender],
) -> dict[str, Floats]:
    """For each contender the rank of the best true source in every prompt, from 1."""
    ranks: dict[str, list[float]] = {name: [] for name in contenders}
    methods = dict.fromkeys(contender.method for contender in contenders.values())
    for k, one in enumerate(known):
        last = one.trace.length - 1
        own = {method: method(one.trace, targets=last).values[:, 0] for method in methods}
        less: dict[Method, Floats] = {}
        for name, contender in contenders.items():
            row = own[contender.method]
            if contender.less_neutral and one.neutral is not None:
                if contender.method not in less:
                    less[contender.method] = contender.method(one.neutral, targets=last).values[
                        :, 0
                    ]
                row = row - less[contender.method]
            if not contender.common:
                row = np.where(common_tokens(one.trace.tokens), -np.inf, row)
            ranks[name].append(rank_of(row, contender.layers, one.sources))
        tell("attribution", k + 1, len(known))
    return {name: np.array(values) for name, values in ranks.items()}


def rank_of(row: Floats, layers: str, sources: Sequence[int]) -> float:
    """The rank of the best true source, from 1; `row` is layer × source, a tie counts against it.

    >>> rank_of(np.array([[0.1, 0.5, 0.4]]), "top", [2])
    2.0
    """
    values = row[-1] if layers == "top" else row.mean(axis=0)
    best = max(values[list(sources)])
    return float(1 + (np.delete(values, list(sources)) >= best).sum())


def rank_table(name: str, title: str, ranks: Mapping[str, Floats], note: str) -> Table:
    """How often each contender ranks a true source first, among the first three, and the mean."""
    rows = {
        contender: tuple(
            Cell.of_share(summarize(values)) for values in (each == 1, each <= 3, each)
        )
        for contender, each in ranks.items()
    }
    return Table(name, title, ("first", "top three", "mean rank"), rows, note)


@quiet_about_limits()
def relatives_table(
    known: Sequence[Known],
    ranks: Mapping[str, Floats],
    model: Any,
    tokenizer: Any,
    name: str = "facts",
) -> Table:
    """The stronger relatives on the first of these prompts, beside the others on the same."""
    few = known[:_RELATED]
    theirs: dict[str, list[float]] = {relative: [] for relative in RELATIVES}
    for k, one in enumerate(few):
        trace = capture(model, one.inputs, tokenizer=tokenizer, methods=list(RELATIVES.values()))
        for relative, method in RELATIVES.items():
            row = method(trace, targets=trace.length - 1, layers=-1).values[:, 0]
            theirs[relative].append(rank_of(row, "top", one.sources))
        tell("relatives", k + 1, len(few))
    both = {n: ranks[n][: len(few)] for n in ("raw", "rollout", LESS_NEUTRAL) if n in ranks}
    both |= {relative: np.array(values) for relative, values in theirs.items()}
    title = f"The stronger relatives, {name}"
    note = f"The first {len(few)} of the same prompts."
    return rank_table(f"{name}-relatives", title, both, note)


def distractor_table(known: Sequence[Known], ranks: Mapping[str, Floats]) -> Table:
    """How often the fact is ranked first, by the number of distractors."""
    counts = np.array([one.distractors for one in known])
    rows = {
        name: tuple(Cell.of_share(summarize((ranks[name] == 1)[counts == n])) for n in range(4))
        for name in (
            "raw, mean of layers",
            "rollout",
            "rollout, one-step, first dropped",
            LESS_NEUTRAL,
        )
    }
    columns = tuple(f"{n} distractors" for n in range(4))
    return Table("distractors", "Ranked first, by the number of distractors", columns, rows)


def less_neutral_table(ranks: Mapping[str, Floats]) -> Table:
    """Compare the contender that is less a neutral prompt with the plain methods, pair by pair."""
    first = {name: (values == 1).astype(np.float64) for name, values in ranks.items()}
    rows = {
        f"{LESS_NEUTRAL} − {other}": (
            Cell.of_difference(compare_paired(first[LESS_NEUTRAL], first[other])),
        )
        for other in ("raw", "raw, mean of layers", "rollout", "flow")
    }
    title = f"Ranked first: {LESS_NEUTRAL} against others"
    return Table("differences", title, ("difference",), rows)
