"""Drawn scenes with questions whose answer lies in a known place: shapes, colours, positions.

A scene holds two to four objects of different shapes and colours on a plain, slightly noisy
ground, each in a box of 16 × 16 pixels on a grid of 8. Each question names one object ("what
colour is the circle?") and is answered by what can be seen of one object only, whose box is known:
an attribution of the answer can be held against it. Everything follows from a seed, so a data set
is two numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.errors import InputError, whole_number

SIZE: Final = 48
"""Width and height of a scene in pixels."""

COLOURS: Final = {
    "red": (214, 39, 40),
    "green": (44, 150, 44),
    "blue": (38, 84, 205),
    "yellow": (240, 205, 30),
    "purple": (142, 68, 173),
    "orange": (245, 130, 30),
}
SHAPES: Final = ("circle", "square", "triangle", "cross", "diamond", "ring")
SIDES: Final = ("left of", "right of", "above", "below")

TRAIN_SEED, DEVELOPMENT_SEED, TEST_SEED = 1, 2, 3
"""Seeds of the scenes that the shipped model learned from, of those that the default method was
chosen by, and of those that nothing was chosen by."""

_SIDE = 16  # of an object's box, in pixels
_GRID = 8  # boxes stand on multiples of this, so that the patches of the shipped model fit them
_GAP = 8  # at least, between two boxes
_GROUND = (205, 245)  # brightness of the ground
_NOISE = 6.0  # standard deviation of the noise, in brightness
_JITTER = 14  # by how much a colour may differ from its name's
_TRIES = 60  # places that are tried for an object before the scene is begun anew

Floats = NDArray[np.float64]
Kind = Literal["colour", "shape", "place"]
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class SceneObject:
    """One object: what it is, and its box in pixels as (left, top, right, bottom), right and
    bottom excluded.
    """

    shape: str
    colour: str
    box: Box

    @property
    def centre(self) -> tuple[float, float]:
        """The middle of the box, (x, y)."""
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2


@dataclass(frozen=True)
class Question:
    """A question, its answer, and the number of the object that the answer is seen in.

    `reference` is the object that the question names where it asks for another one's place.
    """

    text: str
    answer: str
    answer_object: int
    kind: Kind
    reference: int | None = None


@dataclass(frozen=True)
class Scene:
    """Objects of different shapes and different colours, none touching another."""

    objects: tuple[SceneObject, ...]
    seed: int = 0

    @property
    def questions(self) -> tuple[Question, ...]:
        """Every question that has exactly one answer."""
        return tuple(questions_about(self.objects))

    def image(self) -> NDArray[np.uint8]:
        """The drawing, (height, width, 3)."""
        return draw(self)


def scenes(count: int, *, seed: int) -> Iterator[Scene]:
    """Several scenes; scene k is the same however many are asked for."""
    number = whole_number(count)
    if number is None or number < 1:
        raise InputError(f"count={count!r}: a number of scenes is a whole number of at least 1.")
    for k in range(number):
        yield random_scene(seed=seed * 1_000_000 + k)


def random_scene(seed: int) -> Scene:
    """The scene of a seed."""
    random = np.random.default_rng(seed)
    while True:
        count = int(random.integers(2, 5))
        boxes = _places(count, random)
        if boxes is not None:
            break
    shapes = random.permutation(len(SHAPES))[:count]
    colours = random.permutation(len(COLOURS))[:count]
    names = list(COLOURS)
    return Scene(
        tuple(
            SceneObject(SHAPES[shape], names[colour], box)
            for shape, colour, box in zip(shapes, colours, boxes, strict=True)
        ),
        seed,
    )


def _places(count: int, random: np.random.Generator) -> list[Box] | None:
    """Boxes that do not touch; None where the first ones left no room."""
    boxes: list[Box] = []
    for _ in range(_TRIES):
        if len(boxes) == count:
            break
        left, top = (_GRID * int(n) for n in random.integers((SIZE - _SIDE) // _GRID + 1, size=2))
        box = (left, top, left + _SIDE, top + _SIDE)
        if not any(_touch(box, other) for other in boxes):
            boxes.append(box)
    return boxes if len(boxes) == count else None


def _touch(one: Box, other: Box) -> bool:
    return (
        one[0] < other[2] + _GAP
        and other[0] < one[2] + _GAP
        and one[1] < other[3] + _GAP
        and other[1] < one[3] + _GAP
    )


def questions_about(objects: Sequence[SceneObject]) -> Iterator[Question]:
    """Every question about these objects that has exactly one answer."""
    for number, item in enumerate(objects):
        yield Question(f"what colour is the {item.shape}?", item.colour, number, "colour")
        yield Question(f"what shape is {item.colour}?", item.shape, number, "shape")
    for reference, item in enumerate(objects):
        for side in SIDES:
            places = [k for k, other in enumerate(objects) if _is_on(side, other, item)]
            if len(places) == 1 and _is_clear_of(side, objects[places[0]], item):
                place = objects[places[0]]
                yield Question(
                    f"what is {side} the {item.shape}?",
                    f"{place.colour} {place.shape}",
                    places[0],
                    "place",
                    reference,
                )


def _is_on(side: str, one: SceneObject, other: SceneObject) -> bool:
    """Return whether one object's middle is on this side of another's."""
    axis = 0 if side in SIDES[:2] else 1
    if side in ("left of", "above"):
        return one.centre[axis] < other.centre[axis]
    return one.centre[axis] > other.centre[axis]


def _is_clear_of(side: str, one: SceneObject, other: SceneObject) -> bool:
    """Return whether the whole of one object is on this side of another: nobody would doubt it."""
    axis = 0 if side in SIDES[:2] else 1
    if side in ("left of", "above"):
        return one.box[axis + 2] <= other.box[axis]
    return one.box[axis] >= other.box[axis + 2]


def draw(scene: Scene) -> NDArray[np.uint8]:
    """The scene as (height, width, 3) bytes; its seed decides the ground and the noise."""
    random = np.random.default_rng([scene.seed, 1])
    canvas = np.full((SIZE, SIZE, 3), random.uniform(*_GROUND))
    for item in scene.objects:
        colour = np.array(COLOURS[item.colour]) + random.uniform(-_JITTER, _JITTER, size=3)
        cover = _cover(item)[..., None]
        left, top, right, bottom = item.box
        patch = canvas[top:bottom, left:right]
        canvas[top:bottom, left:right] = patch * (1 - cover) + colour * cover
    canvas += random.normal(0, _NOISE, size=canvas.shape)
    return np.clip(np.rint(canvas), 0, 255).astype(np.uint8)


# Whether a point (x, y) of the square from -1 to 1 lies in a shape.
_INSIDE: Final[Mapping[str, Callable[[Floats, Floats], NDArray[np.bool_]]]] = {
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "ring": lambda x, y: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.25),
    "square": lambda x, y: (np.abs(x) <= 0.9) & (np.abs(y) <= 0.9),
    "diamond": lambda x, y: np.abs(x) + np.abs(y) <= 1,
    "triangle": lambda x, y: np.abs(x) <= (y + 1) / 2,
    "cross": lambda x, y: np.minimum(np.abs(x), np.abs(y)) <= 0.33,
}


def _cover(item: SceneObject) -> NDArray[np.float64]:
    """How much of each pixel of its box the object covers, 0 to 1, from 4 x 4 points in each."""
    side = item.box[2] - item.box[0]
    points = (np.arange(4 * side) + 0.5) / (2 * side) - 1  # -1 to 1
    x, y = points[None, :], points[:, None]
    inside = _INSIDE[item.shape](x, y)
    covered: NDArray[np.float64] = inside.reshape(side, 4, side, 4).mean(axis=(1, 3))
    return covered
