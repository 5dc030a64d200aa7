"""The score of several tokens together: what a phrase or a whole answer is explained by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnflow.errors import InputError
from attnflow.hosts.adapter import Scores
from attnflow.trace.extras import ScoreName

__all__ = ["PhraseScores", "TokenAt", "phrase_scores"]

TokenAt = tuple[int, int]
"""The position that predicts a token (of an encoder–decoder: the decoder's), and the token's id."""


@dataclass(frozen=True)
class PhraseScores(Scores):
    """Tokens of one text whose scores count together: the sum of their log-probabilities.

    The gradient of a sum comes from one backward pass, however many tokens there are.

    >>> rows, names = torch.zeros(2, 4), lambda ids: [str(k) for k in ids]
    >>> scores = Scores(rows[0], 0, names, next_tokens=rows)
    >>> phrase = phrase_scores(scores, [(0, 3), (1, 2)], nn.Identity())
    >>> round(float(phrase.score(3, "log-prob").exp()), 4), phrase.label(3)
    (0.0625, '3 2')
    """

    phrase: tuple[TokenAt, ...] = ()

    def choice(self, answer: int | str | None) -> int:
        """By default the first token of the phrase."""
        return self.phrase[0][1] if answer is None else Scores.choice(self, answer)

    def score(self, choice: int, name: ScoreName) -> Tensor:
        """The sum over the phrase, whose first token is `choice`."""
        ((first, _), *rest) = self.phrase
        pairs = [(first, choice), *rest]
        parts = [Scores.score(self.at_row(row), token, name) for row, token in pairs]
        return torch.stack(parts).sum()

    def label(self, choice: int) -> str:
        """All tokens of the phrase."""
        return " ".join(self.names([choice, *(token for _, token in self.phrase[1:])]))

    def at_row(self, row: int) -> Scores:
        """The scores that one position gives to the token after it."""
        assert self.next_tokens is not None
        return Scores(self.next_tokens[row], row, self.names, self.exclusive)


def phrase_scores(
    scores: Scores | None, phrase: Sequence[TokenAt], model: nn.Module
) -> PhraseScores:
    """The same scores, read where these tokens are predicted."""
    if scores is None or scores.next_tokens is None:
        raise InputError(
            f"{type(model).__name__} does not say what follows each position, so several of its "
            "tokens cannot be explained together."
        )
    return PhraseScores(
        logits=scores.next_tokens[phrase[0][0]],
        position=phrase[0][0],
        names=scores.names,
        exclusive=scores.exclusive,
        next_tokens=scores.next_tokens,
        phrase=tuple(phrase),
    )
