"""Models that ship with the package."""

from __future__ import annotations

from attnflow.errors import submodules

__getattr__ = submodules(__name__, ("scenes", "smollm2", "verb_number"))
