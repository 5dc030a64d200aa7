"""A result for people: terminal, static HTML, figures, the viewer and its page."""

from __future__ import annotations

from attnflow.errors import submodules

__getattr__ = submodules(__name__, ("page", "plots", "view"))
