"""Table 3 of the paper beside ours, by the sound protocol and by theirs, and what moves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from attnflow.errors import percent
from attnflow.evaluation.metrics import spearman
from attnflow.evaluation.table import Cell, Table, decimals
from attnflow_experiments.correlations import dense_rank_correlation
from attnflow_experiments.layers import (
    CLEAR,
    METHODS,
    Agreement,
    Floats,
    agreement_of,
    by_method,
    difference_table,
    layer_names,
    lead_over_raw,
    mean_of,
    over_layers,
)
from attnflow_experiments.sst2.observe import (
    Classified,
    DoubleEmbedded,
    Run,
    blank_for,
    observe,
    observe_double_embedded,
)

PAPER: Final[Mapping[str, Mapping[int, float]]] = {
    "raw": {1: 0.12, 3: 0.09, 5: 0.08, 6: 0.09},
    "rollout": {1: 0.11, 3: 0.12, 5: 0.13, 6: 0.13},
    "flow": {1: 0.11, 3: 0.11, 5: 0.12, 6: 0.14},
}
"""Table 3 of Abnar and Zuidema (2020): means over 100 texts, the four layers they print."""
_PAPER_LAYERS: Final = 6
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
_ROUNDING: Final = 1e-5  # a gradient's sum below this share of what it could be is no number
_AS_PAPER: Final = (
    "As the authors' published script has it: the output of the embedding layer is given to the "
    "model as its word vectors, so positions and normalisation are applied twice, and both the "
    "attention and the gradient are of that pass.",
    "Importance is |Σ_d| of the gradient of the label's logit with respect to these vectors, of "
    "all tokens, those that frame the text among them.",
    "Attribution of a token is the most that any position draws on it (the maximum of its column); "
    "flows are first divided by the sum of their row; raw attention is without the residual.",
    "1 − 6 Σ d² / (n (n² − 1)) over dense ranks, as the authors' code computes it. Mean ± standard "
    "deviation over texts, 95 % bootstrap interval of the mean.",
)


@dataclass(frozen=True)
class Outcome:
    """The part of a protocol in the report."""

    accuracy: str
    protocol: tuple[str, ...]
    tables: tuple[Table, ...]
    findings: tuple[str, ...]


def accuracy_of(right: Sequence[bool | None]) -> str:
    """The end of a sentence: how often the model is right, where that is known."""
    known = [answer for answer in right if answer is not None]
    if not known:
        return " (without labels)"
    return f"; the model's answer is right in {percent(np.mean(known), 1)}"


def table_3(title: str, agreement: Agreement, layers: Sequence[int]) -> Table:
    """Ours beside the paper's, if the model has as many layers as theirs."""
    comparable = len(layers) == _PAPER_LAYERS
    rows = {
        method: tuple(
            replace(cell, paper=PAPER[method].get(number) if comparable else None)
            for cell, number in zip(over_layers(values), layers, strict=True)
        )
        for method, values in agreement.items()
    }
    note = "The paper's model is a DistilBERT; it prints layers 1, 3, 5 and 6, each ± about .2."
    if not comparable:
        note = f"The paper's model has 6 layers and this one {len(layers)}: not set side by side."
    return Table("table-3", title, layer_names(layers), rows, note, in_figure=True)


# --- the sound protocol: the row of the class, words, Spearman ------------------------------------


def run_sound(run: Run) -> Outcome:
    """Table 3 as it should be read, and what moves it."""
    observations, refusals = observe(run)
    layers = observations[0].layers
    agreement = agreement_of(
        observations, lambda o, method: [_by_words(o, row, "gradient") for row in o.rows[method]]
    )
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
    return Outcome(accuracy_of([o.right for o in observations]), protocol, tables, findings)


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
        other = mean_of([_by_words(o, o.importance["gradient"], name) for o in observations])
        methods = by_method(observations, lambda o, method: _by_words(o, o.rows[method][-1], name))
        return (*methods, other)

    rows = {name: against(name) for name in observations[0].importance}
    columns = (*METHODS, "gradient")
    return Table("measures", "The top layer, against other measures of importance", columns, rows)


