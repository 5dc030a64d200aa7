"""Raw attention, attention rollout and attention flow (Abnar & Zuidema, 2020), and relatives.

A method is a frozen value that can be called on a trace: `Rollout(residual=0.5)(trace)`. Every
choice the result depends on is one of its fields; there is no other state. Its repr is the
provenance that files, figures and the command line show.
"""

from __future__ import annotations

from attnflow.methods.base import (
    Execution,
    Method,
    Requirements,
    Selection,
    Variant,
    attribution_of,
    quiet_about_limits,
    requirements_of,
)
from attnflow.methods.flow import Flow, ShapleyFlow
from attnflow.methods.gradients import BalancedGradient, GradientAttention, GradientRollout
from attnflow.methods.matrices import MixingMethod
from attnflow.methods.registry import (
    METHODS,
    MethodRegistry,
    OptionHelp,
    describe_options,
    make_method,
    method_from_dict,
    parse_method,
    parse_value,
    summary_of,
    trace_methods,
)
from attnflow.methods.reruns import AblationRegression, Careful, LeaveOneOut, RerunMethod
from attnflow.methods.rollout import Raw, Rollout

__all__ = [
    "METHODS",
    "BalancedGradient",
    "Execution",
    "Flow",
    "GradientAttention",
    "GradientRollout",
    "Method",
    "MethodRegistry",
    "MixingMethod",
    "OptionHelp",
    "Raw",
    "Requirements",
    "Rollout",
    "RerunMethod",
    "LeaveOneOut",
    "AblationRegression",
    "Careful",
    "Variant",
    "summary_of",
    "trace_methods",
    "Selection",
    "ShapleyFlow",
    "attribution_of",
    "describe_options",
    "make_method",
    "method_from_dict",
    "parse_method",
    "parse_value",
    "quiet_about_limits",
    "requirements_of",
]
