"""What explaining every new token adds to `generate` behind a long prompt, on one GPU.

    python benchmarks/gpu_generation.py --output out/bench

A Llama of the 8B's shapes with random weights in bfloat16, as in gpu.py, writes 128 tokens. Held
against the model's own generate() of the same tokens is attnflow.generate() by its default, which
is gradient attention by balanced gradients: without the check of the verdict, which is the bar, and
once with it. The ways take turns and medians are compared; memory is the peak on the device.
Writes gpu_generation.md and gpu_generation.json. With --tiny a small model runs, on a CPU too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gpu import GIGABYTE, NEW_TOKENS, TINY, Cost, big_model, prompt

import attnflow
from attnflow.attribution.verdict import UNCHECKED

BARS = {32_768: 1.5, 131_072: 1.25}
WARM = 4096  # tokens of the prompt on which every way runs first
FORCED = {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS, "pad_token_id": 0}
COLUMNS = (
    "| prompt + new | generate(), s | explained, s | ratio | needed | holds | with the check "
    "| peak, GB: generate(), explained, with the check | same tokens |"
)


@dataclass(frozen=True)
class Measured:
    """Hold the ways after a prompt of one length; `checked` is None if not asked, or failed."""

    length: int
    plain: Cost
    explained: Cost
    checked: Cost | None
    same: bool
    verdict: str
    seconds: dict[str, list[float]]

    @property
    def ratio(self) -> float:
        """Return the time of explaining every token, where plain generate() is 1."""
        return self.explained.seconds / self.plain.seconds

    def line(self) -> str:
        """Return its line of the table."""
        bar = BARS.get(self.length)
        holds = "yes" if bar is None or self.ratio <= bar * 1.001 else "NO"
        costs = [one for one in (self.plain, self.explained, self.checked) if one is not None]
        checked = None if self.checked is None else self.checked.seconds / self.plain.seconds
        cells = [
            f"{self.length:,} + {NEW_TOKENS}",
            f"{self.plain.seconds:.2f}",
            f"{self.explained.seconds:.2f}",
            f"{self.ratio:.3f} ×",
            *(("–", "–") if bar is None else (f"≤ {bar:g} ×", holds)),
            "–" if checked is None else f"{checked:.3f} ×",
            ", ".join(f"{one.peak / GIGABYTE:.1f}" for one in costs),
            "yes" if self.same else "NO",
        ]
        return f"| {' | '.join(cells)} |"


def tiny_model() -> Any:
    """Build a Llama that any machine runs, in float32."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**TINY, "max_position_embeddings": 140_000})
    model: Any = transformers.LlamaForCausalLM(config).eval()
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def inputs_of(length: int, model: Any) -> dict[str, torch.Tensor]:
    """Draw random tokens."""
    if model.config.vocab_size > TINY["vocab_size"]:
        ids = prompt(length)["input_ids"]
    else:
        noise = torch.Generator().manual_seed(length)
        ids = torch.randint(3, TINY["vocab_size"], (1, length), generator=noise).to(model.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def plain(model: Any, inputs: dict[str, torch.Tensor]) -> Any:
    """Write by the model's own generate(), greedy."""
    return model.generate(**inputs, do_sample=False, **FORCED)


def explained(model: Any, inputs: dict[str, torch.Tensor], check: bool = False) -> Any:
    """Write the same tokens, each attributed to the prompt by the default method."""
    options: dict[str, Any] = {**FORCED, "check": check}
    return attnflow.generate(model, inputs, **options)


def measured(work: Callable[[], Any]) -> tuple[Cost, Any]:
    """Free what was left and run one call; return its cost and what it gave."""
    on_gpu = torch.cuda.is_available()
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    start = time.perf_counter()
    given = work()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return Cost(seconds, torch.cuda.max_memory_allocated() if on_gpu else 0), given


def with_check(model: Any, inputs: dict[str, torch.Tensor]) -> tuple[Cost | None, str]:
    """Return the cost with the check, and the verdict; where it fails, what was raised."""
    try:
        cost, result = measured(partial(explained, model, inputs, check=True))
    except Exception as error:  # a check that does not fit must not hide the bar
        print("with the check:", traceback.format_exc()[-1500:], flush=True)
        return None, f"{type(error).__name__}: {str(error)[:300]}"
    return cost, str(result.verdicts[0] if result.verdicts else result.provenance.get(UNCHECKED))


def measure(model: Any, length: int, rounds: int, check: bool) -> Measured:
    """Let the ways take turns; the tokens of both are compared."""
    inputs, same = inputs_of(length, model), True
    ways: tuple[list[Cost], list[Cost]] = ([], [])
    for _ in range(rounds):
        cost, written = measured(partial(plain, model, inputs))
        ways[0].append(cost)
        ids = written[0, length:].tolist()
        cost, result = measured(partial(explained, model, inputs))
        ways[1].append(cost)
        same = same and result.provenance["completion_ids"] == ids
        values = result.values[-1]
        if values.shape != (NEW_TOKENS, length) or not 0 < values.max() < np.inf:
            raise RuntimeError(f"{values.shape} rows do not explain {NEW_TOKENS} tokens.")
        del result, values
    plain_cost, explained_cost = (
        Cost(statistics.median(one.seconds for one in way), max(one.peak for one in way))
        for way in ways
    )
    checked, verdict = with_check(model, inputs) if check else (None, "")
    names = ("plain", "explained")
    seconds = {n: [one.seconds for one in way] for n, way in zip(names, ways, strict=True)}
    return Measured(length, plain_cost, explained_cost, checked, same, verdict, seconds)


def table(rows: list[Measured]) -> str:
    """Return the table of all lengths."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    head = f"# Every new token explained, on {device}, torch {torch.__version__}"
    lines = [head, "", COLUMNS, f"|{'---|' * (COLUMNS.count('|') - 1)}"]
    verdicts = [f"With the check, {row.length:,}: {row.verdict}" for row in rows if row.verdict]
    return "\n".join([*lines, *(row.line() for row in rows), "", *verdicts]) + "\n"


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", "out/bench")))
    parser.add_argument("--lengths", type=int, nargs="+", default=[32_768, 131_072])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--skip-check", action="store_true", help="only what the bar is about")
    parser.add_argument("--tiny", action="store_true", help="a small model, on a CPU too")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    start, check, rows = time.perf_counter(), not arguments.skip_check, []
    model = tiny_model() if arguments.tiny else big_model()
    measure(model, min(WARM, *arguments.lengths), 1, check)
    print(f"ready after {time.perf_counter() - start:.0f} s", flush=True)
    for length in arguments.lengths:
        rows.append(measure(model, length, arguments.rounds, check))
        text = json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=1)
        (arguments.output / "gpu_generation.json").write_text(text, encoding="utf-8")
        (arguments.output / "gpu_generation.md").write_text(table(rows), encoding="utf-8")
        print(table(rows), f"{time.perf_counter() - start:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
