"""The usual questions about a corpus, answered in one pass over its parts.

Which sources are used most, how often the first one wins, where in a text the strongest stands, and
where methods disagree. The memory does not grow with the corpus: of sources only the most frequent
are counted exactly, those that never come up again are forgotten.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import Any

from attnflow.corpus.dataset import Corpus, read
from attnflow.errors import InputError

__all__ = ["BINS", "Disagreement", "MethodSummary", "PairSummary", "Summary", "summarize"]

BINS = 10
_SOURCES = 15  # that are named for each method
_EXAMPLES = 10  # of texts on which two methods disagree
_SENTENCES = 5
_MOST_COUNTED = 200_000
_COLUMNS = (
    *("text", "id", "method", "target", "target_position", "prediction"),
    *("sources", "source_count", "flags", "error"),
)
Row = Mapping[str, Any]


@dataclass
class MethodSummary:
    """One method over all texts.

    rows: texts and targets. strongest: how often each source was the strongest one. first: in how
    many rows with more than one source the first is the strongest. places: the same for every tenth
    of the sources, from the first. share: the mean share of the strongest. flags: how many rows
    have each.
    """

    rows: int = 0
    several: int = 0
    first: int = 0
    total_share: float = 0.0
    strongest: Counter[str] = field(default_factory=Counter)
    places: list[int] = field(default_factory=lambda: [0] * BINS)
    flags: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """The mean share of the strongest source."""
        return self.total_share / self.rows if self.rows else 0.0

    @property
    def first_wins(self) -> float | None:
        """How often the first of several sources is the strongest."""
        return self.first / self.several if self.several else None

    def add(self, row: Row) -> None:
        """Count one row."""
        self.rows += 1
        self.flags.update(row["flags"] or ())
        if not row["sources"]:
            return
        best, count = row["sources"][0], int(row["source_count"])
        self.total_share += best["share"]
        self.strongest[best["text"]] += 1
        if len(self.strongest) > _MOST_COUNTED:
            self.strongest = Counter(dict(self.strongest.most_common(_MOST_COUNTED // 2)))
        if count > 1:
            self.several += 1
            self.first += best["number"] == 0
            self.places[min(BINS - 1, best["number"] * BINS // count)] += 1


@dataclass(frozen=True)
class Disagreement:
    """A text on which two methods name different sources: the strongest of each."""

    text: int
    id: str | None
    target: str
    sources: tuple[str, str]
    overlap: float


@dataclass
class PairSummary:
    """Two methods over the same targets.

    same: in how many rows both name the same strongest source. overlap: the mean share of the
    strongest sources that both list. examples: texts with the least overlap.
    """

    rows: int = 0
    same: int = 0
    total_overlap: float = 0.0
    examples: list[Disagreement] = field(default_factory=list)

    @property
    def agreement(self) -> float:
        """How often both name the same strongest source."""
        return self.same / self.rows if self.rows else 0.0

    @property
    def overlap(self) -> float:
        """How much of what one lists the other lists too."""
        return self.total_overlap / self.rows if self.rows else 0.0

    def add(self, one: Row, other: Row) -> None:
        """Count the two rows of one target."""
        first, second = ([s["number"] for s in row["sources"]] for row in (one, other))
        if not first or not second:
            return
        overlap = len(set(first) & set(second)) / max(len(first), len(second))
        self.rows += 1
        self.same += first[0] == second[0]
        self.total_overlap += overlap
        if first[0] == second[0]:
            return
        worst = max((each.overlap for each in self.examples), default=0.0)
        if len(self.examples) < _EXAMPLES or overlap < worst:
            names = (one["sources"][0]["text"], other["sources"][0]["text"])
            self.examples.append(
                Disagreement(one["text"], one["id"], one["target"], names, overlap)
            )
            self.examples.sort(key=lambda each: (each.overlap, each.text))
            del self.examples[_EXAMPLES:]


@dataclass(frozen=True)
class Summary:
    """What a corpus says as a whole."""

    corpus: Corpus
    methods: Mapping[str, MethodSummary]
    pairs: Mapping[tuple[str, str], PairSummary]
    predictions: Counter[str]
    errors: Counter[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "texts": self.corpus.texts,
            "complete": self.corpus.complete,
            "errors": dict(self.errors.most_common(_SENTENCES)),
            "level": self.corpus.settings["level"],
            "predictions": dict(self.predictions.most_common(_SOURCES)),
            "methods": {name: _method(each) for name, each in self.methods.items()},
            "pairs": [
                {
                    "methods": list(names),
                    "agreement": pair.agreement,
                    "overlap": pair.overlap,
                    "examples": [vars(example) for example in pair.examples],
                }
                for names, pair in self.pairs.items()
            ],
        }

    def to_html(self) -> str:
        """One page that fetches nothing."""
        from attnflow.corpus.summary_page import summary_page

        return summary_page(self.to_dict(), self.corpus)


def _method(each: MethodSummary) -> dict[str, Any]:
    return {
        "rows": each.rows,
        "share": each.share,
        "first_wins": each.first_wins,
        "places": each.places,
        "strongest": dict(each.strongest.most_common(_SOURCES)),
        "flags": dict(each.flags),
    }


def summarize(corpus: Corpus | str | os.PathLike[str]) -> Summary:
    """Answer the usual questions about what `run` wrote.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnflow.corpus import run
    >>> from attnflow.testing import tiny_encoder
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "texts.txt").write_text("the key\\nthe keys to the cabinet\\n")
    >>> model, tokenizer = tiny_encoder()
    >>> corpus = run(model, folder / "texts.txt", tokenizer=tokenizer, output=folder / "out",
    ...     methods=["rollout", "raw"])
    >>> summarize(corpus).pairs["rollout", "raw"].rows
    2
    """
    corpus = corpus if isinstance(corpus, Corpus) else read(corpus)
    methods: dict[str, MethodSummary] = {}
    pairs: dict[tuple[str, str], PairSummary] = {}
    predictions: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for rows in _by_target(corpus):
        if rows[0]["error"] is not None:
            errors[rows[0]["error"]] += 1
            continue
        label = rows[0]["prediction"]
        if label is not None and (label in predictions or len(predictions) < _MOST_COUNTED):
            predictions[label] += 1
        for row in rows:
            methods.setdefault(row["method"], MethodSummary()).add(row)
        for one, other in combinations(rows, 2):
            pairs.setdefault((one["method"], other["method"]), PairSummary()).add(one, other)
    if not methods and not errors:
        raise InputError(f"{str(corpus.path)!r} holds no rows yet.")
    return Summary(corpus, methods, pairs, predictions, errors)


def _by_target(corpus: Corpus) -> Iterator[Sequence[Row]]:
    """The rows of all methods for one text and target, which follow each other in a part."""
    rows: Iterator[Row] = (
        row
        for table in corpus.tables(_COLUMNS)
        for batch in table.to_batches(max_chunksize=1000)
        for row in batch.to_pylist()
    )
    for _, group in groupby(rows, key=lambda row: (row["text"], row["target_position"])):
        yield list(group)
