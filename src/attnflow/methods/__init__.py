"""Raw attention, attention rollout and attention flow (Abnar & Zuidema, 2020), and relatives.

A method is a frozen value that can be called on a trace: `Rollout(residual=0.5)(trace)`. Every
choice the result depends on is one of its fields; there is no other state. Its repr is the
provenance that files, figures and the command line show.
"""

from __future__ import annotations

from attnflow.methods.base import (
    Execution,
    Method,
    MixingMethod,
    Requirements,
    Selection,
    attribution_of,
    requirements_of,
)
from attnflow.methods.flow import Flow
from attnflow.methods.gradient_attention import GradientAttention
from attnflow.methods.gradients import GradientFlow, GradientRollout
from attnflow.methods.limits import quiet_about_limits
from attnflow.methods.measured import (
    Alti,
    MeasuredResidualRollout,
    NormRollout,
    ValueZeroingRollout,
)
from attnflow.methods.registry import (
    MEASURED_METHODS,
    METHODS,
    MethodRegistry,
    OptionHelp,
    describe_options,
    make_method,
    measured_method,
    method_from_dict,
    parse_method,
    parse_value,
)
from attnflow.methods.rollout import Raw, Rollout
from attnflow.methods.shapley_flow import ShapleyFlow

__all__ = [
    "MEASURED_METHODS",
    "METHODS",
    "Alti",
    "Execution",
    "Flow",
    "GradientAttention",
    "GradientFlow",
    "GradientRollout",
    "MeasuredResidualRollout",
    "Method",
    "MethodRegistry",
    "MixingMethod",
    "NormRollout",
    "OptionHelp",
    "Raw",
    "Requirements",
    "Rollout",
    "Selection",
    "ShapleyFlow",
    "ValueZeroingRollout",
    "attribution_of",
    "describe_options",
    "make_method",
    "measured_method",
    "method_from_dict",
    "parse_method",
    "parse_value",
    "quiet_about_limits",
    "requirements_of",
]
