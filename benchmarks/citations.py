"""Citations: the time that they add to an answer.

    python benchmarks/citations.py --output out/bench [--quick]

SmolLM2 writes 64 tokens over eight different documents, about 2,000 tokens; then it reads
its answer: the sources of each statement, by the default and by the rows of all tokens at once, and
what is left without them. What counts is the time of the processor, on one thread, so that other
work on the machine does not, and the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

T = TypeVar("T")
NEW, WORDS = 64, 165  # tokens of the answer, words of each document
PLACES = ("harbour", "mill", "school", "garden", "station", "library", "bakery", "tower")
QUESTION = "How long is the notice period of the library, and who must receive the notice?"


def documents(words: int) -> dict[str, str]:
    """Texts of which each is about a place of its own."""
    rng, texts = Random(0), {}
    for place in PLACES:
        facts = [
            f"The notice period of the {place} is {rng.randrange(20, 90)} days.",
            f"The keeper of the {place}, {rng.choice('ABCDEFG')}. Moor, must receive the notice.",
        ]
        while sum(len(fact.split()) for fact in facts) < words:
            number = rng.randrange(10, 999)
            facts.append(
                f"In {rng.randrange(1850, 2020)} the {place} had {number} visitors, who paid "
                f"{rng.randrange(2, 30)} coins each for the {rng.choice(PLACES)} beside it."
            )
        texts[f"{place}.txt"] = " ".join(facts)
    return texts


def added_time(words: int, new: int, rounds: int) -> list[str]:
    """Return lines on the time of an answer and of its citations by two methods."""
    import torch

    from attnflow import GradientAttention
    from attnflow.explainers.answers import read_answer
    from attnflow.explainers.questions import question_prompt, write_answer
    from attnflow.hosts.load import as_model
    from attnflow.tokens.documents import named_documents

    torch.set_num_threads(1)
    model, texts = as_model(None, default="smollm2"), named_documents(documents(words))
    prompt = question_prompt(model, QUESTION, texts, True)
    methods = {"default": None, "rows of all tokens": GradientAttention(balanced=True)}
    seconds: dict[str, list[float]] = {"written": [], **{name: [] for name in methods}}
    kinds: dict[str, list[str]] = {}

    def timed(name: str, work: Callable[[], T]) -> T:
        start = time.process_time()
        result = work()
        seconds[name].append(time.process_time() - start)
        return result

    for _ in range(rounds):
        answer = timed(
            "written", lambda: write_answer(model, prompt, True, new, {"min_new_tokens": new})
        )
        for name, method in methods.items():
            read = partial(read_answer, model, prompt, texts, answer, method)
            verdicts = timed(name, read).verdicts or ()
            kinds[name] = ["none" if each is None else each.kind for each in verdicts]
    written = statistics.median(seconds["written"])
    lines = [
        f"{len(prompt.ids):,} + {len(answer.ids)} tokens, {len(answer.statements)} statements: "
        f"written in {written:.1f} s"
    ]
    for name, found in kinds.items():
        pairs = zip(seconds[name], seconds["written"], strict=True)
        ratio = statistics.median(added / plain for added, plain in pairs)
        lines.append(
            f"{name} ({', '.join(found)}): cited in "
            f"{statistics.median(seconds[name]):.1f} s; added {ratio:.2f} × (bar: 2)"
        )
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="short documents, one round")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 1
    arguments.output.mkdir(parents=True, exist_ok=True)
    size = (WORDS // 4, NEW // 2, 1) if arguments.quick else (WORDS, NEW, arguments.rounds or 1)
    lines = added_time(*size)
    print(*lines, sep="\n", flush=True)
    (arguments.output / "citations.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
