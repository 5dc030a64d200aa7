"""How a result is headed for people: its method and what was done after it, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnflow.methods import Method

__all__ = ["method_in_words", "step_in_words", "title_in_words"]

_NAMES = {"raw": "Raw attention", "flow": "Attention flow", "alti": "ALTI"}
_STEPS = {
    "merge_words()": "words merged",
    "mean_over_layers()": "mean of layers",
    "normalize('sum')": "as shares of the row",
    "normalize('max')": "strongest = 1",
}
_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)


def method_in_words(method: Method) -> str:
    """The method's name and only those options that are not the default.

    >>> from attnflow import Flow, Rollout
    >>> method_in_words(Rollout(residual=0.4)), method_in_words(Flow())
    ('Rollout, residual 0.4', 'Attention flow')
    """
    name = _NAMES.get(method.name, method.name.replace("-", " ").capitalize())
    options = [
        f"{field.name.replace('_', ' ')} {_value(getattr(method, field.name))}"
        for field in _own_fields(method)
        if getattr(method, field.name) != _default(field)
    ]
    return ", ".join([name, *options])


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
    return " · ".join([method_in_words(method), *map(step_in_words, steps)])


def _own_fields(method: Method) -> list[Field[Any]]:
    return [field for field in fields(method) if field.init]


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _value(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return " and ".join(map(str, value)) or "none"
    return str(value)
