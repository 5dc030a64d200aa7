"""Subjects of an evaluation: texts that a model reads, prompts that it continues, and images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from attnflow.data import name_subject
from attnflow.evaluation.subjects.base import Subject
from attnflow.evaluation.subjects.examples import CompletionPrompt, ImageExample
from attnflow.evaluation.subjects.images import Images
from attnflow.evaluation.subjects.prompts import Prompts
from attnflow.evaluation.subjects.texts import Texts
from attnflow.tokens.patches import is_picture, names_picture

SUBJECTS: dict[str, type[Subject]] = {"text": Texts, "prompt": Prompts, "image": Images}


def guess_subject(data: Any) -> Subject:
    """Return the subject of data: by the columns of a file, or by what a list holds."""
    if isinstance(data, (str, os.PathLike)):
        return SUBJECTS[name_subject(data)]()
    first = data[0] if isinstance(data, Sequence) and data else None
    if isinstance(first, CompletionPrompt):
        return Prompts()
    if isinstance(first, ImageExample) or is_picture(first) or names_picture(first):
        return Images()
    return Texts()
