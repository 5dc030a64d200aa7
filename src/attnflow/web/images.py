"""Images on the served page: the request, what of it is kept, and the work."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from attnflow.errors import InputError
from attnflow.explainers.comparison import Comparison, compare, continued
from attnflow.methods import METHODS, Method, make_method
from attnflow.web.requests import DEFAULT, GENERATION_METHODS, BaseRequest, offer_of

__all__ = ["ImageQuestionRequest", "ImageRequest", "answer_about_image", "explain_image"]

_LONGEST_NAME = 120


class _WithImage(BaseRequest):
    """A request that holds the bytes of a file in base64, with or without a `data:` address."""

    image: str = ""
    name: str = "image"

    @field_validator("image")
    @classmethod
    def _image_is_there(cls, text: str, info: ValidationInfo) -> str:
        most = offer_of(info).limits.image_bytes
        if not text.strip():
            raise InputError("There is no image: drop one on the page, or choose a file.")
        if len(text) > most:
            raise InputError(f"The image is larger than {most // 2**20} MB. Make it smaller first.")
        return text

    @field_validator("name")
    @classmethod
    def _name_is_short(cls, name: str) -> str:
        return name[:_LONGEST_NAME] or "image"

    def content(self) -> bytes:
        """The bytes of the file."""
        try:
            return base64.b64decode(self.image.rpartition(",")[2], validate=True)
        except (binascii.Error, ValueError) as error:
            raise InputError(f"The image is not in base64 ({error}).") from error

    def without_image(self) -> dict[str, Any]:
        """What a stored result says it was asked; the picture is in the result, reduced."""
        return {"task": self.task, **self.model_dump(exclude={"image"})}


class ImageRequest(_WithImage):
    """Say what is in an image and which of its parts that came from."""

    task = "image"
    ability = "sees"
    purpose = "look at an image"
    method_names = METHODS

    methods: list[Any] = Field(default_factory=list)

    def make_methods(self) -> tuple[Method, ...]:
        """The methods, in the order they were sent."""
        return tuple(make_method(name) for name in self.methods)


class ImageQuestionRequest(_WithImage):
    """Answer a question about an image and say which of its parts each word came from."""

    task = "image-question"
    ability = "answers"
    purpose = "answer a question about an image"
    method_names = GENERATION_METHODS

    question: str = ""
    methods: list[Any] = Field(default_factory=lambda: [DEFAULT])
    tokens: int = 20

    def make_methods(self) -> tuple[Method | None, ...]:
        """The methods, in the order they were sent; None is the default with images."""
        names = self.methods or [DEFAULT]
        return tuple(None if name == DEFAULT else make_method(name) for name in names)


def answer_about_image(
    request: ImageQuestionRequest,
    loaded: Any,
) -> Comparison:
    """The answer, every word of it explained by every method."""
    return continued(
        loaded,
        request.question,
        request.make_methods(),
        images=[request.content()],
        max_new_tokens=request.tokens,
    )


def explain_image(request: ImageRequest, loaded: Any) -> Comparison:
    """Every method about one image."""
    return compare(loaded, request.content(), request.make_methods() or None)
