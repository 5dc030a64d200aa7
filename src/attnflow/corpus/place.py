"""Where the work is done: in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from attnflow.corpus.engine import Engine, Work
from attnflow.corpus.local_engine import InlineEngine, LocalEngine
from attnflow.errors import InputError, did_you_mean, shorten, whole_number

__all__ = ["Place"]

_ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Place:
    """An engine and what it may use; None leaves a number to the engine.

    processes, threads: of the local engine, and threads of each. actors, gpus, address: of Ray,
    GPUs for each actor, and the cluster.

    >>> Place("ray", actors=4).engine
    'ray'
    """

    engine: str = "local"
    processes: int | None = None
    threads: int | None = None
    actors: int = 2
    gpus: float = 0
    address: str | None = None

    def __post_init__(self) -> None:
        if self.engine not in _ENGINES:
            hint = did_you_mean(str(self.engine), _ENGINES)
            raise InputError(f"engine is 'local' or 'ray'; got {shorten(self.engine)}.{hint}")
        for name in ("processes", "threads", "actors"):
            value = getattr(self, name)
            if value is not None and (whole_number(value) or 0) < 1:
                raise InputError(f"{name} is a whole number of at least 1; got {shorten(value)}.")
        if isinstance(self.gpus, bool) or not isinstance(self.gpus, (int, float)) or self.gpus < 0:
            raise InputError(f"gpus is a number of at least 0; got {shorten(self.gpus)}.")
        if self.engine == "local" and (self.address is not None or self.gpus):
            name = "gpus" if self.address is None else "address"
            raise InputError(
                f"{name}={shorten(getattr(self, name))} is for engine='ray' (--engine ray); the "
                "local engine takes the GPUs that there are."
            )

    def open(self, work: Work, model: Any, tokenizer: Any) -> Engine:
        """The engine, ready to be asked what the model is."""
        if not (model is None or isinstance(model, (str, os.PathLike))):
            return self._inline(work, model, tokenizer)
        if tokenizer is not None:
            raise InputError("tokenizer is for a loaded model; a name or a folder brings its own.")
        if self.engine == "local":
            return LocalEngine(work, self.processes, self.threads)
        from attnflow.corpus.ray_engine import RayEngine

        return RayEngine(
            work,
            actors=self.actors,
            gpus=self.gpus,
            threads=self.threads or 1,
            address=self.address,
        )

    def _inline(self, work: Work, model: Any, tokenizer: Any) -> Engine:
        if self.engine != "local" or (self.processes or 1) != 1:
            raise InputError(
                "A loaded model runs in this process alone; give its name or its folder to run it "
                "in several processes or on Ray."
            )
        if self.threads is not None:
            raise InputError(
                f"threads={self.threads} is for processes; a loaded model has those of this "
                "process: torch.set_num_threads(...)."
            )
        from attnflow.hosts.model import Model

        return InlineEngine(work, Model(model, tokenizer))
