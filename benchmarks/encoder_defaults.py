"""Which method should explain a classifier by default? Every method against ablations.

    python benchmarks/encoder_defaults.py --data numpred.val --held-out --samples 200
    python benchmarks/encoder_defaults.py --model sst2-minilm --data dev.tsv --skip 200

Words are blanked by the tokenizer's unknown or mask token. LDS is, for each text, Spearman's
correlation of the sum of the visible words' values with the log odds of the model's own answer
over random ablations of 30 % of the words; the drop is what the answer loses, in log odds, without
the three strongest words. The row of a method is that of the position the answer is read from, at
the highest layer. Texts come in an order drawn by the seed: choose on the first, report the rest.
"""

from __future__ import annotations

import argparse
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import attnflow
from attnflow.errors import AttnflowError, AttributionWarning
from attnflow.evaluation.metrics import compare_paired, linear_datamodeling_score, summarize
from attnflow.evaluation.subjects.examples import read_texts
from attnflow.explainers.leave_out import random_ablations
from attnflow.explainers.sources import strongest
from attnflow.hosts.load import load
from attnflow.hosts.model import Model, adapter_for
from attnflow_experiments.verb_number.data import held_out, read_agreement

METHODS = (
    *("rollout", "flow", "raw", "gradient-attention", "gradient-rollout", "alti", "balanced"),
    *("balanced:readings=keys+inputs", "balanced:readings=inputs", "balanced:readings=keys"),
)
Floats = NDArray[np.float64]


def words_of(trace: attnflow.AttentionTrace, special: frozenset[int], ids: list[int]) -> list[Any]:
    """The positions of each word, frame tokens left out."""
    groups = trace.tokens.groups()
    return [group for group in groups if not any(ids[k] in special for k in group)]


def answers(loaded: Model, rows: list[list[int]], choice: int, place: int) -> Floats:
    """The log odds of one class, read at one place, for each row of ids; all have one length."""
    ids = torch.tensor(rows)
    adapter = adapter_for(loaded.module)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    parts = []
    for start in range(0, len(ids), 128):
        batch = adapter.wrap(loaded.module, {k: v[start : start + 128] for k, v in inputs.items()})
        with torch.no_grad():
            outputs = adapter.forward(loaded.module, batch.inputs)
        scores = adapter.scores(loaded.module, loaded.tokenizer, outputs, batch)
        read = [each.at(place) for each in scores if each is not None]
        parts += [float(each.score(choice, "log-odds")) for each in read]
    return np.array(parts)


def judge(loaded: Model, text: str, seed: int) -> dict[str, tuple[float, float]] | None:
    """LDS and drop of every method on one text; None where it has too few words."""
    model, tokenizer = loaded
    adapter = adapter_for(model)
    batch = adapter.encode(model, tokenizer, [text])
    ids = batch.inputs["input_ids"][0].tolist()
    known = adapter.token_ids(model, tokenizer)
    blank = next(known.blanks[name] for name in ("unk", "mask", "pad") if name in known.blanks)
    methods = [attnflow.methods.make_method(name) for name in METHODS]
    trace = attnflow.capture((model, tokenizer), text, methods=methods)
    words = words_of(trace, known.special, ids)
    if len(words) < 4 or trace.prediction is None:
        return None
    with torch.no_grad():
        outputs = adapter.forward(model, batch.inputs)
    (scores,) = adapter.scores(model, tokenizer, outputs, batch)
    choice = 0 if scores is None else scores.choice(None)
    hidden = random_ablations(32, len(words), hidden=0.3, seed=seed)
    singles = np.eye(len(words), dtype=bool)
    values = {m.label: row(m, trace, words) for m in methods}
    rows = np.concatenate([hidden, singles, np.zeros((1, len(words)), dtype=bool)])
    place = trace.prediction.position
    response = answers(loaded, [blanked(ids, words, each, blank) for each in rows], choice, place)
    losses = response[-1] - response[len(hidden) : -1]
    values |= {"leave-one-out": losses, "random": np.random.default_rng(seed).random(len(words))}
    tops = [np.isin(np.arange(len(words)), strongest(v, 3)) for v in values.values()]
    without = answers(loaded, [blanked(ids, words, top, blank) for top in tops], choice, place)
    return {
        name: (
            linear_datamodeling_score(value, hidden, response[: len(hidden)]),
            float(response[-1] - rest),
        )
        for (name, value), rest in zip(values.items(), without, strict=True)
    }


def row(method: attnflow.Method, trace: attnflow.AttentionTrace, words: list[Any]) -> Floats:
    """The value of each word for the answer."""
    assert trace.prediction is not None
    result = method(trace, targets=[trace.prediction.position], layers=-1)
    return np.array([result.values[-1, 0, list(word)].sum() for word in words])


def blanked(ids: list[int], words: list[Any], hidden: Any, blank: int) -> list[int]:
    """The text with these words blanked."""
    gone = {k for word, is_hidden in zip(words, hidden, strict=True) if is_hidden for k in word}
    return [blank if k in gone else token for k, token in enumerate(ids)]


def texts_of(arguments: argparse.Namespace) -> list[str]:
    """Those of the file, in an order drawn by the seed."""
    if arguments.held_out:
        texts = [" ".join(e.words) for e in held_out(read_agreement(arguments.data))]
    else:
        texts = [each.text for each in read_texts(arguments.data)]
    long_enough = [text for text in texts if 5 <= len(text.split()) <= 40]
    random.Random(arguments.seed).shuffle(long_enough)
    return long_enough[arguments.skip :]


def main() -> None:
    """Judge every method and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=str, default=None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--held-out", action="store_true", help="numpred.val: the unseen part")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", AttributionWarning)
    loaded = load(arguments.model)
    records: list[dict[str, tuple[float, float]]] = []
    for number, text in enumerate(texts_of(arguments)):
        try:
            record = judge(loaded, text, arguments.seed + number)
        except AttnflowError as error:
            print(f"left out: {error}")
            continue
        records += [] if record is None else [record]
        if len(records) >= arguments.samples:
            break
    print(f"{len(records)} texts; means with 95 % intervals; difference from rollout in LDS\n")
    print("| | LDS | drop | LDS − rollout |\n|---|---|---|---|")
    for name in records[0]:
        lds, drop = (np.array([r[name][k] for r in records]) for k in (0, 1))
        base = np.array([r["rollout"][0] for r in records])
        cells = [summarize(lds), summarize(drop)]
        shown = " | ".join(f"{c.mean:.2f} ({c.low:.2f} … {c.high:.2f})" for c in cells)
        gap = compare_paired(lds, base)
        print(f"| {name} | {shown} | {gap.difference:+.2f} ({gap.low:+.2f} … {gap.high:+.2f}) |")


if __name__ == "__main__":
    main()
