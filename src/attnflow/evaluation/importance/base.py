"""What every measure is: a frozen value that is called on a model and texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnflow.attribution import Contribution
from attnflow.errors import InputError, MethodError, did_you_mean, shorten, whole_number
from attnflow.errors.arguments import check_fields, check_named, checked_arguments
from attnflow.errors.percent import percent
from attnflow.errors.progress import tell
from attnflow.evaluation.importance.passes import Forward, Passes, Row, Score, Text, score_of
from attnflow.hosts.adapter import Scores
from attnflow.hosts.load import ModelLike
from attnflow.tokens import Tokens

__all__ = ["Answer", "Choice", "Importance", "Measure", "Task", "read_answers"]

Floats = NDArray[np.float64]
Choice = int | str
"""What can be explained: a class or a token, by its number or its name."""


@dataclass(frozen=True)
class Answer:
    """The choice that is explained, and what the model gave it on the text as it is."""

    choice: int
    name: str
    probability: float
    score: float
    position: int


@dataclass(frozen=True, eq=False)
class Importance:
    """How much each token matters to one answer; nan where it was not measured.

    `is_word` is false where a token only frames the text. `answer` and `probability` are of the
    text as it is; `position` is where the answer was read.

    >>> from attnflow.evaluation.importance import BlankOut
    >>> importance = BlankOut()(None, ["the key to the cabinets"])[0]
    >>> importance.answer, importance.top(1)[0].token
    ('singular', 'to')
    """

    values: NDArray[np.float64]
    tokens: Tokens
    is_word: NDArray[np.bool_]
    choice: int
    answer: str
    probability: float
    position: int
    measure: Measure

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.tokens),):
            raise InputError(f"{self.values.shape} values for {len(self.tokens)} tokens.")
        self.values.flags.writeable = False

    def top(self, k: int = 5) -> list[Contribution]:
        """Return the k tokens that matter most, strongest first; those not measured left out."""
        if k < 1:
            raise InputError(f"top(k) needs k of at least 1; got {k}.")
        order = np.argsort(-np.abs(self.values), kind="stable")[:k].tolist()
        return [
            Contribution(self.tokens[i], self.tokens.positions[i], float(self.values[i]))
            for i in order
            if np.isfinite(self.values[i])
        ]

    def __repr__(self) -> str:
        answer = f"{self.answer} ({percent(self.probability, 1)})"
        return f"<Importance of {len(self.tokens)} tokens for {answer}, {self.measure!r}>"


@dataclass(frozen=True, kw_only=True)
class Measure(ABC):
    """What all measures share: the score they are about, and being callable.

    score: "probability" of the choice, or its "logit".

    >>> from attnflow.evaluation.importance import MEASURES
    >>> issubclass(MEASURES["blank-out"], Measure)
    True
    """

    name: ClassVar[str]
    score: Score = "probability"

    def __post_init__(self) -> None:
        check_named("score", self.score, get_args(Score))
        check_fields(self)

    @checked_arguments
    def __call__(
        self,
        model: ModelLike,
        texts: Sequence[str],
        *,
        answer: Choice | Sequence[Choice | None] | None = None,
        batch_size: int = 64,
    ) -> list[Importance]:
        """Return the importance of every token of every text to the model's answer.

        `answer` is the choice to explain, the same for all texts or one for each; None is what the
        model itself says.
        """
        passes = Passes.over(model, batch_size)
        task = Task.of(passes, texts, answer, self.score, self.name)
        return [
            Importance(
                values,
                text.tokens,
                text.is_word,
                choice=answer.choice,
                answer=answer.name,
                probability=answer.probability,
                position=answer.position,
                measure=self,
            )
            for values, text, answer in zip(
                self._measure(task), task.texts, task.answers, strict=True
            )
        ]

    @abstractmethod
    def _measure(self, task: Task) -> list[Floats]:
        """Return one value for each position of each text."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be measured: texts, the answer of each, and how its score is read.

    `stage` names the work for whoever listens.
    """

    passes: Passes
    texts: Sequence[Text]
    answers: Sequence[Answer]
    score: Score
    stage: str

    @classmethod
    def of(
        cls,
        passes: Passes,
        texts: Sequence[str],
        answer: Choice | Sequence[Choice | None] | None,
        score: Score,
        stage: str,
    ) -> Task:
        """Return the texts as rows, with what the model answers to each as it is."""
        rows = passes.texts(texts)
        answers = read_answers(passes, rows, answer, score)
        return cls(passes, rows, answers, score, stage)

    def tell(self, done: int, total: int) -> None:
        """Say how much is done."""
        tell(self.stage, done, total)

    def scores(
        self,
        rows: Sequence[Row],
        texts: Sequence[int],
        *,
        forward: Forward | None = None,
        keeps_positions: bool = True,
    ) -> list[float]:
        """Return the answer's score in each row, a variant of the text whose number is in `texts`.

        Where a variant keeps the positions of its text, its answer is read where the text's is.
        """
        originals = [self.texts[k].row for k in texts]

        def score(r: int, scores: Scores) -> float:
            if scores.each is not None and not keeps_positions:
                raise MethodError(
                    "This model has an answer for each token, and by='delete' moves tokens away "
                    "from theirs. Take by='unk', by='mask' or by='pad'."
                )
            return float(self.score_of(scores, texts[r]))

        return self.passes.read(
            rows,
            score,
            stage=self.stage,
            forward=forward,
            read_as=originals if keeps_positions else None,
        )

    def score_of(self, scores: Scores, text: int) -> Tensor:
        """Return the score of a text's answer, read where the text as it is has it."""
        answer = self.answers[text]
        return score_of(scores, answer.choice, self.score, answer.position)

    def effects(
        self, places: Sequence[tuple[int, int]], scores: Sequence[float], *, signed: bool
    ) -> list[Floats]:
        """Return what a change at (text, position) takes from the score; nan without one."""
        values = [np.full(len(text.tokens), np.nan) for text in self.texts]
        for (text, position), score in zip(places, scores, strict=True):
            effect = self.answers[text].score - score
            values[text][position] = effect if signed else abs(effect)
        return values


