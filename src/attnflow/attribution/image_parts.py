"""The part of a result that is on one image, where its sources are patches and words together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnflow.errors import InputError, shorten, whole_number
from attnflow.tokens import Tokens

if TYPE_CHECKING:
    from attnflow.attribution.result import Attribution

__all__ = ["part_on_image"]


def part_on_image(result: Attribution, number: int) -> Attribution:
    """Over the positions of this image alone, which then have a grid; the rest is elsewhere."""
    images = result.sources.images
    place = whole_number(number)
    if place is None or not -len(images) <= place < len(images):
        some = ", ".join(image.name for image in images) or "none"
        raise InputError(
            f"There is no image {shorten(number)} among the sources, numbered from 0; they are of "
            f"{some}."
        )
    image = images[place]
    part = slice(image.start, image.start + image.grid.length)
    tokens = result.sources
    arrays: dict[str, Any] = {
        name: None if (array := getattr(result, name)) is None else array[..., part].copy()
        for name in ("values", "lower", "upper", "saturated")
    }
    rest = result.values.sum(axis=-1) - arrays["values"].sum(axis=-1)
    return replace(
        result,
        **arrays,
        elsewhere=rest if result.elsewhere is None else result.elsewhere + rest,
        sources=Tokens(tokens.texts[part], tokens.positions[part], grid=image.grid),
        steps=(*result.steps, f"on {image.name}"),
    )
