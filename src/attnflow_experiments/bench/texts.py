"""Texts of models that answer at once: classifiers, taggers, masked language models.

Words are blanked by a token in their place, and the answer is read where the whole text has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import MethodError
from attnflow.evaluation.passes import Passes, Task
from attnflow.evaluation.subjects.rankings import CompletionCase
from attnflow.explainers.answer_rows import answer_rows
from attnflow.explainers.blanks import BlankToken, blank_positions
from attnflow.explainers.reruns import measure
from attnflow.explainers.sources import Sources
from attnflow.hosts.capture import capture
from attnflow.hosts.model import Model
from attnflow.methods import Method, RerunMethod

Floats = NDArray[np.float64]
_BATCH = 64


def blank_of(model: Model, masked: bool) -> tuple[BlankToken, int]:
    """Return the unknown token, or the mask, or padding where there is none, and its number."""
    blanks = model.adapter.token_ids(model.module, model.tokenizer).blanks
    order: tuple[BlankToken, ...] = ("mask", "pad") if masked else ("unk",)
    for name in order:
        if name in blanks:
            return name, blanks[name]
    raise MethodError(f"The tokenizer has no token {' or '.join(order)} to blank a word by.")


@dataclass(frozen=True, eq=False)
class TextAblation:
    """A text with words blanked; as a `CompletionAblation`, with one token: the answer's class."""

    task: Task
    by: BlankToken

    @property
    def model(self) -> Any:
        """The module."""
        return self.task.model.module

    @property
    def prompt_ids(self) -> list[int]:
        """The token ids of the text."""
        return [int(token) for token in self.task.texts[0].row["input_ids"]]

    @property
    def completion_ids(self) -> list[int]:
        """The number of the class."""
        return [self.task.answers[0].choice]

    @property
    def place(self) -> int:
        """The position that the answer is read from."""
        return self.task.answers[0].position

    @property
    def blank(self) -> int:
        """The number of the blank token."""
        return self.task.ids.blanks[self.by]

    def log_probs(self, sets: Sequence[Sequence[int]]) -> Floats:
        """Return the log-probability of the class, one for each set of positions."""
        row = self.task.texts[0].row
        rows = [blank_positions(row, list(each), self.task.ids, self.by) for each in sets]
        values = self.task.scores(rows, [0] * len(rows))
        return np.log(np.maximum(np.array(values), 1e-300))

    def token_log_probs(self, sets: Sequence[Sequence[int]]) -> Floats:
        """Return the same, `(sets, 1)`."""
        return self.log_probs(sets)[:, None]


@dataclass(frozen=True, eq=False)
class BlankedCase(CompletionCase):
    """A text whose words are blanked; rerun methods blank them as the judge does."""

    def measured(self, method: RerunMethod) -> Attribution:
        """Return what a rerun method gives by blanking words."""
        return measure(method, self.ablation, self.sources)


@dataclass(frozen=True, eq=False)
class TextCase(BlankedCase):
    """A text with the class that a model gives it, as a ranking gets it."""

    text: str = ""

    def attribution(self, method: Method) -> Attribution:
        """Return the row that the answer is read from, at the highest layer."""
        trace = capture(self.model, self.text, methods=[method])
        return answer_rows(method, trace, layers=-1)


def text_case(model: Model, text: str, masked: bool, seed: int) -> tuple[TextCase, str]:
    """Return a text whose words are sources, and the name of the class that the model gives it."""
    by, _ = blank_of(model, masked)
    task = Task.of(Passes.over(model, _BATCH), [text], None, "probability", "ablation")
    encoded = task.texts[0]
    framing = np.flatnonzero(~encoded.is_word).tolist()
    sources = Sources.of_tokens(encoded.tokens, level="word", special=framing, exclude_first=False)
    ablation: Any = TextAblation(task, by)
    return TextCase(model, ablation, sources, seed, text), task.answers[0].name
