"""A model over two processes, each of which must get what one process gets: `two_ranks(kind)`.

`python tests/ranks.py 1000 tp` interrupts one of the two as often, at random moments. It has to
give the model back and to end; the other one has to say in a sentence why it cannot go on.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import distributed, multiprocessing

import attnflow
import holding
from attnflow.errors import AttnflowError, ModelError
from attnflow.hosts.check import model_state
from interrupts import WORDS, state_of, traces_left

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
    model = _held(rank, place, folder, kind)
    answers.put({door: np.asarray(holding.DOORS[door](model)) for door in doors})
    distributed.barrier()


def _held(rank: int, place: str, folder: str, kind: str) -> Any:
    """This process's part of a model, once it has met the other."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(number) for name, number in numbers.items()})
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    transformers.utils.logging.disable_progress_bar()
    return _sharded(folder) if kind == "fsdp" else _parallel(folder)


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


# --- interrupts -----------------------------------------------------------------------------------


def strike_ranks(kind: str, count: int) -> tuple[Counter[str], list[str]]:
    """Interrupt one of two processes, so often; how both ended, and what they left behind.

    Each time two processes are forked, so that none of them needs to import anything.
    """
    folder = holding.folder()
    explain = _jobs((holding.plain(), holding.tokenizer()))[1]
    explain()  # what is imported at the first call
    ends: Counter[str] = Counter()
    left: list[str] = []
    for number in range(count):
        place = Path(tempfile.mkdtemp())
        forked = [_fork(rank, place, folder, kind, number) for rank in range(2)]
        for process in forked:
            os.waitpid(process, 0)
        both = [place / f"end{rank}" for rank in range(2)]
        ended = [json.loads(e.read_text()) if e.exists() else ["died", []] for e in both]
        ends[f"{ended[number % 2][0]}, {ended[1 - number % 2][0]}"] += 1
        left.extend(trace for _, traces in ended for trace in traces)
    return ends, left


def _fork(rank: int, place: Path, folder: str, kind: str, number: int) -> int:
    process = os.fork()
    if process == 0:
        try:
            signal.alarm(_SECONDS)
            end = _end(_held(rank, str(place / "meeting"), folder, kind), number, rank)
            (place / f"end{rank}").write_text(json.dumps(end))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)  # at once: the other process waits
    return process


def _jobs(given: Any) -> list[Callable[[], object]]:
    return [
        lambda: attnflow.capture(given, WORDS),
        lambda: attnflow.explain(given, WORDS, check=False),
        lambda: attnflow.generate(given, WORDS, max_new_tokens=2, check=False),
    ]


def _end(model: Any, number: int, rank: int) -> tuple[str, list[str]]:
    """How this process's part of one job ended, and what it left of the model otherwise.

    A signal inside FSDP2's own gathering leaves a layer half gathered. That is no change of ours,
    and the process is of no more use.
    """
    model.requires_grad_(False)
    job = _jobs((model, holding.tokenizer()))[number % 3]
    start = time.perf_counter()
    job()
    moment = random.Random(number).uniform(0, time.perf_counter() - start)
    _shard_again(model)
    before, traces, handler = state_of(model), model_state(model), signal.getsignal(signal.SIGINT)
    distributed.barrier()
    main = (threading.main_thread().ident, signal.SIGINT)
    stop = threading.Timer(moment, signal.pthread_kill, main)
    end = "whole"
    try:
        if rank == number % 2:
            stop.start()
        job()
    except KeyboardInterrupt:
        end = "interrupted"
    except AttnflowError as error:
        end = "told" if isinstance(error, ModelError) else repr(error)
    except Exception as error:
        end = f"bare {type(error).__name__}"
    stop.cancel()
    if end == "whole":
        _shard_again(model)
    left = traces_left(model, traces, handler)
    after = state_of(model)
    gathers = hasattr(model, "reset_iter_state") and end == "interrupted"
    skipped = dict(model.named_parameters()) if gathers else {}
    apart = [a[0] for a, b in zip(after, before, strict=True) if a != b and a[0] not in skipped]
    left.extend(f"how it is held: {name}" for name in apart)
    if end != "whole":
        left.extend(_goes_on(job))
    return end, left


def _shard_again(model: Any) -> None:
    """After a whole pass FSDP2 keeps what lies outside the layers gathered."""
    if hasattr(model, "reset_iter_state"):
        model.reset_iter_state()


def _goes_on(job: Callable[[], object]) -> list[str]:
    """A process that is alone now may not wait, and not take one message for another."""
    try:
        job()
    except ModelError:
        return []
    except Exception as error:
        return [f"{type(error).__name__} in the next pass"]
    return ["a next pass"]


def main(count: int, *kinds: str) -> int:
    """Strike these kinds, each so often; a line for each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    torch.set_num_threads(1)
    wrong = 0
    for kind in kinds or ("tp", "fsdp"):
        ends, left = strike_ranks(kind, count)
        allowed = {"whole, whole", "interrupted, told", "interrupted, whole"}
        bad = sum(number for end, number in ends.items() if end not in allowed) + len(left)
        sys.stdout.write(f"{kind}: {count} signals, {dict(ends)}, {bad} wrong {left[:3]}\n")
        sys.stdout.flush()
        wrong += bad
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
