"""Balanced gradients of one statement on one GPU: every bar as a ratio, in one run.

    python benchmarks/gpu_balanced.py --output out/bench

A Llama of the 8B's shapes with random weights in bfloat16, as in gpu.py. Time is that of the whole
public call against prefill; at 16,384 tokens also against autograd with checkpoints. Memory is the
peak on the device. Special attention (windows, soft caps, sinks) is held against the eager matrix.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from gpu import (
    FAMILIES,
    GIGABYTE,
    TINY,
    Cost,
    Figure,
    big_model,
    cost,
    forward_and_backward,
    prefill,
    prompt,
    table,
)

from attnflow import BalancedGradient, capture
from attnflow.hosts.transformers import fused
from attnflow.kernels.blocks import Band, Factors

BARS = {32_768: 3.5, 131_072: 4.0}


def explain(model: Any, inputs: dict[str, Any]) -> Any:
    """One statement, the model's own answer, onto every token."""
    method = BalancedGradient()
    trace = capture(model, inputs, methods=[method])
    return method(trace, targets=[trace.length - 1], layers=-1)


def agreement(family: str, dtype: torch.dtype) -> float:
    """The largest difference of a long text's reading from the eager matrix's, as a share."""
    model_name, config_name, options = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**{**TINY, **options})
    model = getattr(transformers, model_name)(config).eval().to("cuda", dtype)
    ids = {"input_ids": torch.randint(3, 512, (1, 1024), device="cuda")}
    method = BalancedGradient(drop_sink=False)
    exceeds, worst = length_chooser(), 0.0
    for again in (False, True):
        exceeds(again)
        values = [
            method(capture(model, ids, methods=[method], form=form), targets=-1, layers=-1).values
            for form in ("auto" if again else "factors", "weights")
        ]
        worst = max(worst, float(abs(values[0] - values[1]).max() / abs(values[1]).max()))
    exceeds(None)
    return worst


def length_chooser() -> Callable[[bool | None], None]:
    """Return how to say whether a text is taken as a long one."""
    from attnflow.hosts import factored

    usual = factored._exceeds

    def choose(again: bool | None) -> None:
        factored._exceeds = usual if again is None else (lambda *_: again)

    return choose


def agreement_figures() -> list[Figure]:
    """Every family in float32; bfloat16, which rounds, stands beside it."""
    worst = {}
    for dtype in (torch.float32, torch.bfloat16):
        offs = {}
        for family in FAMILIES:
            offs[family] = float("inf")
            with tried(f"{family}, {dtype}"):
                offs[family] = agreement(family, dtype)
        print(dtype, {name: f"{off:.2g}" for name, off in offs.items()}, flush=True)
        worst[dtype] = max(offs.values())
    note = f"worst of {', '.join(FAMILIES)}; bfloat16 {worst[torch.bfloat16]:.2g}"
    return [Figure("agreement at 1,024, float32", worst[torch.float32], 1e-5, "", note)]


_KERNELS = {"flash": 1, "cudnn": 3, "triton": 0}  # numbers of torch's choice among its own


@contextmanager
def attending_by(kernel: str) -> Iterator[None]:
    """Attend by this kernel, whatever torch would take."""
    usual = torch._fused_sdp_choice
    torch._fused_sdp_choice = lambda *_, **__: _KERNELS[kernel]
    try:
        yield
    finally:
        torch._fused_sdp_choice = usual


def attention_times(length: int) -> list[Figure]:
    """Print forward and backward of one layer by each kernel, in teraflops."""
    shapes = ((32, length, 128), (8, length, 128), (8, length, 128), (32, length, 128))
    query, key, value, gradient = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes
    )
    flops = 4 * length**2 / 2 * 128 * 32
    layer, first = Factors(query, key, 128**-0.5, Band.causal()), None
    for name in _KERNELS:
        with tried(f"kernel {name}"), attending_by(name):
            forward = partial(fused._run, layer, value, False)
            attended = forward()
            whole = replace(layer, value=value, gradient=gradient)
            back = partial(attended.back, whole, attended.output)
            gradients = [part.float() for part in back()]
            first = gradients if first is None else first
            offs = [
                float((a - b).abs().max() / b.abs().max())
                for a, b in zip(gradients, first, strict=True)
            ]
            times = [cost(work, 3).seconds for work in (forward, back)]
            rates = [f * flops / t / 1e12 for f, t in zip((1, 2.5), times, strict=True)]
            print(f"{name} {length}: forward {rates[0]:.0f}, backward {rates[1]:.0f} TFLOP/s; "
                  f"off {offs}", flush=True)  # fmt: skip
    return []


