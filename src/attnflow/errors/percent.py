"""A share as people read it, in one spelling: in messages, tables, figures and pages."""

from __future__ import annotations

__all__ = ["percent"]


def percent(share: float, digits: int = 0) -> str:
    """A share between 0 and 1 as a percentage, with a space before the sign.

    >>> percent(0.796, 1), percent(0.53)
    ('79.6 %', '53 %')
    """
    return f"{100 * share:.{digits}f} %"
