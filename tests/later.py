"""Packages that take seconds to import and that few tests need.

Not while tests are collected, which every worker does for all files.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """A package that is imported when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)
