"""Long contexts on the CPU: SmolLM2 by rollout and by balanced gradients, and rows of a rollout.

    python benchmarks/long_context.py --output out/bench

Each way runs in a process of its own; memory is the peak above the loaded model. A row is of a
trace of 30 layers × 2,048 tokens, and one for each layer of 24 layers × 1,536 tokens, against the
product of all matrices.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

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
before, start = peak(), time.perf_counter()
"""
_WAYS = {
    "plain forward pass": "plain(); form = ''",
    "one target onto every token": "form = explained()[0].provenance['attention']",
    "balanced gradients": "form = balanced().provenance['attention']",
}
STATEMENT = 2048  # tokens before a statement that is explained by balanced gradients
_REPORT = """
seconds = time.perf_counter() - start
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
    plain, ours = times((first, rollout), tokens, model, repeats)
    weights = LAYERS * HEADS * tokens**2 * 4
    lines = [
        f"| SmolLM2, {tokens:,} tokens, one target, {ours['form']} | "
        f"{ours['seconds'] / plain['seconds']:.2f} × of a plain pass ({plain['seconds']:.0f} s) "
        "| < 3 × |",
        f"| the same, peak memory | 1/{weights / ours['bytes']:.0f} of the weights' "
        f"{weights / 1e9:.0f} GB ({ours['bytes'] / 1e9:.2f} GB) | ≤ 1/20 |",
    ]
    plain, ours = times((first, balanced), STATEMENT, model, repeats)
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
    method, times = Rollout(), []
    for _ in range(repeats):
        start = time.perf_counter()
        rows = method(trace, targets=-1, layers=None if every else -1).values[:, 0]
        times.append(time.perf_counter() - start)
    start, product, expected = time.perf_counter(), np.eye(tokens), []
    for matrix in method.layer_matrices(trace):
        product = matrix @ product
        expected.append(product[-1].copy())
    everything = time.perf_counter() - start
    off = float(abs(np.stack(expected)[-len(rows) :] - rows).max())
    fast, what = statistics.median(times), "a row for every layer" if every else "one row"
    return (
        f"| {what} of rollout, {tokens:,} × {layers} layers ({fast:.2f} s) | "
        f"{everything / fast:.0f} × faster than whole matrices, {off:.0e} apart | ≥ {needed} × |"
    )


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--model", default="", help="a folder with SmolLM2; default: attnflow[demo]"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    lines = ["# Long contexts on the CPU", "", "| figure | measured | needed |", "|---|---|---|"]
    lines += [
        rollout_rows(LAYERS, 2048, every=False, needed=50),
        rollout_rows(24, 1536, every=True, needed=30),
    ]
    lines += long_text(arguments.tokens, arguments.model, arguments.repeats)
    text = "\n".join(lines) + "\n"
    (arguments.output / "long_context.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
