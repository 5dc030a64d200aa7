"""Signals at random moments and threads that get in each other's way: counted, for any number.

`python tests/interrupts.py 1000` sends a thousand real signals, to every way of holding a model
as well, lets as many calls fail inside, and prints how many left a trace. Names choose ways.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from types import FrameType
from typing import Any

import numpy as np
import torch

import attnflow
import holding
from attnflow.evaluation.importance import InputGradient
from attnflow.hosts import restore
from attnflow.hosts.check import model_state
from attnflow.hosts.fingerprint import _plain_tensors
from attnflow.hosts.load import as_model, load
from attnflow.hosts.transformers import attention
from attnflow.testing import tiny_decoder, tiny_encoder

TEXT = "the author talked to sara about [MASK] book"
WORDS = "the key is of"


def traces_left(model: Any, state: list[Any], handler: Any) -> list[str]:
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
    if restore._INTERRUPTS._depth or restore._INTERRUPTS._waiting:
        left.append("signals that wait")
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
    return _strike(kinds, count, lambda: traces_left(both, state, handler), seed)


class StruckError(Exception):
    """Raised from the inside of a pass, as an operation that fails would."""


def _strike(
    kinds: list[Callable[[], object]], count: int, check: Callable[[], list[str]], seed: int
) -> tuple[int, int, list[str]]:
    """Run the kinds in turn, each with a signal on its way; look after each what is left."""
    longest = [_seconds(kind) for kind in kinds]
    chance, main = random.Random(seed), threading.main_thread().ident
    struck, left = 0, []
    for k in range(count):
        kind, after = k % len(kinds), False
        # To this very thread: another one would take it, and leave this one asleep.
        send = (main, signal.SIGINT)
        stop = threading.Timer(chance.uniform(0, longest[kind]), signal.pthread_kill, send)
        try:
            start = time.perf_counter()
            stop.start()
            kinds[kind]()
            after = True
            longest[kind] = time.perf_counter() - start  # other work on this machine comes and goes
            stop.join()
            time.sleep(1)  # the signal comes when the capture has ended
        except KeyboardInterrupt:
            struck += not after
        except (SystemError, ValueError) as error:  # what torch's C++ makes of an interrupt in it
            struck += 1
            left.extend([f"{error!r} without a signal"] if stop.is_alive() else [])
        stop.join()
        left.extend(check())
    return count, struck, left


def fail_inside(
    kinds: list[Callable[[], object]],
    count: int,
    check: Callable[[], list[str]],
    counts: Callable[[str, FrameType], bool] | None = None,
) -> tuple[int, int, list[str]]:
    """Run the kinds in turn, each with an error in one of its calls; look after each what is left.

    Any call of Python or C in it is as likely to fail as another, or any that `counts`.
    """
    totals = [_calls(kind, counts) for kind in kinds]
    chance = random.Random(0)
    struck, left = 0, []
    for k in range(count):
        kind = k % len(kinds)
        try:
            _calls(kinds[kind], counts, chance.randrange(totals[kind]))
        except Exception as error:
            chain: BaseException | None = error
            while chain is not None and not isinstance(chain, StruckError):
                chain = chain.__cause__ or chain.__context__
            struck += chain is not None
            if chain is None:
                left.append(f"{type(error).__name__}: {error}")
        left.extend(check())
    return count, struck, left


def _calls(
    run: Callable[[], object],
    counts: Callable[[str, FrameType], bool] | None = None,
    fails: int | None = None,
) -> int:
    """The number of calls in this run, one of which fails.

    None fails while the model is changed or put back: those calls set attributes and no more, and
    what can come between two of them is a signal.
    """
    seen = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if event in ("call", "c_call") and (counts is None or counts(event, frame)):
            seen += 1
            if fails is not None and seen > fails and not _restores(frame):
                sys.setprofile(None)
                raise StruckError

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen


def _restores(frame: FrameType | None) -> bool:
    """Whether something is being changed or put back: by us, or on the way in or out of a block."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == restore.__file__ or code.co_name in ("__enter__", "__exit__"):
            return True
        frame = frame.f_back
    return False


