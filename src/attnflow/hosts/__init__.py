"""A model to what it did: capture, loading, checking, and one adapter for each host library."""

from __future__ import annotations

from attnflow.errors import submodules

__getattr__ = submodules(__name__, ("adapter", "capture", "check", "load"))
