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
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from attnflow.corpus.folder import Corpus, read
from attnflow.errors import InputError
from attnflow.show.page import render

_BINS = 10
_SOURCES = 15  # that are named for each method
_EXAMPLES = 10  # of texts on which two methods disagree
_SENTENCES = 5
_MOST_COUNTED = 200_000
_COLUMNS = (
    *("row", "id", "text", "method", "target", "target_position", "prediction"),
    *("verdict", "sources", "source_count", "flags", "error"),
)
_TEMPLATE = Path(__file__).parent / "templates" / "summary.html.j2"
_FLAGS = {
    "collapsed": "the method says nearly the same for every position",
    "saturated": "most shares no longer depend on what is explained",
    "alone": "a batch failed, and its texts were run one by one",
}
_VERDICTS = {
    "rests": "rest on one source: hidden, it takes the answer with it",
    "either": "rest on any one of several sources: the others are enough without it",
    "together": "rest on several sources together",
    "partly": "rest in part on what is named",
    "none": "have no source: they are as likely without what is named",
}
Row = Mapping[str, Any]


@dataclass
class MethodSummary:
    """One method over all texts; `places` counts the strongest source by tenths of the sources."""

    rows: int = 0
    several: int = 0
    first: int = 0
    total_share: float = 0.0
    strongest: Counter[str] = field(default_factory=Counter)
    places: list[int] = field(default_factory=lambda: [0] * _BINS)
    flags: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """The mean share of the strongest source."""
        return self.total_share / self.rows if self.rows else 0.0

    @property
    def first_wins(self) -> float | None:
        """The share of rows in which the first of several sources is the strongest."""
        return self.first / self.several if self.several else None

    def add(self, table: pa.Table) -> None:
        """Count the rows of a table."""
        self.rows += len(table)
        _count(self.flags, pc.list_flatten(table["flags"]))
        table = table.filter(pc.greater(pc.list_value_length(table["sources"]), 0))
        strongest = pc.list_element(table["sources"], 0)
        # One after the other: pyarrow adds in pairs, and the last digit would depend on the parts.
        shares = pc.struct_field(strongest, "share").to_pylist()
        self.total_share = sum(shares, self.total_share)
        _count(self.strongest, pc.struct_field(strongest, "text"))
        several = pc.greater(table["source_count"], 1)
        numbers = pc.struct_field(strongest, "number").filter(several)
        counts = table["source_count"].filter(several)
        self.several += len(numbers)
        self.first += pc.sum(pc.equal(numbers, 0)).as_py() or 0
        tenths = pc.divide(pc.multiply(numbers, _BINS), counts)
        for entry in pc.value_counts(pc.min_element_wise(tenths, _BINS - 1)).to_pylist():
            self.places[entry["values"]] += entry["counts"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "rows": self.rows,
            "share": self.share,
            "first_wins": self.first_wins,
            "places": self.places,
            "strongest": dict(self.strongest.most_common(_SOURCES)),
            "flags": dict(self.flags),
        }


def _count(counter: Counter[str], values: Any) -> None:
    """Count values; where there are too many kinds, the rarer half is forgotten."""
    for entry in pc.value_counts(values.drop_null()).to_pylist():
        counter[entry["values"]] += entry["counts"]
    if len(counter) > _MOST_COUNTED:
        frequent = counter.most_common(_MOST_COUNTED // 2)
        counter.clear()
        counter.update(dict(frequent))


@dataclass(frozen=True)
class Disagreement:
    """A text on which two methods name different sources: the strongest of each."""

    row: int
    id: str | None
    text: str | None
    target: str
    sources: tuple[str, str]
    overlap: float


@dataclass
class PairSummary:
    """Two methods over the same targets; `examples` are the texts with the least overlap."""

    rows: int = 0
    same: int = 0
    total_overlap: float = 0.0
    examples: list[Disagreement] = field(default_factory=list)

    @property
    def agreement(self) -> float:
        """The share of rows in which both name the same strongest source."""
        return self.same / self.rows if self.rows else 0.0

    @property
    def overlap(self) -> float:
        """The share of what one lists that the other lists too."""
        return self.total_overlap / self.rows if self.rows else 0.0

    # By hand: pyarrow has no function for what two lists have in common.
    def add(self, row: Row, other: Row) -> None:
        """Count the two rows of one target."""
        first, second = ([source["number"] for source in r["sources"]] for r in (row, other))
        if not first or not second:
            return
        overlap = len(set(first) & set(second)) / max(len(first), len(second))
        self.rows += 1
        self.same += first[0] == second[0]
        self.total_overlap += overlap
        if first[0] != second[0]:
            names = (row["sources"][0]["text"], other["sources"][0]["text"])
            self.examples.append(
                Disagreement(row["row"], row["id"], row["text"], row["target"], names, overlap)
            )
            self.examples.sort(key=lambda example: (example.overlap, example.row))
            del self.examples[_EXAMPLES:]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "agreement": self.agreement,
            "overlap": self.overlap,
            "examples": [vars(example) for example in self.examples],
        }


