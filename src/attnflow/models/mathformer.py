"""The small calculators of the package mathformer (MIT): Llamas whose true sources are known."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from attnflow.errors import ModelError

__all__ = ["load_mathformer", "mathformer_folder"]

_MODELS = {"*": "mulformer", "+": "addformer"}


def mathformer_folder(given: Path | None) -> Path | None:
    """The folder given, or that of the installed package, or None."""
    if given is not None:
        if not (given / _MODELS["*"]).is_dir():
            raise ModelError(f"{str(given)!r} holds no folder {_MODELS['*']!r} of mathformer.")
        return given
    found = importlib.util.find_spec("mathformer")
    places = list(found.submodule_search_locations or []) if found else []
    return Path(places[0]) if places else None


def load_mathformer(folder: Path | None, sign: str) -> tuple[Any, dict[str, int]]:
    """The model for "*" or "+", and the id of each character."""
    from transformers import LlamaForCausalLM

    if folder is None:
        raise ModelError("mathformer is not installed: pip install mathformer.")
    place = folder / _MODELS[sign]
    vocabulary = json.loads((place / "vocab.json").read_text(encoding="utf-8"))
    return LlamaForCausalLM.from_pretrained(place).eval(), vocabulary
