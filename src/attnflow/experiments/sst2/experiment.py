"""Table 3 of the paper: does attention agree with the input gradients of a text classifier?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import nn

from attnflow.errors import InputError, TokensError, did_you_mean
from attnflow.evaluation.importance.base import check_named
from attnflow.experiments.report import Report
from attnflow.experiments.sst2.data import LabelledText
from attnflow.experiments.sst2.observe import labels_of
from attnflow.experiments.sst2.paper import run_as_paper
from attnflow.experiments.sst2.sound import run_sound
from attnflow.experiments.verb_number.observe import Stages
from attnflow.hosts.registry import adapter_for

__all__ = ["Protocol", "Sst2"]

Protocol = Literal["sound", "paper"]


@dataclass(frozen=True, kw_only=True)
class Sst2:
    """The SST-2 experiment, on any sequence classifier.

    protocol: "sound", or "paper" for theirs with its oddities.
    samples: how many texts, drawn by `seed` if there are more.
    label: the class whose logit is explained, by name or number; None is the last, which of
        SST-2 is the positive one.
    """

    protocol: Protocol = "sound"
    samples: int = 100
    label: str | int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_named("protocol", self.protocol, get_args(Protocol))
        if not isinstance(self.samples, int) or self.samples < 1:
            raise InputError(f"samples is a number of at least 1; got {self.samples!r}.")

    def __call__(
        self,
        examples: Sequence[LabelledText],
        model: nn.Module,
        tokenizer: Any,
        *,
        source: str,
        command: str = "",
        stages: Stages = lambda *_: None,
    ) -> Report:
        """Run it on these texts; `source` says in words where they are from."""
        names = labels_of(model)
        label = self._label(names)
        chosen, remarks = self._sample(examples, model, tokenizer)
        run = run_sound if self.protocol == "sound" else run_as_paper
        found = run(model, tokenizer, chosen, label, stages)
        opening = (
            f"{len(chosen):,} texts from {source}{found.accuracy}.{remarks} The label explained is "
            f"{names[label]!r}."
        )
        return Report(
            name="sst2",
            title="SST-2: attention against input gradients of a classifier",
            protocol=(opening, *found.protocol),
            tables=found.tables,
            findings=found.findings,
            command=command,
        )

    def _label(self, names: Sequence[str]) -> int:
        if self.label is None:
            return len(names) - 1
        wanted = str(self.label)
        if wanted in names:
            return names.index(wanted)
        if wanted.isdecimal() and int(wanted) < len(names):
            return int(wanted)
        listed = ", ".join(f"{k} ({name})" for k, name in enumerate(names))
        raise InputError(
            f"label={self.label!r}:{did_you_mean(wanted, names)} The model's labels are {listed}."
        )

    def _sample(
        self, examples: Sequence[LabelledText], model: nn.Module, tokenizer: Any
    ) -> tuple[list[LabelledText], str]:
        fitting = [e for e in examples if _fits(e, model, tokenizer)]
        if not fitting:
            raise InputError("No text is short enough for the model; nothing can be measured.")
        long = len(examples) - len(fitting)
        remarks = f" {long} longer than the model's positions left out." if long else ""
        if len(fitting) < self.samples:
            remarks += f" There are no more; {self.samples:,} were asked for."
        if len(fitting) <= self.samples:
            return fitting, remarks
        return random.Random(self.seed).sample(fitting, self.samples), remarks


def _fits(example: LabelledText, model: nn.Module, tokenizer: Any) -> bool:
    try:
        adapter_for(model).encode(model, tokenizer, [example.text])
    except TokensError:
        return False
    return True
