"""What the experiments of the paper's tables have in common: a protocol, and a sample by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from attnflow.errors import InputError
from attnflow.errors.arguments import check_named

__all__ = ["Experiment", "Protocol", "SampledExperiment"]

Protocol = Literal["sound", "paper"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment by one of two protocols.

    protocol: "sound", or "paper" for theirs with its oddities.
    """

    protocol: Protocol = "sound"

    def __post_init__(self) -> None:
        check_named("protocol", self.protocol, get_args(Protocol))


@dataclass(frozen=True, kw_only=True)
class SampledExperiment(Experiment):
    """An experiment on a sample of texts.

    samples: how many texts, drawn by `seed` if there are more.
    """

    samples: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.samples, int) or self.samples < 1:
            raise InputError(f"samples is a number of at least 1; got {self.samples!r}.")

    def sample(
        self, examples: Sequence[T], fits: Callable[[T], bool], kind: str
    ) -> tuple[list[T], str]:
        """The examples that are used, and what is to be remarked of the others.

        >>> SampledExperiment(samples=1, seed=1).sample("abc", str.isalpha, "letter")
        (['a'], '')
        """
        fitting = [example for example in examples if fits(example)]
        if not fitting:
            raise InputError(f"No {kind} is short enough for the model; nothing can be measured.")
        long = len(examples) - len(fitting)
        remarks = f" {long} longer than the model's positions left out." if long else ""
        if len(fitting) < self.samples:
            remarks += f" There are no more; {self.samples:,} were asked for."
        if len(fitting) <= self.samples:
            return fitting, remarks
        return random.Random(self.seed).sample(fitting, self.samples), remarks
