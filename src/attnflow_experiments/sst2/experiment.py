"""Table 3 of the paper: does attention agree with the input gradients of a text classifier?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnflow.errors import InputError, TokensError, did_you_mean
from attnflow.evaluation.subjects.examples import LabelledText
from attnflow.hosts.model import adapter_for
from attnflow.methods import quiet_about_limits
from attnflow_experiments.report import Report, SampledExperiment
from attnflow_experiments.sst2.observe import Run, check_labels, class_of, in_words, labels_of
from attnflow_experiments.sst2.tables import run_as_paper, run_sound


@dataclass(frozen=True, kw_only=True)
class Sst2(SampledExperiment):
    """The SST-2 experiment, on any sequence classifier.

    label: the class whose logit is explained, by name or number; None is the last, which of
        SST-2 is the positive one.
    """

    label: str | int | None = None

    @quiet_about_limits()  # its tables tell of saturation
    def __call__(
        self,
        examples: Sequence[LabelledText],
        model: nn.Module,
        tokenizer: Any,
        *,
        source: str,
    ) -> Report:
        """Run it on these texts; `source` says in words where they are from."""
        names = labels_of(model)
        check_labels(examples, names)
        label = self._label(names)
        sample, remarks = self.sample(examples, lambda e: _fits(e, model, tokenizer), "text")
        by_protocol = run_sound if self.protocol == "sound" else run_as_paper
        outcome = by_protocol(Run(model, tokenizer, sample, label))
        opening = (
            f"{len(sample):,} texts from {source}{outcome.accuracy}.{remarks} The label explained "
            f"is {names[label]!r}."
        )
        return Report(
            name="sst2",
            title="SST-2: attention against input gradients of a classifier",
            protocol=(opening, *outcome.protocol),
            tables=outcome.tables,
            findings=outcome.findings,
        )

    def _label(self, names: Sequence[str]) -> int:
        label = str(self.label)
        number = len(names) - 1 if self.label is None else class_of(label, names)
        if number is None:
            raise InputError(
                f"label={self.label!r}:{did_you_mean(label, names)} The model's labels are "
                f"{in_words(names)}."
            )
        return number


def _fits(example: LabelledText, model: nn.Module, tokenizer: Any) -> bool:
    try:
        adapter_for(model).encode(model, tokenizer, [example.text])
    except TokensError:
        return False
    return True
