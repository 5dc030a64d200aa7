"""HTML that people see: Jinja templates, in which every value not marked safe is escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from attnflow.errors import percent

_FOLDER = Path(__file__).parent


def render(template: str | Path, **values: Any) -> str:
    """Return a template with these values in it, by its name here or by its path."""
    return str(_compiled(_FOLDER / template).render(values))


@cache
def _compiled(path: Path) -> Any:
    import jinja2  # here, because a command that writes no HTML need not wait for it

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = percent
    return environment.from_string(path.read_text(encoding="utf-8"))
