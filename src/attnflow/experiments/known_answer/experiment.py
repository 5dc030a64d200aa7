"""Models whose true sources are known: how often does each method rank one of them first?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from attnflow.errors import InputError
from attnflow.evaluation.metrics import compare_paired, summarize
from attnflow.experiments.known_answer.data import FactPrompt, Wording, fact_prompts
from attnflow.experiments.report import Cell, Report, Table, compared, summarized
from attnflow.experiments.verb_number.observe import Stages
from attnflow.generation.prompts import neutral_ids
from attnflow.hosts.capture import capture, capture_batch
from attnflow.methods import (
    Alti,
    Flow,
    GradientFlow,
    GradientRollout,
    MeasuredResidualRollout,
    Method,
    NormRollout,
    Raw,
    Rollout,
    ValueZeroingRollout,
)
from attnflow.methods.mixing import ONE_STEP
from attnflow.tokens.common_words import common_tokens
from attnflow.trace import AttentionTrace

__all__ = [
    "CONTENDERS",
    "DEFAULT",
    "Contender",
    "Known",
    "KnownAnswer",
    "arithmetic",
    "neutral_traces",
    "padded",
    "stated_facts",
]

Floats = NDArray[np.float64]
_BATCH = 16
DEFAULT = "the default of generate"


@dataclass(frozen=True)
class Contender:
    """A method, at the highest layer or as the mean of all, with or without the neutral prompt."""

    method: Method
    layers: Literal["top", "mean"] = "top"
    less_neutral: bool = False
    common: bool = True


DEFAULT_METHOD = Rollout(residual=ONE_STEP, drop=(0,))  # the default of 0.1.0
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
    "rollout, one-step, first dropped": Contender(DEFAULT_METHOD),
    "rollout, one-step − neutral": Contender(Rollout(residual="one-step"), less_neutral=True),
    DEFAULT: Contender(DEFAULT_METHOD, less_neutral=True),
    "the default, common left out": Contender(DEFAULT_METHOD, less_neutral=True, common=False),
    "the default, mean of layers": Contender(DEFAULT_METHOD, "mean", less_neutral=True),
    "flow": Contender(_FLOW),
    "flow, mean of layers": Contender(_FLOW, "mean"),
    "flow − neutral": Contender(_FLOW, less_neutral=True),
}


RELATIVES: Mapping[str, Method] = {
    "gradient-rollout": GradientRollout(),
    "gradient-flow": GradientFlow(),
    "measured-residual": MeasuredResidualRollout(),
    "norm-rollout": NormRollout(kind="residual"),
    "alti": Alti(),
    "value-zeroing": ValueZeroingRollout(),
}
_RELATED = 60  # prompts: zeroing every value in 30 layers takes seconds for each


@dataclass(frozen=True, eq=False)
class Known:
    """One prompt the model answered rightly: its attention, and the positions of true sources."""

    trace: AttentionTrace
    neutral: AttentionTrace | None
    sources: tuple[int, ...]
    distractors: int = 0
    inputs: str | Mapping[str, torch.Tensor] = ""


def stated_facts(
    model: Any, tokenizer: Any, prompts: Sequence[FactPrompt], stages: Stages
) -> list[Known]:
    """Those prompts whose answer the model gives, each beside its neutral prompt."""
    found: list[Known] = []
    for start in range(0, len(prompts), _BATCH):
        part = prompts[start : start + _BATCH]
        texts = [prompt.text for prompt in part]
        traces = capture_batch(model, texts, tokenizer=tokenizer, heads="mean")
        right = [
            (prompt, trace)
            for prompt, trace in zip(part, traces, strict=True)
            if trace.prediction is not None and trace.prediction.label == f"Ġ{prompt.answer}"
        ]
        others = neutral_traces(model, tokenizer, [trace for _, trace in right])
        for (prompt, trace), neutral in zip(right, others, strict=True):
            sources = trace.tokens.occurrences_of([f"Ġ{prompt.answer}"])
            found.append(Known(trace, neutral, tuple(sources), prompt.distractors, prompt.text))
        stages("asking", min(start + _BATCH, len(prompts)), len(prompts))
    return found


def neutral_traces(
    model: Any, tokenizer: Any, traces: Sequence[AttentionTrace]
) -> list[AttentionTrace]:
    """The same prompts with nothing in them, in one pass."""
    if not traces:
        return []
    rows = [
        neutral_ids(tokenizer, tokenizer.convert_tokens_to_ids(list(trace.tokens)))
        for trace in traces
    ]
    return capture_batch(model, padded(rows), tokenizer=tokenizer, heads="mean")


def padded(rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """Token ids as one batch, padding on the right and masked; no padding token is needed."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def arithmetic(model: Any, vocabulary: Mapping[str, int], sign: str, stages: Stages) -> list[Known]:
    """`7*6=` for all pairs of digits: the operands are the true sources of the first digit."""
    compute: Callable[[int, int], int] = {"*": int.__mul__, "+": int.__add__}[sign]
    pairs = [(a, b) for a in range(10) for b in range(10)]
    rows = [[vocabulary[c] for c in f"{a}{sign}{b}="] for a, b in pairs]
    found = []
    for (a, b), trace in zip(pairs, capture_batch(model, padded(rows), heads="mean"), strict=True):
        first_digit = str(vocabulary[str(compute(a, b))[0]])
        if trace.prediction is not None and trace.prediction.label == first_digit:
            ids = torch.tensor([[vocabulary[c] for c in f"{a}{sign}{b}="]])
            found.append(Known(trace, None, (0, 2), inputs={"input_ids": ids}))
    stages("calculating", len(pairs), len(pairs))
    return found


