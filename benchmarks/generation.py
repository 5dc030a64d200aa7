"""What attribution adds to generating text: time against plain generate() and against
recomputing the rollout at every step, and peak memory.

    python benchmarks/generation.py --output out/bench

A GPT-2 of 12 layers × 12 heads × 768 with random weights, 1,024 prompt and 128 new tokens, on two
threads; and SmolLM2 with 1,000 prompt and 64 new tokens, if it is installed, in processor time. The
ways take turns, so that a busy moment hits all of them; medians are compared. Memory is the peak of
a process of its own above the loaded model.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import attnflow
from attnflow.errors import MissingDependencyError, percent

PROMPT, NEW, THREADS = 1024, 128, 2
SMALL_PROMPT, SMALL_NEW = 1000, 64
RECOMPUTED = 4  # steps that are really recomputed, evenly spread; the rest costs the same

_PREPARE = """
import sys, json
from pathlib import Path
sys.path.insert(0, "benchmarks")
import torch, attnflow, generation
model, ids = generation.big_model()
model.generate(ids[:, :8], max_new_tokens=2, do_sample=False, pad_token_id=0)
attnflow.generate(model, {"input_ids": ids[:, :8]}, max_new_tokens=2)
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
before = peak()
"""
_WAYS = {
    "plain generate, eager": "kept = model.generate(ids, **generation.GREEDY)",
    "attnflow, default": "kept = generation.explained(model, ids)",
    "attnflow, rollout": "kept = generation.explained(model, ids, method='rollout')",
    "every step's attention kept": (
        "kept = model.generate(ids, output_attentions=True, return_dict_in_generate=True, "
        "**generation.GREEDY)"
    ),
}
GREEDY: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}


def big_model() -> tuple[Any, torch.Tensor]:
    """The model of the bar, with eager attention, and a prompt."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    config = GPT2Config(n_positions=2048, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    model.set_attn_implementation("eager")
    return model, torch.randint(0, config.vocab_size, (1, PROMPT))


def explained(model: Any, ids: torch.Tensor, **options: Any) -> attnflow.Attribution:
    """Every new token attributed: by default gradient attention, in one pass at the end."""
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    result = attnflow.generate(model, inputs, max_new_tokens=NEW, **options, pad_token_id=0)
    assert isinstance(result, attnflow.Attribution)
    return result


