"""How numbers are written where room is scarce."""

from __future__ import annotations

__all__ = ["short_number"]


def short_number(value: float, digits: int) -> str:
    """With so many digits after the point, and without the zero before it where there is one.

    >>> short_number(0.25, 2), short_number(-0.25, 3), short_number(10.5, 3)
    ('.25', '-.250', '10.500')
    """
    number = f"{value:.{digits}f}"
    sign = "-" if number.startswith("-") else ""
    size = number.removeprefix("-")
    return sign + (size[1:] if size.startswith("0.") else size)
