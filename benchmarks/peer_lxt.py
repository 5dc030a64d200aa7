"""AttnLRP by lxt 2.1, in a process of its own.

lxt changes the classes of transformers, and is written for an older one than attnflow needs. So it
has an environment of its own, and `peer_rankings.AttnLrp` runs this file there:

    python benchmarks/peer_lxt.py FOLDER    # a line of JSON in, a line of JSON out, until the end

In comes {"prompt": token ids, "completion": token ids}. Out goes {"scores": one for each prompt
token, "log_prob": that of the completion, by which the caller sees that the models are the same}.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch

# lxt imports torchvision, which cannot be imported where its compiled operators do not load. They
# are not needed here, but two of them must have been declared.
for _name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{_name}", "(Tensor a, Tensor b, float c) -> Tensor")

from lxt.efficient import monkey_patch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402


def patched_model(folder: str) -> Any:
    """Load a model whose classes lxt has patched, with the rules of AttnLRP."""
    kind = AutoConfig.from_pretrained(folder).model_type
    monkey_patch(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"))
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    return model.eval().requires_grad_(False)


def relevance(model: Any, prompt: list[int], completion: list[int]) -> tuple[list[float], float]:
    """Return input × gradient of the completion's summed logits, and its log-probability."""
    ids = torch.tensor([[*prompt, *completion]])
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    logits = model(inputs_embeds=embedded, use_cache=False).logits[:, len(prompt) - 1 : -1]
    target = torch.tensor([completion])[:, :, None]
    logits.gather(2, target).sum().backward()
    scores = (embedded * embedded.grad).sum(-1)[0, : len(prompt)]
    log_prob = logits.detach().log_softmax(-1).gather(2, target).sum()
    return scores.detach().tolist(), float(log_prob)


def main() -> None:
    """Answer every line."""
    model = patched_model(sys.argv[1])
    for line in sys.stdin:
        case = json.loads(line)
        scores, log_prob = relevance(model, case["prompt"], case["completion"])
        print(json.dumps({"scores": scores, "log_prob": log_prob}), flush=True)


if __name__ == "__main__":
    main()
