"""Long contexts on one GPU: every bar as a ratio to the plain model, in one run.

    python benchmarks/gpu.py --output out/bench

A Llama of the 8B's shapes with random weights in bfloat16. Time is that of the whole public call,
medians of synchronised runs after a warm-up; memory is the peak above the plain pass's own peak.
Writes gpu.md (the table), gpu.json (all figures) and gpu.png (time and memory against length).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

import attnflow
from attnflow import GradientAttention, GradientRollout, Rollout, capture
from attnflow.errors import OutOfMemoryError
from attnflow.hosts.spans import roll_out_spans

GIGABYTE = 1e9
SPANS, TARGETS, NEW_TOKENS = 128, 64, 128
SHAPES: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 140_000,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
}
TINY: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "Mistral, window": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 300}),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {}),
    "Gemma 2, soft cap": ("Gemma2ForCausalLM", "Gemma2Config", {"sliding_window": 300}),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {"sliding_window": 300}),
    "gpt-oss, sink": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            "sliding_window": 128,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", {}),
}


@dataclass(frozen=True)
class Figure:
    """One bar: what was measured, against what was needed."""

    name: str
    measured: float
    needed: float
    unit: str = "×"
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the bar is kept, to a thousandth."""
        return self.measured <= self.needed * 1.001

    def line(self) -> str:
        """Its line of the table."""
        mark = "yes" if self.holds else "NO"
        return (
            f"| {self.name} | {self.measured:.3g} {self.unit} | ≤ {self.needed:g} {self.unit} "
            f"| {mark} | {self.note} |"
        )


@dataclass(frozen=True)
class Cost:
    """Seconds (median) and peak bytes on the device of one call."""

    seconds: float
    peak: int


def cost(work: Callable[[], object], repeats: int) -> Cost:
    """Synchronised, the result of each run dropped before the next."""
    times = []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        kept = work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        del kept
    return Cost(statistics.median(times), torch.cuda.max_memory_allocated())


def big_model() -> LlamaForCausalLM:
    """The shapes of Llama 3 8B, random weights."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return LlamaForCausalLM(LlamaConfig(**SHAPES)).eval()  # SDPA is the default
    finally:
        torch.set_default_dtype(before)


def prompt(length: int) -> dict[str, Tensor]:
    """Random tokens."""
    noise = torch.Generator(device="cuda").manual_seed(length)
    return {"input_ids": torch.randint(0, 128_000, (1, length), device="cuda", generator=noise)}


@torch.no_grad()
def prefill(model: LlamaForCausalLM, inputs: dict[str, Tensor]) -> Tensor:
    """What everything is held against."""
    return model(**inputs, use_cache=False, logits_to_keep=1).logits


def spans_of(length: int) -> dict[str, tuple[int, int]]:
    """128 spans of equal length."""
    step = length // SPANS
    return {f"span {k}": (k * step, (k + 1) * step) for k in range(SPANS)}


def target_rows(model: LlamaForCausalLM, inputs: dict[str, Tensor]) -> object:
    """The rollout of 64 targets onto every token, at the highest layer."""
    method = Rollout()
    trace = capture(model, inputs, methods=[method], form="factors")
    length = trace.length
    targets = [length - 1 - k * (length // TARGETS) for k in range(TARGETS)]
    return method(trace, targets=targets, layers=-1)


def forward_and_backward(model: LlamaForCausalLM, inputs: dict[str, Tensor]) -> None:
    """The gradient of the answer down to the embedded tokens, blocks computed again."""
    with ExitStack() as stack, torch.enable_grad():
        for layer in model.model.layers:
            layer.__dict__["forward"] = partial(checkpoint, layer.forward, use_reentrant=False)
            stack.callback(layer.__dict__.pop, "forward")
        embedded = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
        logits = model(inputs_embeds=embedded, use_cache=False, logits_to_keep=1).logits
        score = logits[0, -1].float().log_softmax(dim=-1).max()
        torch.autograd.grad(score, embedded)


def gradient_rollout(model: LlamaForCausalLM, inputs: dict[str, Tensor]) -> object:
    """Gradient-weighted rollout of the model's answer onto every token."""
    method = GradientRollout()
    trace = capture(model, inputs, methods=[method], form="factors")
    return method(trace, targets=[trace.length - 1], layers=-1)


