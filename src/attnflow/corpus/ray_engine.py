"""A cluster: Ray Data hands shards to a pool of actors, each with a copy of the model.

What an actor does with a shard is what a process of the local engine does. It writes the part
itself, so that rows never travel through Ray; what comes back is a line for each part. Ray starts
actors and nodes anew and repeats their tasks. A shard whose part is there already is not done
again, and a part is the same whoever writes it, so repeating loses and doubles nothing. That is
also why Ray Data's own checkpoints are not used: they would say once more what the parts say.

The data and the output must lie where every node finds them under the same path.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from attnflow.corpus.engines import Engine, Event, Identity, JobSpec, Ray
from attnflow.corpus.folder import PartNotes, part_path, read_notes
from attnflow.corpus.plan import Shard
from attnflow.corpus.worker import ShardWorker, load_for
from attnflow.errors import AttnflowError, InputError, ModelError, optional_import

_MOST_BLOCKS = 2000  # of shards; a block is what Ray repeats when an actor dies


class ShardActor:
    """The work of an actor: one model, one shard at a time."""

    def __init__(self, job: dict[str, Any], about: dict[str, Any], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._job, self._about = JobSpec.from_dict(job), about
        device = "cuda" if torch.cuda.is_available() else None
        self._worker = ShardWorker(self._job, load_for(self._job, device))
        settings = about["settings"]
        for name, value in self._worker.identity().settings.items():
            if value != settings[name]:
                raise ModelError(
                    f"The model on this node is another than that of the run: {name} is "
                    f"{value!r} and was {settings[name]!r}."
                )

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Explain the shards of a batch, which is one, and tell what their parts say."""
        notes = [self._explain(Shard(**row)) for row in _rows(batch)]
        return {name: [vars(each)[name] for each in notes] for name in vars(notes[0])}

    def _explain(self, shard: Shard) -> PartNotes:
        present = read_notes(part_path(self._job.output, shard.number))
        if present is not None:
            return PartNotes.of_metadata(present)
        return self._worker.run(shard, self._about)


def start_ray(ray: Any, address: str | None, *, cores: int | None) -> None:
    """Connect to the cluster at the address, or start one with so many cores here."""
    local = {} if address else {"num_cpus": cores, "include_dashboard": False}
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"Ray cannot be reached at {address!r}: {error}.") from error


def _rows(batch: dict[str, Any]) -> Iterator[dict[str, int]]:
    """Yield the rows of a batch, which Ray holds in columns."""
    for row in zip(*(column.tolist() for column in batch.values()), strict=True):
        yield dict(zip(batch, row, strict=True))


class RayActors(Engine):
    """A pool of actors on a Ray cluster, or on one that is started here."""

    def __init__(self, job: JobSpec, options: Ray) -> None:
        self._ray = optional_import("ray", extra="ray", purpose="The engine Ray")
        self._data = optional_import("ray.data", extra="ray", purpose="The engine Ray")
        self._job, self._options = job, options
        self._needs = {"num_cpus": options.threads, "num_gpus": options.gpus}  # of each actor
        self._started = not self._ray.is_initialized()
        if self._started:
            start_ray(self._ray, options.address, cores=options.actors * options.threads + 1)

    def identity(self) -> Identity:
        """Describe the model as a node of the cluster loads it."""
        task = self._ray.remote(**self._needs)(_identity)
        return self._call(lambda: self._ray.get(task.remote(self._job.to_dict())))

    def run(self, shards: Sequence[Shard], about: dict[str, Any]) -> Iterator[Event]:
        """Make a task of each shard; parts are told of as their blocks come back."""
        context = self._data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        items = [asdict(shard) for shard in shards]
        rows = self._data.from_items(items, override_num_blocks=min(len(items), _MOST_BLOCKS))
        parts = rows.map_batches(
            ShardActor,
            fn_constructor_args=(self._job.to_dict(), about, self._options.threads),
            batch_size=1,
            compute=self._data.ActorPoolStrategy(size=min(self._options.actors, len(items))),
            **self._needs,
        )
        batches = iter(parts.iter_batches(batch_size=None))
        while (batch := self._call(lambda: next(batches, None))) is not None:
            yield from (PartNotes(**row) for row in _rows(batch))

    def _call(self, work: Any) -> Any:
        """Call and take off what Ray wraps around an error of ours."""
        try:
            return work()
        except self._ray.exceptions.RayError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, AttnflowError):
                cause = getattr(cause, "cause", None) or cause.__cause__
            if isinstance(cause, AttnflowError):
                raise cause from error
            first = next((line for line in str(error).splitlines() if line.strip()), "")
            raise ModelError(
                f"Ray gave up ({type(error).__name__}: {first[:300]}). What is done is kept; the "
                "same command goes on, also with --engine local."
            ) from error

    def close(self) -> None:
        """Leave the cluster, if it was entered here."""
        if self._started:
            self._ray.shutdown()


def _identity(job: dict[str, Any]) -> Identity:
    spec = JobSpec.from_dict(job)
    return ShardWorker(spec, load_for(spec)).identity()
