"""How a result is headed for people: its method and what was done after it, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnflow.methods import Method

__all__ = ["step_in_words", "title_in_words"]

_STEPS = {
    "merge_words()": "words merged",
    "mean_over_layers()": "mean of layers",
    "normalize('sum')": "as shares of the row",
    "normalize('max')": "strongest = 1",
}
_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)


def step_in_words(step: str) -> str:
    """An operation after the method.

    >>> step_in_words("minus(neutral prompt)"), step_in_words("without(['[CLS]'])")
    ('less the neutral prompt', 'without [CLS]')
    """
    call = _CALL.fullmatch(step)
    if step in _STEPS or call is None:
        return _STEPS.get(step, step)
    verb, inner = call.groups()
    plain = re.sub(r"^\[|\]$", "", inner)
    plain = plain.replace("'", "").replace('"', "")
    if verb == "minus":
        return f"less the {plain}"
    if verb == "spans":
        return f"by span: {plain}"
    return f"{verb.replace('_', ' ')} {plain}"


def title_in_words(method: Method, steps: Sequence[str]) -> str:
    """The method and every step after it.

    >>> from attnflow import Rollout
    >>> title_in_words(Rollout(), ["merge_words()"])
    'Rollout · words merged'
    """
    return " · ".join([method.title, *map(step_in_words, steps)])
