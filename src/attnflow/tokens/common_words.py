"""Tokens that turn up everywhere and say little: punctuation, line ends, function words.

Attention of language models gathers on them whatever the text says. They are shown, but dimmed;
who knows better gives a list.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from attnflow.tokens.text import surfaces, written

__all__ = ["FUNCTION_WORDS", "common_tokens", "is_common"]

FUNCTION_WORDS = frozenset(
    """
    a an the this that these those
    i me my mine we us our ours you your yours he him his she her hers it its they them their
    who whom whose which what where when why how
    am is are was were be been being do does did done has have had having
    will would shall should can could may might must
    and or but nor so yet if then else than because while although though
    of in on at by for with from to into onto over under about above below between through
    as not no yes there here too very just also only own same such both each all any some more most
    """.split()  # noqa: SIM905 (a list of quoted words would be three pages)
)


def is_common(token: str, words: Collection[str] = FUNCTION_WORDS) -> bool:
    """Whether a token is one of these words, or has no letter and no digit.

    >>> is_common("Ġthe"), is_common(","), is_common("key")
    (True, True, False)
    """
    return _is_common(written(token), words)


def common_tokens(tokens: Sequence[str], words: Collection[str] | None = None) -> NDArray[np.bool_]:
    """One truth value for each token; `words` replaces the list of function words.

    >>> common_tokens(["the", "key", "."]).tolist()
    [True, False, True]
    """
    vocabulary = FUNCTION_WORDS if words is None else {word.strip().lower() for word in words}
    return np.array([_is_common(text, vocabulary) for text in surfaces(tokens)], dtype=bool)


def _is_common(surface: str, words: Collection[str]) -> bool:
    text = surface.strip().lower()
    return text in words or not any(character.isalnum() for character in text)