def state_of(model: torch.nn.Module) -> list[Any]:
    """Everything of a model that an explanation could leave changed, each part with its name.

    Hooks, modes, how it is held; its config; weights and buffers to the last bit, with their
    gradients and where they are.
    """
    names = ("forward", "_compiled_call_impl", "_hf_hook", "training", "__class__")
    parts: list[Any] = [("config", repr(getattr(model, "config", None)))]
    for path, module in model.named_modules():
        hooks = {k: [*v] for k, v in vars(module).items() if k.endswith("_hooks") and v}
        held = [id(vars(module).get(name, name)) for name in names]
        config = getattr(getattr(module, "config", None), "_attn_implementation", None)
        parts.append((path, type(module), module.training, hooks, held, config))
    tensors = (*model.named_parameters(), *model.named_buffers())
    return [*parts, *((name, *_tensor_state(tensor)) for name, tensor in tensors)]


def _tensor_state(tensor: torch.Tensor) -> list[Any]:
    facts: list[Any] = [type(tensor), tensor.device, tensor.requires_grad, tensor.grad is None]
    packed = vars(getattr(tensor, "quant_state", None) or object) if tensor.__dict__ else {}
    inside = [v for v in packed.values() if isinstance(v, torch.Tensor)]
    pieces = [piece for value in (tensor, *inside) for piece in _plain_tensors(value)]
    return [*facts, *(None if p.is_meta else _bytes(p) for p in pieces)]


def _bytes(tensor: torch.Tensor) -> int:
    flat = tensor.detach().contiguous().flatten()
    return hash(flat.view(torch.uint8).numpy().tobytes())


def strike_way(
    way: holding.Way, count: int, by: str = "signals", seed: int = 0
) -> tuple[int, int, list[str]]:
    """Explain a model as it is held, by attention and by gradients, and interrupt that.

    by: "signals", real ones at random moments, or "errors", raised by any call of the pass.
    """
    held = way.hold()
    given = holding.as_held(held)
    model = as_model(given).module
    model.requires_grad_(False)
    kinds: list[Callable[[], object]] = [
        lambda: attnflow.capture(given, WORDS),
        lambda: attnflow.explain(given, WORDS, check=False),
        lambda: attnflow.generate(given, WORDS, max_new_tokens=2, check=False),
    ]
    for kind in kinds:  # what a compiler or an offloading hook sets at the first call is there
        kind()
    ids = holding.tokenizer()(holding.PROMPT, return_tensors="pt")

    def answer() -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = model(**ids).logits.clone()
        return logits

    logits, values = answer(), holding.explain(held)
    before, traces = state_of(model), model_state(model)
    handler = signal.getsignal(signal.SIGINT)

    def check() -> list[str]:
        left = traces_left(model, traces, handler)
        if (after := state_of(model)) != before:
            apart = [a[0] for a, b in zip(after, before, strict=False) if a != b]
            left.append(f"how it is held: {apart or 'its parts'}")
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            left.append("a mode of torch")
        if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
            left.append("a mode of torch's dispatcher")
        return left if torch.equal(answer(), logits) else [*left, "its answer"]

    if by == "signals":
        sent, struck, left = _strike(kinds, count, check, seed)
    else:
        sent, struck, left = fail_inside(kinds, count, check)
    if not np.array_equal(holding.explain(held), values):
        left.append("its explanation")
    return sent, struck, left


def ways_to_interrupt() -> list[holding.Way]:
    """Those whose packages are installed, and that hold a model which is loaded."""
    batches = holding.Way("`generate_batch`, continuous batching", holding.after_batches)
    ways = [*holding.WAYS, *holding.QUANTISED, batches]
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
    return count, len(wrong), [*wrong, *traces_left(model, state, handler)]


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(number: int = 1000, *names: str) -> int:
    """Strike captures, threads and each way to hold a model so often, or the ways named; print."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    total = 0
    if not names:
        tried, struck, left = interrupted_captures(number)
        _tell(f"interrupts: {tried} sent, {struck} struck a capture, {len(left)} wrong")
        tried, _, wrong = threaded_captures(2 * number)
        _tell(f"threads: {tried} captures, {len(wrong)} wrong {wrong[:3]}")
        total = len(left) + len(wrong)
    for way in ways_to_interrupt():
        if names and not any(name in way.name for name in names):
            continue
        for by in ("signals", "errors"):
            start = time.monotonic()
            tried, struck, left = strike_way(way, number, by)
            seconds = time.monotonic() - start
            told = f"{tried} {by}, {struck} struck, {len(left)} wrong ({seconds:.0f} s)"
            _tell(f"{way.name}: {told} {left[:3]}")
            total += len(left)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main(*(int(word) if word.isdigit() else word for word in sys.argv[1:])))
