"""Peak memory of capturing attention: attnflow against the host's own output_attentions=True.

    python benchmarks/memory.py --output out/bench

A BERT of 12 layers × 12 heads × 768 with random weights over 2,048 tokens. Each way runs in a
process of its own; what counts is the peak above the loaded model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

_PREPARE = """
import json, sys, time
from pathlib import Path
import torch
from transformers import BertConfig, BertModel
torch.set_num_threads(2)
tokens = int(sys.argv[1])
torch.manual_seed(0)
config = BertConfig(max_position_embeddings=tokens, attn_implementation=sys.argv[2])
model = BertModel(config).eval()
ids = torch.randint(0, config.vocab_size, (1, tokens))
import attnflow
with torch.no_grad():
    model(ids[:, :8])
attnflow.capture(model, {"input_ids": ids[:, :8]}, heads="mean")
# Not getrusage: a child begins with the peak of the process that started it.
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
before, start = peak(), time.perf_counter()
"""

_WAYS = {
    "plain forward pass, SDPA": ("sdpa", "with torch.no_grad(): model(ids)"),
    "output_attentions=True": (
        "eager",
        "with torch.no_grad(): kept = model(ids, output_attentions=True).attentions",
    ),
    "attnflow, heads mixed": (
        "sdpa",
        "kept = attnflow.capture(model, {'input_ids': ids}, heads='mean')",
    ),
    "attnflow, every head": ("sdpa", "kept = attnflow.capture(model, {'input_ids': ids})"),
}

_REPORT = """
print(json.dumps({"megabytes": peak() - before, "seconds": time.perf_counter() - start}))
"""


def measure(way: str, tokens: int) -> dict[str, float]:
    """Run one way in a fresh process."""
    implementation, line = _WAYS[way]
    code = f"{_PREPARE}\n{line}\n{_REPORT}"
    command = [sys.executable, "-c", code, str(tokens), implementation]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(run.stdout))


def main() -> None:
    """Measure every way, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--tokens", type=int, default=2048)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    found = {way: measure(way, arguments.tokens) for way in _WAYS}
    theirs = found["output_attentions=True"]["megabytes"]
    lines = [
        f"# Peak memory above the model, {arguments.tokens} tokens, 12 layers × 12 heads",
        "",
        "| way | MB | lower by | seconds |",
        "|---|---|---|---|",
    ]
    for way, figures in found.items():
        times = f"{theirs / figures['megabytes']:.1f} ×"
        lines.append(
            f"| {way} | {figures['megabytes']:,.0f} | {times} | {figures['seconds']:.1f} |"
        )
    text = "\n".join(lines) + "\n"
    (arguments.output / "memory.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
