"""The time of an explanation against a plain pass of the same model, forward and back.

`python benchmarks/held_models.py` holds one random language model in every way that makes it slow:
offloaded by accelerate, quantised by whatever package is installed. The processor's time of both is
taken in turn, and the ratio of their medians is printed; 1.3 is the most for the default method.
Gradient attention, which explains every position by its own answer, is printed beside it. Where no
gradient runs through a model, its plain pass is one way only, and its ratio is not judged. The
check of an answer, which runs the model again, is left out. Names choose ways.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import attnflow
import holding  # type: ignore[import-not-found]
from attnflow.hosts.quantised import gradient_barrier

MOST = 1.3
LENGTH = 256
ROUNDS = 5


def language_model() -> Any:
    """Build one whose own arithmetic takes the time."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000}
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, **heads}
    return holding.language_model(**sizes, initializer_range=0.02).requires_grad_(False)


WAYS: dict[str, tuple[str, Callable[[Callable[[], Any]], Any]]] = {
    "as it is": ("torch", lambda build: build()),
    "accelerate's cpu_offload": ("accelerate", partial(holding.offloaded, "cpu")),
    "accelerate's disk_offload": ("accelerate", partial(holding.offloaded, "disk")),
    "torchao, int8 weights": ("torchao", partial(holding.by_torchao, "Int8WeightOnlyConfig")),
    "bitsandbytes, 8 bit": ("bitsandbytes", partial(holding.by_bitsandbytes, 8)),
    "bitsandbytes, 4 bit": ("bitsandbytes", partial(holding.by_bitsandbytes, 4)),
    **{
        f"{kind}, 4 bit": (package, partial(holding.from_folder, kind))
        for kind, package in holding.PACKAGES.items()
    },
    "dynamic int8 of torch": ("torch", holding.dynamic_int8),
}


def plain_pass(model: Any, ids: torch.Tensor, back: bool = True) -> None:
    """What anybody would write: the gradient of the answer's probability at the embedded words."""
    leaves: list[torch.Tensor] = []

    def cut(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        leaves.append(output.detach().requires_grad_(back))
        return leaves[0]

    hook = model.get_input_embeddings().register_forward_hook(cut)
    with torch.set_grad_enabled(back):
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
        if back:
            torch.autograd.grad(logits[0, -1].log_softmax(dim=-1).max(), leaves)
    hook.remove()


def ratio(model: Any, method: str | None, back: bool = True) -> tuple[float, float]:
    """The seconds of a plain pass, and how many times that an explanation takes."""
    ids = torch.randint(3, 1000, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids}
    kinds: list[Callable[[], object]] = [
        lambda: plain_pass(model, ids, back),
        lambda: attnflow.explain(model, inputs, method, check=False),
    ]
    times: list[list[float]] = [[], []]
    for number in range(ROUNDS + 1):
        for kind, seconds in zip(kinds, times, strict=True):
            start = time.process_time()
            kind()
            if number:  # the first time both of them warm up
                seconds.append(time.process_time() - start)
    plain, explained = map(statistics.median, times)
    return plain, explained / plain


def main(*names: str) -> int:
    """Print one line for each way whose package is installed; 1 if any takes too long."""
    transformers.utils.logging.set_verbosity_error()
    worst = 0.0
    for name, (package, hold) in WAYS.items():
        if names and not any(part in name for part in names):
            continue
        if find_spec(package) is None:
            print(f"{name}: {package} is not installed")
            continue
        model = hold(language_model)
        back = gradient_barrier(model) is None
        for method in (None, "gradient-attention") if back else (None,):
            seconds, times = ratio(model, method, back)
            worst = max(worst, times) if back and method is None else worst
            told = f"plain pass {seconds:.3f} s, explained in {times:.2f} times that"
            print(f"{name}, {method or 'default'}: {told}", flush=True)
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
