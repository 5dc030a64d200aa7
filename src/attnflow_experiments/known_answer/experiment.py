"""Known answers: how often does each method rank the true source of an answer first?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnflow import methods
from attnflow.errors import InputError, percent
from attnflow.errors.progress import tell
from attnflow.evaluation.metrics import compare_paired, summarize
from attnflow.evaluation.table import Cell, Table
from attnflow.hosts.capture import capture
from attnflow.methods import Flow, Method, Raw, Rollout, quiet_about_limits
from attnflow.methods.mixing import ONE_STEP
from attnflow.tokens.text import common_tokens
from attnflow_experiments.known_answer.data import (
    Known,
    Wording,
    arithmetic,
    fact_prompts,
    stated_facts,
)
from attnflow_experiments.layers import Floats
from attnflow_experiments.report import Report

LESS_NEUTRAL = "one-step, less neutral"
"""Rollout that does not drown depth, its first token dropped, less that of a neutral prompt."""
LESS_NEUTRAL_METHOD = Rollout(residual=ONE_STEP, drop=(0,))


@dataclass(frozen=True)
class Contender:
    """A method, at the highest layer or as the mean of all, with or without the neutral prompt."""

    method: Method
    layers: Literal["top", "mean"] = "top"
    less_neutral: bool = False
    common: bool = True


_FLOW = Flow()
_FIRST = (0,)
CONTENDERS: Mapping[str, Contender] = {
    "raw": Contender(Raw()),
    "raw, mean of layers": Contender(Raw(), "mean"),
    "raw, first token dropped, mean": Contender(Raw(drop=_FIRST), "mean"),
    "raw, common left out, mean": Contender(Raw(), "mean", common=False),
    "raw − neutral, mean": Contender(Raw(), "mean", less_neutral=True),
    "rollout": Contender(Rollout()),
    "rollout, mean of layers": Contender(Rollout(), "mean"),
    "rollout, column": Contender(Rollout(receptive_field="column")),
    "rollout, element": Contender(Rollout(receptive_field="element")),
    "rollout, uniform-baseline": Contender(Rollout(receptive_field="uniform-baseline")),
    "rollout, first token dropped": Contender(Rollout(drop=_FIRST)),
    "rollout, common left out": Contender(Rollout(), common=False),
    "rollout − neutral": Contender(Rollout(), less_neutral=True),
    "rollout, one-step": Contender(Rollout(residual="one-step")),
    "rollout, one-step, first dropped": Contender(LESS_NEUTRAL_METHOD),
    "rollout, one-step − neutral": Contender(Rollout(residual="one-step"), less_neutral=True),
    LESS_NEUTRAL: Contender(LESS_NEUTRAL_METHOD, less_neutral=True),
    "one-step, less neutral, common left out": Contender(
        LESS_NEUTRAL_METHOD, less_neutral=True, common=False
    ),
    "one-step, less neutral, mean of layers": Contender(
        LESS_NEUTRAL_METHOD, "mean", less_neutral=True
    ),
    "flow": Contender(_FLOW),
    "flow, mean of layers": Contender(_FLOW, "mean"),
    "flow − neutral": Contender(_FLOW, less_neutral=True),
}


RELATIVES: Mapping[str, Method] = {
    "gradient-rollout": methods.GradientRollout(),
    "gradient-flow": methods.Flow(capacities="gradients", residual=None),
    "measured-residual": methods.Rollout(matrices="measured-residual"),
    "norm-rollout": methods.Rollout(matrices="norms"),
    "alti": methods.Rollout(matrices="alti"),
    "value-zeroing": methods.Rollout(matrices="value-zeroing"),
}


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
    """Return the rank of the best true source, from 1; a tie counts against it."""
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
        trace = capture((model, tokenizer), one.inputs, methods=list(RELATIVES.values()))
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


@dataclass(frozen=True, kw_only=True)
class KnownAnswer:
    """The known-answer experiment.

    prompts: how many prompts are made; those the model answers rightly count.
    seed: decides which.
    wording: "test", or "development", the wordings that options were chosen by.
    """

    prompts: int = 960
    seed: int = 0
    wording: Wording = "test"

    def __post_init__(self) -> None:
        if self.prompts < 1:
            raise InputError(f"prompts is at least 1; got {self.prompts}.")
        if self.wording not in ("test", "development"):
            raise InputError(f"wording is 'test' or 'development'; got {self.wording!r}.")

    @quiet_about_limits()  # its tables tell of saturation
    def of_language_model(self, model: Any, tokenizer: Any) -> tuple[Table, ...]:
        """How often the stated fact is found, and how that depends on distractors."""
        prompts = fact_prompts(self.prompts, seed=self.seed, wording=self.wording)
        known = stated_facts(model, tokenizer, prompts)
        if not known:
            raise InputError(f"The model answered none of {len(prompts)} prompts rightly.")
        ranks = ranks_of(known, CONTENDERS)
        note = f"{len(known)} of {len(prompts)} prompts were answered rightly and count."
        return (
            rank_table("facts", "The token that states the fact", ranks, note),
            distractor_table(known, ranks),
            less_neutral_table(ranks),
            relatives_table(known, ranks, model, tokenizer),
        )

    @quiet_about_limits()  # its tables tell of saturation
    def of_arithmetic(
        self,
        model: Any,
        vocabulary: Mapping[str, int],
        sign: str,
    ) -> tuple[Table, Table]:
        """How often one of the two operands comes first."""
        known = arithmetic(model, vocabulary, sign)
        fair = {n: c for n, c in CONTENDERS.items() if not c.less_neutral}
        note = (
            f"{len(known)} of 100 were answered rightly and count. Two of four tokens are true "
            "sources: a random order ranks one first half of the time."
        )
        name = {"*": "products", "+": "sums"}[sign]
        title = f"mathformer, {name} of two digits: an operand"
        ranks = ranks_of(known, fair)
        related = relatives_table(known, ranks, model, None, name)
        return rank_table(name, title, ranks, note), related

    def report(self, tables: Sequence[Table]) -> Report:
        """The tables with what they mean."""
        facts = next((table for table in tables if table.name == "facts"), None)
        findings = []
        if facts is not None:
            best = max(facts.rows, key=lambda name: facts.rows[name][0].value)
            findings.append(
                f"The true source is ranked first most often by {best} "
                f"({percent(facts.rows[best][0].value)}); plain rollout finds it in "
                f"{percent(facts.rows['rollout'][0].value)}, raw attention in "
                f"{percent(facts.rows['raw'][0].value)}."
            )
        return Report(
            name="known-answer",
            title="Known answers: is the true source found?",
            protocol=(
                "A prompt counts if the model's most probable next token is the right answer.",
                "Rank of the true source among all tokens of the prompt, in the row of the last "
                "position; a tie counts against it; of several true sources the best counts.",
                f"Wording: {self.wording}; distractors are facts of the same kind about others.",
                "95 % bootstrap intervals over prompts.",
            ),
            tables=tuple(tables),
            findings=tuple(findings),
            figure=None if facts is None else partial(_draw, facts),
        )


def _draw(table: Table, path: Path) -> None:
    """A panel for each column: the mean and its interval in every row."""
    from attnflow.show import plots

    plots.interval_panels(table.interval_panels(), path)
