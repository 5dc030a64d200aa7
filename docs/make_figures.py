"""Every picture in figures.md: `make figures`. A few minutes on two cores, and no download."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot
from numpy.typing import NDArray
from PIL import Image, ImageSequence
from transformers import ViTConfig, ViTForImageClassification

import attnflow
from attnflow import Flow, Raw, Rollout
from attnflow.hosts.load import load
from attnflow.show import plots

FOLDER = Path(__file__).parent / "figures"
SIDE, PATCH = 64, 8
SHAPES = ("disc", "square", "cross")
LARGEST = 60_000  # bytes of a picture: a page of them must load fast


def main() -> None:
    """Draw all of them, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*GROUPS, []], help="default: all")
    mpl.use("Agg")
    FOLDER.mkdir(exist_ok=True)
    for name in parser.parse_args().names or GROUPS:
        GROUPS[name]()


def text_figures() -> None:
    """The embedded model's sentence: maps, graphs, the cut, answers."""
    loaded = load()
    text = "the key to the cabinets"
    trace = attnflow.capture(loaded, text)
    rows = [method(trace, targets=["[CLS]"]) for method in (Raw(), Rollout(), Flow())]
    names = [row.method.name for row in rows]
    save(plots.layers_map(rows[1]), "layers")
    save(plots.layers_map(rows[1].minus(rows[0], name="raw")), "difference")
    save(plots.pairs_map(Raw()(trace), layer=1), "pairs")
    heading = f"{text} → {trace.prediction}"
    save(plots.methods_figure([rows], names=names, headings=[heading]), "methods")
    save(plots.attention_graph(trace, mixing=Raw()), "graph")
    save(plots.attention_graph(trace, target="[CLS]"), "paths")
    save(plots.cut_graph(Flow(), trace, target="[CLS]", source="key", layer=3), "cut")
    save(plots.answer_figure(rows), "answer")
    for row in rows[1:]:
        file = FOLDER / f"{row.method.name}.gif"
        plots.build_up(row, file, trace=trace)
        shrink_film(file)


def completion_figures() -> None:
    """What a language model writes: bars and layers of one token, and all of them."""
    result = attnflow.generate(None, "My name is Putin, I am from", max_new_tokens=8)
    save(plots.completion_figure(result), "completion")
    save(plots.completion_figure(result, "Russia"), "token")


def image_figures() -> None:
    """A small vision model, trained here for half a minute to name a shape."""
    model = trained_on_shapes()
    rng = np.random.default_rng(2)
    picture, kind = drawn_shape(rng, 1)
    result = attnflow.explain(model, {"pixel_values": as_pixels([picture])}, targets="[CLS]")
    axes = plots.image_overlay(result, picture)
    axes.set_xlabel(f"a {SHAPES[kind]}; the model says {result.prediction}")
    save(axes, "image")


# -- the vision model -------------------------------------------------------------------------


def drawn_shape(
    rng: np.random.Generator, kind: int | None = None
) -> tuple[NDArray[np.float64], int]:
    """A bright shape somewhere on a noisy ground."""
    kind = int(rng.integers(len(SHAPES))) if kind is None else kind
    radius = 8
    row, column = rng.integers(radius + 2, SIDE - radius - 2, size=2)
    down, right = np.mgrid[:SIDE, :SIDE]
    down, right = np.abs(down - row), np.abs(right - column)
    inside = {
        "disc": down**2 + right**2 <= radius**2,
        "square": np.maximum(down, right) <= radius - 1,
        "cross": (np.minimum(down, right) <= 2) & (np.maximum(down, right) <= radius),
    }[SHAPES[kind]]
    return np.clip(rng.normal(0.3, 0.06, (SIDE, SIDE)) + 0.45 * inside, 0, 1), kind


def as_pixels(pictures: list[NDArray[np.float64]]) -> torch.Tensor:
    """A batch for the model: one grey channel around zero."""
    return torch.tensor(np.stack(pictures)[:, None], dtype=torch.float32) * 4 - 1.5


def trained_on_shapes(steps: int = 500) -> ViTForImageClassification:
    """A vision transformer of three layers, from scratch."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=SIDE,
        patch_size=PATCH,
        num_channels=1,
        id2label=dict(enumerate(SHAPES)),
        label2id={name: k for k, name in enumerate(SHAPES)},
    )
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    rng = np.random.default_rng(0)
    for step in range(steps):
        pictures, kinds = zip(*(drawn_shape(rng) for _ in range(48)), strict=True)
        found = model(pixel_values=as_pixels(list(pictures)), labels=torch.tensor(kinds))
        optimizer.zero_grad()
        found.loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {found.loss.item():.3f}")
    return model.eval()


# -- files ------------------------------------------------------------------------------------


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


GROUPS = {"text": text_figures, "completion": completion_figures, "image": image_figures}


if __name__ == "__main__":
    main()
