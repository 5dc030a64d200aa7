"""What both towers attend to in one forward pass, kept module by module."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.hosts.recorder import AttentionObserver, RecordedLayer, Recorder

__all__ = ["AttendingModule", "TowerRecorder"]

Array = NDArray[np.float32]


@dataclass(eq=False)
class AttendingModule:
    """One attention module with all its calls of the pass.

    `calls[k]` is (batch, heads, queries, keys). A vision tower may be called once for each image,
    and a tower with windows calls its attention once for each window.
    """

    module: nn.Module
    sink: bool
    calls: list[Array] = field(default_factory=list)
    in_graph: list[list[Tensor]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """How many positions attend in all calls together."""
        return sum(call.shape[0] * call.shape[2] for call in self.calls)


class TowerRecorder(AttentionObserver):
    """Keeps every module's weights as they are shown, heads mixed by `recorder` if it mixes them.

    The same rules as for one tower hold, so its `Recorder` reduces the weights and names the dtype.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.modules: list[AttendingModule] = []
        self._by_id: dict[int, AttendingModule] = {}
        self._rows: list[Array] = []
        self._in_graph: list[Tensor] = []

    def see_rows(self, layer: RecordedLayer, weights: Tensor, rows: slice) -> None:
        """Keep these rows of one call."""
        if rows.start == 0:
            self._rows, self._in_graph = [], []
        self._rows.append(np.array(self.recorder.reduce(weights)))
        if self.recorder.wants_gradients:
            self._in_graph.append(weights)

    def end_layer(self, layer: RecordedLayer) -> None:
        """Keep the call with those of its module."""
        module = self._by_id.get(id(layer.module))
        if module is None:
            module = AttendingModule(layer.module, layer.sink)
            self._by_id[id(layer.module)] = module
            self.modules.append(module)
        module.calls.append(np.concatenate(self._rows, axis=2))
        module.in_graph.append(self._in_graph)
        self._rows, self._in_graph = [], []
