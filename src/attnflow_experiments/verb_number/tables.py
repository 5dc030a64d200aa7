"""Tables 1 and 2 of the paper with ours beside them, and the tables that say what moves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from attnflow.errors import percent
from attnflow.evaluation.faithfulness import Faithfulness
from attnflow.evaluation.metrics import spearman
from attnflow.evaluation.records import RANDOM
from attnflow.evaluation.table import Cell, Table, decimals
from attnflow.models.verb_number import VerbNumberModel, WordVocabulary
from attnflow_experiments.correlations import partial_spearman
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
from attnflow_experiments.verb_number.data import Example
from attnflow_experiments.verb_number.observe import (
    AS_PAPER,
    PAPER,
    SOUND,
    AgreementProtocol,
    Observation,
    text_of,
)

LAYERS: Final = range(1, 7)

_LENGTHS: Final = ((1, 3), (4, 6), (7, 10), (11, 20), (21, 62))
_FAITHFUL: Final = 500  # sentences: each takes about 70 passes


def agreements_of(
    observations: Sequence[Observation], protocol: AgreementProtocol
) -> dict[str, Agreement]:
    """By the name of the score."""

    def over(name: str) -> Agreement:
        return agreement_of(
            observations,
            lambda o, method: [protocol.agreement(o, method, k, name) for k in range(len(LAYERS))],
        )

    return {name: over(name) for name in protocol.scores}


def tables_of(
    observations: Sequence[Observation],
    protocol: AgreementProtocol,
    agreements: Mapping[str, Agreement],
) -> list[Table]:
    """Tables 1 and 2, and what moves them."""
    return [
        *(_table(agreement, name, k) for k, (name, agreement) in enumerate(agreements.items(), 1)),
        difference_table(
            {f"{name}: ": agreement for name, agreement in agreements.items()}, LAYERS, "sentence"
        ),
        _saturation(observations, protocol),
        _protocols(observations),
        _lengths(observations, agreements["blank-out"]),
        _scores_agree(observations, protocol),
    ]


def _table(agreement: Agreement, name: str, number: int) -> Table:
    rows = {m: over_layers(agreement[m], PAPER[name, m]) for m in METHODS}
    title = f"Table {number}: correlation with {name}"
    return Table(f"table-{number}", title, layer_names(LAYERS), rows, in_figure=True)


def _saturation(observations: Sequence[Observation], protocol: AgreementProtocol) -> Table:
    shares = np.array([o.saturated[:, protocol.positions_of(o)].mean(axis=1) for o in observations])
    rows: dict[str, tuple[Cell, ...]] = {"saturated share of flow": over_layers(shares)}
    for method in ("flow", "rollout"):
        rows[f"{method} with column sums"] = over_layers(
            np.array([_with_received(o, method, protocol) for o in observations])
        )
    for name in protocol.scores:
        alone = [
            spearman(o.received[protocol.positions_of(o)], protocol.score(o, name))
            for o in observations
        ]
        rows[f"{name}: column sums alone"] = (mean_of(alone),) * 6
        for method in ("flow", "rollout"):
            left = np.array([_left(o, method, name, protocol) for o in observations])
            rows[f"{name}: left of {method}"] = over_layers(left)
    note = (
        "A saturated flow equals min(1, first-layer column sum of the source) whatever the target. "
        "'Left': partial Spearman's correlation given the column sums; undefined where these "
        "decide the whole ranking, and for fewer than three positions."
    )
    return Table("saturation", "What follows from saturation", layer_names(LAYERS), rows, note)


def _with_received(one: Observation, method: str, protocol: AgreementProtocol) -> list[float]:
    positions = protocol.positions_of(one)
    return [spearman(row[positions], one.received[positions]) for row in one.rows[method]]


def _left(one: Observation, method: str, name: str, protocol: AgreementProtocol) -> list[float]:
    positions = protocol.positions_of(one)
    score, received = protocol.score(one, name), one.received[positions]
    return [partial_spearman(row[positions], score, received) for row in one.rows[method]]


def _protocols(observations: Sequence[Observation]) -> Table:
    """The top layer under each choice of a protocol."""
    sums = {"blank-out": "blank-out", "gradient": "gradient sum"}
    protocols = {
        "words, Spearman": SOUND,
        "all positions, Spearman": AgreementProtocol("all", spearman, SOUND.scores),
        "all, end token 0, Spearman": AgreementProtocol("all", spearman, sums, end_is_zero=True),
        "all, end token 0, dense ranks (paper)": AS_PAPER,
    }
    rows: dict[str, tuple[Cell, ...]] = {}
    for label, protocol in protocols.items():
        rows[f"blank-out: {label}"] = _at_the_top(observations, protocol, "blank-out")
    for measure in ("gradient", "gradient × input", "gradient sum"):
        protocol = AgreementProtocol("words", spearman, {"gradient": measure})
        rows[f"{measure}: words, Spearman"] = _at_the_top(observations, protocol, "gradient")
    rows["gradient sum: all, dense ranks (paper)"] = _at_the_top(observations, AS_PAPER, "gradient")
    shares = [o.importance["gradient sum"] / o.importance["gradient"] for o in observations]
    note = (
        "The gradient's sum over dimensions is rounding: in the median "
        f"{np.median(np.concatenate(shares)):.0e} of the norm."
    )
    return Table("readings", "Layer 6, by protocol", tuple(METHODS), rows, note)


def _at_the_top(
    observations: Sequence[Observation], protocol: AgreementProtocol, name: str
) -> tuple[Cell, ...]:
    return by_method(observations, lambda o, method: protocol.agreement(o, method, -1, name))


def _lengths(observations: Sequence[Observation], agreement: Agreement) -> Table:
    words = np.array([int(o.is_word.sum()) for o in observations])
    rows: dict[str, tuple[Cell, ...]] = {}
    for low, high in _LENGTHS:
        within = (words >= low) & (words <= high)
        if within.any():
            top = tuple(mean_of(agreement[method][within, -1]) for method in METHODS)
            rows[f"{low}–{high} words ({within.sum()})"] = top
    return Table("lengths", "Blank-out at layer 6, by length", tuple(METHODS), rows)


def _scores_agree(observations: Sequence[Observation], protocol: AgreementProtocol) -> Table:
    """How much the scores agree among themselves: what attention could be expected to reach."""

    def agreement(one: Observation, name: str) -> float:
        other = one.importance[name][protocol.positions_of(one)]
        return protocol.correlation(protocol.score(one, "blank-out"), other)

    rows = {
        name: (mean_of([agreement(o, name) for o in observations]),)
        for name in ("gradient", "gradient × input", "gradient sum")
    }
    return Table("scores", "Blank-out against the other scores", ("blank-out",), rows)


def faithfulness_table(
    model: VerbNumberModel,
    vocabulary: WordVocabulary,
    examples: Sequence[Example],
    observations: Sequence[Observation],
) -> Table:
    """Return what taking away the strongest words does, by each ranking."""
    examples, observations = examples[:_FAITHFUL], observations[:_FAITHFUL]
    rankings = {f"{name}, layer 6": [o.rows[name][-1] for o in observations] for name in METHODS}
    rankings["column sums"] = [o.received for o in observations]
    rankings |= {
        name: [o.importance[name] for o in observations] for name in ("blank-out", "gradient")
    }
    curves = Faithfulness()(
        (model, vocabulary),
        [text_of(example) for example in examples],
        rankings,
        answer=[example.label for example in examples],
    )
    columns = ("comprehensiveness", "sufficiency", "deletion_area", "insertion_area")
    rows = {
        name: tuple(mean_of(getattr(curves[name], column)) for column in columns)
        for name in (*rankings, RANDOM)
    }
    titles = ("comprehensiveness ↑", "sufficiency ↓", "deletion ↓", "insertion ↑")
    note = (
        f"{len(examples):,} sentences; words blanked by [UNK], p of the correct answer, shares 10 "
        "to 50 % of the words. 'Column sums' do not depend on the target."
    )
    return Table("faithfulness", "Faithfulness against random orders", titles, rows, note)


def subject_table(observations: Sequence[Observation]) -> Table:
    """How often the subject is the top word, where it is known."""
    known = [o for o in observations if o.subject is not None]
    rows = {
        method: over_layers(np.array([[_is_top(o, row) for row in o.rows[method]] for o in known]))
        for method in METHODS
    }
    for name in ("blank-out", "gradient"):
        rows[name] = (mean_of([_is_top(o, o.importance[name]) for o in known]),) * 6
    rows["chance"] = (mean_of([1 / o.is_word.sum() for o in known]),) * 6
    note = f"{len(known):,} sentences; of k words that share the top, each counts 1/k."
    return Table(
        "subjects", "How often the subject is the top word", layer_names(LAYERS), rows, note
    )


def _is_top(one: Observation, values: Floats) -> float:
    words = values[one.is_word]
    top = words.max()
    return float(values[one.subject] == top) / float((words == top).sum())


def findings_of(agreements: Mapping[str, Agreement], tables: Sequence[Table]) -> tuple[str, ...]:
    """Return what the tables say, in sentences."""
    sentences = [
        _beats_raw(agreement, name, method)
        for name, agreement in agreements.items()
        for method in ("rollout", "flow")
    ]
    best = {m: float(np.nanmean(agreements["blank-out"][m][:, -1])) for m in ("rollout", "flow")}
    top = max(best, key=lambda method: best[method])
    sentences.append(
        f"blank-out at layer 6: {top} {decimals(best[top])}, the paper's "
        f"{decimals(PAPER['blank-out', top][-1][0])}. The tables by protocol, by length and of "
        "the scores among themselves show what moves it."
    )
    return (*sentences, _what_saturation_leaves(tables))


def _what_saturation_leaves(tables: Sequence[Table]) -> str:
    rows = next(table.rows for table in tables if table.name == "saturation")
    top = {name: decimals(cells[-1].value) for name, cells in rows.items()}
    return (
        f"At layer 6 {percent(rows['saturated share of flow'][-1].value)} of the flows are "
        "saturated. First-layer column sums, which know neither the target nor the layers above, "
        f"reach {top['blank-out: column sums alone']} with blank-out; given these, "
        f"{top['blank-out: left of flow']} is left of flow and "
        f"{top['blank-out: left of rollout']} of rollout."
    )


def _beats_raw(agreement: Agreement, name: str, method: str) -> str:
    leads = dict(enumerate(lead_over_raw(agreement, method), start=1))
    others = {k: t for k, t in leads.items() if k > 1 and not (t.difference > 0 and t.p < CLEAR)}
    if not others:
        return f"{name}: {method} beats raw attention at every layer from 2 to 6."
    layers = ", ".join(f"{k} ({decimals(t.difference)}, p = {t.p:.3f})" for k, t in others.items())
    return f"{name}: {method} does not clearly beat raw attention at layer {layers}."
