"""The methods that are compared on drawn scenes, and what each is read from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attnflow.methods import GradientAttention, GradientRollout, Method, Raw, Rollout

__all__ = ["BASELINES", "CENTRE", "CONTENDERS", "LEAVE_ONE_OUT", "RANDOM"]

CONTENDERS: Final[Mapping[str, Method]] = {
    "raw": Raw(),
    "rollout": Rollout(),
    "rollout, one-step": Rollout(residual="one-step"),
    "gradient-rollout": GradientRollout(),
    "gradient-attention, to the connector": GradientAttention(tower="connector"),
    "gradient-attention, rollout of the tower": GradientAttention(tower="rollout"),
    "gradient-attention, gradients of the tower": GradientAttention(tower="gradients"),
}
RANDOM: Final = "random"
CENTRE: Final = "centre"
LEAVE_ONE_OUT: Final = "leave-one-patch-out"
BASELINES: Final = (RANDOM, CENTRE, LEAVE_ONE_OUT)
