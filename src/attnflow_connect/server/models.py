"""The offer of a server: models, those that ship and those named at its start, within limits.

A visitor chooses one of these by its name and can reach no other.
"""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.errors import InputError
from attnflow.models import WRITER

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

DEFAULT = "default"  # stands for the model's own method
# The drawing that visitors may try: scene 7 of those that nothing was chosen by.
_PICTURE = "example.png"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of what one visitor, and all together, may ask for."""

    body_bytes: int = 64 * 1024
    image_bytes: int = 4 * 1024 * 1024
    characters: int = 20_000
    tokens: int = 512
    flow_tokens: int = 128
    ask_tokens: int = 2_048
    new_tokens: int = 64
    prompt_bytes: int = 8 * 1024 * 1024
    prompt_tokens: int = 32_768
    answer_tokens: int = 1_024
    waiting: int = 32
    results: int = 64
    seconds_to_send: float = 15.0
    seconds_to_read: float = 60.0
    seconds_to_load: float = 120.0


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may call, and who answers.

    token: what every request must show; without one only this machine is answered. upstream: the
    address of the server that answers chat completions, such as http://localhost:8000/v1. replica:
    True for one of several, which has no page and no numbers: each would speak for itself alone.
    """

    token: str | None = field(default=None, repr=False)
    upstream: str | None = None
    replica: bool = False


@dataclass(frozen=True)
class OfferedModel:
    """One model: what it is called, what can be done with it, and something to try."""

    name: str
    about: str
    explains: bool
    generates: bool
    load: Callable[[], Model] = field(repr=False)
    chats: bool = False
    sees: bool = False
    answers: bool = False
    """True if it answers questions about an image."""
    examples: tuple[str, ...] = ()
    picture: str | None = None
    """An image to try, as a `data:` address."""

    @cached_property
    def loaded(self) -> Model:
        """The model, loaded when it is first used, and once."""
        return self.load()

    def to_dict(self) -> dict[str, Any]:
        """Return what a visitor is told."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.repr}


def embedded_models() -> list[OfferedModel]:
    """Return the classifier inside the package and, where they can run, SmolLM2 and scenes."""
    from attnflow.hosts.load import as_model, load
    from attnflow.models.smollm2 import missing_packages

    # Two declarations of one shape: each model is described in words of its own.
    models = [
        OfferedModel(
            name="verb-number",
            about="Says whether the next verb is singular or plural; [CLS] is where it is read.",
            explains=True,
            generates=False,
            load=lambda: load(),
            examples=(
                "the keys to the cabinet",
                "the authors who admired the old garden",
                "the reports that the chairman of the board wrote",
            ),
        )
    ]
    if not missing_packages():
        models.append(
            OfferedModel(
                name="SmolLM2-135M-Instruct",
                about="A small language model that continues a prompt.",
                explains=True,
                generates=True,
                chats=True,
                load=lambda: as_model(None, default=WRITER),
                examples=(
                    "My name is Putin, I am from",
                    "Anna lives in Paris and Tom lives in Rome. The city where Tom lives is",
                ),
            )
        )
    if all(importlib.util.find_spec(name) is not None for name in ("transformers", "PIL")):
        models.append(_scenes())
    return models


def _scenes() -> OfferedModel:
    from attnflow.hosts.load import load
    from attnflow.models.scenes import scenes_folder

    picture = base64.b64encode((scenes_folder() / _PICTURE).read_bytes()).decode()
    return OfferedModel(
        name="scenes",
        about="Answers questions about drawings of coloured shapes.",
        explains=False,
        generates=False,
        answers=True,
        load=lambda: load("scenes"),
        examples=(
            "what colour is the cross?",
            "what is right of the triangle?",
            "what is right of the square?",
        ),
        picture=f"data:image/png;base64,{picture}",
    )


def named_models(names: Sequence[str], device: str | None = None) -> list[OfferedModel]:
    """Load Hugging Face names or folders now: a mistake is told before the first visit."""
    from attnflow.hosts.load import load

    return [_offered(name, load(name), device) for name in names]


def _offered(name: str, loaded: Model, device: str | None) -> OfferedModel:
    from attnflow.hosts.vision_language.towers import towers_of

    model = loaded.module if device is None else loaded.module.to(device)  # in its place
    sees = loaded.tokenizer is None and loaded.adapter.reads_images(model)
    if loaded.tokenizer is None and not sees:
        raise InputError(
            f"--model {name!r} reads no text (it has no tokenizer) and no images; the page takes "
            "these."
        )
    if sees:
        loaded.adapter.image_processor(model)  # a missing one is told before the first visit
    generates = bool(getattr(model, "can_generate", lambda: False)())
    answers = generates and not sees and towers_of(model) is not None
    return OfferedModel(
        name=Path(name).name if Path(name).is_dir() else name,  # not where it lies
        about=f"{type(model).__name__}, named when this server was started.",
        explains=not sees and not loaded.facts.encoder_decoder,
        generates=generates,
        chats=generates and bool(getattr(loaded.tokenizer, "chat_template", None)),
        sees=sees,
        answers=answers,
        load=lambda: loaded,
    )
