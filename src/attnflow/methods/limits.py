"""Warnings where a result says less about its targets than it seems to, and how to go without."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from attnflow.attribution import Attribution
from attnflow.errors import CollapseWarning, SaturationWarning

_SATURATED = 0.5  # the share of saturated flows from which a layer counts as saturated
_quiet: ContextVar[bool] = ContextVar("quiet_about_limits", default=False)


@contextmanager
def quiet_about_limits() -> Iterator[None]:
    """No warnings of collapse and saturation inside: for callers that tell of them themselves.

    It holds for this thread (or task) only, unlike the filters of the module `warnings`.

    >>> with quiet_about_limits():
    ...     pass
    """
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def warn_of_limits(result: Attribution, stacklevel: int = 2) -> None:
    """Warn where the highest layer of a result says less about its targets than it seems to."""
    if _quiet.get():
        return
    layer, name = max(result.layers), result.method.name
    if result.saturated is not None:
        if result.saturated[result.layers.index(layer)].mean() > _SATURATED:
            warnings.warn(
                f"{name}: at layer {layer} most flows are saturated. They equal what their source "
                "passes on to anyone and say nothing about the target (result.saturated marks "
                'them). Ask for lower layers or for residual="one-step", whose rows differ between '
                'targets at any depth, or use method="gradient-attention".',
                SaturationWarning,
                stacklevel=stacklevel + 1,
            )
    elif layer in result.collapsed:
        warnings.warn(
            f"{name}: at layer {layer} the rows have collapsed. They are nearly the same for every "
            "target and say little about the one you ask about (result.dependence is how far they "
            'differ). Use method="gradient-attention", or lower layers.',
            CollapseWarning,
            stacklevel=stacklevel + 1,
        )
