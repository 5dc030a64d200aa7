"""Scenes made of real photographs, with a right answer: which thing is in it, and where.

No pretrained vision transformer can be installed without a model hub, so what is measured on
images is measured on one that is trained here. A scene is a piece of a photographed ground (bricks,
gravel, grass, the moon, tissue, stars), on it one thing cut out of a photograph (a face, a cat, a
cup, a flower, a pagoda, a motorcycle, a coin, a photographer) and one distractor that is no answer.
All photographs come with scikit-image (public domain or CC0) and scikit-learn (CC BY 2.0).

    python benchmarks/photo_scenes.py --output out/scenes      # trains the model: some minutes
"""

from __future__ import annotations

import argparse
import csv
import importlib
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

SIDE, PATCH = 96, 16  # pixels of a scene, and of a patch
# Where each thing is in its photograph: left, top, right, bottom.
THINGS: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "astronaut": ("astronaut.png", (150, 10, 310, 190)),
    "cat": ("chelsea.png", (70, 0, 410, 300)),
    "cup": ("coffee.png", (140, 20, 430, 310)),
    "flower": ("flower.jpg", (160, 70, 450, 360)),
    "pagoda": ("china.jpg", (60, 20, 360, 400)),
    "motorcycle": ("motorcycle_left.png", (90, 70, 710, 470)),
    "coin": ("coins.png", (290, 10, 360, 80)),
    "photographer": ("camera.png", (140, 40, 350, 260)),
}
GROUNDS = ("brick.png", "gravel.png", "grass.png", "moon.png", "hubble_deep_field.jpg", "ihc.png")
DISTRACTORS = ("color.png", "logo.png", "phantom.png", "rocket.jpg", "clock_motion.png", "text.png")
Box = tuple[int, int, int, int]


class Scene(NamedTuple):
    """One picture, what is in it, and where: (left, top, right, bottom) in pixels."""

    image: Image.Image
    thing: str
    box: Box


def read_photographs() -> dict[str, Image.Image]:
    """Photographs by their file names, things by theirs, from the packages that carry them."""
    packages = {"skimage": "data", "sklearn": "datasets/images"}
    folders = [
        Path(str(importlib.import_module(package).__file__)).parent / folder
        for package, folder in packages.items()
    ]
    names = {*(file for file, _ in THINGS.values()), *GROUNDS, *DISTRACTORS}
    photographs = {}
    for name in sorted(names):
        file = next(folder / name for folder in folders if (folder / name).is_file())
        photographs[name] = Image.open(file).convert("RGB")
    small = {name: photographs[name].resize((96, 96)) for name in DISTRACTORS}
    things = {
        thing: photographs[file].crop(place).resize((96, 96))
        for thing, (file, place) in THINGS.items()
    }
    return {**photographs, **small, **things}


def draw_scene(photographs: Mapping[str, Image.Image], rng: np.random.Generator) -> Scene:
    """One scene; what is drawn first decides nothing about what lies on top."""
    image = _ground(photographs, rng)
    thing = str(rng.choice(list(THINGS)))
    _paste(image, photographs[str(rng.choice(DISTRACTORS))], rng)
    box = _paste(image, photographs[thing], rng)
    return Scene(image, thing, box)


def _ground(photographs: Mapping[str, Image.Image], rng: np.random.Generator) -> Image.Image:
    photograph = photographs[str(rng.choice(GROUNDS))]
    size = int(rng.integers(SIDE, 2 * SIDE))
    left, top = (int(rng.integers(0, side - size)) for side in photograph.size)
    piece = photograph.crop((left, top, left + size, top + size)).resize((SIDE, SIDE))
    tint = Image.new("RGB", (SIDE, SIDE), tuple(int(c) for c in rng.integers(40, 220, 3)))
    return Image.blend(piece, tint, float(rng.uniform(0, 0.45)))


