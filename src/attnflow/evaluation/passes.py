"""Many forward passes over texts and their variants, batched; padding changes nothing.

An input is a `Row`: one integer array for each of the model's inputs, over the positions of one
text without padding. Variants of a text are rows too, so whoever wants to know what a change does
makes rows and reads scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnflow.errors import MethodError, ModelError, TokensError, UnsupportedModelError, shorten
from attnflow.errors.arguments import check_count
from attnflow.errors.progress import tell
from attnflow.explainers.blanks import Row
from attnflow.hosts.adapter import Batch, Scores, TokenIds
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest
from attnflow.hosts.scores import answers_for_each
from attnflow.tokens import Tokens

Floats = NDArray[np.float64]
Score = Literal["probability", "logit"]
Forward = Callable[[Mapping[str, Tensor], Sequence[int]], Any]
Choice = int | str
"""An answer that can be explained: a class or a token, by its number or its name."""
Choices = Choice | Sequence[Choice | None] | None
"""One choice for all texts, or one for each; None is what the model itself says."""
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Text:
    """A text as the model takes it; `is_word` is false where a token only frames the text."""

    row: Row
    tokens: Tokens
    is_word: NDArray[np.bool_]


def score_of(scores: Scores, choice: int, kind: Score, position: int | None = None) -> Tensor:
    """Return the logit or the probability of one choice; at a position, where each has an answer.

    In double precision: near 1, single precision has steps of 6e-8, and small effects of
    different words would come out equal.
    """
    if scores.each is not None and position is not None:
        scores = scores.at(position)  # by itself it is the surest, which a change may move
    logits = scores.logits.double()
    if kind == "logit":
        return logits[choice]
    return (logits.softmax(dim=-1) if scores.exclusive else logits.sigmoid())[choice]


@dataclass(frozen=True, eq=False)
class Passes:
    """A model that is run on rows, `batch_size` of them at a time; `ids`: its special tokens."""

    model: Model
    ids: TokenIds
    batch_size: int

    @classmethod
    def over(cls, model: ModelLike, batch_size: int) -> Passes:
        """Return passes over a model, checked."""
        check_count("batch_size", batch_size, 1)
        loaded = as_model(model)
        if loaded.tokenizer is None:
            raise TokensError(
                "A text needs the model's tokenizer: give (model, tokenizer), or load the model by "
                "attnflow.load()."
            )
        ids = loaded.adapter.token_ids(loaded.module, loaded.tokenizer)
        return cls(loaded, ids, batch_size)

    def run(self, batch: Batch) -> Any:
        """Return the model's outputs of a batch."""
        return self.model.adapter.forward(self.model.module, batch.inputs)

    def encode(self, texts: Sequence[str]) -> list[Text]:
        """Return texts as rows, with the names their positions have in a captured trace."""
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
            raise TokensError(f"A list of texts is needed; got {shorten(texts)}.")
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Text:
        if not isinstance(text, str) or not text.strip():
            raise TokensError(f"There is nothing to explain: the text is {shorten(text)}.")
        module, tokenizer = self.model
        adapter = self.model.adapter
        batch = adapter.encode(module, tokenizer, [text])
        _check_inputs(type(module).__name__, batch)
        row = {name: value[0].cpu().numpy() for name, value in batch.inputs.items()}
        length = len(row["input_ids"])
        row.setdefault("attention_mask", np.ones(length, dtype=np.int64))
        tokens = adapter.name_positions(module, tokenizer, batch, 0, length)
        is_word = ~np.isin(row["input_ids"], list(self.ids.special))
        return Text(row, tokens, is_word)

    def batches(self, rows: Sequence[Row]) -> Iterator[tuple[list[int], Batch]]:
        """Yield batches of rows of about equal length, with the numbers of the rows."""
        lengths = [len(row["input_ids"]) for row in rows]
        for numbers in batches_by_length(lengths, self.batch_size):
            yield numbers, self._padded([rows[k] for k in numbers])

    def _padded(self, rows: Sequence[Row]) -> Batch:
        """Return a batch with padding on the right, hidden by the mask."""
        fill = {"input_ids": self.ids.blanks.get("pad", 0)}
        inputs = {
            name: pad_sequence(
                [torch.from_numpy(row[name]).long() for row in rows], True, fill.get(name, 0)
            )
            for name in rows[0]
        }
        return self.model.adapter.wrap(self.model.module, inputs)

    def read(
        self,
        rows: Sequence[Row],
        take: Callable[[int, Scores], T],
        *,
        stage: str = "",
        forward: Forward | None = None,
        read_as: Sequence[Row] | None = None,
    ) -> list[T]:
        """Run every row once and take something of its scores: `take(k, scores of row k)`.

        forward: runs the model in a special way. read_as: rows of the same lengths by which the
        answer's position is found; blanked by a mask, another word would be the first masked one.
        """
        results: dict[int, T] = {}
        with at_rest(self.model.module), torch.no_grad():
            for numbers, batch in self.batches(rows):
                outputs = forward(batch.inputs, numbers) if forward else self.run(batch)
                if read_as is not None:
                    batch = self._padded([read_as[k] for k in numbers])
                for k, scores in zip(numbers, self.read_scores(outputs, batch), strict=True):
                    results[k] = take(k, scores)
                tell(stage, len(results), len(rows))
        return [results[k] for k in range(len(rows))]

    def read_scores(self, outputs: Any, batch: Batch) -> list[Scores]:
        """Return what each example's answer is read from."""
        module, tokenizer = self.model
        answers = self.model.adapter.scores(module, tokenizer, outputs, batch)
        present = [scores for scores in answers if scores is not None]
        if len(present) < len(answers):
            raise ModelError(
                f"{type(module).__name__} gives no answer to measure: a classifier, a masked "
                "language model with a mask in the text, or a causal language model is needed."
            )
        return present


