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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnflow_experiments.bench.peers.functions import PEERS, Case
from attnflow_experiments.bench.peers.meter import Meter


def _stand_in(*names: str) -> None:
    """Put empty modules where a peer imports packages that its part used here never calls."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # broken packages count as missing ones
            for k in range(1, name.count(".") + 2):
                whole = ".".join(name.split(".")[:k])
                module: Any = sys.modules.setdefault(whole, types.ModuleType(whole))
                module.__path__ = []
                module.__getattr__ = lambda attribute: type(attribute, (), {})


class _Functions(dict[str, Any]):
    """lxt's table of attention functions, with the call by which transformers 5 looks in it."""

    def get_interface(self, name: str, default: Any) -> Any:
        return self.get(name, default)


def _patch_by_lxt(kind: str) -> None:
    """Let lxt patch the classes of a model type.

    It is written for transformers 4: names that its BERT imports are gone, and the table of
    attention functions is no plain mapping any more. Its rules for other types are not concerned.
    """
    _stand_in("torchvision", "torchvision.models", "torchvision.models.vision_transformer")
    utilities = importlib.import_module("transformers.pytorch_utils")
    for name in ("find_pruneable_heads_and_indices", "prune_linear_layer"):
        if not hasattr(utilities, name):
            setattr(utilities, name, None)
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind.split('_')[0]}")
    importlib.import_module("lxt.efficient").monkey_patch(module)
    module.ALL_ATTENTION_FUNCTIONS = _Functions(module.ALL_ATTENTION_FUNCTIONS)  # type: ignore[attr-defined]


def load(peer: str, folder: str, device: str) -> tuple[Any, Any]:
    """Return the model and its tokenizer, in single precision; lxt patches classes before."""
    transformers = importlib.import_module("transformers")
    if peer == "attnlrp":
        _patch_by_lxt(transformers.AutoConfig.from_pretrained(folder).model_type)
    stand_ins = {
        "flashtrace": ("seaborn", "wordfreq", "spacy", "spacy.language", "spacy.tokens"),
        "context-cite": ("nltk", "spacy", "spacy.lang", "spacy.lang.en"),
        "at2": ("nltk", "spacy", "spacy.lang", "spacy.lang.en"),
    }
    _stand_in(*stand_ins.get(peer, ()))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    model = model.eval().requires_grad_(False).to(device)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


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