def _readings(observations: Sequence[Classified]) -> Table:
    """The top layer under each choice of a protocol, against the gradient's norm."""

    def columns(formula: Callable[[Floats, Floats], float]) -> tuple[Cell, ...]:
        return by_method(observations, lambda o, m: formula(o.columns[m], o.importance["gradient"]))

    rows = {
        "row, words, Spearman": by_method(
            observations, lambda o, m: _by_words(o, o.rows[m][-1], "gradient")
        ),
        "row, pieces of words, Spearman": by_method(
            observations, lambda o, m: _by_pieces(o, o.rows[m][-1], o.importance["gradient"])
        ),
        "row, all tokens, Spearman": by_method(
            observations, lambda o, m: spearman(o.rows[m][-1], o.importance["gradient"])
        ),
        "column maximum, all tokens, Spearman": columns(spearman),
        "column maximum, all tokens, dense ranks": columns(dense_rank_correlation),
    }
    note = "The last is the paper's reading, but of a plain pass and of the gradient's norm."
    return Table("readings", "The top layer, by protocol", tuple(METHODS), rows, note)


def _by_pieces(one: Classified, row: Floats, values: Floats) -> float:
    return spearman(row[_pieces(one)], values[_pieces(one)])


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
        f"At the top layer {percent(source)} of the flows to words are held back at the source and "
        f"{percent(target)} at the target; of these the first rank words by what they pass on in "
        "layer 1, the second by raw attention of layer 1."
    )


# --- the paper's protocol, with its oddities, and what they amount to -----------------------------


def run_as_paper(run: Run) -> Outcome:
    """Table 3 as the authors' script makes it, and the same with a number that is there."""
    observations = observe_double_embedded(run)
    layers = observations[0].layers
    sums, norms = (_of_columns(observations, name) for name in ("sums", "norms"))
    rows = {method: over_layers(values) for method, values in norms.items()}
    tables = (
        table_3("Table 3: correlation with |Σ_d| of the gradient", sums, layers),
        Table(
            "norms", "The same with ‖·‖ of the gradient", layer_names(layers), rows, in_figure=True
        ),
        _of_the_sums(observations),
    )
    return Outcome(
        accuracy_of([o.right for o in observations]),
        _AS_PAPER,
        tables,
        _what_the_sums_are(observations),
    )


def _of_columns(observations: Sequence[DoubleEmbedded], part: str) -> Agreement:
    return agreement_of(
        observations,
        lambda o, method: [
            dense_rank_correlation(row, getattr(o.single, part)) for row in o.columns[method]
        ],
    )


def _of_the_sums(observations: Sequence[DoubleEmbedded]) -> Table:
    pairs = {
        "the sums in single and in double precision": [
            spearman(o.single.sums, o.double.sums) for o in observations
        ],
        "the norms in single and in double precision": [
            spearman(o.single.norms, o.double.norms) for o in observations
        ],
        "the sums and the norms, single precision": [
            spearman(o.single.sums, o.single.norms) for o in observations
        ],
    }
    rows = {name: (mean_of(values),) for name, values in pairs.items()}
    note = "A number that is there ranks the tokens alike with more digits; rounding does not."
    return Table("sums", "Is the importance a number or rounding?", ("Spearman",), rows, note)


def _what_the_sums_are(observations: Sequence[DoubleEmbedded]) -> tuple[str, ...]:
    share = max(o.single.largest_share for o in observations)
    if share > _ROUNDING:
        return (f"The gradient's sums are up to {share:.1g} of what they could be: a number.",)
    same = mean_of([spearman(o.single.sums, o.double.sums) for o in observations]).value
    size = mean_of([spearman(o.single.sums, o.single.norms) for o in observations]).value
    return (
        "The importance is rounding: the largest sum of a gradient over its dimensions is "
        f"{share:.0e} of what it could be. The vectors are read through LayerNorm only, which "
        "ignores a constant added to all dimensions, and the sum is the derivative in that "
        f"direction. In double precision the tokens rank otherwise (correlation {decimals(same)}).",
        "What agreement is left comes from rounding being larger where the gradient is "
        f"(correlation with its norm {decimals(size)}). It is so for every model that reads its "
        "vectors through LayerNorm only, the paper's DistilBERT among them.",
    )
