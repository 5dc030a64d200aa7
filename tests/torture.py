"""Everything hostile at once: `python tests/torture.py`, or with smaller counts in the test suite.

Each kind tries so many cases and prints one line: what it is, how many were tried, how many went
wrong. A case is wrong if a wrong value is accepted, if an error comes out without a sentence, if
something hangs, or if a file, a model or a journal is not left as it should be.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")
sys.path.insert(0, str(Path(__file__).parent))

import sweep
import torture_corpus
import torture_evaluation
import torture_serving
from attnflow.testing import tiny_decoder, tiny_encoder
from attnflow_connect.server.models import Limits, OfferedModel, embedded_models, named_models
from full_disk import full_disks
from hostile_doors import try_door_bodies
from hostile_surface import try_command_lines, try_raw_requests, try_request_bodies
from interrupts import (
    interrupted_captures,
    strike_way,
    threaded_captures,
    ways_to_interrupt,
)
from joint_games import check_games
from mutations import mutate_files
from random_graphs import check_random_graphs
from serving import serving
from wrong_types import wrong_type_calls

__all__ = ["KINDS", "Count", "main"]


class Count(NamedTuple):
    """How many cases were tried, and a line for each that went wrong."""

    tried: int
    wrong: list[str]


def files(count: int, folder: Path) -> Count:
    """Files of every noun in both formats, changed at random, then loaded."""
    tally = mutate_files(count)
    return Count(tally.tried, list(tally.wrong))


def graphs(count: int, folder: Path) -> Count:
    """Random graphs of every kind against exact arithmetic."""
    tally = check_random_graphs(count)
    return Count(tally.graphs, list(tally.wrong))


def games(count: int, folder: Path) -> Count:
    """Sampled Shapley flows against all subsets: rows add up, intervals keep their promise."""
    tally = check_games(count)
    missed = tally.values - tally.enclosed
    wrong = list(tally.wrong)
    if missed > 0.05 * tally.values:
        wrong.append(f"{missed} of {tally.values} values lie outside their 95 % intervals")
    return Count(tally.games, wrong)


def types(count: int, folder: Path) -> Count:
    """Values of the wrong kind for every argument of the public functions."""
    tried, outcomes = wrong_type_calls(folder, count)
    return Count(tried, [f"{o.call}({o.argument}={o.value}): {o.problem}" for o in outcomes])


def command_lines(count: int, folder: Path) -> Count:
    """Command lines of random options."""
    encoder = _saved(folder / "encoder", tiny_encoder())
    writer = _saved(folder / "writer", tiny_decoder())
    room = folder / "room"
    room.mkdir()
    wrong = try_command_lines(count, 1, encoder=encoder, writer=writer, folder=room)
    return Count(count, wrong)


def _saved(folder: Path, loaded: object) -> str:
    model, tokenizer = loaded  # type: ignore[misc]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def bodies(count: int, folder: Path) -> Count:
    """Bodies of requests, well formed, nearly so, and not at all: for the page, then the doors."""
    offered = OfferedModel(
        "tiny-writer", "writes nonsense", explains=True, generates=True, load=tiny_decoder
    )
    limits = Limits(tokens=48, flow_tokens=24, new_tokens=16)
    with serving([embedded_models()[0], offered], limits) as client:
        wrong = try_request_bodies(client, count, 1, model="tiny-writer")
    with serving(named_models([str(torture_serving.save_model(folder))]), limits) as client:
        return Count(2 * count, wrong + try_door_bodies(client, count, 1))


def headers(count: int, folder: Path) -> Count:
    """Raw requests with headers that no client sends."""
    with serving([], Limits(seconds_to_send=0.2)) as client:
        return Count(count, try_raw_requests(client.port, count, 1))


def interrupts(count: int, folder: Path) -> Count:
    """Real signals at random moments of a capture, the model in train mode."""
    tried, _, left = interrupted_captures(count)
    return Count(tried, left)


def held_interrupts(count: int, folder: Path) -> Count:
    """The same in every way to hold a model: an adapter, compiled, offloaded, quantised."""
    kinds = [(way, by) for way in ways_to_interrupt() for by in ("signals", "errors")]
    outcomes = [(way.name, *strike_way(way, count, by)) for way, by in kinds]
    wrong = [f"{name}: {one}" for name, _, _, left in outcomes for one in left]
    return Count(sum(tried for _, tried, _, _ in outcomes), wrong)


def threads(count: int, folder: Path) -> Count:
    """Captures in eight threads that are switched every ten microseconds."""
    tried, _, wrong = threaded_captures(count)
    return Count(tried, wrong)


def kills(count: int, folder: Path) -> Count:
    """`evaluate` killed at random moments and started again."""
    return Count(*torture_evaluation.run_script("kills", count))


def prompt_kills(count: int, folder: Path) -> Count:
    """The same of a language model on prompts."""
    return Count(*torture_evaluation.run_script("prompts", count))


def bench_kills(count: int, folder: Path) -> Count:
    """The same with the bench."""
    script = str(Path(__file__).with_name("torture_bench.py"))
    return Count(*torture_evaluation.run_script("kills", count, script=script))


def bench_kills_together(count: int, folder: Path) -> Count:
    """The same of a bench of two processes, the whole or one of them."""
    script = str(Path(__file__).with_name("torture_bench.py"))
    return Count(*torture_evaluation.run_script("together", count, script=script))


def together(count: int, folder: Path) -> Count:
    """Two runs of `evaluate` on one journal at once."""
    return Count(*torture_evaluation.run_script("together", count))


def corpora(count: int, folder: Path) -> Count:
    """`corpus run` killed at random moments, the whole run or one of its processes."""
    return Count(*torture_corpus.run_script("local", count))


def corpora_on_ray(count: int, folder: Path) -> Count:
    """Workers and nodes of a Ray killed while they explain a corpus."""
    if importlib.util.find_spec("ray") is None:
        return Count(0, ["Ray is not installed: pip install 'attnflow[ray]'."])
    return Count(*torture_corpus.run_script("ray", count))


def clients(count: int, folder: Path) -> Count:
    """64 clients at once for so many seconds; some send half a body, leave, or never read."""
    return Count(*torture_serving.run_script("clients", count))


def replicas(count: int, folder: Path) -> Count:
    """Requests to two replicas on Ray, one of which is killed."""
    if importlib.util.find_spec("ray") is None:
        return Count(0, ["Ray is not installed: pip install 'attnflow[ray]'."])
    return Count(*torture_serving.run_script("replicas", count))


def disks(count: int, folder: Path) -> Count:
    """A disk that fills up, for every output format."""
    return Count(*full_disks(folder))


def model_types(count: int, folder: Path) -> Count:
    """Every model type of transformers that answers, against autograd through its eager graph."""
    types = [(kind, name) for name, task in sweep.TASKS.items() for kind in task.types]
    lines = [sweep.examine(*each) for each in types[: count or None]]
    faults = [line for line in lines if line.outcome in ("wrong", "bare")]
    return Count(len(lines), [f"{line.kind}: {line.detail}" for line in faults])


KINDS: dict[str, tuple[Callable[[int, Path], Count], int]] = {
    "changed files": (files, 10_000),
    "random graphs": (graphs, 2_000),
    "joint games": (games, 4_000),
    "wrong types": (types, 5_000),
    "command lines": (command_lines, 500),
    "request bodies": (bodies, 1_000),
    "raw headers": (headers, 150),
    "interrupts": (interrupts, 1_000),
    "interrupts of held models": (held_interrupts, 1_000),
    "captures in threads": (threads, 2_400),
    "kills of evaluate": (kills, 100),
    "kills on prompts": (prompt_kills, 50),
    "kills of the bench": (bench_kills, 50),
    "kills of a bench of two processes": (bench_kills_together, 50),
    "runs on one journal": (together, 20),
    "kills of corpora": (corpora, 100),
    "kills on Ray": (corpora_on_ray, 20),
    "64 clients": (clients, 300),
    "replicas on Ray": (replicas, 100),
    "full disks": (disks, 0),
    "model types": (model_types, 0),
}


def main(*names: str) -> int:
    """Run these kinds, or all, in full; 1 if anything went wrong."""
    total = 0
    for name in names or KINDS:
        kind, count = KINDS[name]
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            outcome = kind(count, Path(folder))
        total += len(outcome.wrong)
        seconds = time.monotonic() - begin
        line = f"{name}: {outcome.tried:,} tried, {len(outcome.wrong)} wrong ({seconds:.0f} s)"
        print(line, *(f"    {one[:300]}" for one in outcome.wrong[:20]), sep="\n", flush=True)
        total += outcome.tried == 0  # a kind that could not be run has shown nothing
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
