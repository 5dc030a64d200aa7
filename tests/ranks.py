"""A model over two processes, each of which must get what one process gets: `two_ranks(kind)`."""

from __future__ import annotations

import os
import queue
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import distributed, multiprocessing

import holding

_SECONDS = 120


def two_ranks(kind: str, doors: tuple[str, ...] = tuple(holding.DOORS)) -> dict[str, float]:
    """How far each door is from a single process in the worse of two, by gloo on this machine.

    kind: "tp", tensor parallelism by `tp_plan="auto"`, or "fsdp", torch's `fully_shard`.
    """
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    place = str(Path(tempfile.mkdtemp()) / "meeting")
    options = (place, holding.folder(), kind, doors, answers)
    processes = [context.Process(target=_run, args=(rank, *options)) for rank in range(2)]
    try:
        for process in processes:
            process.start()
        expected = {door: holding.DOORS[door](holding.plain()) for door in doors}
        results = [answers.get(timeout=_SECONDS) for _ in processes]
    except queue.Empty as error:
        raise AssertionError(f"two processes gave no answer in {_SECONDS} s") from error
    finally:
        for process in processes:
            process.kill()
            process.join()
    return {
        door: max(float(np.abs(result[door] - expected[door]).max()) for result in results)
        for door in doors
    }


def _run(rank: int, place: str, folder: str, kind: str, doors: Any, answers: Any) -> None:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(number) for name, number in numbers.items()})
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    transformers.utils.logging.disable_progress_bar()
    model = _sharded(folder) if kind == "fsdp" else _parallel(folder)
    answers.put({door: np.asarray(holding.DOORS[door](model)) for door in doors})
    distributed.barrier()


def _parallel(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")


def _sharded(folder: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
