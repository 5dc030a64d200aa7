"""The methods that are compared: each with the layers it is read at and what is taken off it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from attnflow import methods
from attnflow.methods import Flow, Method, Raw, Rollout
from attnflow.methods.mixing import ONE_STEP

__all__ = ["CONTENDERS", "LESS_NEUTRAL", "LESS_NEUTRAL_METHOD", "RELATIVES", "Contender"]

LESS_NEUTRAL = "one-step, less neutral"
"""Rollout that does not drown depth, its first token dropped, less that of a neutral prompt."""
LESS_NEUTRAL_METHOD = Rollout(residual=ONE_STEP, drop=(0,))


@dataclass(frozen=True)
class Contender:
    """A method, at the highest layer or as the mean of all, with or without the neutral prompt."""

    method: Method
    layers: Literal["top", "mean"] = "top"
    less_neutral: bool = False
    common: bool = True


_FLOW = Flow()
_FIRST = (0,)
CONTENDERS: Mapping[str, Contender] = {
    "raw": Contender(Raw()),
    "raw, mean of layers": Contender(Raw(), "mean"),
    "raw, first token dropped, mean": Contender(Raw(drop=_FIRST), "mean"),
    "raw, common left out, mean": Contender(Raw(), "mean", common=False),
    "raw − neutral, mean": Contender(Raw(), "mean", less_neutral=True),
    "rollout": Contender(Rollout()),
    "rollout, mean of layers": Contender(Rollout(), "mean"),
    "rollout, column": Contender(Rollout(receptive_field="column")),
    "rollout, element": Contender(Rollout(receptive_field="element")),
    "rollout, uniform-baseline": Contender(Rollout(receptive_field="uniform-baseline")),
    "rollout, first token dropped": Contender(Rollout(drop=_FIRST)),
    "rollout, common left out": Contender(Rollout(), common=False),
    "rollout − neutral": Contender(Rollout(), less_neutral=True),
    "rollout, one-step": Contender(Rollout(residual="one-step")),
    "rollout, one-step, first dropped": Contender(LESS_NEUTRAL_METHOD),
    "rollout, one-step − neutral": Contender(Rollout(residual="one-step"), less_neutral=True),
    LESS_NEUTRAL: Contender(LESS_NEUTRAL_METHOD, less_neutral=True),
    "one-step, less neutral, common left out": Contender(
        LESS_NEUTRAL_METHOD, less_neutral=True, common=False
    ),
    "one-step, less neutral, mean of layers": Contender(
        LESS_NEUTRAL_METHOD, "mean", less_neutral=True
    ),
    "flow": Contender(_FLOW),
    "flow, mean of layers": Contender(_FLOW, "mean"),
    "flow − neutral": Contender(_FLOW, less_neutral=True),
}


RELATIVES: Mapping[str, Method] = {
    "gradient-rollout": methods.GradientRollout(),
    "gradient-flow": methods.GradientFlow(),
    "measured-residual": methods.MeasuredResidualRollout(),
    "norm-rollout": methods.NormRollout(kind="residual"),
    "alti": methods.Alti(),
    "value-zeroing": methods.ValueZeroingRollout(),
}
