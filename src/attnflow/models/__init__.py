"""Models that ship with the package, and which of them is taken where none is named."""

from __future__ import annotations

from typing import Final

from attnflow.errors import submodules

READER: Final = "verb-number"  # where a text is read
WRITER: Final = "smollm2"  # where one is written

__getattr__ = submodules(__name__, ("scenes", "smollm2", "verb_number"))
