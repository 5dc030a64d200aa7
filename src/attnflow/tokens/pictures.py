"""What counts as a picture where one may be handed in, without importing any image library."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

__all__ = ["PICTURE_ENDINGS", "Picture", "is_picture", "names_picture"]

PICTURE_ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff"),
    *(".avif", ".jp2", ".ppm", ".pgm", ".ico"),
)
"""How the names of image files end."""

_LONGEST = 1000  # characters of a path; file systems take less
_LIBRARIES = ("PIL", "numpy", "torch")


def is_picture(value: object) -> bool:
    """Whether it is an image in memory: a PIL image, an array, a tensor, a file's bytes.

    >>> import numpy as np
    >>> is_picture(np.zeros((2, 2, 3))), is_picture("photo.jpg"), is_picture(5)
    (True, False, False)
    """
    if isinstance(value, (bytes, bytearray)):
        return True
    library = type(value).__module__.split(".")[0]
    is_array = library in _LIBRARIES and getattr(value, "ndim", 0) >= 2
    return is_array or (library == "PIL" and hasattr(value, "convert"))


def names_picture(value: object) -> bool:
    """Whether it is the path of a file that is there and whose name ends as an image's does.

    >>> names_picture("the keys to the cabinet")
    False
    """
    if not isinstance(value, (str, os.PathLike)):
        return False
    name = os.fspath(value)
    if not isinstance(name, str) or len(name) > _LONGEST or "\0" in name:
        return False
    try:
        return name.lower().endswith(PICTURE_ENDINGS) and Path(name).expanduser().is_file()
    except OSError:
        return False


if TYPE_CHECKING:
    Picture = Any
else:

    class _AnyPicture(type):
        def __instancecheck__(cls, value: object) -> bool:
            return is_picture(value) or isinstance(value, os.PathLike)

    class Picture(metaclass=_AnyPicture):
        """In annotations: an image in memory or a path; what `isinstance` says at run time.

        >>> isinstance(b"the bytes of a file", Picture)
        True
        """
