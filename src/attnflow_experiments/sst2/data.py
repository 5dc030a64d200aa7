"""Texts with labels as a classifier's classes: a label is the name of a class, or its number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from attnflow.errors import InputError, ModelError
from attnflow.evaluation.texts import LabelledText

__all__ = ["check_labels", "class_of", "in_words", "is_right", "labels_of"]


def labels_of(model: nn.Module) -> tuple[str, ...]:
    """The names of a sequence classifier's labels, in their order; any other model is refused."""
    config: Any = getattr(model, "config", None)
    names = getattr(config, "id2label", None) or {}
    if not type(model).__name__.endswith("ForSequenceClassification") or len(names) < 2:
        raise ModelError(
            f"{type(model).__name__} with {len(names)} labels is not a sequence classifier of two "
            "or more classes, which this experiment is about. training/sst2.py makes one."
        )
    return tuple(str(names[k]) for k in sorted(names))


def in_words(names: Sequence[str]) -> str:
    """The classes with their numbers, for messages."""
    return ", ".join(f"{k} ({name})" for k, name in enumerate(names))


def check_labels(examples: Sequence[LabelledText], names: Sequence[str]) -> None:
    """Refuse labels that are none of the classes, with the line.

    >>> check_labels([LabelledText("a fine film", "Positive")], ["negative", "positive"])
    >>> check_labels([LabelledText("a fine film", "5", line=2)], ["negative", "positive"])
    Traceback (most recent call last):
    ...
    attnflow.errors.InputError: Line 2 has the label '5'; the model's labels are 0 (negative), \
1 (positive). Texts without labels need a header without 'label'.
    """
    for example in examples:
        if example.label is not None and class_of(example.label, names) is None:
            where = f"Line {example.line}" if example.line else f"{example.text[:60]!r}"
            raise InputError(
                f"{where} has the label {example.label!r}; the model's labels are "
                f"{in_words(names)}. Texts without labels need a header without 'label'."
            )


def is_right(example: LabelledText, answer: str | None, names: Sequence[str]) -> bool | None:
    """Whether the model's answer is the text's label; None where either is not known.

    >>> is_right(LabelledText("a fine film", "1"), "positive", ["negative", "positive"])
    True
    """
    if example.label is None or answer is None:
        return None
    number = class_of(example.label, names)
    return number is not None and names[number] == answer


def class_of(label: str, names: Sequence[str]) -> int | None:
    """The number of a class by its name, in any case, or by its number; None if there is none."""
    lower = [name.lower() for name in names]
    if label.lower() in lower:
        return lower.index(label.lower())
    return int(label) if label.isdecimal() and int(label) < len(names) else None