def lengths_measured(model: LlamaForCausalLM, lengths: list[int]) -> list[dict[str, float]]:
    """Prefill, spans and rows at every length."""
    rows = []
    for length in lengths:
        inputs, repeats = prompt(length), 2 if length > 100_000 else 3
        ways: dict[str, Callable[[], object]] = {
            "prefill": partial(prefill, model, inputs),
            "spans": partial(roll_out_spans, model, inputs, spans_of(length)),
            "rows": partial(target_rows, model, inputs),
        }
        if length == lengths[0]:
            for way in ways.values():
                way()
        costs = {name: cost(way, repeats) for name, way in ways.items()}
        base = costs["prefill"]
        row = {"length": float(length), "prefill": base.seconds}
        for name in ("spans", "rows"):
            row[name] = costs[name].seconds / base.seconds
            row[f"{name} GB"] = (costs[name].peak - base.peak) / GIGABYTE
        rows.append(row)
        print({name: round(number, 3) for name, number in row.items()}, flush=True)
    return rows


def length_figures(rows: list[dict[str, float]]) -> list[Figure]:
    """The bars of the two exact ways."""
    needed = {32_768: (1.25, 1.5), 131_072: (1.6, 2.0)}
    figures = []
    for row in rows:
        length = int(row["length"])
        if length not in needed:
            continue
        factors = length * 128 * (32 + 8) * 2 * 32 / GIGABYTE  # queries and keys of 32 layers
        spans, targets = needed[length]
        prefill_note = f"prefill {row['prefill']:.2f} s"
        figures += [
            Figure(
                f"every target onto {SPANS} spans, {length:,}",
                row["spans"],
                spans,
                "×",
                prefill_note,
            ),
            Figure(f"the same, extra memory, {length:,}", row["spans GB"], 1.0, "GB"),
            Figure(f"{TARGETS} targets onto every token, {length:,}", row["rows"], targets),
            Figure(f"the same, extra memory, {length:,}", row["rows GB"], round(factors, 2), "GB"),
        ]
    return figures


def gradient_figure(model: LlamaForCausalLM, length: int) -> list[Figure]:
    """Gradient rollout against forward plus backward."""
    inputs = prompt(length)
    gradient_rollout(model, prompt(4096))
    plain = cost(partial(forward_and_backward, model, inputs), 2)
    ours = cost(partial(gradient_rollout, model, inputs), 2)
    note = (
        f"forward and backward {plain.seconds:.2f} s; +{(ours.peak - plain.peak) / GIGABYTE:.1f} GB"
    )
    return [
        Figure(
            f"gradient rollout of one answer, {length:,}",
            ours.seconds / plain.seconds,
            3.0,
            "×",
            note,
        )
    ]


def generation_figure(model: LlamaForCausalLM, length: int, needed: float) -> list[Figure]:
    """Default generate() of 128 tokens against the model's own."""
    inputs = prompt(length)
    forced = {"min_new_tokens": NEW_TOKENS, "pad_token_id": 0}

    def plain(count: int = NEW_TOKENS) -> object:
        options = {**forced, "min_new_tokens": count, "max_new_tokens": count, "do_sample": False}
        mask = torch.ones_like(inputs["input_ids"])
        host: Any = model
        return host.generate(**inputs, attention_mask=mask, **options)

    def explained(count: int = NEW_TOKENS) -> object:
        options: dict[str, Any] = {**forced, "min_new_tokens": count}
        return attnflow.generate(model, inputs, max_new_tokens=count, check=False, **options)

    plain()
    explained()
    pairs = [(cost(plain, 1), cost(explained, 1)) for _ in range(3)]  # they take turns
    base, ours = (
        Cost(statistics.median(one.seconds for one in way), max(one.peak for one in way))
        for way in zip(*pairs, strict=True)
    )
    note = f"generate() {base.seconds:.2f} s, peak {ours.peak / base.peak:.2f} ×"
    name = f"generate {NEW_TOKENS} tokens after {length:,}"
    return [Figure(name, ours.seconds / base.seconds, needed, "×", note)]


def agreement(task: tuple[str, str]) -> tuple[str, str, float, str]:
    """The largest difference from the eager matrix at 2,048 tokens, as a share of the largest."""
    family, dtype_name = task
    warnings.simplefilter("ignore")
    model_name, config_name, options = FAMILIES[family]
    dtype = getattr(torch, dtype_name)
    torch.manual_seed(0)
    try:
        config = getattr(transformers, config_name)(**{**TINY, **options})
        model = getattr(transformers, model_name)(config).eval().to("cuda", dtype)
        ids = torch.randint(3, 512, (1, 2048), device="cuda")
        method = Rollout()
        factors = capture(model, {"input_ids": ids}, form="factors")
        weights = capture(model, {"input_ids": ids}, form="weights")
        ours = method(factors, targets=list(range(31, 2048, 63)), layers=-1).values
        eager = method(weights, targets=list(range(31, 2048, 63)), layers=-1).values
        off = float(abs(ours - eager).max() / abs(eager).max())
        if dtype == torch.float32:
            off = max(off, *gradient_agreement(model, ids[:, :1024]))
        return family, dtype_name, off, str(factors.provenance["attention"])
    except Exception as error:  # a family that fails must not hide the others
        return family, dtype_name, float("inf"), repr(error)[:300]


