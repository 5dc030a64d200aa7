"""What an engine is: it is handed shards, and tells which batch begins and which part is done."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attnflow.corpus.output_folder import PartNotes
from attnflow.corpus.plan import Shard
from attnflow.corpus.settings import Settings
from attnflow.errors import InputError

__all__ = ["BatchBegun", "Engine", "Identity", "PartDone", "Work"]


@dataclass(frozen=True)
class Work:
    """What every worker must know: the settings, the files of the data, where parts go."""

    settings: Settings
    paths: tuple[str, ...]
    output: Path

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `modules` are those that register methods of the user's own."""
        modules = {type(method).__module__ for method in self.settings.methods}
        if "__main__" in modules:
            raise InputError(
                "A method that is defined in the script itself is not known to other processes; "
                "put it in a module and import it, or hand in a loaded model, which runs here."
            )
        return {
            "settings": self.settings.to_dict(),
            "paths": list(self.paths),
            "output": str(self.output),
            "modules": sorted(name for name in modules if not name.startswith("attnflow.")),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Work:
        """The inverse of `to_dict`; imports the modules first."""
        for name in record["modules"]:
            importlib.import_module(name)
        settings = Settings.from_dict(record["settings"])
        return cls(settings, tuple(record["paths"]), Path(record["output"]))


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


@dataclass(frozen=True)
class PartDone:
    """The part of a shard is committed."""

    notes: PartNotes


class Engine(ABC):
    """Runs shards somewhere; leaving it ends all that it started."""

    # Python asks for these three arguments, here as in every context manager.
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def identity(self) -> Identity:
        """Load the model somewhere and say what it is."""

    @abstractmethod
    def run(
        self, shards: Sequence[Shard], about: dict[str, Any]
    ) -> Iterator[BatchBegun | PartDone]:
        """Have these shards explained and committed; `about` goes into every part."""

    def close(self) -> None:
        """End what was started."""
        return
