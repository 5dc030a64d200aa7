"""The drawn pictures of viewer.md: `make figures`. Some seconds, and no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from PIL import Image, ImageSequence

import attnflow
from attnflow import Flow, Raw, Rollout
from attnflow.show import plots

FOLDER = Path(__file__).parent / "figures"
LARGEST = 60_000  # bytes of a picture: a page of them must load fast


def main() -> None:
    """Draw the embedded model's sentence: methods side by side, the paths of a target, a film."""
    mpl.use("Agg")
    text = "the key to the cabinets"
    trace = attnflow.capture("verb-number", text)
    rows = [method(trace, targets=["[CLS]"]) for method in (Raw(), Rollout(), Flow())]
    names = [row.method.name for row in rows]
    heading = f"{text} → {trace.prediction}"
    save(plots.methods_figure([rows], names=names, headings=[heading]), "methods")
    save(plots.attention_graph(trace, target="[CLS]"), "paths")
    film = FOLDER / "rollout.gif"
    plots.build_up(rows[1], film, trace=trace)
    shrink_film(film)


def save(drawn: Any, name: str) -> None:
    """Write a figure, or the figure of axes, with as many colours as the size allows."""
    figure = getattr(drawn, "figure", None) or drawn
    file = FOLDER / f"{name}.png"
    figure.savefig(file, dpi=100)
    pyplot.close(figure)
    with Image.open(file) as image:
        whole = image.convert("RGB")
    for colours in (256, 128, 64, 32):
        whole.quantize(colours, dither=Image.Dither.NONE).save(file, optimize=True)
        if file.stat().st_size <= LARGEST:
            break
    print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")


def shrink_film(file: Path) -> None:
    """The same frames, smaller and with few colours."""
    with Image.open(file) as film:
        times = []
        frames = []
        for frame in ImageSequence.Iterator(film):
            times.append(frame.info["duration"])
            small = frame.convert("RGB").resize((frame.width * 3 // 4, frame.height * 3 // 4))
            frames.append(small.quantize(64, dither=Image.Dither.NONE))
    frames[0].save(
        file, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True
    )
    print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