def gradient_agreement(model: Any, ids: Tensor) -> list[float]:
    """The same for the gradient methods, each as a share of its own largest value."""
    offs = []
    for method in (GradientRollout(), GradientAttention()):
        values = [
            method(
                capture(model, {"input_ids": ids}, methods=[method], form=form),
                targets=[ids.shape[1] - 1],
                layers=-1,
            ).values
            for form in ("factors", "weights")
        ]
        offs.append(float(abs(values[0] - values[1]).max() / abs(values[1]).max()))
    return offs


def agreement_figures() -> list[Figure]:
    """Every family in every dtype, in processes of their own: each compiles its kernels."""
    needed = {"float32": 1e-5, "bfloat16": 2**-7, "float16": 2**-9}
    tasks = [(family, dtype) for family in FAMILIES for dtype in needed]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(14, os.cpu_count() or 1), mp_context=context) as pool:
        rows = list(pool.map(agreement, tasks))
    for row in rows:
        print(row, flush=True)
    return [
        Figure(
            f"agreement at 2,048, {dtype}",
            max(off for _, other, off, _ in rows if other == dtype),
            limit,
            "",
            "worst of " + ", ".join(FAMILIES),
        )
        for dtype, limit in needed.items()
    ]


def refusal(model: LlamaForCausalLM) -> str:
    """What is said when the device is too small: here, when most of it may not be used."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.16)
    try:
        target_rows(model, prompt(65_536))
    except OutOfMemoryError as error:
        return str(error)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return "NOTHING: it fitted"


def table(figures: list[Figure]) -> str:
    """All bars."""
    head = f"# Long contexts on {torch.cuda.get_device_name()}, torch {torch.__version__}"
    lines = [head, "", "| figure | measured | needed | holds | |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(figure.line() for figure in figures)]) + "\n"


def draw(rows: list[dict[str, float]], path: Path) -> None:
    """Time and memory against length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    lengths = [row["length"] for row in rows]
    labels = {
        "spans": f"every target onto {SPANS} spans",
        "rows": f"{TARGETS} targets onto every token",
    }
    for name, label in labels.items():
        left.plot(lengths, [row[name] for row in rows], marker="o", label=label)
        right.plot(
            lengths, [max(row[f"{name} GB"], 0.001) for row in rows], marker="o", label=label
        )
    weights = [32 * 32 * length**2 * 4 / GIGABYTE for length in lengths]
    right.plot(lengths, weights, linestyle="--", color="grey", label="the weights would take")
    left.axhline(1, color="grey", linewidth=1)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{int(length):,}" for length in lengths], rotation=30)
        axes.set_xlabel("tokens")
    right.set_yscale("log")
    right.set_ylim(top=1e8)  # room for the legend
    left.set_ylabel("time, plain prefill = 1")
    right.set_ylabel("extra memory, GB")
    left.set_ylim(bottom=0)
    left.legend(frameon=False)
    right.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure everything, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", "out/bench")))
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768, 65536, 131072]
    )
    parser.add_argument("--skip", nargs="*", default=[], help="agreement, gradient, generate")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    start = time.perf_counter()
    figures = [] if "agreement" in arguments.skip else agreement_figures()
    model = big_model()
    print(f"ready after {time.perf_counter() - start:.0f} s", flush=True)
    if "generate" not in arguments.skip:
        for length, needed in ((32_768, 1.5), (131_072, 1.25)):
            figures += generation_figure(model, length, needed)
            print(figures[-1].line(), flush=True)
    if "gradient" not in arguments.skip:
        figures += gradient_figure(model, 32_768)
        print(figures[-1].line(), flush=True)
    rows = lengths_measured(model, arguments.lengths)
    print(f"without memory: {refusal(model)}", flush=True)
    figures += length_figures(rows)
    record = {"figures": [asdict(figure) for figure in figures], "lengths": rows}
    (arguments.output / "gpu.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    text = table(figures)
    (arguments.output / "gpu.md").write_text(text, encoding="utf-8")
    print(text, f"{time.perf_counter() - start:.0f} s in all", flush=True)
    draw(rows, arguments.output / "gpu.png")


if __name__ == "__main__":
    main()
