"""Tables 1 and 2 of the paper: does attention agree with what the verb-number model uses?"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from attnflow.errors import InputError
from attnflow.evaluation.faithfulness import RANDOM, Faithfulness
from attnflow.evaluation.importance.base import check_named
from attnflow.evaluation.metrics import (
    compare_paired,
    partial_spearman,
    spearman,
    summarize,
)
from attnflow.experiments.report import Cell, Report, Table, compared, decimals, summarized
from attnflow.experiments.verb_number.observe import METHODS, Observation, Stages, observe, text_of
from attnflow.experiments.verb_number.protocols import (
    AS_PAPER,
    IN_WORDS,
    PAPER,
    SOUND,
    Floats,
    Reading,
)
from attnflow.models.agreement import Example
from attnflow.models.verb_number import VerbNumberModel, WordVocabulary

__all__ = ["Protocol", "VerbNumber"]

Protocol = Literal["sound", "paper"]
Rows = Mapping[str, tuple[Cell, ...]]

LAYERS: Final = tuple(f"L{number}" for number in range(1, 7))

_LENGTHS: Final = ((1, 3), (4, 6), (7, 10), (11, 20), (21, 62))
_FAITHFUL: Final = 500  # sentences: each takes about 70 passes
_CLEAR: Final = 0.05  # a difference with a smaller p is called one


@dataclass(frozen=True, kw_only=True)
class VerbNumber:
    """The verb-number experiment.

    protocol: "sound", or "paper" for theirs with its oddities.
    samples: how many sentences, drawn by `seed` if there are more.
    """

    protocol: Protocol = "sound"
    samples: int = 2_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_named("protocol", self.protocol, get_args(Protocol))
        if not isinstance(self.samples, int) or self.samples < 1:
            raise InputError(f"samples is a number of at least 1; got {self.samples!r}.")

    def __call__(
        self,
        examples: Sequence[Example],
        model: VerbNumberModel,
        vocabulary: WordVocabulary,
        *,
        source: str,
        command: str = "",
        stages: Stages = lambda *_: None,
    ) -> Report:
        """Run it on these sentences; `source` says in words where they are from."""
        chosen, remarks = self._sample(examples, vocabulary)
        seen = observe(model, vocabulary, chosen, stages)
        reading = SOUND if self.protocol == "sound" else AS_PAPER
        agreed = _agreed(seen, reading)
        right = np.mean([o.probability > 0.5 for o in seen])
        tables = [
            *(_table(agreed, name, k) for k, name in enumerate(reading.scores, start=1)),
            _differences(agreed),
            _saturation(seen, reading),
            _readings(seen),
            _lengths(seen, agreed),
            _scores_agree(seen, reading),
            _faithful(model, vocabulary, chosen, seen, stages),
        ]
        if any(o.subject is not None for o in seen):
            tables.append(_subjects(seen))
        return Report(
            name="verb-number",
            title="Verb number: attention against importance, the [CLS] row",
            protocol=(
                f"{len(chosen):,} sentences from {source}; the model's answer is right in "
                f"{right:.1%}.{remarks}",
                *IN_WORDS[self.protocol],
            ),
            tables=tuple(tables),
            findings=(*_findings(agreed), _what_is_left(tables)),
            command=command,
        )

    def _sample(
        self, examples: Sequence[Example], vocabulary: WordVocabulary
    ) -> tuple[list[Example], str]:
        fitting = [e for e in examples if _fits(e, vocabulary)]
        remarks = ""
        if len(fitting) < len(examples):
            remarks += (
                f" {len(examples) - len(fitting)} longer than the model's positions left out."
            )
        if not fitting:
            raise InputError("No sentence is short enough for the model; nothing can be measured.")
        if len(fitting) <= self.samples:
            if len(fitting) < self.samples:
                remarks += f" There are no more; {self.samples:,} were asked for."
            return fitting, remarks
        return random.Random(self.seed).sample(fitting, self.samples), remarks


def _fits(example: Example, vocabulary: WordVocabulary) -> bool:
    try:
        vocabulary.encode(text_of(example))
    except ValueError:
        return False
    return True


Agreed = Mapping[tuple[str, str], Floats]
"""(score, method) → sentence × layer."""


def _agreed(seen: Sequence[Observation], reading: Reading) -> Agreed:
    return {
        (name, method): np.array(
            [[reading.agreement(o, method, layer, name) for layer in range(6)] for o in seen]
        )
        for name in reading.scores
        for method in METHODS
    }


def _over_layers(
    values: Floats, paper: Sequence[tuple[float, float]] | None = None
) -> tuple[Cell, ...]:
    return tuple(
        summarized(summarize(column), paper[layer] if paper else None)
        for layer, column in enumerate(values.T)
    )


def _table(agreed: Agreed, name: str, number: int) -> Table:
    rows = {m: _over_layers(agreed[name, m], PAPER[name, m]) for m in METHODS}
    return Table(
        f"table-{number}", f"Table {number}: correlation with {name}", LAYERS, rows, drawn=True
    )


def _differences(agreed: Agreed) -> Table:
    pairs = (("rollout", "raw"), ("flow", "raw"), ("flow", "rollout"))
    rows = {
        f"{name}: {one} − {other}": tuple(
            compared(compare_paired(agreed[name, one][:, k], agreed[name, other][:, k]))
            for k in range(6)
        )
        for name in ("blank-out", "gradient")
        for one, other in pairs
    }
    note = "Paired by sentence; p by random sign flips of the differences."
    return Table("differences", "Which is higher, on the same sentences", LAYERS, rows, note)


def _saturation(seen: Sequence[Observation], reading: Reading) -> Table:
    shares = np.array([o.saturated[:, reading.chosen(o)].mean(axis=1) for o in seen])
    rows: dict[str, tuple[Cell, ...]] = {"saturated share of flow": _over_layers(shares)}
    for method in ("flow", "rollout"):
        rows[f"{method} with column sums"] = _over_layers(
            np.array([_with_received(o, method, reading) for o in seen])
        )
    for name in reading.scores:
        alone = [spearman(o.received[reading.chosen(o)], reading.score(o, name)) for o in seen]
        rows[f"{name}: column sums alone"] = (summarized(summarize(alone)),) * 6
        for method in ("flow", "rollout"):
            left = np.array([_left(o, method, name, reading) for o in seen])
            rows[f"{name}: left of {method}"] = _over_layers(left)
    note = (
        "A saturated flow equals min(1, first-layer column sum of the source) whatever the target. "
        "'Left': partial Spearman's correlation given the column sums; undefined where these "
        "decide the whole ranking, and for fewer than three positions."
    )
    return Table("saturation", "What follows from saturation", LAYERS, rows, note)


def _with_received(seen: Observation, method: str, reading: Reading) -> list[float]:
    chosen = reading.chosen(seen)
    return [spearman(row[chosen], seen.received[chosen]) for row in seen.rows[method]]


def _left(seen: Observation, method: str, name: str, reading: Reading) -> list[float]:
    chosen = reading.chosen(seen)
    score, received = reading.score(seen, name), seen.received[chosen]
    return [partial_spearman(row[chosen], score, received) for row in seen.rows[method]]


def _readings(seen: Sequence[Observation]) -> Table:
    """The top layer under each choice of a protocol."""
    sums = {"blank-out": "blank-out", "gradient": "gradient sum"}
    readings = {
        "words, Spearman": SOUND,
        "all positions, Spearman": Reading("all", spearman, SOUND.scores),
        "all, end token 0, Spearman": Reading("all", spearman, sums, end_is_zero=True),
        "all, end token 0, dense ranks (paper)": AS_PAPER,
    }
    rows: dict[str, tuple[Cell, ...]] = {}
    for label, reading in readings.items():
        rows[f"blank-out: {label}"] = _at_the_top(seen, reading, "blank-out")
    for measure in ("gradient", "gradient × input", "gradient sum"):
        reading = Reading("words", spearman, {"gradient": measure})
        rows[f"{measure}: words, Spearman"] = _at_the_top(seen, reading, "gradient")
    rows["gradient sum: all, dense ranks (paper)"] = _at_the_top(seen, AS_PAPER, "gradient")
    shares = [o.importance["gradient sum"] / o.importance["gradient"] for o in seen]
    note = (
        "The gradient's sum over dimensions is rounding: in the median "
        f"{np.median(np.concatenate(shares)):.0e} of the norm."
    )
    return Table("readings", "Layer 6, by protocol", tuple(METHODS), rows, note)


def _at_the_top(seen: Iterable[Observation], reading: Reading, name: str) -> tuple[Cell, ...]:
    found = np.array([[reading.agreement(o, method, -1, name) for method in METHODS] for o in seen])
    return tuple(summarized(summarize(column)) for column in found.T)


def _lengths(seen: Sequence[Observation], agreed: Agreed) -> Table:
    words = np.array([int(o.is_word.sum()) for o in seen])
    rows: dict[str, tuple[Cell, ...]] = {}
    for low, high in _LENGTHS:
        chosen = (words >= low) & (words <= high)
        if chosen.any():
            rows[f"{low}–{high} words ({chosen.sum()})"] = tuple(
                summarized(summarize(agreed["blank-out", method][chosen, -1])) for method in METHODS
            )
    return Table("lengths", "Blank-out at layer 6, by length", tuple(METHODS), rows)


def _scores_agree(seen: Sequence[Observation], reading: Reading) -> Table:
    """How much the scores agree among themselves: what attention could be expected to reach."""
    names = ("gradient", "gradient × input", "gradient sum")
    rows = {
        name: (
            summarized(
                summarize(
                    [
                        reading.correlation(
                            reading.score(o, "blank-out"), o.importance[name][reading.chosen(o)]
                        )
                        for o in seen
                    ]
                )
            ),
        )
        for name in names
    }
    return Table("scores", "Blank-out against the other scores", ("blank-out",), rows)


def _faithful(
    model: VerbNumberModel,
    vocabulary: WordVocabulary,
    examples: Sequence[Example],
    seen: Sequence[Observation],
    stages: Stages,
) -> Table:
    examples, seen = examples[:_FAITHFUL], seen[:_FAITHFUL]
    rankings = {f"{name}, layer 6": [o.rows[name][-1] for o in seen] for name in METHODS}
    rankings["column sums"] = [o.received for o in seen]
    rankings |= {name: [o.importance[name] for o in seen] for name in ("blank-out", "gradient")}
    found = Faithfulness()(
        model,
        [text_of(example) for example in examples],
        rankings,
        tokenizer=vocabulary,
        answer=[example.label for example in examples],
        progress=lambda done, total: stages("faithfulness", done, total),
    )
    columns = ("comprehensiveness", "sufficiency", "deletion_area", "insertion_area")
    rows = {
        name: tuple(summarized(summarize(getattr(found[name], column))) for column in columns)
        for name in (*rankings, RANDOM)
    }
    titles = ("comprehensiveness ↑", "sufficiency ↓", "deletion ↓", "insertion ↑")
    note = (
        f"{len(examples):,} sentences; words blanked by [UNK], p of the correct answer, shares 10 "
        "to 50 % of the words. 'Column sums' do not depend on the target."
    )
    return Table("faithfulness", "Faithfulness against random orders", titles, rows, note)


def _subjects(seen: Sequence[Observation]) -> Table:
    known = [o for o in seen if o.subject is not None]
    rows = {
        method: _over_layers(np.array([[_is_top(o, row) for row in o.rows[method]] for o in known]))
        for method in METHODS
    }
    for name in ("blank-out", "gradient"):
        rows[name] = (summarized(summarize([_is_top(o, o.importance[name]) for o in known])),) * 6
    rows["chance"] = (summarized(summarize([1 / o.is_word.sum() for o in known])),) * 6
    note = f"{len(known):,} sentences; of k words that share the top, each counts 1/k."
    return Table("subjects", "How often the subject is the top word", LAYERS, rows, note)


def _is_top(seen: Observation, values: Floats) -> float:
    words = values[seen.is_word]
    top = words.max()
    return float(values[seen.subject] == top) / float((words == top).sum())


def _findings(agreed: Agreed) -> tuple[str, ...]:
    sentences = [
        _beats_raw(agreed, name, method)
        for name in ("blank-out", "gradient")
        for method in ("rollout", "flow")
    ]
    best = {m: float(np.nanmean(agreed["blank-out", m][:, -1])) for m in ("rollout", "flow")}
    top = max(best, key=lambda method: best[method])
    sentences.append(
        f"blank-out at layer 6: {top} {decimals(best[top])}, the paper's "
        f"{decimals(PAPER['blank-out', top][-1][0])}. The tables by protocol, by length and of "
        "the scores among themselves show what moves it."
    )
    return tuple(sentences)


def _what_is_left(tables: Sequence[Table]) -> str:
    """The saturation table in one sentence."""
    rows = next(table.rows for table in tables if table.name == "saturation")
    shown = {name: decimals(cells[-1].value) for name, cells in rows.items()}
    return (
        f"At layer 6 {rows['saturated share of flow'][-1].value:.0%} of the flows are saturated. "
        "First-layer column sums, which know neither the target nor the layers above, reach "
        f"{shown['blank-out: column sums alone']} with blank-out; given these, "
        f"{shown['blank-out: left of flow']} is left of flow and "
        f"{shown['blank-out: left of rollout']} of rollout."
    )


def _beats_raw(agreed: Agreed, name: str, method: str) -> str:
    tests = [
        compare_paired(agreed[name, method][:, k], agreed[name, "raw"][:, k]) for k in range(1, 6)
    ]
    above = [k for k, t in enumerate(tests, start=2) if t.difference > 0 and t.p < _CLEAR]
    others = [k for k in range(2, 7) if k not in above]
    if not others:
        return f"{name}: {method} beats raw attention at every layer from 2 to 6."
    listed = ", ".join(
        f"{k} ({decimals(tests[k - 2].difference)}, p = {tests[k - 2].p:.3f})" for k in others
    )
    return f"{name}: {method} does not clearly beat raw attention at layer {listed}."
