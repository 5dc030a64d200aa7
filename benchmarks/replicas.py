"""Replicas of the server on Ray: requests in a second of two against one.

    python benchmarks/replicas.py --output out/bench [--threads 1] [--rounds 5] [--quick]

A random Llama of 32 million weights answers 32 tokens over documents and cites them. Each replica
computes on as many threads as every other (`--threads`), whether there is one or two, so that the
second one brings cores of its own. Clients ask again as soon as they are answered; what is answered
in the seconds of a round counts. Rounds of one and of two replicas take turns, and the median of
their ratios is the figure. It needs no network.

Beside it stands what other work on the machine does not change: the time of the processor that a
request costs in the replica, in Ray's proxy and in the clients, and the share of the time in which
the busiest thread of each replica computes or waits for a core (Linux's `schedstat`). A replica
that waits for anything else, such as a router, a lock or its clients, has less than 1. From both
follows the ratio that two replicas would have with cores enough.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

BAR = 1.6
PATH = "/v1/chat/completions"
SIZES = {
    "hidden_size": 512,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "intermediate_size": 1376,
}
QUICK = {**SIZES, "num_hidden_layers": 2}
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Round(NamedTuple):
    """A round: how many requests were answered in a second, and seconds of the processor."""

    speed: float
    answered: int
    seconds: float
    busy: dict[str, float]
    wanted: float  # cores: shares of the time of the replicas' busiest threads, added up
    idle: float  # cores


def processor_times(root: int) -> dict[str, float]:
    """Return the seconds of the processor that the processes under one have had, by their kind."""
    from torture_corpus import descendants

    totals: dict[str, float] = {}
    for process in [root, *descendants(root, b"")]:
        with suppress(OSError):
            folder = Path(f"/proc/{process}")
            name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            kind = "clients" if process == root else _kind(name)
            totals[kind] = totals.get(kind, 0.0) + TICK * (int(fields[11]) + int(fields[12]))
    return totals


def _kind(command: str) -> str:
    marks = {"ServeReplica": "replicas", "Proxy": "proxy", "haproxy": "proxy"}
    return next((kind for mark, kind in marks.items() if mark in command), "Ray")


def wanted_times(root: int) -> dict[tuple[int, int], float]:
    """Return the seconds that each thread of the replicas has computed or waited for a core."""
    from torture_corpus import descendants

    times: dict[tuple[int, int], float] = {}
    for process in descendants(root, b"ServeReplica"):
        with suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                ran, waited, _ = (task / "schedstat").read_text(encoding="ascii").split()
                times[process, int(task.name)] = 1e-9 * (int(ran) + int(waited))
    return times


def idle_time() -> float:
    """Return the seconds that the cores of this machine have had nothing to do, added up."""
    first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    return TICK * (int(first[4]) + int(first[5]))


def measure(port: int, body: dict[str, Any], clients: int, seconds: float) -> Round:
    """Let clients ask for so many seconds; requests on their way at the end are not counted."""
    import torture_serving

    def figures() -> tuple[float, dict[str, float], dict[tuple[int, int], float]]:
        return idle_time(), processor_times(os.getpid()), wanted_times(os.getpid())

    idle, times, wanted = figures()
    start = time.perf_counter()
    end, ended = start + seconds, []
    last: list[Any] = []

    def work(rng: Random) -> str:
        outcome = torture_serving.send(port, PATH, body)
        if outcome == "ok" and time.perf_counter() < end:
            ended.append(outcome)
        return outcome

    def watch() -> None:
        time.sleep(max(0.0, end - time.perf_counter()))
        last.extend((time.perf_counter() - start, *figures()))

    with _in_background(watch):
        outcomes = torture_serving.in_threads(clients, work, lambda: time.perf_counter() < end)
    if set(outcomes) != {"ok"}:
        raise SystemExit(f"Requests were not answered: {outcomes}")
    passed, last_idle, last_times, last_wanted = last
    busy = {kind: value - times.get(kind, 0.0) for kind, value in last_times.items()}
    busiest: dict[int, float] = {}
    for thread, value in last_wanted.items():
        share = (value - wanted.get(thread, 0.0)) / passed
        busiest[thread[0]] = max(busiest.get(thread[0], 0.0), share)
    idle = (last_idle - idle) / passed
    return Round(len(ended) / seconds, len(ended), passed, busy, sum(busiest.values()), idle)


@contextmanager
def _in_background(work: Any) -> Iterator[None]:
    from threading import Thread

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def run_rounds(arguments: argparse.Namespace) -> dict[int, list[Round]]:
    """Measure one replica and two in turns, each on a deployment of its own."""
    import ray

    import torture_serving
    from attnflow.corpus.ray_engine import start_ray
    from attnflow_connect.server.models import Access
    from attnflow_connect.server.replicas import running_replicas

    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # else whatever else runs goes before
    os.environ.pop("OMP_NUM_THREADS", None)  # else it goes before the cores that Ray gives
    threads, port = arguments.threads, torture_serving.free_port()
    texts = torture_serving.TEXTS * arguments.texts
    body = {**torture_serving.BODIES[PATH], "documents": texts, "max_tokens": arguments.tokens}
    rounds: dict[int, list[Round]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        sizes = QUICK if arguments.quick else SIZES
        torture_serving.save_model(Path(folder), **sizes)
        start_ray(ray, None, cores=2 * threads + 1)
        place = "127.0.0.1", port
        for number in [*rounds] * arguments.rounds:
            with running_replicas([folder], number, Access(), place, threads=threads):
                warm = max(4, arguments.clients)
                measure(
                    port, body, warm, arguments.seconds / 5
                )  # each has its first ones behind it
                each = measure(port, body, arguments.clients, arguments.seconds)
            rounds[number].append(each)
            print(f"{number}: {describe(each)}", flush=True)
        ray.shutdown()
    return rounds


def describe(each: Round) -> str:
    """Return a line on a round."""
    busy = ", ".join(f"{kind} {value / each.seconds:.2f}" for kind, value in each.busy.items())
    used = f"cores: {busy}; idle {each.idle:.2f}; wanted by the replicas {each.wanted:.2f}"
    return f"{each.speed:.2f} requests in a second; {used}"


def summary(rounds: dict[int, list[Round]], threads: int) -> list[str]:
    """Return lines: the ratio against the bar, and what a request costs."""
    pairs = zip(rounds[1], rounds[2], strict=True)
    ratio = statistics.median(two.speed / max(one.speed, 1e-9) for one, two in pairs)
    speeds = [statistics.median(each.speed for each in rounds[number]) for number in (1, 2)]
    lines = [
        f"requests in a second: {speeds[0]:.2f} from one replica, {speeds[1]:.2f} from two, "
        f"{threads} threads each: {ratio:.2f} × (bar: {BAR}); {os.cpu_count()} cores, "
        f"{os.getloadavg()[0]:.1f} processes wait"
    ]
    costs, wishes = [], []
    for number, each in rounds.items():
        answered = max(1, sum(one.answered for one in each))
        cost = {
            kind: sum(one.busy.get(kind, 0.0) for one in each) / answered
            for kind in ("replicas", "proxy", "clients", "Ray")
        }
        own, rest = cost.pop("replicas"), sum(cost.values())
        parts = ", ".join(f"{kind} {value:.3f}" for kind, value in cost.items())
        costs.append(own)
        wishes.append(statistics.median(one.wanted for one in each))
        lines.append(
            f"processor seconds of a request, {number} replica{'s' * (number > 1)}: {own:.3f} in "
            f"the replica, {rest:.3f} elsewhere ({parts}); cores wanted: {wishes[-1]:.2f}"
        )
    free = wishes[1] / max(wishes[0], 1e-9) * costs[0] / max(costs[1], 1e-9)
    return [*lines, f"with cores enough, by these: {free:.2f} ×"]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a round")
    parser.add_argument("--threads", type=int, default=1, help="of each replica")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--texts", type=int, default=6, help="pairs of documents")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--quick", action="store_true", help="a small model, one round")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 10.0
    arguments.output.mkdir(parents=True, exist_ok=True)
    lines = summary(run_rounds(arguments), arguments.threads)
    print(*lines, sep="\n")
    (arguments.output / "replicas.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
