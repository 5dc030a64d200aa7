"""The sound protocol of the SST-2 experiment: the row of the class, words, Spearman."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from torch import nn

from attnflow.evaluation.metrics import compare_paired, dense_rank_correlation, spearman, summarize
from attnflow.experiments.report import Cell, Table, compared, summarized
from attnflow.experiments.sst2.data import LabelledText
from attnflow.experiments.sst2.observe import METHODS, Classified, blank_for, observe
from attnflow.experiments.sst2.tables import (
    Agreed,
    Floats,
    Found,
    accuracy_of,
    named,
    over_layers,
    table_3,
)
from attnflow.experiments.verb_number.observe import Stages

__all__ = ["run_sound"]

_CLEAR: Final = 0.05  # a difference with a smaller p is called one
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


def run_sound(
    model: nn.Module,
    tokenizer: Any,
    examples: Sequence[LabelledText],
    label: int,
    stages: Stages,
) -> Found:
    """Table 3 as it should be read, and what moves it."""
    seen, left_out = observe(model, tokenizer, examples, label, stages)
    layers = seen[0].layers
    agreed = {
        method: np.array([[_by_words(o, row, "gradient") for row in o.rows[method]] for o in seen])
        for method in METHODS
    }
    tables = (
        table_3("Table 3: correlation with the gradient's norm", agreed, layers),
        _differences(agreed, layers),
        _held_back(seen, layers),
        _measures(seen),
        _readings(seen),
    )
    blank = {"mask": "replaced by the mask", "delete": "left out"}[blank_for(model, tokenizer)]
    others = (
        f"The other measures: gradient × input; |Σ_d| of the gradient at what the first block "
        f"reads; blank-out, the change of the logit when a token is {blank}."
    )
    protocol = (*_SOUND, others, *left_out)
    findings = (*_beats_raw(agreed, layers), _why_flow(seen))
    return Found(accuracy_of(seen), protocol, tables, findings)


def _by_words(seen: Classified, row: Floats, measure: str) -> float:
    """Spearman's correlation over words; a word has what its pieces have together."""
    values = seen.importance[measure]
    return spearman(
        [row[list(word)].sum() for word in seen.words],
        [values[list(word)].sum() for word in seen.words],
    )


def _differences(agreed: Agreed, layers: Sequence[int]) -> Table:
    pairs = (("rollout", "raw"), ("flow", "raw"), ("flow", "rollout"))
    rows = {
        f"{one} − {other}": tuple(
            compared(compare_paired(agreed[one][:, k], agreed[other][:, k]))
            for k in range(len(layers))
        )
        for one, other in pairs
    }
    note = "Paired by text; p by random sign flips of the differences."
    return Table("differences", "Which is higher, on the same texts", named(layers), rows, note)


def _held_back(seen: Sequence[Classified], layers: Sequence[int]) -> Table:
    rows = {
        "at the source": over_layers(_shares(seen, "saturated")),
        "at the target": over_layers(_shares(seen, "at_target")),
        "target draws on others": over_layers(np.array([o.taken_in for o in seen])),
    }
    note = (
        "Shares of the flows to pieces of words. At the source (saturated): the flow is all that "
        "the source passes on to anyone, whatever the target. At the target: the flow is all that "
        "the target draws on others above layer 1, the same for every source, plus its "
        "first-layer weight, so that sources rank as in raw attention of layer 1 (at that layer "
        "always). The last row: how much that is, layer by layer; the rest stays with the target."
    )
    return Table("held-back", "Where flow is held back", named(layers), rows, note)


def _shares(seen: Sequence[Classified], where: str) -> Floats:
    """text × layer"""
    return np.array([getattr(o, where)[:, _pieces(o)].mean(axis=1) for o in seen])


def _pieces(seen: Classified) -> list[int]:
    return [position for word in seen.words for position in word]


def _measures(seen: Sequence[Classified]) -> Table:
    """The top layer against every measure, and the measures against the first."""

    def against(name: str) -> tuple[Cell, ...]:
        other = summarize([_by_words(o, o.importance["gradient"], name) for o in seen])
        methods = _by_method(seen, lambda o, method: _by_words(o, o.rows[method][-1], name))
        return (*methods, summarized(other))

    rows = {name: against(name) for name in seen[0].importance}
    columns = (*METHODS, "gradient")
    return Table("measures", "The top layer, against other measures of importance", columns, rows)


def _readings(seen: Sequence[Classified]) -> Table:
    """The top layer under each choice of a protocol, against the gradient's norm."""

    def columns(formula: Callable[[Floats, Floats], float]) -> tuple[Cell, ...]:
        return _by_method(seen, lambda o, m: formula(o.columns[m], o.importance["gradient"]))

    rows = {
        "row, words, Spearman": _by_method(
            seen, lambda o, m: _by_words(o, o.rows[m][-1], "gradient")
        ),
        "row, pieces of words, Spearman": _by_method(
            seen, lambda o, m: _by_pieces(o, o.rows[m][-1], o.importance["gradient"])
        ),
        "row, all tokens, Spearman": _by_method(
            seen, lambda o, m: spearman(o.rows[m][-1], o.importance["gradient"])
        ),
        "column maximum, all tokens, Spearman": columns(spearman),
        "column maximum, all tokens, dense ranks": columns(dense_rank_correlation),
    }
    note = "The last is the paper's reading, but of a plain pass and of the gradient's norm."
    return Table("readings", "The top layer, by protocol", tuple(METHODS), rows, note)


def _by_pieces(seen: Classified, row: Floats, values: Floats) -> float:
    return spearman(row[_pieces(seen)], values[_pieces(seen)])


def _by_method(
    seen: Sequence[Classified], agreement: Callable[[Classified, str], float]
) -> tuple[Cell, ...]:
    return tuple(summarized(summarize([agreement(o, method) for o in seen])) for method in METHODS)


def _beats_raw(agreed: Agreed, layers: Sequence[int]) -> tuple[str, ...]:
    return tuple(_one_beats_raw(agreed, method, layers) for method in ("rollout", "flow"))


def _one_beats_raw(agreed: Agreed, method: str, layers: Sequence[int]) -> str:
    tests = [compare_paired(agreed[method][:, k], agreed["raw"][:, k]) for k in range(len(layers))]
    clear = {number: t for number, t in zip(layers, tests, strict=True) if t.p < _CLEAR}
    above = [str(number) for number, t in clear.items() if t.difference > 0]
    below = [str(number) for number, t in clear.items() if t.difference < 0]
    return (
        f"{method} agrees clearly better with the gradient than raw attention at layer "
        f"{', '.join(above) or 'none'}, clearly worse at layer {', '.join(below) or 'none'}."
    )


def _why_flow(seen: Sequence[Classified]) -> str:
    source, target = (float(_shares(seen, x)[:, -1].mean()) for x in ("saturated", "at_target"))
    return (
        f"At the top layer {source:.0%} of the flows to words are held back at the source and "
        f"{target:.0%} at the target; of these the first rank words by what they pass on in "
        "layer 1, the second by raw attention of layer 1."
    )
