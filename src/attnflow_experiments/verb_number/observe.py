"""The measurements of each sentence, made once, and which of them the two protocols correlate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluation.importance import BlankOut, Importance, InputGradient, Measure
from attnflow.evaluation.metrics import spearman
from attnflow.methods import Flow, quiet_about_limits
from attnflow.models.verb_number import VerbNumberModel, WordVocabulary
from attnflow.trace import AttentionTrace
from attnflow_experiments.correlations import dense_rank_correlation
from attnflow_experiments.layers import METHODS, Floats
from attnflow_experiments.observe import observe_texts
from attnflow_experiments.report import Protocol
from attnflow_experiments.verb_number.data import Example

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
        received=Flow().layer_matrices(trace)[0].sum(axis=0),
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


Correlation = Callable[[Floats, Floats], float]

_MEANS: Final = {
    ("blank-out", "raw"): (0.69, 0.10, -0.11, -0.09, 0.20, 0.29),
    ("blank-out", "rollout"): (0.32, 0.38, 0.51, 0.62, 0.70, 0.71),
    ("blank-out", "flow"): (0.32, 0.44, 0.70, 0.70, 0.71, 0.70),
    ("gradient", "raw"): (0.53, 0.16, -0.06, 0.00, 0.24, 0.46),
    ("gradient", "rollout"): (0.22, 0.27, 0.39, 0.47, 0.53, 0.54),
    ("gradient", "flow"): (0.22, 0.31, 0.54, 0.61, 0.60, 0.61),
}
_STDS: Final = {
    ("blank-out", "raw"): (0.27, 0.43, 0.49, 0.52, 0.45, 0.39),
    ("blank-out", "rollout"): (0.26, 0.27, 0.26, 0.26, 0.25, 0.24),
    ("blank-out", "flow"): (0.26, 0.29, 0.25, 0.22, 0.22, 0.22),
    ("gradient", "raw"): (0.33, 0.38, 0.42, 0.47, 0.40, 0.35),
    ("gradient", "rollout"): (0.31, 0.32, 0.32, 0.32, 0.32, 0.31),
    ("gradient", "flow"): (0.31, 0.34, 0.32, 0.28, 0.28, 0.28),
}
PAPER: Final = {key: tuple(zip(_MEANS[key], _STDS[key], strict=True)) for key in _MEANS}
"""Tables 1 and 2 of Abnar and Zuidema (2020): mean and standard deviation, layers 1 to 6."""


@dataclass(frozen=True)
class AgreementProtocol:
    """Which positions are correlated, with which scores, by which formula."""

    positions: Literal["words", "all"]
    correlation: Correlation
    scores: Mapping[str, str]  # what the tables call a score → the measure
    end_is_zero: bool = False

    def positions_of(self, one: Observation) -> NDArray[np.bool_]:
        """The positions of a sentence that count."""
        return one.is_word if self.positions == "words" else np.ones(one.length, dtype=bool)

    def score(self, one: Observation, name: str) -> Floats:
        """The importance of the positions that count."""
        values = one.importance[self.scores[name]].copy()
        if self.end_is_zero and name == "blank-out":
            values[-1] = 0.0
        return values[self.positions_of(one)]

    def agreement(self, one: Observation, method: str, layer: int, name: str) -> float:
        """Return the correlation of one row of attention and one score."""
        row = one.rows[method][layer][self.positions_of(one)]
        return self.correlation(row, self.score(one, name))


SOUND: Final = AgreementProtocol(
    "words", spearman, {"blank-out": "blank-out", "gradient": "gradient"}
)
AS_PAPER: Final = AgreementProtocol(
    "all",
    dense_rank_correlation,
    {"blank-out": "blank-out", "gradient": "gradient sum"},
    end_is_zero=True,
)
PROTOCOLS: Final[Mapping[Protocol, AgreementProtocol]] = {"sound": SOUND, "paper": AS_PAPER}

IN_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sound": (
        "Importance is of the correct answer: blank-out |p(word → [UNK]) − p|, gradient ‖∂p/∂e‖. "
        "The norm, because |Σ_d ∂p/∂e_d| is zero up to rounding in this architecture: the vectors "
        "are read through LayerNorm only.",
        "Words only: [CLS] and [EOS] are in every sentence, and the half of the residual that "
        "[CLS] keeps for itself says nothing about the words.",
        "Spearman's correlation of the [CLS] row with the score in each sentence, ties at their "
        "mean rank; mean ± standard deviation over sentences, 95 % bootstrap interval of the mean. "
        "Undefined ones (a single word, or all values equal) are counted and not averaged.",
    ),
    "paper": (
        "Importance is of the correct answer: blank-out |p(token → [UNK]) − p| of [CLS] and the "
        "words, the end token 0; gradient |Σ_d ∂p/∂e_d|, which is rounding in this architecture: "
        "the vectors are read through LayerNorm only.",
        "All positions, [CLS] and [EOS] among them.",
        "1 − 6 Σ d² / (n (n² − 1)) over dense ranks, as the authors' code computes it; ties bias "
        "it. Mean ± standard deviation over sentences, 95 % bootstrap interval of the mean.",
    ),
}  # fmt: skip
