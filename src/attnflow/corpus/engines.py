"""Where the work is done: `Local` processes, or the actors of a `Ray` cluster.

Both are plain values. Started, each becomes an `Engine`, which is handed shards and tells which
batch begins and which part is done. A model that is loaded already runs in this process.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.corpus.folder import PartNotes
from attnflow.corpus.plan import Shard
from attnflow.corpus.settings import Columns, Settings
from attnflow.errors import InputError, shorten, whole_number

if TYPE_CHECKING:
    from attnflow.hosts.model import Model


@dataclass(frozen=True)
class JobSpec:
    """What every worker must know.

    model: a name or a path; None is the model that ships with attnflow. paths: the files of the
    data. output: where parts go.
    """

    model: str | None
    settings: Settings
    columns: Columns
    paths: tuple[str, ...]
    output: Path

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; `modules` register the methods of users."""
        modules = {type(method).__module__ for method in self.settings.methods}
        if "__main__" in modules:
            raise InputError(
                "A method that is defined in the script itself is not known to other processes; "
                "put it in a module and import it, or hand in a loaded model, which runs here."
            )
        return {
            "model": self.model,
            "settings": self.settings.to_dict(),
            "columns": asdict(self.columns),
            "paths": list(self.paths),
            "output": str(self.output),
            "modules": sorted(name for name in modules if not name.startswith("attnflow.")),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> JobSpec:
        """Return what `to_dict` was called on; import the modules first."""
        for name in record["modules"]:
            importlib.import_module(name)
        return cls(
            record["model"],
            Settings.from_dict(record["settings"]),
            Columns(**record["columns"]),
            tuple(record["paths"]),
            Path(record["output"]),
        )


@dataclass(frozen=True)
class Identity:
    """What a run depends on beside settings and data, and what its result says of the model."""

    settings: dict[str, Any]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class BatchBegun:
    """A batch of some texts of a shard is being run."""

    shard: int
    texts: int
    tokens: int


Event = BatchBegun | PartNotes
"""A batch that begins, or the notes of a part that is committed."""


class Engine(ABC):
    """Runs shards somewhere; closing it ends all that it started."""

    @abstractmethod
    def identity(self) -> Identity:
        """Load the model somewhere and say what it is."""

    @abstractmethod
    def run(self, shards: Sequence[Shard], about: dict[str, Any]) -> Iterator[Event]:
        """Have these shards explained and committed; `about` goes into every part."""

    def close(self) -> None:
        """End what was started."""
        return


class InlineEngine(Engine):
    """A model that is loaded already, in this process."""

    def __init__(self, job: JobSpec, model: Model) -> None:
        from attnflow.corpus.worker import ShardWorker

        self._worker = ShardWorker(job, model)

    def identity(self) -> Identity:
        """Describe the model as it is."""
        return self._worker.identity()

    def run(self, shards: Sequence[Shard], about: dict[str, Any]) -> Iterator[Event]:
        """Explain one after the other."""
        for shard in shards:
            yield self._worker.run(shard, about)


@dataclass(frozen=True)
class Local:
    """Processes on this machine, each with a copy of the model.

    processes: by default one for each GPU, or else for each core. threads: of each process; by
    default its share of the cores.

    >>> Local(processes=2).processes
    2
    """

    processes: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        _check_counts(processes=self.processes, threads=self.threads)

    def start(self, job: JobSpec) -> Engine:
        """Start the engine, ready to be asked what the model is."""
        from attnflow.corpus.local_engine import ProcessPool

        return ProcessPool(job, self.processes, self.threads)


@dataclass(frozen=True)
class Ray:
    """Actors on a Ray cluster, each with a copy of the model.

    gpus, threads: of each actor. address: of the cluster; by default one is started here.

    >>> Ray(actors=16, gpus=1, address="ray-head:6379").actors
    16
    """

    actors: int = 2
    gpus: float = 0
    address: str | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        _check_counts(actors=self.actors, threads=self.threads)
        if isinstance(self.gpus, bool) or not isinstance(self.gpus, (int, float)) or self.gpus < 0:
            raise InputError(f"gpus is a number of at least 0; got {shorten(self.gpus)}.")

    def start(self, job: JobSpec) -> Engine:
        """Start the engine, ready to be asked what the model is."""
        from attnflow.corpus.ray_engine import RayActors

        return RayActors(job, self)


def _check_counts(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and (whole_number(value) or 0) < 1:
            raise InputError(f"{name} is a whole number of at least 1; got {shorten(value)}.")
