"""A model is given back as it was: after signals at random moments, and with threads about."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import _GeneratorContextManager, suppress
from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow.hosts import restore
from attnflow.hosts.balanced import BalancedRules
from attnflow.hosts.load import load
from attnflow.hosts.model import adapter_for
from attnflow.hosts.recorder import Intervention
from attnflow.hosts.restore import at_rest, exclusive, undone
from attnflow.testing import tiny_decoder, tiny_encoder
from families import FAMILIES, words
from interrupts import (
    TEXT,
    interrupted_captures,
    strike_way,
    threaded_captures,
    ways_to_interrupt,
)

# An interrupt that comes to the callback of a weak reference is dropped, too, and Python says so.
_DROPPED = "ignore:.*WeakKeyDictionary.*remove:pytest.PytestUnraisableExceptionWarning"
pytestmark = [pytest.mark.timing, pytest.mark.filterwarnings(_DROPPED)]


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell's background job ignores SIGINT, and with it a test run that was started as one.

    Python drops an exception that is raised in a callback of its garbage collector, such as one
    that another test's library left there: the signal would be lost.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    callbacks, gc.callbacks[:] = list(gc.callbacks), []
    yield
    gc.callbacks[:] = callbacks
    signal.signal(signal.SIGINT, before)


def test_signals_at_random_moments_leave_nothing_behind() -> None:
    sent, struck, left = interrupted_captures(40)
    assert sent == 40
    assert struck > 5
    assert left == []


@pytest.mark.filterwarnings("ignore")  # of PEFT and accelerate
@pytest.mark.parametrize("name", ["PEFT: LoRA", "accelerate's `disk_offload`", "`model.compile()`"])
def test_a_held_model_is_given_back_as_it_was_held(name: str) -> None:
    ways = [way for way in ways_to_interrupt() if way.name == name]
    for way in ways:
        _, struck, left = strike_way(way, 12)
        assert struck > 1
        assert left == []


def test_threads_get_the_weights_they_would_get_alone() -> None:
    assert threaded_captures(60)[2] == []


def test_everything_is_undone_before_the_exception_goes_its_way() -> None:
    """A signal in the very first instruction of a `finally` finds the model restored already."""
    module = torch.nn.Linear(2, 2)
    handler = signal.getsignal(signal.SIGINT)
    modes = []

    def strike() -> None:
        with at_rest(module):
            try:
                assert not module.training
                signal.raise_signal(signal.SIGINT)
            finally:
                modes.append(module.training)

    with pytest.raises(KeyboardInterrupt):
        strike()
    assert modes == [True]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("moment", ["__enter__", "__exit__"])
def test_a_signal_at_the_border_of_a_block_leaves_no_mode_of_torch(moment: str) -> None:
    class Struck(BalancedRules):
        def __enter__(self) -> Any:
            super().__enter__()
            if moment == "__enter__":
                signal.raise_signal(signal.SIGINT)
            return self

        def __exit__(self, *error: Any) -> None:
            torch.set_grad_enabled(False)
            if moment == "__exit__" and not struck:
                struck.append(True)
                signal.raise_signal(signal.SIGINT)
            super().__exit__(*error)

    struck: list[bool] = []

    def strike() -> None:
        with at_rest(torch.nn.Linear(2, 2)), Struck():
            pass

    with pytest.raises(KeyboardInterrupt):
        strike()
    assert torch._C._len_torch_function_stack() == 0
    assert not BalancedRules.are_active()
    assert torch.is_grad_enabled()


def test_a_block_of_torch_that_is_struck_at_its_border_puts_no_mode_back_later() -> None:
    """Torch takes a mode away for each operation, by a generator that outlives the interrupt."""
    enter = _GeneratorContextManager.__enter__.__code__

    def strike(frame: Any, event: str, called: Any) -> None:
        entered = event == "c_return" and called is next and frame.f_code is enter
        if entered and frame.f_locals["self"].gen.__name__ == "_pop_mode_temporarily":
            sys.setprofile(None)
            raise KeyboardInterrupt

    def run() -> None:
        with at_rest(torch.nn.Linear(2, 2)), BalancedRules(), torch.enable_grad():
            sys.setprofile(strike)
            torch.nn.functional.silu(torch.ones(2, requires_grad=True))

    with pytest.raises(KeyboardInterrupt) as raised:
        run()
    del raised
    gc.collect()
    assert torch._C._len_torch_function_stack() == 0


def test_a_mode_that_reading_parameters_needs_is_not_left_either() -> None:
    """Some packages bring parameters in whenever they are read, under a mode of their own."""
    model, tokenizer = tiny_decoder()
    model.config.max_position_embeddings = 2048  # rotary: there is room for documents

    def struck(*_: object, **__: object) -> Any:
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt

    doors: list[Callable[[], object]] = [
        lambda: attnflow.capture((model, tokenizer), "the keys"),
        lambda: attnflow.explain((model, tokenizer), "the keys"),
        lambda: attnflow.generate((model, tokenizer), "the keys"),
        lambda: attnflow.ask((model, tokenizer), "the keys", {"a.txt": "the author"}),
    ]
    for door in doors:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model, "named_parameters", struck)
            with pytest.raises(KeyboardInterrupt):
                door()
        assert torch.is_grad_enabled()


def test_a_signal_while_things_are_undone_waits() -> None:
    order: list[str] = []

    def strike() -> None:
        with undone() as changes:
            changes.add(lambda: order.append("second"))
            changes.add(lambda: (signal.raise_signal(signal.SIGINT), order.append("first")))

    with pytest.raises(KeyboardInterrupt):
        strike()
    assert order == ["first", "second"]


def test_no_moment_of_a_block_makes_it_deaf_to_the_next_signal() -> None:
    """A real signal at each call that a block makes at its borders, one after the other."""
    module, handler = torch.nn.Linear(2, 2), signal.getsignal(signal.SIGINT)
    moments, moment = 1, 0

    def watch(frame: Any, event: str, _: object) -> None:
        nonlocal moments
        # Python looks for signals where a function begins, and after each call.
        if event in ("call", "c_return") and frame.f_code.co_filename == restore.__file__:
            moments += 1
            if moments == moment:
                signal.raise_signal(signal.SIGINT)

    def block() -> None:
        sys.setprofile(watch)
        try:
            with at_rest(module):
                pass
        finally:
            sys.setprofile(None)

    def interrupted() -> None:
        with at_rest(module):
            signal.raise_signal(signal.SIGINT)

    block()
    for number in range(1, moments):
        moment, moments = number, 0
        with suppress(KeyboardInterrupt):
            block()
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert module.training
        assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_that_does_not_raise_changes_nothing() -> None:
    module, calls = torch.nn.Linear(2, 2), []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append("called"))
    try:
        with at_rest(module):
            signal.raise_signal(signal.SIGINT)
            assert not module.training
        assert calls == ["called"]
        assert module.training
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_thread_waits_for_the_first() -> None:
    module = torch.nn.Linear(2, 2)
    inside = threading.Event()

    def enter() -> None:
        with exclusive(module):
            inside.set()

    other = threading.Thread(target=enter)
    with exclusive(module), exclusive(module):  # the same thread may ask twice
        other.start()
        assert not inside.wait(0.05)
    other.join(5)
    assert inside.is_set()


def test_another_threads_own_pass_is_not_recorded() -> None:
    """Somebody runs the model in another thread, without attnflow, while it is captured."""
    model = next(f for f in FAMILIES if f.name == "Llama").build()
    expected = attnflow.capture(model, words()).weights
    stop = threading.Event()

    def run() -> None:
        with torch.no_grad():
            while not stop.is_set():
                model(input_ids=torch.tensor([[3, 4]]))

    other = threading.Thread(target=run)
    other.start()
    try:
        for _ in range(10):
            assert (attnflow.capture(model, words()).weights == expected).all()
    finally:
        stop.set()
        other.join()


def test_zeroing_in_one_thread_leaves_captures_in_another_alone() -> None:
    from attnflow.evaluation.importance import ValueZeroing

    model, tokenizer = load()
    errors: list[Exception] = []
    stop = threading.Event()

    def run() -> None:
        try:
            while not stop.is_set():
                attnflow.capture(None, "the key")
        except Exception as error:
            errors.append(error)

    other = threading.Thread(target=run)
    other.start()
    try:
        for _ in range(3):
            ValueZeroing()((model, tokenizer), ["the keys to the cabinet are"])
    finally:
        stop.set()
        other.join()
    assert errors == []


def busy(run: Callable[[], object]) -> Callable[[], None]:
    """Run something over and over in another thread; the function ends it."""
    stop, errors = threading.Event(), []

    def loop() -> None:
        try:
            while not stop.is_set():
                run()
        except Exception as error:
            errors.append(error)

    other = threading.Thread(target=loop)
    other.start()

    def end() -> None:
        stop.set()
        other.join()
        assert errors == []

    return end


def beside(kind: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A pass of the user's own, and something of ours on the same model."""
    from attnflow.methods import Careful

    ids = torch.tensor([[3, 4, 5, 6, 7]])
    if kind == "plain torch":
        layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        plain = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        states = torch.randn(1, 5, 16)
        return lambda: plain(
            states[:, :3]
        ), lambda: attnflow.capture(plain, {"src": states}).weights
    if kind == "values zeroed":
        own, _ = load()
        words = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        zeroed = Intervention(zero_values=[[2, 3]])
        run = adapter_for(own).run_with
        return lambda: own(**words).logits, lambda: run(own, words, zeroed).logits
    model: Any = next(f for f in FAMILIES if f.name == "Llama").build()
    prompt = {"input_ids": ids}
    measured = Careful(level="token")
    runs: dict[str, Callable[[], Any]] = {
        "capture": lambda: attnflow.capture(model, prompt).weights,
        "gradient rows": lambda: attnflow.generate(model, prompt, completion=[8, 9]).values,
        "careful": lambda: attnflow.generate(model, prompt, measured, completion=[8, 9]).values,
    }
    return lambda: model(input_ids=ids[:, :3]).logits, runs[kind]


@pytest.mark.parametrize(
    "kind", ["capture", "gradient rows", "careful", "plain torch", "values zeroed"]
)
def test_what_another_thread_does_with_the_model_is_its_own(kind: str) -> None:
    """Passes of the user's own, beside ours: neither may change the other."""
    user, ours = beside(kind)
    with torch.no_grad():
        alone, expected = user(), ours()

    def check() -> None:
        with torch.no_grad():
            torch.testing.assert_close(user(), alone, rtol=1e-4, atol=1e-5)

    end = busy(check)
    try:
        for _ in range(10):
            with torch.no_grad():
                np.testing.assert_allclose(ours(), expected, rtol=1e-4, atol=1e-6)
    finally:
        end()


def test_an_error_inside_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny_encoder()
    model.train()

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    handle = model.bert.encoder.layer[1].register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        attnflow.capture((model, tokenizer), TEXT, record=["gradients"])
    handle.remove()
    assert all(module.training for module in model.modules())
    model.eval()
    assert attnflow.capture((model, tokenizer), TEXT).layers == (1, 2, 3)
