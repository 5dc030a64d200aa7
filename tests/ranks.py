"""A model over two processes, each of which must get what one process gets: `two_ranks(kind)`.

`python tests/ranks.py 1000 tp` interrupts one of the two, or both, as often, at random moments. The
call has to end in both, the other one with a sentence, and both have to go on with the same model.
"""

from __future__ import annotations

import faulthandler
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
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import distributed, multiprocessing

import attnflow
import holding
from attnflow.errors import AttnflowError, StoppedError
from attnflow.hosts import restore
from attnflow.hosts.check import model_state
from interrupts import WORDS, _seconds, state_of, traces_left

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
    if kind == "fsdp":
        return sharded(transformers.AutoModelForCausalLM.from_pretrained(folder))
    return transformers.AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")


def sharded(model: Any) -> Any:
    """Return the model as FSDP2 shards it over all processes, layer by layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


# --- interrupts -----------------------------------------------------------------------------------


def strike_ranks(kind: str, count: int) -> tuple[Counter[str], list[str]]:
    """Interrupt one of two processes, or both, so often; how they ended, what they left behind."""
    place = Path(tempfile.mkdtemp())

    def strike(model: Any, rank: int) -> None:
        with (place / f"end{rank}").open("w", buffering=1) as file:
            for end in _struck(model, rank, count):
                file.write(json.dumps(end) + "\n")

    _fork_both(kind, place, strike)
    ended = [[json.loads(line) for line in _lines(place / f"end{rank}")] for rank in range(2)]
    pairs = list(zip_longest(*ended, fillvalue=["died", []]))
    ends = Counter(", ".join(sorted(end for end, _ in pair)) for pair in pairs)
    if len(pairs) < count:
        ends["never run"] = count - len(pairs)
    return ends, [trace for pair in pairs for _, traces in pair for trace in traces]


def end_one(kind: str) -> list[str]:
    """One of two processes ends inside a pass: what the other says then, and to its next call."""
    place = Path(tempfile.mkdtemp())

    def run(model: Any, rank: int) -> None:
        job = _jobs((model, holding.tokenizer()))[1]
        job()
        if rank:
            model.model.layers[1].register_forward_hook(lambda *_: os._exit(0))
        told = []
        for _ in range(2):
            try:
                job()
            except Exception as error:
                told.append(f"{type(error).__name__}: {error}")
        (place / "told").write_text("\n".join(told))

    _fork_both(kind, place, run)
    return _lines(place / "told")


def _fork_both(kind: str, place: Path, work: Callable[[Any, int], None]) -> None:
    """Do this in two processes, forked so that neither needs to import anything."""
    folder = holding.folder()
    for job in _jobs((holding.plain(), holding.tokenizer())):
        job()  # what is imported at the first call
    forked = []
    for rank in range(2):
        forked.append(os.fork())
        if forked[-1] == 0:
            try:
                faulthandler.dump_traceback_later(_SECONDS, exit=True)
                work(_held(rank, str(place / "meeting"), folder, kind), rank)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)  # at once: the other process waits
    for process in forked:
        os.waitpid(process, 0)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _jobs(given: Any) -> list[Callable[[], Any]]:
    return [
        lambda: attnflow.capture(given, WORDS).weights,
        lambda: attnflow.explain(given, WORDS, check=False).values,
        lambda: attnflow.generate(given, WORDS, max_new_tokens=2, check=False).values,
    ]


def _struck(model: Any, rank: int, count: int) -> Iterator[tuple[str, list[str]]]:
    """Strike job after job; how each ended in this process, and what it left of the model."""
    model.requires_grad_(False)
    jobs = _jobs((model, holding.tokenizer()))
    expected = [job() for job in jobs]
    seconds = [_seconds(job) for job in jobs]
    before, traces, handler = state_of(model), model_state(model), signal.getsignal(signal.SIGINT)
    for number in range(count):
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        kind, chance = number % 3, random.Random(2 * number + rank)
        distributed.barrier()
        struck = number // 3 % 3 in (rank, 2)
        end = _strike(jobs[kind], chance.uniform(0, seconds[kind]) if struck else None)
        left = traces_left(model, traces, handler)
        apart = [a[0] for a, b in zip(state_of(model), before, strict=True) if a != b]
        left.extend(f"how it is held: {name}" for name in apart)
        start = time.perf_counter()
        try:  # both go on, in step
            if not np.array_equal(jobs[kind](), expected[kind]):
                left.append("other numbers in the next call")
        except Exception as error:
            left.append(f"{type(error).__name__} in the next call")
        seconds[kind] = time.perf_counter() - start  # other work on this machine comes and goes
        yield end, left


class _StruckCall(restore._Call):
    """A call that lets a signal come so many seconds after it has begun: then, the others wait."""

    moment: float | None = None
    stop: threading.Timer | None = None

    def __enter__(self) -> None:
        super().__enter__()
        if self.moment is not None:
            main = (threading.main_thread().ident, signal.SIGINT)
            self.stop = threading.Timer(self.moment, signal.pthread_kill, main)
            self.moment = None
            self.stop.start()


def _strike(job: Callable[[], object], moment: float | None) -> str:
    """Run a job with a signal on its way, or with none; how it ended."""
    restore._CALL = call = _StruckCall()
    call.moment = moment
    end = ""
    try:
        job()
        end = "whole"
    except KeyboardInterrupt:
        end = "interrupted"
    except AttnflowError as error:
        end = "told" if isinstance(error, StoppedError) else repr(error)
    except Exception as error:
        end = f"bare {type(error).__name__}"
    try:
        if call.stop is not None and end != "interrupted":
            call.stop.join()
            time.sleep(1)
    except KeyboardInterrupt:  # it came when the call had ended
        pass
    return end


def main(count: int, *kinds: str) -> int:
    """Strike these kinds, each so often; a line for each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    torch.set_num_threads(1)
    wrong = 0
    allowed = {"whole, whole", *(f"interrupted, {end}" for end in ("interrupted", "told", "whole"))}
    for kind in kinds or ("tp", "fsdp"):
        start = time.monotonic()
        ends, left = strike_ranks(kind, count)
        bad = sum(number for end, number in ends.items() if end not in allowed) + len(left)
        told = f"{dict(ends)}, {bad} wrong {left[:3]} ({time.monotonic() - start:.0f} s)"
        sys.stdout.write(f"{kind}: {count} signals, {told}\n")
        sys.stdout.flush()
        wrong += bad
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
