"""Citations on one GPU: the time that they add to an answer of an 8B's shapes.

    python benchmarks/gpu_citations.py --output out/bench

A Llama of the 8B's shapes with random weights in bfloat16, as in gpu.py, and SmolLM2's tokenizer.
It writes 256 tokens over eight documents, about 8,000 tokens; what it writes is laid down, since
random weights write no sentences. Then the answer is cited as the server cites it: the rows of all
tokens beside the keys that were kept, and the check of every statement.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from citations import PLACES, QUESTION, documents
from gpu import Figure, big_model, cost, table

from attnflow.explainers.answers import read_answer
from attnflow.explainers.defaults import default_method
from attnflow.explainers.questions import question_prompt, write_answer
from attnflow.hosts.load import as_model, load
from attnflow.tokens.documents import named_documents

NEW, WORDS, NEEDED = 256, 590, 0.35


class Dictated(transformers.LogitsProcessor):
    """What a model must write after a prompt: these tokens, again and again."""

    def __init__(self, prompt: int, ids: list[int]) -> None:
        self.prompt, self.ids = prompt, ids

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Leave one token."""
        token = self.ids[(input_ids.shape[1] - self.prompt) % len(self.ids)]
        only = torch.full_like(scores, float("-inf"))
        only[:, token] = 0.0
        return only


def added_time(module: Any, tokenizer: Any, words: int, new: int, repeats: int) -> Figure:
    """Return the time of the citations against that of the answer, and its bar."""
    model, texts = as_model((module, tokenizer)), named_documents(documents(words))
    prompt = question_prompt(model, QUESTION, texts, True)
    said = " ".join(f"The notice period of the {place} is forty days." for place in PLACES)
    forced = Dictated(len(prompt.ids), tokenizer(said + " ", add_special_tokens=False)["input_ids"])
    options = {"min_new_tokens": new, "logits_processor": [forced]}
    write = partial(write_answer, model, prompt, True, new, options)
    answer = write()
    method = default_method(model, cited=True)
    written = cost(write, repeats)
    cited = cost(lambda: read_answer(model, prompt, texts, answer, method), repeats)
    note = (
        f"{len(prompt.ids):,} + {len(answer.ids)} tokens, {len(answer.statements)} statements: "
        f"written in {written.seconds:.2f} s, cited in {cited.seconds:.2f} s, "
        f"peak {cited.peak / 1e9:.0f} GB"
    )
    return Figure("citations of an answer", cited.seconds / written.seconds, NEEDED, note=note)


def main() -> None:
    """Measure, print and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUT", "out/bench")))
    parser.add_argument("--tokenizer", help="a folder with one; default: SmolLM2's")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    start = time.perf_counter()
    if arguments.tokenizer is None:
        tokenizer = load("smollm2").tokenizer
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.tokenizer)
    figure = added_time(big_model(), tokenizer, WORDS, NEW, arguments.repeats)
    text = table([figure])
    print(text, f"{time.perf_counter() - start:.0f} s in all", flush=True)
    (arguments.output / "gpu_citations.json").write_text(
        json.dumps(asdict(figure)), encoding="utf-8"
    )
    (arguments.output / "gpu_citations.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
