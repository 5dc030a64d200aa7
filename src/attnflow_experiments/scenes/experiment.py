"""Drawn scenes whose true object is known: where do maps point, and does hiding it matter?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from attnflow.errors import InputError, percent
from attnflow.errors.progress import tell
from attnflow.evaluation.metrics import compare_paired, summarize
from attnflow.evaluation.records import Journal, Record
from attnflow.evaluation.table import Cell, Table
from attnflow.hosts.fingerprint import digest_weights
from attnflow.methods import (
    GradientAttention,
    GradientRollout,
    Method,
    Raw,
    Rollout,
    quiet_about_limits,
)
from attnflow_experiments.report import Report
from attnflow_experiments.scenes.drawn_scenes import DEVELOPMENT_SEED, TEST_SEED, scenes
from attnflow_experiments.scenes.observe import BASELINES, METRICS, Floats, SceneQuestion, observe

CONTENDERS: Final[Mapping[str, Method]] = {
    "raw": Raw(),
    "rollout": Rollout(),
    "rollout, one-step": Rollout(residual="one-step"),
    "gradient-rollout": GradientRollout(),
    "gradient-attention, to the connector": GradientAttention(tower="connector"),
    "gradient-attention, rollout of the tower": GradientAttention(tower="rollout"),
    "gradient-attention, gradients of the tower": GradientAttention(tower="gradients"),
}


_TITLES = {"most": "points at it ↑", "share": "share of mass ↑", "deletion": "deletion ↓"}


def means_table(records: Sequence[Record]) -> Table:
    """Every method and baseline by every metric."""
    rows = {
        row: tuple(Cell.of_share(summarize(_values(records, row, metric))) for metric in METRICS)
        for row in records[0].scores
    }
    note = (
        "points at it: the true object's box has the most mass per area of all objects; share of "
        "mass: what of all mass on patches falls on its box; deletion: the area under the "
        "answer's probability as patches are painted over, the strongest first."
    )
    columns = tuple(_TITLES[metric] for metric in METRICS)
    return Table("scenes", "Drawn scenes", columns, rows, note, digits=3)


def kinds_table(records: Sequence[Record]) -> Table:
    """How often each method points at the true object, by the kind of question."""
    kinds = sorted({record.answer for record in records})
    rows = {
        row: tuple(
            Cell.of_share(summarize(_values([r for r in records if r.answer == kind], row, "most")))
            for kind in kinds
        )
        for row in records[0].scores
    }
    return Table("kinds", "Points at the true object, by the kind of question", tuple(kinds), rows)


def differences_table(records: Sequence[Record], method: str) -> Table:
    """The deletion area and the pointing of one method, less those of each baseline."""
    rows = {
        f"{method} − {baseline}": tuple(
            Cell.of_difference(
                compare_paired(_values(records, method, metric), _values(records, baseline, metric))
            )
            for metric in METRICS
        )
        for baseline in BASELINES
    }
    columns = tuple(_TITLES[metric] for metric in METRICS)
    title = "The default against the baselines, pair by pair"
    return Table("differences", title, columns, rows, "95 % intervals.", digits=3)


def _values(records: Sequence[Record], row: str, metric: str) -> Floats:
    return np.array([record.scores[row][metric] for record in records])


DEFAULT = "gradient-rollout"
"""The default of generate() with images, by its name among the contenders."""
Part = Literal["test", "development"]
_KINDS = ("colour", "shape", "place")


@dataclass(frozen=True, kw_only=True)
class Scenes:
    """The experiment on drawn scenes.

    scenes: how many scenes; of each one question, of the three kinds in turn.
    part: "test", which nothing was chosen by, or "development", which the default was chosen by.
    """

    scenes: int = 300
    part: Part = "test"

    def __post_init__(self) -> None:
        if self.scenes < 1:
            raise InputError(f"scenes is at least 1; got {self.scenes}.")
        if self.part not in ("test", "development"):
            raise InputError(f"part is 'test' or 'development'; got {self.part!r}.")

    @quiet_about_limits()
    def __call__(
        self,
        model: Any,
        processor: Any,
        *,
        journal: Path | None = None,
    ) -> Report:
        """Ask, explain, hide; a run with a journal goes on where it was stopped."""
        records: list[Record] = []
        with self._journal(journal, model) as file:
            records = [] if file is None else file.records(_fits)
            for case in self._questions(model, processor, start=len(records)):
                record = _record(case, len(records))
                records.append(record)
                if file is not None:
                    file.append(record)
                tell("scenes", len(records), self.scenes)
        return self.report(records)

    def _journal(self, path: Path | None, model: Any) -> Any:
        if path is None:
            return nullcontext()
        settings = {
            "experiment": "scenes",
            "part": self.part,
            "scenes": self.scenes,
            "methods": {name: repr(method) for name, method in CONTENDERS.items()},
            "weights": digest_weights(model),
        }
        return Journal(path, settings)

    def _questions(self, model: Any, processor: Any, start: int) -> Iterator[SceneQuestion]:
        seed = TEST_SEED if self.part == "test" else DEVELOPMENT_SEED
        for number, scene in enumerate(scenes(self.scenes, seed=seed)):
            if number < start:
                continue
            kind = _KINDS[number % len(_KINDS)]
            questions = [q for q in scene.questions if q.kind == kind] or list(scene.questions)
            question = questions[scene.seed % len(questions)]
            yield SceneQuestion(model, processor, scene, question)

    def report(self, records: Sequence[Record]) -> Report:
        """The tables with what they mean."""
        right = [record for record in records if not record.left_out]
        if not right:
            raise InputError(f"The model answered none of {len(records)} questions rightly.")
        means = means_table(right)
        pointing = means.rows[DEFAULT][0].value
        gaps = differences_table(right, DEFAULT)
        return Report(
            name="scenes",
            title="Drawn scenes: does the answer point at its object?",
            protocol=(
                f"{len(records)} {self.part} scenes of two to four objects, one question each; "
                f"{len(right)} were answered rightly and count.",
                "The first word of the answer is explained; of 'what is left of the circle?' the "
                "true object is the one that is left of it.",
                "95 % bootstrap intervals over questions.",
            ),
            tables=(means, kinds_table(right), gaps),
            findings=(
                f"The default ({DEFAULT}) points at the true object in {percent(pointing)} of the "
                f"questions; a random map does in {percent(means.rows['random'][0].value)}.",
            ),
            figure=partial(_draw, means),
        )


def _record(case: SceneQuestion, number: int) -> Record:
    scores = observe(case, CONTENDERS, np.random.default_rng([number, 7]))
    kind = case.question.kind
    if scores is None:
        return Record(number=number, answer=kind, left_out="The model's answer is wrong.")
    return Record(number=number, answer=kind, scores=scores)


def _fits(record: Record) -> bool:
    if record.left_out:
        return not record.scores
    rows = {*CONTENDERS, *BASELINES}
    return set(record.scores) == rows and all(
        set(scores) == set(METRICS) for scores in record.scores.values()
    )


def _draw(table: Table, path: Path) -> None:
    """A panel for each column: the mean and its interval in every row."""
    from attnflow.show import plots

    plots.interval_panels(table.interval_panels(), path)
