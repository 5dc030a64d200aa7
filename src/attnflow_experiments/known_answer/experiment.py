"""Models whose true sources are known: how often does each method rank one of them first?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from attnflow.errors import InputError
from attnflow.errors.percent import percent
from attnflow.evaluation.table import Table
from attnflow.methods import quiet_about_limits
from attnflow_experiments.known_answer.contenders import CONTENDERS, LESS_NEUTRAL
from attnflow_experiments.known_answer.data import Wording, fact_prompts
from attnflow_experiments.known_answer.observe import arithmetic, stated_facts
from attnflow_experiments.known_answer.tables import (
    distractor_table,
    less_neutral_table,
    rank_table,
    ranks_of,
    relatives_table,
)
from attnflow_experiments.report import Report

__all__ = ["LESS_NEUTRAL", "KnownAnswer"]


@dataclass(frozen=True, kw_only=True)
class KnownAnswer:
    """The known-answer experiment.

    prompts: how many prompts are made; those the model answers rightly count.
    seed: decides which.
    wording: "test", or "development", the wordings that options were chosen by.

    >>> KnownAnswer(prompts=8).report([], "attnflow experiment known-answer").protocol[2]
    'Wording: test; distractors are facts of the same kind about others.'
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

    def report(self, tables: Sequence[Table], command: str) -> Report:
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
            command=command,
            figure=None if facts is None else partial(_draw, facts),
        )


def _draw(table: Table, path: Path) -> None:
    """A panel for each column: the mean and its interval in every row."""
    from attnflow.show import plots

    plots.interval_panels(table.interval_panels(), path)
