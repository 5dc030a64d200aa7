"""Signals at random moments and threads that get in each other's way: counted, for any number.

`python tests/interrupts.py 1000` sends a thousand real signals and prints how many left a trace.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

import attnflow
import holding
from attnflow.evaluation.importance import InputGradient
from attnflow.hosts import restore
from attnflow.hosts.check import model_state
from attnflow.hosts.load import as_model, load
from attnflow.hosts.transformers import attention
from attnflow.testing import tiny_decoder, tiny_encoder

TEXT = "the author talked to sara about [MASK] book"


def _traces_left(model: Any, state: list[Any], handler: Any) -> list[str]:
    """What an interrupted capture left behind, by name."""
    left = []
    if model_state(model) != state:
        left.append("the model's state")
    if any(parameter.requires_grad for parameter in model.parameters()):
        left.append("flags of gradients")
    if len(attention._POSTS) or len(restore._OWNERS) or attention._NAMED_BEFORE:
        left.append("a claim on the model")
    if attention._HANDLERS:
        left.append("a handler of attention")
    if signal.getsignal(signal.SIGINT) is not handler:
        left.append("a handler of signals")
    return left


def interrupted_captures(count: int, seed: int = 0) -> tuple[int, int, list[str]]:
    """Work on models in train mode, each struck by one real SIGINT at a random moment.

    Captures, and whatever else changes a model for a while: gradient rows, balanced gradients,
    gradients of the embedding. Returns how many signals were sent, how many struck, and what was
    left behind.
    """
    model, tokenizer = tiny_encoder()
    writer, words = tiny_decoder()
    for one in (model, writer):
        one.train()
        for parameter in one.parameters():
            parameter.requires_grad_(False)
    model.get_submodule("bert.encoder.layer.1").eval()  # modes that differ must come back too
    both = torch.nn.ModuleList([model, writer])

    def capture(*record: str) -> Callable[[], object]:
        return lambda: attnflow.capture((model, tokenizer), TEXT, record=record)

    kinds: list[Callable[[], object]] = [
        capture(),
        capture("gradients"),
        capture("alti", "value-zeroing"),
        lambda: attnflow.generate((writer, words), "the keys to", max_new_tokens=3),
        lambda: attnflow.generate((writer, words), "the keys to", "careful", completion=" are"),
        lambda: InputGradient()((model, tokenizer), [TEXT]),
    ]
    state, handler = model_state(both), signal.getsignal(signal.SIGINT)
    return _strike(kinds, count, lambda: _traces_left(both, state, handler), seed)


def _strike(
    kinds: list[Callable[[], object]], count: int, check: Callable[[], list[str]], seed: int
) -> tuple[int, int, list[str]]:
    """Run the kinds in turn, each with a signal on its way; look after each what is left."""
    longest = [_seconds(kind) for kind in kinds]
    chance = random.Random(seed)
    struck, left = 0, []
    for k in range(count):
        kind, after = k % len(kinds), False
        stop = threading.Timer(
            chance.uniform(0, 1.1 * longest[kind]), os.kill, (os.getpid(), signal.SIGINT)
        )
        try:
            stop.start()
            kinds[kind]()
            after = True
            stop.join()
            time.sleep(1)  # the signal comes when the capture has ended
        except KeyboardInterrupt:
            struck += not after
        stop.join()
        left.extend(check())
    return count, struck, left


def interrupted_way(way: holding.Way, count: int, seed: int = 0) -> tuple[int, int, list[str]]:
    """The same while a model is explained as it is held: by attention, and by gradients."""
    held = way.hold()
    model = as_model(holding.as_held(held)).module
    model.requires_grad_(False)
    kinds: list[Callable[[], object]] = [
        lambda: holding.capture(held),
        lambda: holding.explain(held),
        lambda: holding.generate(held),
    ]
    for kind in kinds:  # what a compiler or an offloading hook sets at the first call is there
        kind()
    ids = holding.tokenizer()(holding.PROMPT, return_tensors="pt")

    def state() -> list[Any]:
        names = ("forward", "_compiled_call_impl", "_hf_hook")
        parts = [[id(vars(module).get(name)) for name in names] for module in model.modules()]
        return [*parts, *((p.device, p.requires_grad) for p in model.parameters())]

    def output() -> torch.Tensor:
        with torch.no_grad():
            return model(**ids).logits.clone()

    before, answer, traces = state(), output(), model_state(model)
    handler = signal.getsignal(signal.SIGINT)

    def check() -> list[str]:
        left = _traces_left(model, traces, handler)
        return [*left, *([] if state() == before else ["how it is held"])]

    sent, struck, left = _strike(kinds, count, check, seed)
    return sent, struck, [*left, *([] if torch.equal(output(), answer) else ["its answer"])]


def ways_to_interrupt() -> list[holding.Way]:
    """Those whose packages are installed, and that hold a model which is loaded."""
    ways = [*holding.WAYS, *holding.QUANTISED]
    return [w for w in ways if w.hold is not holding.adapter_folder and find_spec(w.needs)]


def _seconds(run: Callable[[], object]) -> float:
    run()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def threaded_captures(count: int, threads: int = 8) -> tuple[int, int, list[str]]:
    """Captures of two models by many threads that are switched every 10 µs.

    Returns how many captures ran, how many gave other weights than alone, and what was left behind.
    """
    model, tokenizer = tiny_encoder()
    model.train()
    embedded, words = load()
    state, handler = model_state(model), signal.getsignal(signal.SIGINT)
    jobs: list[Callable[[], Any]] = [
        lambda: attnflow.capture((model, tokenizer), TEXT).weights,
        lambda: attnflow.capture((embedded, words), "the keys").weights,
        lambda: attnflow.capture((model, tokenizer), TEXT, record=["alti"]).measured["alti"],
        lambda: attnflow.capture(
            (embedded, words), "the key to", record=["value-zeroing"]
        ).measured["value-zeroing"],
    ]
    expected = [job() for job in jobs]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    wrong: list[str] = []

    def work(first: int) -> None:
        for k in range(first, count, threads):
            try:
                if not np.array_equal(jobs[k % 4](), expected[k % 4]):
                    wrong.append(f"other numbers from job {k % 4}")
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    return count, len(wrong), [*wrong, *_traces_left(model, state, handler)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    tried, struck, left = interrupted_captures(number)
    sys.stdout.write(f"interrupts: {tried} sent, {struck} struck a capture, {len(left)} wrong\n")
    tried, wrong, left = threaded_captures(2 * number)
    sys.stdout.write(f"threads: {tried} captures, {len(left)} wrong {left[:3]}\n")
    for way in ways_to_interrupt():
        tried, struck, left = interrupted_way(way, number)
        line = f"{way.name}: {tried} sent, {struck} struck, {len(left)} wrong {left[:3]}\n"
        sys.stdout.write(line)