def _paste(image: Image.Image, piece: Image.Image, rng: np.random.Generator) -> Box:
    """A thing in an oval, turned and lit at random; returns where it lies."""
    size = int(rng.integers(38, 60))
    left, top = (int(n) for n in rng.integers(0, SIDE - size, 2))
    piece = piece.resize((size, size)).rotate(float(rng.uniform(-15, 15)), expand=False)
    if rng.random() < 0.5:
        piece = piece.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if rng.random() < 0.3:  # so that colour alone is not the answer
        piece = piece.convert("L").convert("RGB")
    piece = ImageEnhance.Brightness(piece).enhance(float(rng.uniform(0.7, 1.3)))
    mask = Image.new("L", (size, size), 0)
    ImageDraw.Draw(mask).ellipse((1, 1, size - 2, size - 2), fill=255)
    image.paste(piece, (left, top), mask.filter(ImageFilter.GaussianBlur(1)))
    return left, top, left + size, top + size


def new_model(seed: int = 0) -> tuple[ViTForImageClassification, ViTImageProcessorPil]:
    """A small ViT with 6 × 6 patches of 16 pixels, and its processor."""
    torch.manual_seed(seed)
    names = dict(enumerate(THINGS))
    config = ViTConfig(
        image_size=SIDE,
        patch_size=PATCH,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=192,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )
    processor = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    return ViTForImageClassification(config), processor


def pixels_of(scenes: list[Scene]) -> torch.Tensor:
    """As the processor makes them: from -1 to 1, channels first."""
    stack = np.stack([np.asarray(scene.image) for scene in scenes])
    return torch.from_numpy(stack).permute(0, 3, 1, 2).float() / 127.5 - 1


def grow_to_deit(vit: ViTForImageClassification) -> DeiTForImageClassification:
    """A DeiT that begins as this ViT: a distillation token beside the class token, like it."""
    settings = {k: v for k, v in vit.config.to_dict().items() if k not in ("model_type", "dtype")}
    model = DeiTForImageClassification(DeiTConfig(**settings))
    weights = {name.replace("vit.", "deit.", 1): w for name, w in vit.state_dict().items()}
    places, token = (weights[f"deit.embeddings.{n}"] for n in ("position_embeddings", "cls_token"))
    grown = torch.cat([places[:, :1], places[:, :1], places[:, 1:]], dim=1)
    weights["deit.embeddings.position_embeddings"] = grown
    weights["deit.embeddings.distillation_token"] = token.clone()
    model.load_state_dict(weights)
    return model


def train(
    model: Any, photographs: Mapping[str, Image.Image], *, steps: int, rate: float, seed: int
) -> Any:
    """The model once it says what is in a scene; every step draws new ones."""
    rng, names = np.random.default_rng([seed, 1]), list(THINGS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    start, right = perf_counter(), 0.0
    model.train()
    for step in range(1, steps + 1):
        scenes = [draw_scene(photographs, rng) for _ in range(32)]
        labels = torch.tensor([names.index(scene.thing) for scene in scenes])
        outputs = model(pixel_values=pixels_of(scenes), labels=labels)
        optimizer.zero_grad()
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        right += float((outputs.logits.argmax(-1) == labels).float().mean())
        if step % 50 == 0:
            seconds = perf_counter() - start
            print(f"{step} steps, {seconds:.0f} s: {2 * right:.1f} % right", flush=True)
            right = 0.0
    return model.eval()


def write_scenes(photographs: Any, folder: Path, *, count: int, seed: int) -> None:
    """A folder of scenes and a table of them, as `attnflow evaluate` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, 2])
    with (folder / "scenes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "box"])
        for number in range(count):
            scene = draw_scene(photographs, rng)
            scene.image.save(folder / f"{number:04}.png")
            writer.writerow([f"{number:04}.png", scene.thing, " ".join(map(str, scene.box))])


def main() -> None:
    """Train, then write development scenes and others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/scenes"))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    photographs = read_photographs()
    for name, seed in (("development", 100), ("held-out", 200)):
        write_scenes(photographs, arguments.output / name, count=200, seed=seed)
    model, processor = new_model(arguments.seed)
    train(model, photographs, steps=arguments.steps, rate=2e-3, seed=arguments.seed)
    deit = grow_to_deit(model)
    train(deit, photographs, steps=arguments.steps // 5, rate=5e-4, seed=arguments.seed + 1)
    for name, each in (("vit", model), ("deit", deit)):
        each.save_pretrained(arguments.output / name)
        processor.save_pretrained(arguments.output / name)


if __name__ == "__main__":
    main()
