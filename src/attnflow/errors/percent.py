"""A share as people read it, in one spelling: in messages, tables, figures and pages."""

from __future__ import annotations

from typing import SupportsFloat

__all__ = ["percent"]


def percent(share: SupportsFloat, digits: int = 0) -> str:
    """A share between 0 and 1 as a percentage, with a space before the sign.

    >>> percent(0.796, 1), percent(0.53)
    ('79.6 %', '53 %')
    """
    return f"{100 * float(share):.{digits}f} %"
