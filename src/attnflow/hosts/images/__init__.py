"""Photos to what a vision model takes: read, turned upright, made by the model's own processor."""

from __future__ import annotations

from attnflow.hosts.images.preparing import PreparedImage, picture_of, prepare_images
from attnflow.hosts.images.reading import MOST_PIXELS, Photo, read_photo

__all__ = [
    "MOST_PIXELS",
    "Photo",
    "PreparedImage",
    "picture_of",
    "prepare_images",
    "read_photo",
]
