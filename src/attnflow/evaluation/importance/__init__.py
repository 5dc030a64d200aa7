"""How much each token matters to a model's answer, found by changing the input or the inside.

This is what attention is held against. A measure is a frozen value, like a method, and is called
on a model and some texts: `BlankOut(by="unk")(model, texts)`. It knows nothing of attention, and
attention nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from attnflow.evaluation.importance.base import Importance, Measure
from attnflow.evaluation.importance.blanking import BlankOut, ValueZeroing
from attnflow.evaluation.importance.gradients import InputGradient, IntegratedGradients

__all__ = [
    "MEASURES",
    "BlankOut",
    "Importance",
    "InputGradient",
    "IntegratedGradients",
    "Measure",
    "ValueZeroing",
]

MEASURES: Mapping[str, type[Measure]] = {
    kind.name: kind for kind in (BlankOut, InputGradient, IntegratedGradients, ValueZeroing)
}
