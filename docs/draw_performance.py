"""The plots of docs/performance.md, from docs/performance/figures.json: `make figures`.

The ratios are those of `make bench` and `make bench-gpu`; write new ones there after a new run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot

FOLDER = Path(__file__).parent / "performance"
OURS, OTHERS = "#0072B2", "#9A9A9A"
ALL_NAMED = ("flow", "memory", "generation")  # whose labels say attnflow


def draw_all() -> None:
    """Draw one picture for each benchmark."""
    mpl.use("Agg")
    figures = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))
    for name, figure in figures.items():
        draw(name, figure)


def draw(name: str, figure: dict[str, Any]) -> None:
    """Horizontal bars, ours in blue, each with its ratio."""
    labels = [label for label, _ in figure["rows"]]
    ratios = [ratio for _, ratio in figure["rows"]]
    canvas, ax = pyplot.subplots(figsize=(7, 0.5 + 0.36 * len(labels)))
    colours = [OURS if "attnflow" in label or _is_ours(name, label) else OTHERS for label in labels]
    ax.barh(range(len(labels)), ratios, color=colours, height=0.66)
    ax.set_yticks(range(len(labels)), labels, fontsize=9)
    ax.invert_yaxis()
    if figure["log"]:
        ax.set_xscale("log")
    ax.set_xlim(0.5 if figure["log"] else 0, max(ratios) * (2.2 if figure["log"] else 1.15))
    for row, ratio in enumerate(ratios):
        ax.text(ratio, row, f" {ratio:g} ×", va="center", fontsize=9)
    ax.set_xticks([])
    ax.minorticks_off()
    for side in ("top", "right", "bottom"):
        ax.spines[side].set_visible(False)
    title = figure["title"] + (", log scale" if figure["log"] else "")
    ax.set_title(title, fontsize=10, loc="left")
    canvas.savefig(FOLDER / f"{name}.png", dpi=150, bbox_inches="tight", facecolor="white")
    pyplot.close(canvas)
    print(f"wrote {FOLDER / name}.png")


def _is_ours(name: str, label: str) -> bool:
    """Where every bar but one is attnflow's, its name is left out of the labels."""
    others = ("plain", "by hand", "two processes", "whole matrices")
    return name not in ALL_NAMED and not any(words in label for words in others)


if __name__ == "__main__":
    draw_all()