@dataclass(frozen=True)
class Summary:
    """A corpus as a whole: its methods, pairs of them, what the model says, and what failed.

    >>> Summary(Corpus(Path("out"), {}, {}), {}, {}, Counter({"plural": 2}), Counter()).predictions
    Counter({'plural': 2})
    """

    corpus: Corpus
    methods: Mapping[str, MethodSummary]
    pairs: Mapping[tuple[str, str], PairSummary]
    predictions: Counter[str]
    errors: Counter[str]
    verdicts: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "texts": self.corpus.texts,
            "complete": self.corpus.complete,
            "errors": dict(self.errors.most_common(_SENTENCES)),
            "level": self.corpus.settings["level"],
            "verdicts": {
                sentence: self.verdicts[kind] / self.verdicts.total()
                for kind, sentence in _VERDICTS.items()
                if self.verdicts[kind]
            },
            "predictions": dict(self.predictions.most_common(_SOURCES)),
            "methods": {name: method.to_dict() for name, method in self.methods.items()},
            "pairs": [
                {"methods": list(names), **pair.to_dict()} for names, pair in self.pairs.items()
            ],
        }

    def to_html(self) -> str:
        """Return one page that fetches nothing."""
        record = {**self.corpus.provenance, **self.corpus.settings}
        values = {name: str(record[name]) for name in sorted(record) if record[name] is not None}
        return render(
            _TEMPLATE, **self.to_dict(), corpus=self.corpus, record=values, meanings=_FLAGS
        )


def summarize(corpus: Corpus | str | os.PathLike[str]) -> Summary:
    """Answer the usual questions about what `run` wrote.

    >>> import tempfile
    >>> from attnflow.corpus import Settings, run
    >>> from attnflow.testing import tiny_decoder
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "texts.txt").write_text("the key\\nthe keys to the cabinet\\n")
    >>> settings = Settings(methods=["rollout", "raw"])
    >>> corpus = run(tiny_decoder(), folder / "texts.txt", folder / "out", settings=settings)
    >>> summarize(corpus).pairs["rollout", "raw"].rows
    2
    """
    corpus = corpus if isinstance(corpus, Corpus) else read(corpus)
    methods: dict[str, MethodSummary] = {}
    pairs: dict[tuple[str, str], PairSummary] = {}
    predictions, errors, verdicts = Counter[str](), Counter[str](), Counter[str]()
    for table in corpus.tables(_COLUMNS):
        _count(errors, table["error"])
        table = table.filter(pc.is_null(table["error"]))
        targets = table.group_by(["row", "target_position"], use_threads=False)
        _count(predictions, targets.aggregate([("prediction", "first")])["prediction_first"])
        answers = table.filter(pc.is_valid(table["verdict"])).group_by("row", use_threads=False)
        _count(verdicts, answers.aggregate([("verdict", "first")])["verdict_first"])
        for name in pc.unique(table["method"]).to_pylist():
            rows = table.filter(pc.equal(table["method"], name))
            methods.setdefault(name, MethodSummary()).add(rows)
        if len(corpus.methods) > 1:
            for rows in _by_target(table):
                for row, other in combinations(rows, 2):
                    pair = pairs.setdefault((row["method"], other["method"]), PairSummary())
                    pair.add(row, other)
    if not methods and not errors:
        raise InputError(f"{str(corpus.path)!r} holds no rows yet.")
    return Summary(corpus, methods, pairs, predictions, errors, verdicts)


def _by_target(table: pa.Table) -> Iterator[Sequence[Row]]:
    """Yield the rows of all methods for one text and target, which follow each other in a part."""
    rows: Iterator[Row] = (
        row for batch in table.to_batches(max_chunksize=1000) for row in batch.to_pylist()
    )
    for _, group in groupby(rows, key=lambda row: (row["row"], row["target_position"])):
        yield list(group)
