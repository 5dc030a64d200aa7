"""Long contexts on the CPU: one target of SmolLM2 onto 8,192 tokens, and one row of a rollout.

    python benchmarks/long_context.py --output out/bench

Each way runs in a process of its own; memory is the peak above the loaded model. The row is of a
trace of 30 layers × 2,048 tokens, against the product of all matrices, which 0.1.0 made.
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
from attnflow import Rollout, capture
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
short, ids = ids, ids[:, :64]
plain(); explained()
ids = short
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
before, start = peak(), time.perf_counter()
"""
_WAYS = {
    "plain forward pass": "plain(); form = ''",
    "one target onto every token": "form = explained()[0].provenance['attention']",
}
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


def long_text(tokens: int, model: str, repeats: int) -> list[str]:
    """SmolLM2: time against a plain pass, memory against the weights."""
    runs = {way: [measure(way, tokens, model) for _ in range(repeats)] for way in _WAYS}
    plain, ours = (statistics.median(run["seconds"] for run in runs[way]) for way in _WAYS)
    memory = max(run["bytes"] for run in runs["one target onto every token"])
    weights = LAYERS * HEADS * tokens**2 * 4
    form = runs["one target onto every token"][0]["form"]
    return [
        f"| SmolLM2, {tokens:,} tokens, one target, {form} | {ours / plain:.2f} × of a plain pass "
        f"({plain:.0f} s) | < 3 × |",
        f"| the same, peak memory | 1/{weights / memory:.0f} of the weights' "
        f"{weights / 1e9:.0f} GB ({memory / 1e9:.2f} GB) | ≤ 1/20 |",
    ]


def one_row(tokens: int = 2048, repeats: int = 3) -> str:
    """One row of a rollout over all layers, against whole matrices."""
    noise = np.random.default_rng(0)
    weights = np.tril(noise.random((LAYERS, 1, tokens, tokens), dtype=np.float32))
    weights /= weights.sum(axis=-1, keepdims=True)
    names = [f"t{k}" for k in range(tokens)]
    trace = AttentionTrace.from_arrays(weights, names, mixed_heads="mean", copy=False)
    method = Rollout()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        row = method(trace, targets=-1, layers=-1).values[0, 0]
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    product = np.eye(tokens)
    for matrix in method.layer_matrices(trace):
        product = matrix @ product
    everything = time.perf_counter() - start
    off = float(abs(product[-1] - row).max())
    fast = statistics.median(times)
    return (
        f"| one row of rollout, {tokens:,} × {LAYERS} layers ({fast:.2f} s) | "
        f"{everything / fast:.0f} × faster than whole matrices, {off:.0e} apart | ≥ 50 × |"
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
    lines += [one_row(), *long_text(arguments.tokens, arguments.model, arguments.repeats)]
    text = "\n".join(lines) + "\n"
    (arguments.output / "long_context.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