@dataclass(frozen=True, kw_only=True)
class KnownAnswer:
    """The known-answer experiment.

    prompts: how many prompts are made; those the model answers rightly count.
    seed: decides which.
    wording: "test", or "development", the wordings the default of generate() was chosen by.
    """

    prompts: int = 960
    seed: int = 0
    wording: Wording = "test"

    def __post_init__(self) -> None:
        if self.prompts < 1:
            raise InputError(f"prompts is at least 1; got {self.prompts}.")
        if self.wording not in ("test", "development"):
            raise InputError(f"wording is 'test' or 'development'; got {self.wording!r}.")

    def of_language_model(self, model: Any, tokenizer: Any, stages: Stages) -> tuple[Table, ...]:
        """How often the stated fact is found, and how that depends on distractors."""
        asked = fact_prompts(self.prompts, seed=self.seed, wording=self.wording)
        known = stated_facts(model, tokenizer, asked, stages)
        if not known:
            raise InputError(f"The model answered none of {len(asked)} prompts rightly.")
        ranks = _ranks(known, CONTENDERS, stages)
        note = f"{len(known)} of {len(asked)} prompts were answered rightly and count."
        title = "The token that states the fact"
        return (
            _table("facts", title, ranks, note),
            _by_distractors(known, ranks),
            _differences(ranks),
            _related(known, ranks, model, tokenizer, stages),
        )

    def of_arithmetic(
        self, model: Any, vocabulary: Mapping[str, int], sign: str, stages: Stages
    ) -> tuple[Table, Table]:
        """How often one of the two operands comes first."""
        known = arithmetic(model, vocabulary, sign, stages)
        fair = {n: c for n, c in CONTENDERS.items() if not c.less_neutral}
        note = (
            f"{len(known)} of 100 were answered rightly and count. Two of four tokens are true "
            "sources: a random order ranks one first half of the time."
        )
        name = {"*": "products", "+": "sums"}[sign]
        title = f"mathformer, {name} of two digits: an operand"
        ranks = _ranks(known, fair, stages)
        related = _related(known, ranks, model, None, stages, name)
        return _table(name, title, ranks, note), related

    def report(self, tables: Sequence[Table], command: str) -> Report:
        """The tables with what they mean."""
        facts = next((table for table in tables if table.name == "facts"), None)
        findings = []
        if facts is not None:
            best = max(facts.rows, key=lambda name: facts.rows[name][0].value)
            findings.append(
                f"The true source is ranked first most often by {best} "
                f"({facts.rows[best][0].value:.0%}); plain rollout finds it in "
                f"{facts.rows['rollout'][0].value:.0%}, raw attention in "
                f"{facts.rows['raw'][0].value:.0%}."
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


def _ranks(
    known: Sequence[Known], contenders: Mapping[str, Contender], stages: Stages
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
                    found = contender.method(one.neutral, targets=last)
                    less[contender.method] = found.values[:, 0]
                row = row - less[contender.method]
            if not contender.common:
                row = np.where(common_tokens(one.trace.tokens), -np.inf, row)
            ranks[name].append(_rank(row, contender.layers, one.sources))
        stages("attribution", k + 1, len(known))
    return {name: np.array(found) for name, found in ranks.items()}


def _rank(row: Floats, layers: str, sources: Sequence[int]) -> float:
    values = row[-1] if layers == "top" else row.mean(axis=0)
    best = max(values[list(sources)])
    return float(1 + (np.delete(values, list(sources)) >= best).sum())


def _table(name: str, title: str, ranks: Mapping[str, Floats], note: str) -> Table:
    rows = {
        contender: (
            summarized(summarize(found == 1)),
            summarized(summarize(found <= 3)),
            summarized(summarize(found)),
        )
        for contender, found in ranks.items()
    }
    return Table(
        name,
        title,
        ("first", "top three", "mean rank"),
        {k: tuple(_plain(cell) for cell in v) for k, v in rows.items()},
        note,
    )


def _plain(cell: Cell) -> Cell:
    """Without the standard deviation, which says nothing of a yes or no."""
    return Cell(cell.value, None, cell.low, cell.high, None, cell.n)


def _draw(table: Table, path: Path) -> None:
    """A panel for each column: the mean and its interval in every row."""
    from attnflow.show import plots

    names = list(table.rows)
    panels = [
        {
            "title": column,
            "names": names,
            "cells": [(c.value, c.low, c.high) for c in (table.rows[name][k] for name in names)],
        }
        for k, column in enumerate(table.columns)
    ]
    plots.interval_panels(panels, path)


def _related(
    known: Sequence[Known],
    ranks: Mapping[str, Floats],
    model: Any,
    tokenizer: Any,
    stages: Stages,
    name: str = "facts",
) -> Table:
    """The stronger relatives on the first of these prompts, beside the others on the same."""
    few = known[:_RELATED]
    found: dict[str, list[float]] = {relative: [] for relative in RELATIVES}
    for k, one in enumerate(few):
        trace = capture(model, one.inputs, tokenizer=tokenizer, methods=list(RELATIVES.values()))
        for relative, method in RELATIVES.items():
            row = method(trace, targets=trace.length - 1, layers=-1).values[:, 0]
            found[relative].append(_rank(row, "top", one.sources))
        stages("relatives", k + 1, len(few))
    both = {n: ranks[n][: len(few)] for n in ("raw", "rollout", DEFAULT) if n in ranks}
    both |= {relative: np.array(values) for relative, values in found.items()}
    title = f"The stronger relatives, {name}"
    return _table(f"{name}-relatives", title, both, f"The first {len(few)} of the same prompts.")


def _by_distractors(known: Sequence[Known], ranks: Mapping[str, Floats]) -> Table:
    counts = np.array([one.distractors for one in known])
    chosen = ("raw, mean of layers", "rollout", "rollout, one-step, first dropped", DEFAULT)
    rows = {}
    for name in chosen:
        first = ranks[name] == 1
        rows[name] = tuple(_plain(summarized(summarize(first[counts == n]))) for n in range(4))
    columns = tuple(f"{n} distractors" for n in range(4))
    return Table("distractors", "Ranked first, by the number of distractors", columns, rows)


def _differences(ranks: Mapping[str, Floats]) -> Table:
    first = {name: (found == 1).astype(np.float64) for name, found in ranks.items()}
    rows = {
        f"{DEFAULT} − {other}": (compared(compare_paired(first[DEFAULT], first[other])),)
        for other in ("raw", "raw, mean of layers", "rollout", "flow")
    }
    return Table("differences", "Ranked first: the default against others", ("difference",), rows)
