"""The bench killed at random moments: no record, and no table, may be lost, doubled or changed.

`python tests/torture_bench.py kills 50 0` kills a run fifty times and goes on with it. Runs are
forked from one process that has loaded everything, so that a kill costs no start. With `together`
a run has two processes beside it, and either the run is killed or one of these.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from attnflow_experiments.bench.findings import gather
from attnflow_experiments.bench.plan import BenchPlan
from attnflow_experiments.bench.run import run_bench
from attnflow_experiments.bench.sample import write_sample
from attnflow_experiments.bench.tables import bench_report
from attnflow_experiments.journal import read_journal

METHODS = ("default", "position", "random")
_OF_WORKERS = 0.5  # of the kills, where there are any
_PATIENCE = 120  # seconds until a process whose run is gone counts as left behind


def save_tiny_model(folder: Path) -> Path:
    """A random Llama of two layers whose tokens are the words of the sample's running text."""
    sample = write_sample(folder / "data")
    words = sorted(set((sample / "text.txt").read_text(encoding="utf-8").split()))
    vocabulary = {word: k for k, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=raw, **special).save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, bos_token_id=None,
        eos_token_id=1, max_position_embeddings=4096,
    )  # fmt: skip
    LlamaForCausalLM(config).eval().save_pretrained(folder / "model")
    return folder / "model"


def make_plan(folder: Path, **changes: Any) -> BenchPlan:
    """Return a plan on the sample and the tiny model in a folder."""
    options: dict[str, Any] = {
        "models": {"tiny": str(folder / "model")},
        "data_sets": ("text",),
        "methods": METHODS,
        "data": folder / "data",
        "output": folder / "out",
        "samples": 2,
    }
    return BenchPlan(**{**options, **changes})


def tables(plan: BenchPlan) -> dict[str, Any]:
    """Return every table of a run but the costs."""
    report = bench_report(plan, gather(plan))
    return {each.name: dict(each.rows) for each in report.tables if each.name != "cost"}


def figures(plan: BenchPlan) -> dict[str, Any]:
    """Return what a journal says, without what differs from run to run."""
    cost = ("seconds", "memory", "passes")
    records = read_journal(plan.journal("tiny", plan.data_sets[0]))
    return {n: {k: v for k, v in r.items() if k not in cost} for n, r in records.items()}


def _start(plan: BenchPlan) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        run_bench(plan)
        status = 0
    finally:
        os._exit(status)


def kills(count: int, seed: int, folder: Path, *, processes: int = 1) -> tuple[int, list[str]]:
    """Kill runs at random moments and go on with them, a new run whenever one is done."""
    rng, wrong = random.Random(seed), list[str]()
    whole = make_plan(folder, output=folder / "whole", processes=processes)
    begin = time.perf_counter()
    run_bench(whole)
    longest = time.perf_counter() - begin
    expected, run = figures(whole), 0
    before: dict[str, Any] = {}
    for number in range(count):
        plan = make_plan(folder, output=folder / f"out{run}", processes=processes)
        child = _start(plan)
        time.sleep(rng.uniform(0, longest))
        workers = _children(child)
        struck = rng.choice(workers) if workers and rng.random() < _OF_WORKERS else child
        with suppress(ProcessLookupError):  # a worker may have ended by itself
            os.kill(struck, signal.SIGKILL)
        os.waitpid(child, 0)
        wrong += [f"kill {number}: process {each} went on" for each in _alive(workers)]
        now = figures(plan)
        wrong += [f"kill {number}: {name} was lost" for name in before if now.get(name) is None]
        wrong += [
            f"kill {number}: {n} changed" for n in before if now.get(n, before[n]) != before[n]
        ]
        before = now
        if len(now) == len(expected) or number == count - 1:
            run_bench(plan)
            lines = plan.journal("tiny", "text").read_text(encoding="utf-8").splitlines()
            names = [json.loads(line)["name"] for line in lines if _is_whole(line)]
            same = figures(plan) == expected and tables(plan) == tables(whole)
            if not same or len(names) != len(set(names)):
                wrong.append(f"kill {number}: not the numbers of an unbroken run, each once")
            run, before = run + 1, {}
    return count, wrong


def _children(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(each) for each in path.read_text(encoding="ascii").split()]


def _alive(processes: list[int]) -> list[int]:
    """Return which processes do not end by themselves."""
    deadline = time.monotonic() + _PATIENCE
    while processes and time.monotonic() < deadline:
        processes = [each for each in processes if Path(f"/proc/{each}").exists()]
        time.sleep(0.05)
    return processes


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def main() -> None:
    """The command line: `kills` or `together`, how many, and a seed."""
    torch.set_num_threads(1)
    processes = {"kills": 1, "together": 2}[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder))
        count, seed = map(int, sys.argv[2:4])
        tried, wrong = kills(count, seed, Path(folder), processes=processes)
    print(json.dumps({"tried": tried, "wrong": wrong}))


if __name__ == "__main__":
    main()
