"""The sound protocol of the SST-2 experiment: the row of the class, words, Spearman."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from attnflow.evaluation.metrics import dense_rank_correlation, spearman, summarize
from attnflow.evaluation.table import Cell, Table
from attnflow.experiments.layers import (
    CLEAR,
    METHODS,
    Agreement,
    Floats,
    difference_table,
    layer_names,
    lead_over_raw,
    over_layers,
)
from attnflow.experiments.sst2.observe import Classified, blank_for, observe
from attnflow.experiments.sst2.tables import Outcome, Run, accuracy_of, table_3

__all__ = ["run_sound"]

_SOUND: Final = (
    "Importance is the norm of the gradient of the label's logit with respect to a word's vector. "
    "Not |Σ_d|, which the paper takes: it is zero up to rounding wherever vectors are read through "
    "LayerNorm only, as in BERT and DistilBERT.",
    "Attribution is the row of the position the class is read from: that is what the answer draws "
    "on. Words, not pieces: what the pieces of a word get is summed, of attention and importance "
    "alike; tokens that frame the text are left out.",
    "Spearman's correlation in each text, ties at their mean rank; mean ± standard deviation over "
    "texts, 95 % bootstrap interval of the mean. Undefined ones (a single word, or all values "
    "equal) are counted and not averaged.",
)


def run_sound(run: Run) -> Outcome:
    """Table 3 as it should be read, and what moves it."""
    observations, refusals = observe(run)
    layers = observations[0].layers
    agreement = {
        method: np.array(
            [[_by_words(o, row, "gradient") for row in o.rows[method]] for o in observations]
        )
        for method in METHODS
    }
    tables = (
        table_3("Table 3: correlation with the gradient's norm", agreement, layers),
        difference_table({"": agreement}, layers, "text"),
        _held_back(observations, layers),
        _measures(observations),
        _readings(observations),
    )
    blank = {"mask": "replaced by the mask", "delete": "left out"}[
        blank_for(run.model, run.tokenizer)
    ]
    others = (
        f"The other measures: gradient × input; |Σ_d| of the gradient at what the first block "
        f"reads; blank-out, the change of the logit when a token is {blank}."
    )
    protocol = (*_SOUND, others, *refusals)
    findings = (*_beats_raw(agreement, layers), _why_flow(observations))
    return Outcome(accuracy_of(observations), protocol, tables, findings)


def _by_words(one: Classified, row: Floats, measure: str) -> float:
    """Spearman's correlation over words; a word has what its pieces have together."""
    values = one.importance[measure]
    return spearman(
        [row[list(word)].sum() for word in one.words],
        [values[list(word)].sum() for word in one.words],
    )


def _held_back(observations: Sequence[Classified], layers: Sequence[int]) -> Table:
    rows = {
        "at the source": over_layers(_shares(observations, "saturated")),
        "at the target": over_layers(_shares(observations, "at_target")),
        "target draws on others": over_layers(np.array([o.taken_in for o in observations])),
    }
    note = (
        "Shares of the flows to pieces of words. At the source (saturated): the flow is all that "
        "the source passes on to anyone, whatever the target. At the target: the flow is all that "
        "the target draws on others above layer 1, the same for every source, plus its "
        "first-layer weight, so that sources rank as in raw attention of layer 1 (at that layer "
        "always). The last row: how much that is, layer by layer; the rest stays with the target."
    )
    return Table("held-back", "Where flow is held back", layer_names(layers), rows, note)


def _shares(observations: Sequence[Classified], where: str) -> Floats:
    """text × layer"""
    return np.array([getattr(o, where)[:, _pieces(o)].mean(axis=1) for o in observations])


def _pieces(one: Classified) -> list[int]:
    return [position for word in one.words for position in word]


def _measures(observations: Sequence[Classified]) -> Table:
    """The top layer against every measure, and the measures against the first."""

    def against(name: str) -> tuple[Cell, ...]:
        other = summarize([_by_words(o, o.importance["gradient"], name) for o in observations])
        methods = _by_method(observations, lambda o, method: _by_words(o, o.rows[method][-1], name))
        return (*methods, Cell.of_mean(other))

    rows = {name: against(name) for name in observations[0].importance}
    columns = (*METHODS, "gradient")
    return Table("measures", "The top layer, against other measures of importance", columns, rows)


def _readings(observations: Sequence[Classified]) -> Table:
    """The top layer under each choice of a protocol, against the gradient's norm."""

    def columns(formula: Callable[[Floats, Floats], float]) -> tuple[Cell, ...]:
        return _by_method(
            observations, lambda o, m: formula(o.columns[m], o.importance["gradient"])
        )

    rows = {
        "row, words, Spearman": _by_method(
            observations, lambda o, m: _by_words(o, o.rows[m][-1], "gradient")
        ),
        "row, pieces of words, Spearman": _by_method(
            observations, lambda o, m: _by_pieces(o, o.rows[m][-1], o.importance["gradient"])
        ),
        "row, all tokens, Spearman": _by_method(
            observations, lambda o, m: spearman(o.rows[m][-1], o.importance["gradient"])
        ),
        "column maximum, all tokens, Spearman": columns(spearman),
        "column maximum, all tokens, dense ranks": columns(dense_rank_correlation),
    }
    note = "The last is the paper's reading, but of a plain pass and of the gradient's norm."
    return Table("readings", "The top layer, by protocol", tuple(METHODS), rows, note)


def _by_pieces(one: Classified, row: Floats, values: Floats) -> float:
    return spearman(row[_pieces(one)], values[_pieces(one)])


def _by_method(
    observations: Sequence[Classified], agreement: Callable[[Classified, str], float]
) -> tuple[Cell, ...]:
    return tuple(
        Cell.of_mean(summarize([agreement(o, method) for o in observations])) for method in METHODS
    )


def _beats_raw(agreement: Agreement, layers: Sequence[int]) -> tuple[str, ...]:
    return tuple(_one_beats_raw(agreement, method, layers) for method in ("rollout", "flow"))


def _one_beats_raw(agreement: Agreement, method: str, layers: Sequence[int]) -> str:
    leads = zip(layers, lead_over_raw(agreement, method), strict=True)
    clear = {number: lead for number, lead in leads if lead.p < CLEAR}
    above = [str(number) for number, lead in clear.items() if lead.difference > 0]
    below = [str(number) for number, lead in clear.items() if lead.difference < 0]
    return (
        f"{method} agrees clearly better with the gradient than raw attention at layer "
        f"{', '.join(above) or 'none'}, clearly worse at layer {', '.join(below) or 'none'}."
    )


def _why_flow(observations: Sequence[Classified]) -> str:
    source, target = (
        float(_shares(observations, x)[:, -1].mean()) for x in ("saturated", "at_target")
    )
    return (
        f"At the top layer {source:.0%} of the flows to words are held back at the source and "
        f"{target:.0%} at the target; of these the first rank words by what they pass on in "
        "layer 1, the second by raw attention of layer 1."
    )