def recomputed_step(model: Any, ids: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The last row of the rollout from all attention of the text so far."""
    with torch.no_grad():
        attentions = model(ids, output_attentions=True, use_cache=False).attentions
    rows = torch.eye(ids.shape[1])
    for layer in attentions:
        rows = 0.5 * rows + 0.5 * layer[0].mean(dim=0) @ rows
    return rows[-1].numpy()


def timed(
    run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Any]:
    """Seconds and the result."""
    start = clock()
    found = run()
    return clock() - start, found


WAYS: dict[str, dict[str, Any]] = {
    "default": {"check": False},
    "default, checked": {},
    "rollout": {"method": "rollout", "check": False},
}


def time_big_model(rounds: int) -> tuple[dict[str, float], Any]:
    """Plain generate() and every way of explaining it, in turns: seconds, and the rollout."""
    model, ids = big_model()
    times: dict[str, list[float]] = {way: [] for way in ("plain", *WAYS)}
    result: Any = None
    for _ in range(rounds):
        times["plain"].append(timed(lambda: model.generate(ids, **GREEDY))[0])
        for way, options in WAYS.items():
            seconds, result = timed(lambda o=options: explained(model, ids, **o))  # type: ignore[misc]
            times[way].append(seconds)
    return {way: statistics.median(seconds) for way, seconds in times.items()}, result


def time_recomputed(result: Any) -> tuple[float, float]:
    """Seconds of the rollout from scratch at every step, and how far its rows are from ours."""
    model, ids = big_model()
    text = torch.tensor([[*ids[0].tolist(), *map(int, result.targets)]])
    steps, apart = [], 0.0
    for step in np.linspace(0, NEW - 1, RECOMPUTED).astype(int).tolist():
        seconds, row = timed(lambda n=PROMPT + step: recomputed_step(model, text[:, :n]))  # type: ignore[misc]
        steps.append(seconds)
        apart = max(apart, float(np.abs(row[:PROMPT] - result.values[-1, step]).max()))
    return statistics.fmean(steps) * NEW, apart


def time_smollm2(rounds: int) -> dict[str, float] | None:
    """SmolLM2 as a user runs it: the default method against plain generate."""
    from attnflow.hosts.load import as_model

    try:
        model, tokenizer = as_model(None, default="smollm2")
    except MissingDependencyError as error:
        print(f"SmolLM2 left out: {error}")
        return None
    torch.set_num_threads(THREADS)
    prose = (Path(__file__).parent / "prose.txt").read_text(encoding="utf-8")
    ids = tokenizer(f"{prose}\n{prose}", return_tensors="pt")["input_ids"][:, :SMALL_PROMPT]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    new: dict[str, Any] = {"max_new_tokens": SMALL_NEW, "min_new_tokens": SMALL_NEW}
    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: model.generate(**inputs, do_sample=False, **new)
    }
    for way, options in WAYS.items():
        ways[way] = lambda o=options: attnflow.generate((model, tokenizer), inputs, **o, **new)  # type: ignore[misc]
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            times[way].append(timed(run, time.process_time)[0])
    return {way: statistics.median(seconds) for way, seconds in times.items()}


def peak_memory(way: str) -> float:
    """Megabytes above the loaded model, in a fresh process."""
    code = f"{_PREPARE}\n{_WAYS[way]}\nprint(json.dumps(peak() - before))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    return float(run.stdout.splitlines()[-1])


def _ratios(seconds: dict[str, float]) -> list[str]:
    """A table of each way against plain generate()."""
    plain = seconds["plain"]
    rows = [f"| {way} | {each:.2f} | {each / plain:.2f} × |" for way, each in seconds.items()]
    return ["| generate() | seconds | against plain |", "|---|---|---|", *rows]


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-default", action="store_true", help="only the bars of the default")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    big, rollout = time_big_model(arguments.rounds)
    small = time_smollm2(arguments.rounds)
    print("\n".join(_ratios(big) + ([] if small is None else ["", *_ratios(small)])))
    if arguments.only_default:
        return
    recomputed, apart = time_recomputed(rollout)
    memory = {way: peak_memory(way) for way in _WAYS}
    own, kept = (
        memory[way] - memory["plain generate, eager"]
        for way in ("attnflow, rollout", "every step's attention kept")
    )
    lines = [
        f"# Attribution while generating: {PROMPT:,} + {NEW} tokens, 12 layers × 12 heads × 768",
        "",
        *_ratios(big),
        f"| rollout recomputed at each step ({RECOMPUTED} steps measured) | "
        f"{recomputed:.0f} | {recomputed / big['plain']:.1f} × |",
        "",
        f"Streaming is {recomputed / big['rollout']:.1f} × faster than recomputing; its "
        f"rows differ by {apart:.1e} at most.",
        "",
        "| | peak above the model, MB | above plain generate |",
        "|---|---|---|",
        *(
            f"| {way} | {mb:.0f} | {mb - memory['plain generate, eager']:.0f} |"
            for way, mb in memory.items()
        ),
        "",
        f"Streaming needs {percent(max(own, 0) / kept, 1)} of what keeping every step's attention "
        "needs above plain generate, whose prefill holds all heads of a layer at once; ours does "
        "not.",
    ]
    if small is not None:
        lines += [
            "",
            f"# SmolLM2, {SMALL_PROMPT:,} + {SMALL_NEW} tokens, processor time",
            "",
            *_ratios(small),
        ]
    text = "\n".join(lines) + "\n"
    (arguments.output / "generation.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
