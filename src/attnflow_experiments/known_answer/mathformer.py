"""The small calculators of the package mathformer (MIT): Llamas whose true sources are known."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from attnflow.errors import ModelError

__all__ = ["load_mathformer", "mathformer_folder"]

_MODELS = {"*": "mulformer", "+": "addformer"}


def mathformer_folder(folder: Path | None) -> Path | None:
    """The folder itself, or without one that of the installed package, or None.

    >>> mathformer_folder(Path("no-such-folder"))
    Traceback (most recent call last):
    attnflow.errors.ModelError: 'no-such-folder' holds no folder 'mulformer' of mathformer.
    """
    if folder is not None:
        if not (folder / _MODELS["*"]).is_dir():
            raise ModelError(f"{str(folder)!r} holds no folder {_MODELS['*']!r} of mathformer.")
        return folder
    package = importlib.util.find_spec("mathformer")
    places = list(package.submodule_search_locations or []) if package else []
    return Path(places[0]) if places else None


def load_mathformer(folder: Path | None, sign: str) -> tuple[Any, dict[str, int]]:
    """The model for "*" or "+", and the id of each character.

    >>> load_mathformer(None, "*")
    Traceback (most recent call last):
    attnflow.errors.ModelError: mathformer is not installed: pip install mathformer.
    """
    from transformers import LlamaForCausalLM

    if folder is None:
        raise ModelError("mathformer is not installed: pip install mathformer.")
    place = folder / _MODELS[sign]
    vocabulary = json.loads((place / "vocab.json").read_text(encoding="utf-8"))
    return LlamaForCausalLM.from_pretrained(place).eval(), vocabulary
