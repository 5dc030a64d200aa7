"""Everything the verb-number experiment looks at, for each sentence, measured once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluation.importance import BlankOut, Importance, InputGradient, Measure
from attnflow.methods import Flow, quiet_about_limits
from attnflow.models.verb_number import VerbNumberModel, WordVocabulary
from attnflow.trace import AttentionTrace
from attnflow_experiments.layers import METHODS
from attnflow_experiments.observe import observe_texts
from attnflow_experiments.verb_number.agreement import Example

__all__ = ["Observation", "observe", "text_of"]

# [EOS] is blanked too here; what the paper leaves out or sets to zero is up to the protocol.
MEASURES: Mapping[str, Measure] = {
    "blank-out": BlankOut(by="unk", keep=()),
    "gradient": InputGradient(reduce="norm"),
    "gradient sum": InputGradient(reduce="abs-sum", allow_noise=True),
    "gradient × input": InputGradient(reduce="times-input"),
}

_BATCH = 64


@dataclass(frozen=True, eq=False)
class Observation:
    """One sentence, position by position: [CLS], the words, [EOS].

    `rows[method]` and `saturated` are layer × position, of the [CLS] row; `received` is what each
    position passes on in the first layer, all targets together; `importance[measure]` is of the
    correct answer.
    """

    rows: Mapping[str, NDArray[np.float64]]
    saturated: NDArray[np.bool_]
    received: NDArray[np.float64]
    importance: Mapping[str, NDArray[np.float64]]
    is_word: NDArray[np.bool_]
    subject: int | None
    probability: float

    @property
    def length(self) -> int:
        """Positions, [CLS] and [EOS] counted."""
        return len(self.is_word)


def text_of(example: Example) -> str:
    """The words before the verb as one text."""
    return " ".join(example.words)


def observe(
    model: VerbNumberModel,
    vocabulary: WordVocabulary,
    examples: Sequence[Example],
) -> list[Observation]:
    """Importance of every token and attribution of [CLS] at every layer, for every sentence."""
    return observe_texts(
        model,
        vocabulary,
        [text_of(example) for example in examples],
        MEASURES,
        lambda k, trace, importance: _observation(examples[k], trace, importance, vocabulary),
        answer=[example.label for example in examples],
        batch_size=_BATCH,
        length=lambda text: len(text.split()),
    )


@quiet_about_limits()
def _observation(
    example: Example,
    trace: AttentionTrace,
    importance: Mapping[str, Importance],
    vocabulary: WordVocabulary,
) -> Observation:
    results = {name: method(trace, targets=[0]) for name, method in METHODS.items()}
    saturated = results["flow"].saturated
    assert saturated is not None  # a flow always says
    any_one = importance["blank-out"]
    return Observation(
        rows={name: result.values[:, 0] for name, result in results.items()},
        saturated=saturated[:, 0],
        received=Flow().matrices(trace)[0].sum(axis=0),
        importance={name: each.values for name, each in importance.items()},
        is_word=any_one.is_word,
        subject=_position_of_subject(example, vocabulary),
        probability=any_one.probability,
    )


def _position_of_subject(example: Example, vocabulary: WordVocabulary) -> int | None:
    """Its position for the model, whose vocabulary may split a word of the data in two."""
    if example.subject is None:
        return None
    before = example.words[: example.subject]
    return len(vocabulary.encode(" ".join(before))[0]) - 1  # [CLS] counted, [EOS] not