def _one_for_each(
    answer: Choice | Sequence[Choice | None] | None, count: int
) -> Sequence[Choice | None]:
    number = whole_number(answer)
    if number is not None:
        return [number] * count
    if answer is None or isinstance(answer, (bool, int, str)):
        return [answer] * count
    if len(answer) != count:
        raise InputError(f"answer has {len(answer)} choices for {count} texts; give one for each.")
    return answer


def read_answers(
    passes: Passes,
    texts: Sequence[Text],
    choices: Choice | Sequence[Choice | None] | None,
    kind: Score,
) -> list[Answer]:
    """Return what the model says of each text, or what it says of the choice asked for."""
    each = _one_for_each(choices, len(texts))
    rows: list[Row] = [text.row for text in texts]

    def answer(k: int, scores: Scores) -> Answer:
        choice = _choice_of(scores, each[k])
        return Answer(
            choice,
            scores.names([choice])[0],
            float(score_of(scores, choice, "probability")),
            float(score_of(scores, choice, kind)),
            scores.position,
        )

    return passes.read(rows, answer)


def _choice_of(scores: Scores, choice: Choice | None) -> int:
    count = len(scores.logits)
    if choice is None:
        return int(scores.logits.argmax())
    if isinstance(choice, str):
        names = scores.names(range(count))
        if choice not in names:
            hint = did_you_mean(choice, names) or f" Some are {', '.join(names[:5])}."
            raise InputError(f"answer={shorten(choice)}: the model has no such choice.{hint}")
        return names.index(choice)
    if isinstance(choice, bool) or not 0 <= choice < count:
        raise InputError(
            f"answer={shorten(choice)}: the model's choices are numbered 0 to {count - 1}."
        )
    return int(choice)
