"""The verb-number experiment's two protocols, and the numbers the paper prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.evaluation.metrics import dense_rank_correlation, spearman
from attnflow_experiments.layers import Floats
from attnflow_experiments.protocol import Protocol
from attnflow_experiments.verb_number.observe import Observation

__all__ = ["AS_PAPER", "IN_WORDS", "PAPER", "PROTOCOLS", "SOUND", "AgreementProtocol"]

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
        """Of one row of attention and one score."""
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