@contextmanager
def tried(name: str) -> Iterator[None]:
    """Print what went wrong in a stage, so that it does not hide the others."""
    start = time.perf_counter()
    try:
        yield
    except Exception:
        print(name, "failed:", traceback.format_exc()[-1500:], flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    print(f"[{name}: {time.perf_counter() - start:.0f} s]", flush=True)


def with_parameters(model: Any, inputs: dict[str, Any]) -> None:
    """The same as a person writes it: backward() of the answer's score, with checkpoints."""
    model.gradient_checkpointing_enable()
    model.train()
    try:
        logits = model(**inputs, use_cache=False, logits_to_keep=1).logits
        logits[0, -1].float().log_softmax(dim=-1).max().backward()
    finally:
        model.zero_grad(set_to_none=True)
        model.gradient_checkpointing_disable()
        model.eval()


def fresh(work: Callable[[], object], repeats: int) -> Cost:
    """The cost of something after what was left is freed."""
    gc.collect()
    torch.cuda.empty_cache()
    return cost(work, repeats)


def against_autograd(model: Any, length: int) -> list[Figure]:
    """Time and extra memory against autograd with checkpoints."""
    inputs = prompt(length)
    explain(model, inputs)
    base = torch.cuda.memory_allocated()
    ours = fresh(partial(explain, model, inputs), 2)
    figures = []
    ways = {"of inputs": forward_and_backward, "backward()": with_parameters}
    for name, way in ways.items():
        plain = fresh(partial(way, model, inputs), 2)
        extra = [(one.peak - base) / GIGABYTE for one in (ours, plain)]
        note = f"{ours.seconds:.2f} s, {plain.seconds:.2f} s"
        figures += [
            Figure(f"balanced, autograd {name}, {length:,}", ours.seconds / plain.seconds, 0.7,
                   "×", note),
            Figure(f"the same, extra memory, {length:,}", extra[0] / extra[1], 0.5, "×",
                   f"{extra[0]:.1f} GB, {extra[1]:.1f} GB"),
        ]  # fmt: skip
    return figures


def lengths_measured(model: Any, lengths: list[int]) -> list[Figure]:
    """One statement against prefill."""
    figures = []
    explain(model, prompt(8192))
    prefill(model, prompt(4096))
    for length in lengths:
        inputs, repeats = prompt(length), 1 if length > 100_000 else 2
        base = fresh(partial(prefill, model, inputs), repeats)
        ours = fresh(partial(explain, model, inputs), repeats)
        name = f"balanced, one statement, {length:,}"
        note = f"prefill {base.seconds:.2f} s, ours {ours.seconds:.2f} s"
        bar = BARS.get(length, 4.0)
        figures += [
            Figure(name, ours.seconds / base.seconds, bar, "×", note),
            Figure(f"the same, peak memory, {length:,}", ours.peak / GIGABYTE, 130.0, "GB"),
        ]
        print(figures[-2].line(), figures[-1].line(), flush=True)
    return figures


def profile(model: Any, length: int) -> list[Figure]:
    """Print where the device's time goes."""
    inputs = prompt(length)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as watched:
        explain(model, inputs)
    rows = sorted(watched.key_averages(), key=lambda row: -row.self_device_time_total)
    for row in rows[:24]:
        print(f"{row.self_device_time_total / 1e6:7.3f} s {row.count:6} {row.key[:110]}")
    return []


def by_cudnn(model: Any, length: int) -> list[Figure]:
    """One statement whose attention is cuDNN's both ways, against the other kernel."""
    inputs = prompt(length)
    usual = explain(model, inputs).values
    with attending_by("cudnn"):
        values = explain(model, inputs).values
        ours = fresh(partial(explain, model, inputs), 2)
    off = float(abs(values - usual).max() / abs(usual).max())
    print(f"cudnn, {length}: {ours.seconds:.2f} s, off {off:.3g}", flush=True)
    return []


def main() -> None:
    """Measure everything, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", "out/bench")))
    parser.add_argument("--stages", nargs="*", default=["lengths", "autograd", "agreement"])
    parser.add_argument("--lengths", type=int, nargs="*", default=[32_768, 131_072])
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    start, figures = time.perf_counter(), []
    model = big_model()
    stages: dict[str, Callable[[], list[Figure]]] = {
        "agreement": agreement_figures,
        "kernels": partial(attention_times, 32_768),
        "lengths": partial(lengths_measured, model, arguments.lengths),
        "autograd": partial(against_autograd, model, 16_384),
        "profile": partial(profile, model, 32_768),
        "cudnn": partial(by_cudnn, model, 32_768),
    }
    for name in arguments.stages:
        with tried(name):
            figures += stages[name]()
            text = table(figures)
            (arguments.output / "gpu_balanced.md").write_text(text, encoding="utf-8")
            print(text, flush=True)
    record = json.dumps([asdict(figure) for figure in figures], indent=1)
    (arguments.output / "gpu_balanced.json").write_text(record, encoding="utf-8")
    print(f"{time.perf_counter() - start:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
