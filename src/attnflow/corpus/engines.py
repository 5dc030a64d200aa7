"""The contract of engines: what a worker must know, what an engine does and tells, and the options
that say where the work is done, `Local` processes or the actors of a `Ray` cluster.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnflow.corpus.folder import PartNotes
from attnflow.corpus.plan import Shard
from attnflow.corpus.settings import Columns, Settings
from attnflow.errors import InputError, shorten
from attnflow.errors.arguments import check_count


@dataclass(frozen=True)
class JobSpec:
    """All that a worker must know; without a model it is the one that ships with attnflow."""

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
    """The facts of a model that a run depends on, and those that its result names."""

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

    def pace(self, sample: Shard) -> float | None:
        """Return the seconds that a text takes, measured on some; None where nothing measures."""
        return None

    @abstractmethod
    def run(self, shards: Sequence[Shard], about: dict[str, Any]) -> Iterator[Event]:
        """Have these shards explained and committed; `about` goes into every part."""

    def close(self) -> None:  # noqa: B027  # an engine may have started nothing
        """End what was started."""


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
        for name, value in vars(self).items():
            if value is not None:
                check_count(name, value, 1)


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
        check_count("actors", self.actors, 1)
        check_count("threads", self.threads, 1)
        if isinstance(self.gpus, bool) or not isinstance(self.gpus, (int, float)) or self.gpus < 0:
            raise InputError(f"gpus is a number of at least 0; got {shorten(self.gpus)}.")
