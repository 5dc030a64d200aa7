"""A name, a path or None to a model and its tokenizer."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnflow.errors import ModelError, optional_import

__all__ = ["Loaded", "example_inputs", "load_language_model", "load_model", "quiet_hosts"]

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


class Loaded(NamedTuple):
    """A model ready to run, and what turns text into its inputs."""

    model: nn.Module
    tokenizer: Any


def load_model(name: str | os.PathLike[str] | None, *, needs_tokenizer: bool = True) -> Loaded:
    """The embedded default for None, otherwise a Hugging Face name or a local folder.

    Without `needs_tokenizer` a model whose tokenizer cannot be loaded comes with None.
    """
    return _embedded() if name is None else _pretrained(os.fspath(name), needs_tokenizer)


def load_language_model(name: str | os.PathLike[str] | None) -> Loaded:
    """A model that generates: SmolLM2 for None, otherwise a Hugging Face name or a local folder."""
    return _smollm2() if name is None else _pretrained(os.fspath(name), needs_tokenizer=True)


def quiet_hosts() -> None:
    """Host libraries log and draw progress bars for their own users; ours asked for an answer."""
    try:
        from transformers.utils import logging
    except ImportError:
        return
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def example_inputs(loaded: Loaded, text: str) -> str | dict[str, Tensor]:
    """Something the model can run on: the text; noise as an image, as sound, or as token ids."""
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


@lru_cache(maxsize=1)
def _embedded() -> Loaded:
    from attnflow.models.verb_number import load_verb_number

    return Loaded(*load_verb_number())


@lru_cache(maxsize=1)
def _smollm2() -> Loaded:
    optional_import("transformers", extra="models", purpose="Running a language model")
    from attnflow.models.smollm2 import load_smollm2

    return Loaded(*load_smollm2())


def _pretrained(name: str, needs_tokenizer: bool) -> Loaded:
    transformers = optional_import("transformers", extra="models", purpose="Loading a model")
    if not name.strip():
        raise ModelError("The model's name is empty; give a name or a path, or leave it out.")
    if _is_path(name) and not Path(name).is_dir():
        raise ModelError(
            f"There is no folder {name!r}. A path must lead to a model's folder; a Hugging Face "
            "name looks like 'bert-base-uncased' or 'organisation/model'."
        )
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        tokenizer = None if _sees(config) else _tokenizer(transformers, name, needs_tokenizer)
        model = _auto_class(transformers, config).from_pretrained(name)
    # The library raises many unrelated types for a missing, broken or unknown model; whichever
    # it is, the user needs the same answer, and the cause is kept.
    except Exception as error:
        raise ModelError(_why_not(name, error)) from error
    return Loaded(model.eval(), tokenizer)


def _tokenizer(transformers: Any, name: str, needed: bool) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except Exception:  # the library raises many unrelated types; `_pretrained` explains them
        if needed:
            raise
        return None


def _is_path(name: str) -> bool:
    """Hub names have at most one slash and none in front: anything else is meant as a path."""
    return name.startswith((".", "~", "/", "\\")) or Path(name).is_absolute() or name.count("/") > 1


def _sees(config: Any) -> bool:
    """A vision model has patches and no words."""
    return hasattr(config, "patch_size") and not hasattr(config, "vocab_size")


def _auto_class(transformers: Any, config: Any) -> Any:
    architecture = (getattr(config, "architectures", None) or [""])[0]
    for ending, auto in _HEADS.items():
        if architecture.endswith(ending):
            return getattr(transformers, auto)
    return transformers.AutoModel


def _why_not(name: str, error: Exception) -> str:
    first_line = next((line for line in str(error).splitlines() if line.strip()), repr(error))
    if Path(name).is_dir():
        where = f"The folder {name!r} holds no model that transformers can load"
        way_out = "It needs config.json, the weights and the tokenizer's files (save_pretrained)."
    else:
        where = f"The model {name!r} could not be loaded: it is no folder here, and as a name"
        where += " on the Hugging Face hub it failed"
        way_out = "Check the spelling and the connection, or give the path of a downloaded model."
    return f"{where} ({type(error).__name__}: {first_line.strip()}). {way_out}"
