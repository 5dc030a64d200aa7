"""What is public: the names of these modules. Everything else is internal and may change.

python tests/public_surface.py      writes public_names.txt anew, after a change that is meant
"""

from __future__ import annotations

import importlib
from pathlib import Path

NAMES = Path(__file__).parent / "public_names.txt"

# Packages and modules that the docs name: what their `__all__` lists is public.
PUBLIC_MODULES = (
    *("attnflow", "attnflow.tokens", "attnflow.trace", "attnflow.graph", "attnflow.attribution"),
    *("attnflow.methods", "attnflow.maxflow", "attnflow.storage", "attnflow.testing"),
    *(
        "attnflow.errors",
        "attnflow.errors.progress",
        "attnflow.trace.extras",
        "attnflow.evaluation",
    ),
    *("attnflow.corpus", "attnflow.data", "attnflow.evaluation.faithfulness"),
    *("attnflow.evaluation.importance", "attnflow.evaluation.metrics"),
    *("attnflow.show.page", "attnflow.show.plots", "attnflow.show.view"),
    *("attnflow.hosts.adapter", "attnflow.hosts.load", "attnflow.hosts.model"),
    *("attnflow.models.verb_number", "attnflow.models.smollm2"),
    "attnflow.models.scenes",
)


def surface() -> str:
    """One line for each public module, its names in order."""
    modules = {name: importlib.import_module(name) for name in sorted(PUBLIC_MODULES)}
    return "".join(
        f"{name}: {', '.join(sorted(module.__all__))}\n" for name, module in modules.items()
    )


if __name__ == "__main__":
    NAMES.write_text(surface(), encoding="utf-8")
