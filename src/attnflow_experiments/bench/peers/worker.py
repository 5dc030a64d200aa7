"""A peer in a process and an environment of its own: a line of JSON in, a line of JSON out.

In comes {"prompt": token ids, "completion": token ids, "sources": lists of prompt positions}; out
goes {"scores": one for each prompt token or each source, "log_prob": that of the completion, by
which the caller sees that the models are the same, "passes", "seconds", "memory": megabytes} or
{"error": the reason}. A peer that is trained first gets {"train": [such cases]} and answers
{"passes", "seconds"}. The arguments are the peer, the model's folder and the device.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnflow_experiments.bench.peers.functions import PEERS, Case
from attnflow_experiments.bench.peers.meter import Meter


class _AnythingType(type):
    """The class of `_Anything`, whose class attributes are there, too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Anything(metaclass=_AnythingType):
    """A stand-in that takes every call, has every attribute, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return _AnythingType.__getattr__(_Anything, name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


def _stand_in(*names: str) -> None:
    """Put empty modules where a peer imports packages that its part used here never calls."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # broken packages count as missing ones
            module: Any = types.ModuleType(name)
            module.__spec__ = ModuleSpec(name, None, is_package=True)
            module.__path__ = []
            module.__getattr__ = _AnythingType.__getattr__.__get__(_Anything)
            sys.modules[name] = module


class _Functions(dict[str, Any]):
    """lxt's table of attention functions, with the call by which transformers 5 looks in it."""

    def get_interface(self, name: str, default: Any) -> Any:
        return self.get(name, default)


def _patch_by_lxt(module: Any) -> None:
    """Let lxt patch the classes of a model's module.

    It is written for transformers 4: names that its BERT imports are gone, and the table of
    attention functions is no plain mapping any more. Its rules for other types are not concerned.
    """
    utilities = importlib.import_module("transformers.pytorch_utils")
    for name in ("find_pruneable_heads_and_indices", "prune_linear_layer"):
        if not hasattr(utilities, name):
            setattr(utilities, name, None)
    importlib.import_module("lxt.efficient").monkey_patch(module)
    module.ALL_ATTENTION_FUNCTIONS = _Functions(module.ALL_ATTENTION_FUNCTIONS)


_OF_FLASHTRACE = ("seaborn", "wordfreq", "spacy", "spacy.language", "spacy.tokens")
_STAND_INS = {
    "flashtrace": _OF_FLASHTRACE,
    "ifr": _OF_FLASHTRACE,
    "context-cite": ("nltk", "spacy", "spacy.lang", "spacy.lang.en"),
    "at2": ("nltk", "spacy", "spacy.lang", "spacy.lang.en"),
    "attnlrp": ("torchvision", "torchvision.models", "torchvision.models.vision_transformer"),
}


def load(peer: str, folder: str, device: str) -> tuple[Any, Any]:
    """Return the model and its tokenizer, in single precision."""
    transformers = importlib.import_module("transformers")
    (name,) = transformers.AutoConfig.from_pretrained(folder).architectures
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    _stand_in(*_STAND_INS.get(peer, ()))  # behind transformers, which looks for some of them
    if peer == "attnlrp":
        _patch_by_lxt(sys.modules[type(model).__module__])
    return model.eval().requires_grad_(False).to(device), tokenizer


def answer(peer: str, model: Any, tokenizer: Any, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one request."""
    function, meter = PEERS[peer], Meter(model)
    if "train" in entry:
        with meter.running():
            function.train([Case(model, tokenizer, e) for e in entry["train"]])  # type: ignore[attr-defined]
        return {"passes": meter.passes, "seconds": meter.seconds}
    case = Case(model, tokenizer, entry)
    with meter.running():
        values = function(case)
    if isinstance(values, Tensor):
        values = values.detach().float().cpu()
    scores = np.asarray(values, dtype=np.float64).tolist()
    with torch.no_grad():
        log_prob = float(case.log_prob(torch.tensor([case.prompt], device=case.device)))
    if case.device.type == "cuda":
        torch.cuda.empty_cache()  # for the other processes on it
    cost = {"passes": meter.passes, "seconds": meter.seconds, "memory": meter.memory}
    return {"scores": scores, "log_prob": log_prob, **cost}


def main() -> None:
    """Answer every line; what peers print goes to standard error."""
    peer, folder, device = sys.argv[1:4]
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        model, tokenizer = load(peer, folder, device)
        replies.write(json.dumps({"ready": True}) + "\n")
    except Exception as error:  # the caller lists the peer with this reason
        replies.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        return
    finally:
        replies.flush()
    for line in sys.stdin:
        try:
            reply = answer(peer, model, tokenizer, json.loads(line))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
