"""Which attribution of a language model agrees with ablations, on data it was not chosen by?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnflow.errors import InputError, did_you_mean
from attnflow.evaluation.ablation import CompletionEvaluation
from attnflow.evaluation.ablation.rankings import named_rankings
from attnflow.evaluation.table import Table
from attnflow_experiments.ablation.data import PARTS, Part
from attnflow_experiments.ablation.observe import KINDS, observe, prompts_of
from attnflow_experiments.ablation.tables import differences_table, kind_table
from attnflow_experiments.report import Report

__all__ = ["DEFAULT_METHODS", "AblationExperiment"]

DEFAULT_METHODS = (
    "default",
    "default-0.1.0",
    "raw-mean",
    "rollout",
    "ablation-regression",
    "leave-one-out",
)


@dataclass(frozen=True, kw_only=True)
class AblationExperiment:
    """The ablation experiment.

    part: "development", to choose by, or "held-out", to report.
    methods: names as `named_rankings` takes them; differences are those of the first.
    kinds: which data: "facts", "text", "documents".
    samples: at most so many prompts of each kind that count.
    skip: leave out the first prompts of each kind, because they were looked at already.
    ablations: how many random ablations LDS is taken over.
    seed: decides the ablations; which item is in which part never changes.
    """

    part: Part = "development"
    methods: Sequence[str] = DEFAULT_METHODS
    kinds: Sequence[str] = tuple(KINDS)
    samples: int | None = None
    skip: int = 0
    ablations: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            hint = did_you_mean(str(self.part), PARTS)
            raise InputError(f"part={self.part!r}.{hint} The parts are {', '.join(PARTS)}.")
        for kind in self.kinds:
            if kind not in KINDS:
                hint = did_you_mean(str(kind), KINDS)
                raise InputError(f"No data {kind!r}.{hint} There are {', '.join(KINDS)}.")
        samples = 1 if self.samples is None else self.samples
        if self.ablations < 2 or samples < 1 or self.skip < 0:
            raise InputError(
                "ablations is at least 2, samples at least 1 and skip at least 0; got "
                f"{self.ablations}, {self.samples} and {self.skip}."
            )
        named_rankings(self.methods)  # a long run must not fail on a name

    def __call__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        data: Path | None,
        journals: Path | None,
        command: str,
    ) -> Report:
        """Run every kind there is data for; `journals` is a folder that keeps each as it goes."""
        evaluations: dict[str, CompletionEvaluation] = {}
        missing = []
        for kind in self.kinds:
            prompts = prompts_of(kind, self.part, data, self.skip)
            if prompts is None:
                missing.append(kind)
                continue
            journal = None if journals is None else journals / self.journal_name(kind)
            evaluations[kind] = observe(
                kind,
                prompts,
                model,
                tokenizer,
                methods=self.methods,
                samples=self.samples,
                ablations=self.ablations,
                seed=self.seed,
                journal=journal,
            )
        if not evaluations:
            raise InputError(f"The folder has no data for {', '.join(missing)}.")
        return self._report(evaluations, missing, command)

    def journal_name(self, kind: str) -> str:
        """The file that the run on one kind of data is kept in."""
        return f"ablation-{kind}-{self.part}.jsonl"

    def _report(
        self, evaluations: Mapping[str, CompletionEvaluation], missing: list[str], command: str
    ) -> Report:
        tables: list[Table] = []
        findings = []
        for kind, evaluation in evaluations.items():
            tables += [kind_table(kind, evaluation), differences_table(kind, evaluation)]
            findings += [f"{kind}: {sentence}" for sentence in evaluation.verdict()]
        findings += [f"{kind}: left out, the folder holds no such data." for kind in missing]
        model = next(iter(evaluations.values())).settings["model"]
        return Report(
            name="ablation",
            title=f"Attribution against ablations: {Path(str(model)).name}, {self.part}",
            protocol=(
                "Facts and running text: sources are words but the first token's and the last; the "
                "response is the log odds of the model's own next token; what is taken away is "
                "hidden from every query in every layer, positions kept.",
                f"LDS: Spearman, over {self.ablations} random ablations of 30 % of the words, of "
                "the kept words' summed scores and the response. Drop: log odds lost without the "
                "top three words.",
                "Facts count where the model answers rightly. Right sentence: of those that state "
                "facts, where there are several; of all sentences: the question's and the answer's "
                "beginning too.",
                "Questions: sources are the documents' sentences; a document's score is their sum; "
                "the model's whole answer is one target; prompts answered rightly count.",
                "95 % bootstrap intervals over prompts; ties count against a method.",
            ),
            tables=tuple(tables),
            findings=tuple(findings),
            command=command,
        )
