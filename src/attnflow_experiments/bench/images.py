"""Photos: does hiding what a map finds strongest take the answer away, and does it point there?

"photos" are ImageNet photos that the model names rightly: deletion and insertion. "boxes" are
photos with boxes around the animal: pointing, too. "grid" has mosaics of four photos that the model
names rightly: the share of the map of each one's class that lies on its tile, as in the grid
pointing game. That share rewards a sharp map (Grad-CAM squared gains .11), so the share of the
strongest quarter of patches that lies there, which only the order decides, stands beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import attnflow
from attnflow.attribution.patch_maps import patch_maps
from attnflow.errors import MethodError
from attnflow.evaluation.subjects.images import PatchAblation, centre_map
from attnflow.hosts.adapter import device_of
from attnflow.hosts.images import prepare_images, read_photo
from attnflow.hosts.model import Model
from attnflow.methods import make_method
from attnflow.tokens import Grid
from attnflow.trace.extras import OF_AN_ANSWER
from attnflow_experiments.bench.cases import NotCountedError
from attnflow_experiments.bench.data import BenchItem, load_items
from attnflow_experiments.bench.methods import DEFAULT, Cost
from attnflow_experiments.bench.peers.meter import Meter
from attnflow_experiments.bench.plan import BenchPlan
from attnflow_experiments.options import load_on

Floats = NDArray[np.float64]
_TRIED = 4  # photos that are tried for each that is to count


def grad_cam(activations: Tensor, gradients: Tensor) -> Tensor:
    """Grad-CAM: channels weighted by their mean gradient over the patches, positive part."""
    return (activations * gradients.mean(dim=0)).sum(-1).relu()


def layer_cam(activations: Tensor, gradients: Tensor) -> Tensor:
    """LayerCAM: each value weighted by the positive part of its own gradient."""
    return (activations * gradients.relu()).sum(-1).relu()


_CAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "grad-cam": grad_cam,
    "layer-cam": layer_cam,
}


class PhotoJudge:
    """Photos of an image classifier."""

    def __init__(self, plan: BenchPlan, label: str, data_set: str) -> None:
        self.plan, self.label, self.data_set = plan, label, data_set
        items = load_items(data_set, plan.data, plan.part, _TRIED * plan.samples)
        self._items = {item.name: item for item in items}
        self._model = cache(lambda: load_on(plan.device, plan.models[label]))
        self._class_of = cache(self._name_photo)

    def names(self) -> Sequence[str]:
        """Return the names of the photos or mosaics."""
        return list(self._items)

    def close(self) -> None:
        """End nothing: no process runs beside it."""

    def _name_photo(self, path: Path) -> int:
        return _classes(self._model(), read_photo(path).image)

    def reference(self, name: str) -> dict[str, Any]:
        """Return what the model sees; photos that it names otherwise do not count."""
        item = self._items[name]
        for path, label in zip(item.photos, item.labels, strict=True):
            answer = self._class_of(path)
            if label >= 0 and answer != label:
                raise NotCountedError(f"{path.name} is class {label}; the model says {answer}.")
        return {"answers": [self._class_of(path) for path in item.photos], "note": {}}

    def method(self, name: str, method: str, reference: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics of a map, or of those of the four tiles of a mosaic, and the cost."""
        item, model = self._items[name], self._model()
        picture = _picture(item)
        (prepared,) = prepare_images(model, [picture])
        grid = _grid(model, prepared.picture)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        meter = Meter(model.module)
        answers = reference["answers"]
        with meter.running():
            maps = [_map(model, picture, method, answer, grid, seed) for answer in answers]
        cost = asdict(Cost(meter.passes, meter.seconds, meter.memory))
        if len(item.photos) > 1:
            values = {
                "grid": float(np.mean([_share(each, tile) for tile, each in enumerate(maps)])),
                "quarter": float(np.mean([_share(_quarter(e), k) for k, e in enumerate(maps)])),
            }
            return {"values": values, **cost}
        ablation = PatchAblation(model, prepared.inputs, grid)
        curves = ablation.curves(maps[0])
        values = {
            "deletion": float(curves.deletion_area[0]),
            "insertion": float(curves.insertion_area[0]),
        }
        if item.boxes:
            values["pointing"] = float(_points_into(maps[0], picture, item.boxes))
        return {"values": values, **cost}


