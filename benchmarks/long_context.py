"""Long contexts on the CPU: SmolLM2 by rollout and by balanced gradients, and rows of a rollout.

    python benchmarks/long_context.py --output out/bench [--quick]

Each way runs in a process of its own; memory is the peak above the loaded model. A row is of a
trace of 30 layers × 2,048 tokens, and one for each layer of 24 layers × 1,536 tokens, against the
product of all matrices, in turns on one thread. What counts is the time of the processor, so that
other work on the machine does not. `--quick` explains 2,048 tokens in place of 8,192.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when numpy is imported; torch has its own

import numpy as np

from attnflow import AttentionTrace, Rollout

LAYERS, HEADS = 30, 9  # of SmolLM2
_PREPARE = """
import json, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(2)
import attnflow
from attnflow import BalancedGradient, Rollout, capture
from attnflow.hosts.load import as_model
tokens, where = int(sys.argv[1]), sys.argv[2]
if where:
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).eval()
else:
    model = as_model(None, default="smollm2").module
torch.manual_seed(0)
ids = torch.randint(100, 40000, (1, tokens))
def plain():
    with torch.no_grad():
        model(ids, use_cache=False, logits_to_keep=1)
def explained():
    trace = capture(model, {"input_ids": ids}, methods=[Rollout()])
    return trace, Rollout()(trace, targets=-1, layers=-1)
def balanced():
    trace = capture(model, {"input_ids": ids}, methods=[BalancedGradient()])
    BalancedGradient()(trace, targets=-1, layers=-1)
    return trace
short, ids = ids, ids[:, :64]
plain(); explained(); balanced()
ids = short
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
before, start = peak(), time.process_time()
"""
_WAYS = {
    "plain forward pass": "plain(); form = ''",
    "one target onto every token": "form = explained()[0].provenance.get('attention', 'weights')",
    "balanced gradients": "form = balanced().provenance.get('attention', 'weights')",
}
STATEMENT = 2048  # tokens before a statement that is explained by balanced gradients
_REPORT = """
seconds = time.process_time() - start
print(json.dumps({"bytes": peak() - before, "seconds": seconds, "form": form}))
"""


def measure(way: str, tokens: int, model: str) -> dict[str, float]:
    """Run one way in a fresh process."""
    code = f"{_PREPARE}\n{_WAYS[way]}\n{_REPORT}"
    command = [sys.executable, "-c", code, str(tokens), model]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(run.stdout.splitlines()[-1]))


def times(ways: tuple[str, ...], tokens: int, model: str, repeats: int) -> list[dict[str, float]]:
    """The median time and the largest peak of some ways."""
    rows = []
    for way in ways:
        runs = [measure(way, tokens, model) for _ in range(repeats)]
        seconds = statistics.median(run["seconds"] for run in runs)
        rows.append({**runs[0], "seconds": seconds, "bytes": max(run["bytes"] for run in runs)})
    return rows


def long_text(tokens: int, model: str, repeats: int) -> list[str]:
    """SmolLM2: time against a plain pass, memory against the weights."""
    first, rollout, balanced = _WAYS
    plain, ours, *others = times(
        tuple(_WAYS) if tokens == STATEMENT else (first, rollout), tokens, model, repeats
    )
    weights = LAYERS * HEADS * tokens**2 * 4
    lines = [
        f"| SmolLM2, {tokens:,} tokens, one target, {ours['form']} | "
        f"{ours['seconds'] / plain['seconds']:.2f} × of a plain pass ({plain['seconds']:.0f} s) "
        "| < 3 × |",
        f"| the same, peak memory | 1/{weights / ours['bytes']:.0f} of the weights' "
        f"{weights / 1e9:.0f} GB ({ours['bytes'] / 1e9:.2f} GB) | ≤ 1/20 |",
    ]
    plain, ours = (
        (plain, *others) if others else times((first, balanced), STATEMENT, model, repeats)
    )
    return [
        *lines,
        f"| SmolLM2, {STATEMENT:,} tokens, balanced gradients of one statement | "
        f"{ours['seconds'] / plain['seconds']:.2f} × of a plain pass ({plain['seconds']:.0f} s), "
        f"{ours['bytes'] / 1e9:.2f} GB | ≤ 3.5 × |",
    ]


def rollout_rows(layers: int, tokens: int, every: bool, needed: int, repeats: int = 3) -> str:
    """One target's row at the highest layer, or at every one, against whole matrices."""
    noise = np.random.default_rng(0)
    weights = np.tril(noise.random((layers, 1, tokens, tokens), dtype=np.float32))
    weights /= weights.sum(axis=-1, keepdims=True)
    names = [f"t{k}" for k in range(tokens)]
    trace = AttentionTrace.from_arrays(weights, names, mixed_heads="mean", copy=False)
    method, fast, slow = Rollout(), [], []
    for _ in range(repeats):
        start = time.process_time()
        rows = method(trace, targets=-1, layers=None if every else -1).values[:, 0]
        fast.append(time.process_time() - start)
        start, product, expected = time.process_time(), np.eye(tokens), []
        for matrix in method.layer_matrices(trace):
            product = matrix @ product
            expected.append(product[-1].copy())
        slow.append(time.process_time() - start)
    off = float(abs(np.stack(expected)[-len(rows) :] - rows).max())
    what = "a row for every layer" if every else "one row"
    return (
        f"| {what} of rollout, {tokens:,} × {layers} layers ({statistics.median(fast):.2f} s) | "
        f"{statistics.median(slow) / statistics.median(fast):.0f} × faster than whole matrices, "
        f"{off:.0e} apart | ≥ {needed} × |"
    )


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="2,048 tokens, some minutes")
    parser.add_argument(
        "--model", default="", help="a folder with SmolLM2; default: attnflow[demo]"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    lines = ["# Long contexts on the CPU", "", "| figure | measured | needed |", "|---|---|---|"]
    for layers, tokens, every, needed in ((LAYERS, 2048, False, 50), (24, 1536, True, 30)):
        lines.append(rollout_rows(layers, tokens, every, needed))
        print(lines[-1], flush=True)
    tokens = STATEMENT if arguments.quick else arguments.tokens
    lines += long_text(tokens, arguments.model, arguments.repeats)
    text = "\n".join(lines) + "\n"
    (arguments.output / "long_context.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