def _check_inputs(name: str, batch: Batch) -> None:
    ids = batch.inputs.get("input_ids")
    if "decoder_input_ids" in batch.inputs or ids is None:
        raise UnsupportedModelError(
            f"{name}: importance is measured of models that read one sequence of tokens: "
            "classifiers, masked and causal language models."
        )
    odd = [each for each, value in batch.inputs.items() if value.shape != ids.shape]
    if odd:
        raise UnsupportedModelError(
            f"{name} takes {', '.join(odd)}, which has no value for each token, so a token "
            "cannot be changed alone."
        )


@dataclass(frozen=True)
class Answer:
    """The choice that is explained, and what the model gave it on the text as it is."""

    choice: int
    name: str
    probability: float
    score: float
    position: int


@dataclass(frozen=True, eq=False)
class Task(Passes):
    """Passes over texts: the answer of each, how its score is read, and the name of the work."""

    texts: Sequence[Text]
    answers: Sequence[Answer]
    score: Score
    stage: str

    @classmethod
    def of(
        cls, passes: Passes, texts: Sequence[str], answer: Choices, score: Score, stage: str
    ) -> Task:
        """Return the texts as rows, with what the model answers to each as it is."""
        rows = passes.encode(texts)
        convert: Any = getattr(answer, "tolist", lambda: answer)  # of an array
        choices = answers_for_each(convert(), len(rows))

        def read_answer(k: int, scores: Scores) -> Answer:
            choice = scores.choice(choices[k])
            probability = float(score_of(scores, choice, "probability"))
            value = float(score_of(scores, choice, score))
            return Answer(choice, scores.label(choice), probability, value, scores.position)

        answers = passes.read([text.row for text in rows], read_answer)
        return cls(passes.model, passes.ids, passes.batch_size, rows, answers, score, stage)

    def scores(
        self,
        rows: Sequence[Row],
        texts: Sequence[int],
        *,
        forward: Forward | None = None,
        keeps_positions: bool = True,
    ) -> list[float]:
        """Return the answer's score in each row, a variant of the text of this number."""

        def score(r: int, scores: Scores) -> float:
            if scores.each is not None and not keeps_positions:
                raise MethodError(
                    "This model has an answer for each token, and by='delete' moves tokens away "
                    "from theirs. Take by='unk', by='mask' or by='pad'."
                )
            return float(self.score_of(scores, texts[r]))

        read_as = [self.texts[k].row for k in texts] if keeps_positions else None
        return self.read(rows, score, stage=self.stage, forward=forward, read_as=read_as)

    def score_of(self, scores: Scores, text: int) -> Tensor:
        """Return the score of a text's answer, read where the text as it is has it."""
        answer = self.answers[text]
        return score_of(scores, answer.choice, self.score, answer.position)

    def effects(
        self,
        places: Sequence[tuple[int, int]],
        rows: Sequence[Row],
        *,
        signed: bool,
        forward: Forward | None = None,
        keeps_positions: bool = True,
    ) -> list[Floats]:
        """Return what the change at each (text, position) takes from the score; nan elsewhere."""
        numbers = [k for k, _ in places]
        scores = self.scores(rows, numbers, forward=forward, keeps_positions=keeps_positions)
        values = [np.full(len(text.tokens), np.nan) for text in self.texts]
        for (text, position), score in zip(places, scores, strict=True):
            effect = self.answers[text].score - score
            values[text][position] = effect if signed else abs(effect)
        return values


def batches_by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield the numbers of the texts in each batch of at most `size`, shortest texts first."""
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    for start in range(0, len(order), size):
        yield order[start : start + size]