def _picture(item: BenchItem) -> Image.Image:
    """Return the photo, cut to its middle square, or four of them as the tiles of a mosaic.

    The square is resized here, so that a box is known in patches and a mosaic's tiles are whole.
    """
    photos = [read_photo(path).image.convert("RGB") for path in item.photos]
    if len(photos) == 1:
        return photos[0].crop(_square(photos[0]))
    side = 112
    mosaic = Image.new("RGB", (2 * side, 2 * side))
    for tile, photo in enumerate(photos):
        small = photo.crop(_square(photo)).resize((side, side))
        mosaic.paste(small, (tile % 2 * side, tile // 2 * side))
    return mosaic


def _square(photo: Image.Image) -> tuple[int, int, int, int]:
    side = min(photo.size)
    left, top = (photo.width - side) // 2, (photo.height - side) // 2
    return left, top, left + side, top + side


def _grid(model: Model, picture: NDArray[np.uint8]) -> Grid:
    height, width = picture.shape[:2]
    patch = int(getattr(model.module.config, "patch_size", 16))
    return Grid(height // patch, width // patch, 1, height, width)


def _classes(model: Model, image: Any) -> int:
    (prepared,) = prepare_images(model, [image.convert("RGB").crop(_square(image))])
    pixels = prepared.inputs["pixel_values"].to(device_of(model.module))
    with torch.no_grad():
        return int(model.module(pixel_values=pixels).logits[0].argmax())


def _map(
    model: Model, picture: Image.Image, method: str, answer: int, grid: Grid, seed: int
) -> Floats:
    """Return the value of each patch for a class, (rows, columns)."""
    if method == "random":
        return np.random.default_rng(seed).random((grid.rows, grid.columns))
    if method == "centre":
        return centre_map(grid)
    if method in _CAMS:
        (prepared,) = prepare_images(model, [picture])
        values = _cam(model, prepared.inputs["pixel_values"], answer, _CAMS[method])
        return values[-grid.rows * grid.columns :].reshape(grid.rows, grid.columns)
    explainer = None if method == DEFAULT else make_method(method)
    record = set() if explainer is None else set(explainer.requires.record)
    if explainer is not None and not record & OF_AN_ANSWER:  # the same for every class
        result = attnflow.explain(model, picture, explainer)
    else:
        result = attnflow.explain(model, picture, explainer, answer=answer)
    return np.asarray(patch_maps(result)[0].values, dtype=np.float64)


def _cam(
    model: Model, pixels: Tensor, answer: int, weigh: Callable[[Tensor, Tensor], Tensor]
) -> Floats:
    """Return a class activation map of the last layer's first norm, as is usual for a ViT."""
    module = model.module
    norms = [m for n, m in module.named_modules() if n.endswith(("layernorm_before", "norm1"))]
    if not norms:
        raise MethodError(f"{type(module).__name__} has no norm before its last attention.")
    outputs: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[0]

    hook = norms[-1].register_forward_hook(keep)
    try:
        logits = module(pixel_values=pixels.to(device_of(module))).logits
    finally:
        hook.remove()
    (gradients,) = torch.autograd.grad(logits[0, answer], outputs)
    values = weigh(outputs[0][0, 1:].detach(), gradients[0, 1:])
    return values.double().cpu().numpy()


def _share(values: Floats, tile: int) -> float:
    """Return the share of the positive part of a map that lies on a tile of the mosaic."""
    positive = np.maximum(values, 0.0)
    rows, columns = (size // 2 for size in values.shape)
    top, left = tile // 2 * rows, tile % 2 * columns
    total = float(positive.sum())
    inside = float(positive[top : top + rows, left : left + columns].sum())
    return inside / total if total > 0 else 0.25


def _quarter(values: Floats) -> Floats:
    """Return a map of ones where the strongest quarter of the patches is."""
    strongest = np.argsort(-values.ravel(), kind="stable")[: values.size // 4]
    ones = np.zeros(values.size)
    ones[strongest] = 1.0
    return ones.reshape(values.shape)


def _points_into(values: Floats, picture: Image.Image, boxes: Sequence[Sequence[float]]) -> bool:
    """Return whether the middle of the strongest patch lies in a box, in pixels of the picture."""
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    x = (column + 0.5) / values.shape[1] * picture.width
    y = (row + 0.5) / values.shape[0] * picture.height
    return any(left <= x <= right and top <= y <= bottom for left, top, right, bottom in boxes)
