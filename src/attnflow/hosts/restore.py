"""A model is given back as it was: after errors, after interrupts, and with threads about.

Whoever changes a model writes down how to undo it *before* changing it; the list is worked off when
the block ends. Python delivers a signal to the main thread between any two instructions, also
inside a `finally`, so that alone is not enough. While a model is changed, a handler of ours stands
before the program's own. When that one raises (KeyboardInterrupt), everything is undone first,
inside the handler, and then the exception goes its way; a signal that comes while things are being
undone waits until that is done. So there is no moment at which an interrupt leaves a change behind.

Where a model is spread over several processes, signals wait longer (`in_step`): none of the others
may be left waiting for what an interrupted one never sends.

A model is changed by one thread at a time. Another one that wants it waits.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import _GeneratorContextManager, contextmanager, suppress
from functools import partial, wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, distributed, nn
from torch.overrides import _get_current_function_mode

from attnflow.errors import ModelError, StoppedError
from attnflow.errors.progress import is_heard, tell

_SIGNALS = ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2")
_LONG = 512  # tokens of a text whose pass is told of, layer by layer
_WAIT = 0.0005  # seconds between two looks at whether a model is free
# How quantised layers are kept from packing their weights in a pass without gradients: they do so
# for good, no gradient runs through them afterwards, and an interrupt would leave half of it.
_UNPACKED = {"support_avx512bf16_for_cpu": (True, False), "linear_mode": (None, "train")}

P = ParamSpec("P")
R = TypeVar("R")


class Changes:
    """Changes, each with how it is undone; undone once, the last first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def add(self, undo: Callable[[], object]) -> None:
        """Call this at the end; say so before the change, as undoing nothing must do no harm."""
        self._undo.append(undo)

    def set(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute until the end."""
        before = getattr(owner, name)
        self.add(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def hook(
        self,
        register: Callable[..., Any],
        hook: Callable[..., Any],
        takes_part: Callable[[], bool] | None = None,
        **options: Any,
    ) -> None:
        """Register a hook of torch until the end: its handle exists only after the hook does.

        It takes no part in what another thread does with the model meanwhile, unless `takes_part`
        says so.
        """
        thread = threading.get_ident()
        applies = takes_part or (lambda: threading.get_ident() == thread)

        def own(*arguments: Any, **by_name: Any) -> Any:
            return hook(*arguments, **by_name) if applies() else None

        with _INTERRUPTS:
            self.add(register(own, **options).remove)

    def undo(self) -> None:
        """Put everything back; a second call does nothing."""
        while self._undo:
            self._undo.pop()()


class _Interrupts:
    """Signals that the main thread gets while models are changed: `with` it, they wait."""

    def __init__(self) -> None:
        self._changes: list[Changes] = []  # of the main thread, the outermost first
        self._handlers: dict[int, Any] = {}
        self._waiting: list[int] = []
        self._depth = 0

    def __enter__(self) -> None:
        if _in_main_thread():
            self._depth += 1

    def __exit__(self, *error: object) -> None:
        if not _in_main_thread():
            return
        self._depth -= 1
        while self._waiting and not self._depth:
            signal.raise_signal(self._waiting.pop(0))

    def guard(self, changes: Changes) -> None:
        """From here on these changes are undone before a signal's exception goes its way."""
        if not _in_main_thread():
            return
        self._changes.append(changes)
        for number in (getattr(signal, name, None) for name in _SIGNALS):
            handler = None if number is None else signal.getsignal(number)
            if number is not None and callable(handler) and handler != self._handle:
                self._handlers[number] = handler
                signal.signal(number, self._handle)

    def undo(self, changes: Changes) -> None:
        """Undo these changes and guard them no more; nothing comes in between."""
        with self:
            changes.undo()
            if changes in self._changes:
                self._changes.remove(changes)
        # Only now: while signals wait, the program's own handler must not stand in our place.
        if not self._changes and _in_main_thread():
            self._restore_handlers()

    def take_waiting(self) -> BaseException | None:
        """Deal with the signals that wait; return what a handler of the program's raised."""
        if not _in_main_thread():
            return None
        try:
            while self._waiting:
                number = self._waiting.pop(0)
                self._handlers[number](number, sys._getframe())
        except BaseException as error:
            return error
        return None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._waiting.append(number)
            return
        try:
            self._handlers[number](number, frame)
        except BaseException:
            self._depth += 1  # another signal while this one is dealt with adds nothing
            try:
                while self._changes:
                    self._changes.pop().undo()
                self._waiting.clear()
            finally:
                self._depth -= 1
            self._restore_handlers()
            raise

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():  # kept: a signal may come in between
            if signal.getsignal(number) == self._handle:  # else someone changed it meanwhile
                signal.signal(number, handler)


_INTERRUPTS = _Interrupts()
_BORDERS = [getattr(_GeneratorContextManager, f"__{way}__").__code__ for way in ("enter", "exit")]
_LOCK = threading.RLock()
_OWNERS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_OUT_OF_STEP: WeakSet[nn.Module] = WeakSet()
_ENDED = (
    "One of the processes that have this model between them ended or was cut off in a pass, so the "
    "others wait for what never comes. End all of them and start again, as torchrun does."
)
_STOPPED = (
    "Another of the processes that have this model between them was interrupted, so this call has "
    "ended in all of them, before the same pass. The model is whole: call again, or end them all."
)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def undone() -> Iterator[Changes]:
    """Changes that are undone when the block ends, however it ends."""
    changes = Changes()
    modes, gradients = torch._C._len_torch_function_stack(), torch.is_grad_enabled()
    in_turn = True
    try:
        _INTERRUPTS.guard(changes)
        yield changes
    except BaseException as error:
        in_turn = not isinstance(error, GeneratorExit)  # else the block is closed late
        _close_blocks(error)
        raise
    finally:
        _INTERRUPTS.undo(changes)
        if in_turn:  # an interrupt at the border of a block of torch's own leaves its mode behind
            while torch._C._len_torch_function_stack() > modes:
                _get_current_function_mode().__exit__(None, None, None)
            torch.set_grad_enabled(gradients)


def _close_blocks(error: BaseException) -> None:
    """Close every block that an interrupt came to at its border.

    Else it is closed when nobody holds the traceback any more, and puts back then what it had taken
    away, such as the mode that torch takes away for each operation.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code in _BORDERS:
            frame.f_locals["self"].gen.close()


@contextmanager
def exclusive(model: nn.Module) -> Iterator[Changes]:
    """The model and its parts for this thread alone; waits until no other thread has them.

    The same thread may ask again inside.
    """
    with undone() as changes:
        _claim(list(model.modules()), changes)
        yield changes


def _claim(modules: list[nn.Module], changes: Changes) -> None:
    thread = threading.get_ident()
    while True:
        with _LOCK:  # reentrant: an interrupt may release, in its handler, what is being claimed
            if all(_OWNERS.get(module, thread) == thread for module in modules):
                free = [module for module in modules if module not in _OWNERS]
                changes.add(partial(_release, free))
                for module in free:
                    _OWNERS[module] = thread
                return
        time.sleep(_WAIT)


def _release(modules: list[nn.Module]) -> None:
    with _LOCK:
        for module in modules:
            _OWNERS.pop(module, None)


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for one forward pass; each module gets its own mode back.

    A caller's inference mode is left meanwhile: nothing made in it can have gradients. Modules that
    were compiled run as they were written, since a compiled pass goes past whatever watches it.
    """
    with exclusive(model) as changes, _meeting(model, changes), _out_of_inference_mode():
        for hook in list(model._forward_pre_hooks.values()):
            if getattr(hook, "__name__", "") == "ct_decompress_hook":
                with _INTERRUPTS:  # compressed-tensors unpacks all layers, for good, in any pass
                    hook(model, ())
        for module in model.modules():
            own = vars(module)  # what a module has not is looked for, at length, among its parts
            if "_hf_hook" in own:
                changes.add(partial(_offload_again, module))
            if module.training:
                changes.set(module, "training", False)
            if module._compiled_call_impl is not None:
                changes.set(module, "_compiled_call_impl", None)
            for name, (packs, meanwhile) in _UNPACKED.items():
                if own.get(name, meanwhile) == packs:
                    changes.set(module, name, meanwhile)
            original = getattr(own.get("forward"), "_torchdynamo_orig_callable", None)
            if original is not None and "_hf_hook" not in own:
                changes.set(module, "forward", original)
        if is_heard():
            _tell_layers(model, changes)
        yield


class _Call(threading.local):
    """The call of ours that this thread is in; `stopped` once another process has ended it."""

    depth = 0
    stopped = False

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
        self.stopped = self.stopped and self.depth > 0


_CALL = _Call()


def in_step(call: Callable[P, R]) -> Callable[P, R]:
    """Undo what an interrupt leaves anywhere in a call: a model may change modes of torch to read
    its parameters, before a pass of ours begins.

    Where the model, its first argument, is spread over processes, interrupts wait. They are dealt
    with in all processes at once, before a forward pass (`_meeting`), or when the call is over.
    Then no process waits for another, and no layer is half gathered.
    """

    @wraps(call)
    def whole(*args: P.args, **kwargs: P.kwargs) -> R:
        with undone() as changes:
            if distributed.is_available() and distributed.is_initialized():
                with _INTERRUPTS:
                    model = _spread_model(args[0] if args else kwargs.get("model"))
                    if model is not None:
                        changes.add(partial(_shard_again, model))
                        with _CALL:
                            return call(*args, **kwargs)
            return call(*args, **kwargs)

    return whole


def _spread_model(argument: Any) -> nn.Module | None:
    """Return the model in what was handed in as one, if it is spread over processes."""
    holder = argument[0] if isinstance(argument, tuple) and argument else argument
    for model in (holder, getattr(holder, "module", None), getattr(holder, "model", None)):
        if isinstance(model, nn.Module) and _groups(model):
            return model
    return None


def _shard_again(model: nn.Module) -> None:
    """Give back what FSDP2 keeps gathered behind a pass: whatever is outside of the layers."""
    for module in model.modules():
        if callable(reshard := getattr(module, "reshard", None)):
            reshard()


def _groups(model: nn.Module) -> list[tuple[Any, str]]:
    """Return the groups of processes that have parameters between them, each with its device."""
    groups: dict[str, tuple[Any, str]] = {}
    if not (distributed.is_available() and distributed.is_initialized()):
        return []
    for parameter in model.parameters():
        for axis, placement in enumerate(getattr(parameter, "placements", ())):
            if not placement.is_replicate():
                mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
                group = mesh.get_group(axis)
                groups[group.group_name] = (group, mesh.device_type)
    return list(groups.values())


@contextmanager
def _meeting(model: nn.Module, changes: Changes) -> Iterator[None]:
    """Let all processes of a model that is spread meet before each forward pass.

    If one was interrupted, all end the call there. One that died in a pass leaves the others out of
    step: they say so, and the model is refused from then on.
    """
    groups = _groups(model)
    if not groups:
        yield
        return
    if model in _OUT_OF_STEP:
        raise ModelError(_ENDED)
    if _CALL.stopped:
        raise StoppedError(_STOPPED)
    met = False

    def meet(*_: object) -> None:
        nonlocal met
        error = _INTERRUPTS.take_waiting()
        stops = torch.tensor(float(error is not None))
        for group, device in groups:
            stops = stops.to(device)
            distributed.all_reduce(stops, distributed.ReduceOp.MAX, group=group)
        if stops:
            met, _CALL.stopped = True, _CALL.depth > 0
            raise error or StoppedError(_STOPPED)

    changes.hook(model.register_forward_pre_hook, meet, prepend=True)
    with _INTERRUPTS:
        try:
            yield
        except BaseException as error:
            peer_failed = isinstance(error, distributed.DistError) or "gloo/" in str(error)
            if peer_failed or not (met or isinstance(error, (Exception, GeneratorExit))):
                _OUT_OF_STEP.add(model)
            with suppress(AttributeError, RuntimeError):  # FSDP2 alone has layers to give back
                model.reset_iter_state()  # type: ignore[operator]
            if peer_failed:
                raise ModelError(_ENDED) from error
            raise


def _tell_layers(model: nn.Module, changes: Changes) -> None:
    """Tell of long texts how much of a pass is done: of their tokens the part of the layers."""
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = max(stacks, key=len, default=nn.ModuleList())

    def report(number: int, _layer: nn.Module, inputs: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        tokens = states.shape[-2] if isinstance(states, Tensor) and states.ndim > 1 else 0
        if tokens >= _LONG:
            tell("reading tokens", tokens * number // len(layers), tokens)

    for number, layer in enumerate(layers, 1):
        changes.hook(layer.register_forward_hook, partial(report, number))


def _offload_again(module: Any) -> None:
    """Take out the parameters that accelerate brought in for a pass which did not come to its end.

    It does so itself behind a module that has run, and not behind one that was interrupted.
    """
    for hook in getattr(module._hf_hook, "hooks", (module._hf_hook,)):
        if not getattr(hook, "offload", False):
            continue
        parameters = module.parameters(recurse=hook.place_submodules)
        if any(parameter.device.type != "meta" for parameter in parameters):
            hook.post_forward(module, None)


@contextmanager
def _out_of_inference_mode() -> Iterator[None]:
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def ordinary(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of one that was made in inference mode and can have no gradients."""
    return tensor.clone() if tensor.is_inference() else tensor
