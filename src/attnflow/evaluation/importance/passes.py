"""Many forward passes over texts and their variants, batched; padding changes nothing.

An input is a `Row`: one integer array for each of the model's inputs, over the positions of one
text without padding. Variants of a text are rows too, so whoever wants to know what a change does
makes rows and reads scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.errors import InputError, ModelError, TokensError, UnsupportedModelError, shorten
from attnflow.errors.progress import tell
from attnflow.hosts.adapter import Batch, Scores, TokenIds
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.registry import Adapter
from attnflow.hosts.restore import at_rest
from attnflow.tokens import Tokens

__all__ = ["Passes", "Row", "Score", "Text", "batches_by_length", "score_of"]

Row = Mapping[str, NDArray[np.int64]]
Score = Literal["probability", "logit"]
Forward = Callable[[Mapping[str, Tensor], Sequence[int]], Any]
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
    """A model with what it needs to be run on rows, `batch_size` of them at a time."""

    model: nn.Module
    tokenizer: Any
    adapter: Adapter
    ids: TokenIds
    batch_size: int

    @classmethod
    def over(cls, model: ModelLike, batch_size: int) -> Passes:
        """Return passes over a model, checked."""
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size is a number of at least 1; got {shorten(batch_size)}.")
        loaded = as_model(model)
        module, tokenizer, adapter = loaded.module, loaded.tokenizer, loaded.adapter
        if tokenizer is None:
            raise TokensError(
                "A text needs the model's tokenizer: give (model, tokenizer), or load the model by "
                "attnflow.load()."
            )
        return cls(module, tokenizer, adapter, adapter.token_ids(module, tokenizer), batch_size)

    def texts(self, texts: Sequence[str]) -> list[Text]:
        """Return texts as rows, with the names their positions have in a captured trace."""
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
            raise TokensError(f"A list of texts is needed; got {shorten(texts)}.")
        return [self._text(text) for text in texts]

    def _text(self, text: str) -> Text:
        if not isinstance(text, str) or not text.strip():
            raise TokensError(f"There is nothing to explain: the text is {shorten(text)}.")
        batch = self.adapter.encode(self.model, self.tokenizer, [text])
        self._check_inputs(batch)
        row = {name: value[0].cpu().numpy() for name, value in batch.inputs.items()}
        length = len(row["input_ids"])
        row.setdefault("attention_mask", np.ones(length, dtype=np.int64))
        tokens = self.adapter.name_positions(self.model, self.tokenizer, batch, 0, length)
        is_word = ~np.isin(row["input_ids"], list(self.ids.special))
        return Text(row, tokens, is_word)

    def _check_inputs(self, batch: Batch) -> None:
        ids = batch.inputs.get("input_ids")
        if "decoder_input_ids" in batch.inputs or ids is None:
            raise UnsupportedModelError(
                f"{type(self.model).__name__}: importance is measured of models that read one "
                "sequence of tokens: classifiers, masked and causal language models."
            )
        odd = [name for name, value in batch.inputs.items() if value.shape != ids.shape]
        if odd:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} takes {', '.join(odd)}, which has no value for each "
                "token, so a token cannot be changed alone."
            )

    def batches(self, rows: Sequence[Row]) -> Iterator[tuple[list[int], Batch]]:
        """Yield batches of rows of about equal length, with the numbers of the rows."""
        lengths = [len(row["input_ids"]) for row in rows]
        for numbers in batches_by_length(lengths, self.batch_size):
            yield numbers, self._padded([rows[k] for k in numbers])

    def _padded(self, rows: Sequence[Row]) -> Batch:
        """Return a batch with padding on the right, hidden by the mask."""
        longest = max(len(row["input_ids"]) for row in rows)
        fill = {"input_ids": self.ids.blanks.get("pad", 0)}
        inputs: dict[str, Tensor] = {}
        for name in rows[0]:
            block = np.full((len(rows), longest), fill.get(name, 0), dtype=np.int64)
            for line, row in zip(block, rows, strict=True):
                line[: len(row[name])] = row[name]
            inputs[name] = torch.from_numpy(block)
        return self.adapter.wrap(self.model, inputs)

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

        `stage` is the name under which the listener is told how many rows are done.
        `forward(inputs, rows' numbers)` runs the model in a special way; by default as it is.
        `read_as` are rows of the same lengths by which the answer's position is found: blanked by
        a mask, another word than the one asked about would be the first that is masked.
        """
        results: dict[int, T] = {}
        with at_rest(self.model), torch.no_grad():
            for numbers, batch in self.batches(rows):
                if forward is None:
                    outputs = self.adapter.forward(self.model, batch.inputs)
                else:
                    outputs = forward(batch.inputs, numbers)
                if read_as is not None:
                    batch = self._padded([read_as[k] for k in numbers])
                for k, scores in zip(numbers, self.scores(outputs, batch), strict=True):
                    results[k] = take(k, scores)
                tell(stage, len(results), len(rows))
        return [results[k] for k in range(len(rows))]

    def scores(self, outputs: Any, batch: Batch) -> list[Scores]:
        """Return what each example's answer is read from."""
        return list(self._checked(self.adapter.scores(self.model, self.tokenizer, outputs, batch)))

    def _checked(self, answers: Iterable[Scores | None]) -> Iterator[Scores]:
        for scores in answers:
            if scores is None:
                raise ModelError(
                    f"{type(self.model).__name__} gives no answer to measure: a classifier, a "
                    "masked language model with a mask in the text, or a causal language model is "
                    "needed."
                )
            yield scores


def batches_by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield the numbers of the texts in each batch of at most `size`, shortest texts first.

    >>> list(batches_by_length([9, 3, 8, 3], 2))
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    for start in range(0, len(order), size):
        yield order[start : start + size]
