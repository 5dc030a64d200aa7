"""What the map of a photo costs: the first one, and the next, against a plain forward pass.

    python benchmarks/images.py --output out/bench

A ViT-B/16 with random weights and one photo of 224 × 224 pixels. The first map includes everything:
reading the file, the processor, the pass that is watched, the method, and the picture that the
result carries. Rounds alternate with plain passes, so that a busy machine slows both; the figure is
the median of the ratios, and the bar of rollout is 3.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

import attnflow

BARS = {"rollout": 3.0}
METHODS = ("rollout", "raw", "alti", "gradient-attention")


def measure(rounds: int, photo: Path) -> dict[str, list[float]]:
    """Seconds of the processor, not of the clock: what others run beside does not count."""
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig()).eval()
    processor = ViTImageProcessorPil()
    pixels = processor(images=Image.open(photo), return_tensors="pt")["pixel_values"]
    ways: dict[str, Callable[[], Any]] = {"plain": lambda: plain(model, pixels)}
    options: dict[str, Any] = {"processor": processor}
    ways |= {name: partial(attnflow.explain, model, photo, name, **options) for name in METHODS}
    plain(model, pixels)  # memory is asked for once; the first map is not warmed up
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            start = process_time()
            run()
            times[name].append(process_time() - start)
    return times


def plain(model: Any, pixels: torch.Tensor) -> None:
    """One forward pass as the library runs it."""
    with torch.inference_mode():
        model(pixel_values=pixels)


def main() -> None:
    """Print a line for each method and write the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "photo.png"
        noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
        Image.fromarray(noise).save(photo)
        times = measure(arguments.rounds, photo)
    base = times.pop("plain")
    record: dict[str, Any] = {"plain seconds": statistics.median(base)}
    print(f"plain forward pass, ViT-B/16, 224 × 224: {record['plain seconds']:.2f} s")
    for name, seconds in times.items():
        ratios = [own / plain for own, plain in zip(seconds, base, strict=True)]
        bar = f", bar {BARS[name]:g}" if name in BARS else ""
        record[name] = {"first": ratios[0], "median": statistics.median(ratios)}
        median = record[name]["median"]
        print(f"{name}: first map {ratios[0]:.2f} ×, median {median:.2f} × a plain pass{bar}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "images.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
