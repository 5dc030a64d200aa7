"""Every kind of number attnflow computes, on fixed inputs: a rewrite is held against them.

    python tests/same_numbers.py write numbers.npz      before the rewrite
    python tests/same_numbers.py compare numbers.npz    after it: every array, bit for bit

Bits depend on the machine's arithmetic, so the file is made anew on each machine, and is not kept.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import attnflow
from attnflow.testing import random_trace, tiny_encoder

Array = NDArray[Any]
TEXTS = ("the key to the cabinets", "the senators near the old mill")


def traces() -> Iterator[tuple[str, Any]]:
    """Random attention of every kind: bidirectional, causal, one head, one layer, deep."""
    for seed, (layers, heads, n, causal) in enumerate(
        [(1, 1, 3, False), (3, 2, 7, False), (6, 4, 12, False), (4, 3, 9, True), (10, 2, 8, True)]
    ):
        shape = "causal" if causal else "dense"
        yield f"trace{seed}", random_trace(layers, heads, n, seed=seed, shape=shape)


def plain_methods(causal: bool) -> list[Any]:
    """Settings that need nothing beside weights."""
    common: list[Any] = [
        attnflow.Raw(),
        attnflow.Rollout(),
        attnflow.Rollout(residual=None, heads="max"),
        attnflow.Rollout(residual="one-step", drop=(0,)),
        attnflow.Rollout(heads=0, discard=0.3, start_layer=1),
        attnflow.Flow(),
        attnflow.Flow(residual=0.3, normalized=True, tolerance=0.01),
    ]
    if causal:
        fields = ("column", "element", "uniform-baseline")
        common += [attnflow.Rollout(receptive_field=name) for name in fields]
    return common


def arrays_of(name: str, result: Any) -> Iterator[tuple[str, Array]]:
    """What a result holds."""
    for part in ("values", "lower", "upper", "saturated", "elsewhere"):
        array = getattr(result, part)
        if array is not None:
            yield f"{name}/{part}", np.asarray(array)


def on_arrays() -> Iterator[tuple[str, Array]]:
    """Methods and derived results on random traces."""
    for name, trace in traces():
        for k, method in enumerate(plain_methods(trace.kind == "causal")):
            result = method(trace)
            yield from arrays_of(f"{name}/{k}-{method.name}", result)
            yield from arrays_of(f"{name}/{k}-{method.name}/sum", result.normalize("sum"))
            yield from arrays_of(f"{name}/{k}-{method.name}/max", result.normalize("max"))
            yield from arrays_of(f"{name}/{k}-{method.name}/mean", result.mean_over_layers())
            yield from arrays_of(f"{name}/{k}-{method.name}/span", result.spans({"a": (0, 2)}))
            yield from arrays_of(f"{name}/{k}-{method.name}/row", method(trace, targets=[1, 0]))
        cut = attnflow.Flow().minimum_cut(trace, target=trace.length - 1, source=0)
        yield f"{name}/cut", np.array([cut.value, *(edge.capacity for edge in cut.edges)])


def on_models() -> Iterator[tuple[str, Array]]:
    """Captures with everything beside the weights, by the embedded model and a tiny BERT."""
    loaded = tiny_encoder()
    cases = [(None, None, text) for text in TEXTS]
    for k, (model, tokenizer, text) in enumerate([*cases, (*loaded, "one [MASK] three")]):
        for method in (
            *("raw", "rollout", "flow", "gradient-rollout", "gradient-flow"),
            *("measured-residual", "norm-rollout", "alti", "value-zeroing"),
        ):
            result = attnflow.explain(model, text, method, targets="all", tokenizer=tokenizer)
            yield from arrays_of(f"model{k}/{method}", result)
            assert result.prediction is not None
            yield f"model{k}/{method}/prediction", np.array([result.prediction.probability])
            yield from arrays_of(f"model{k}/{method}/words", result.merge_words())


def on_completions() -> Iterator[tuple[str, Array]]:
    """What a tiny Llama and GPT-2 write, streamed and after the fact."""
    sizes = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    llama = transformers.LlamaConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        **sizes,
    )
    gpt2 = transformers.GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=64, **sizes)
    for kind, config in (
        (transformers.LlamaForCausalLM, llama),
        (transformers.GPT2LMHeadModel, gpt2),
    ):
        torch.manual_seed(0)
        model = kind(config).eval()
        inputs = {"input_ids": torch.tensor([[1, 5, 6, 7, 8, 9, 10, 11]])}
        for method in (attnflow.Rollout(), attnflow.Rollout(residual="one-step", drop=(0,)), "raw"):
            name = f"{kind.__name__}/{method}"
            result = attnflow.generate(model, inputs, max_new_tokens=7, method=method)
            yield from arrays_of(f"{name}/streamed", result)
            ids = [int(text) for text in result.targets.texts]
            after = attnflow.explain_completion(model, inputs, ids, method=method)
            yield from arrays_of(f"{name}/after", after)


def on_evaluation() -> Iterator[tuple[str, Array]]:
    """Methods held against what the embedded model uses."""
    evaluation = attnflow.evaluate_methods(None, list(TEXTS), methods=["raw", "rollout", "alti"])
    for k, record in enumerate(evaluation.records):
        for row, scores in record.scores.items():
            yield f"evaluation/{k}/{row}", np.array(list(scores.values()), dtype=np.float64)


def numbers() -> dict[str, Array]:
    """All of it, by name."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)
    return dict((*on_arrays(), *on_models(), *on_completions(), *on_evaluation()))


def main(mode: str, path: str) -> int:
    """Write the numbers, or compare them with those written before."""
    if mode == "write":
        arrays = numbers()
        np.savez(Path(path), **arrays)
        print(f"{len(arrays)} arrays written to {path}")
        return 0
    before = dict(np.load(path))
    after = numbers()
    missing = sorted(before.keys() ^ after.keys())
    differing = [
        name
        for name in before.keys() & after.keys()
        if not np.array_equal(before[name], after[name], equal_nan=True)
    ]
    for name in (*missing, *sorted(differing)):
        print("missing" if name in missing else "differs", name)
    print(f"{len(before)} arrays, {len(differing)} differ, {len(missing)} missing")
    return int(bool(missing or differing))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
