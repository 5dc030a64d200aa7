"""Value zeroing: replay one layer with the value of one position zeroed, for every position.

A layer is replayed on the very arguments it was called with, so everything but that value is as it
was; the weights too, since queries and keys do not change. It works for any layer whose attention
goes through a function of ours: nothing about its inside needs to be known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from attnflow.errors import CaptureError, UnsupportedModelError
from attnflow.errors.progress import tell
from attnflow.hosts.blocks import Parts, watched_blocks
from attnflow.hosts.recorder import Intervention, Recorder, Session
from attnflow.hosts.restore import undone

VALUE_ZEROING = "value-zeroing"
_WEIGHTS_AT_ONCE = 2**21  # queries × keys of all the copies of an example that are replayed at once
# How far a replay may be from what it replays, as a share of the output's spread: rounding.
_APART = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}


def outermost_layers(model: nn.Module) -> list[nn.Module]:
    """Return the members of module lists that lie in no other list: the layers, among them."""
    layers: list[nn.Module] = []
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not name.startswith(inside):
            layers.extend(module)
            inside = (*inside, f"{name}.")
    return layers


@contextmanager
def measured(
    recorder: Recorder,
    session: Session,
    model_name: str,
    parts: Sequence[Parts],
    layers: Sequence[nn.Module],
) -> Iterator[None]:
    """Measure what the recorder was asked for: blocks taken apart, attending layers replayed."""
    replay = _Replay(recorder, session)
    with watched_blocks(parts, recorder, model_name), undone() as changes:
        for layer in layers if VALUE_ZEROING in recorder.record else ():
            changes.hook(layer.register_forward_pre_hook, replay.begin, with_kwargs=True)
            changes.hook(layer.register_forward_hook, replay.end)
        yield


class _Replay:
    """The call of the layer that is running, and what is done when it ends."""

    def __init__(self, recorder: Recorder, session: Session) -> None:
        self.recorder = recorder
        self.session = session
        self.arguments: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}
        self.recorded_before = 0

    def begin(self, layer: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.arguments, self.options = arguments, options
        self.recorded_before = len(self.recorder.layers)

    def end(self, layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        attended = len(self.recorder.layers) - self.recorded_before
        if attended > 1:
            raise UnsupportedModelError(
                f"A {type(layer).__name__} attends {attended} times, so zeroing a value in it is "
                f"not one thing and {VALUE_ZEROING!r} cannot be measured."
            )
        if attended == 1:
            with torch.no_grad():
                self.recorder.measure(VALUE_ZEROING, self._distances(layer, _states(output)))

    def _distances(self, layer: nn.Module, output: Tensor) -> Tensor:
        """(batch, n, n): the cosine distance of each position's output, for each zeroed source."""
        batch, length = output.shape[:2]
        distances = torch.zeros(batch, length, length, dtype=torch.float64)
        step = max(1, _WEIGHTS_AT_ONCE // length**2)
        for example in range(batch):
            again = self._run(layer, example, batch, [[]])
            _check_replay(layer, again[0], output[example])
            for start in range(0, length, step):
                # how many positions of all layers are done, if their number is known
                done = (len(self.recorder.layers) - 1) * batch * length + example * length + start
                tell(VALUE_ZEROING, done, self.recorder.expected * batch * length)
                positions = range(start, min(start + step, length))
                turned = self._run(layer, example, batch, [[k] for k in positions])
                near = torch.cosine_similarity(turned.double(), again.double(), dim=-1)
                distances[example][:, list(positions)] = (1 - near).clamp(min=0).T.cpu()
        return distances

    def _run(self, layer: nn.Module, example: int, batch: int, silent: list[list[int]]) -> Tensor:
        """Run the layer on copies of one example, values at `silent` positions zeroed."""
        copies = len(silent)
        with self.session.replay(Intervention(zero_values=silent)):
            arguments = [_copies(x, example, batch, copies) for x in self.arguments]
            options = {name: _copies(x, example, batch, copies) for name, x in self.options.items()}
            if "use_cache" in options:
                options["use_cache"] = False
            return _states(layer.forward(*arguments, **options))


def _copies(argument: Any, example: int, batch: int, count: int) -> Any:
    """One example of an argument over the batch, `count` times; a cache is left out, being full."""
    if isinstance(argument, Cache):
        return None
    if isinstance(argument, (tuple, list)):
        return type(argument)(_copies(part, example, batch, count) for part in argument)
    if isinstance(argument, Tensor) and argument.ndim > 1 and len(argument) == batch:
        return argument[example : example + 1].expand(count, *argument.shape[1:])
    return argument


def _states(output: Any) -> Tensor:
    """A layer's output, (batch, positions, width), whatever else it returns beside it."""
    states: Tensor = output[0] if isinstance(output, (tuple, list)) else output
    return states


def _check_replay(layer: nn.Module, again: Tensor, output: Tensor) -> None:
    apart = float((again - output).float().abs().max()) / (float(output.float().std()) or 1.0)
    if not apart <= _APART.get(output.dtype, 1e-3):
        raise CaptureError(
            f"A {type(layer).__name__} that runs again on the same input gives another output "
            f"(relative difference {apart:.1e}), so the effect of zeroing a value in it cannot be "
            "measured. Gradient methods work on this model."
        )
