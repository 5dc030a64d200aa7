"""The cost of a method on a prompt: passes of the model, seconds, memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Meter:
    """Count what a block costs: passes of a model (rows forward, calls backward), time, memory.

    memory: megabytes at the peak above what was held before; of a CPU, of the whole process.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.passes, self.seconds, self.memory = model, 0, 0.0, float("nan")
        self._depth = 0

    @contextmanager
    def running(self) -> Iterator[Meter]:
        """Measure the block."""
        grad, backward = torch.autograd.grad, torch.autograd.backward
        device = next(self.model.parameters()).device
        modules = {self.model, getattr(self.model, "base_model", self.model)}
        hooks = [m.register_forward_pre_hook(self._enter, with_kwargs=True) for m in modules]
        hooks += [m.register_forward_hook(self._leave, always_call=True) for m in modules]
        torch.autograd.grad = self._counting(grad)
        torch.autograd.backward = self._counting(backward)
        before = _reset_peak(device)
        start = time.perf_counter()
        try:
            yield self
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        finally:
            self.seconds = time.perf_counter() - start
            self.memory = _peak(device) - before
            torch.autograd.grad, torch.autograd.backward = grad, backward
            for hook in hooks:
                hook.remove()

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.passes += 1
            return function(*arguments, **options)

        return counted

    def _leave(self, *_: Any) -> None:
        self._depth -= 1

    def _enter(self, _: nn.Module, arguments: tuple[Any, ...], options: Any) -> None:
        self._depth += 1
        if self._depth > 1:  # a head counts with the body it calls
            return
        names = ("input_ids", "inputs_embeds", "pixel_values", "decoder_input_ids")
        inputs = [*arguments, *(options.get(name) for name in names)]
        self.passes += next((len(each) for each in inputs if isinstance(each, Tensor)), 1)


def _reset_peak(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) / 2**20
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def _peak(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return _status("VmHWM")


def _status(name: str) -> float:
    """Return a line of what Linux says of this process, in megabytes; elsewhere nan."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("nan")
    return next((float(x.split()[1]) / 2**10 for x in lines if x.startswith(name)), float("nan"))
