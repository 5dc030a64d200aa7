"""Which method should explain a classifier by default? Every method against ablations.

    python benchmarks/encoder_defaults.py --data numpred.val --held-out --samples 200
    python benchmarks/encoder_defaults.py --model sst2-minilm --data dev.tsv --skip 200
    python benchmarks/encoder_defaults.py --samples 300 --seed 7

Words are blanked by the tokenizer's unknown or mask token. LDS is, for each text, Spearman's
correlation of the sum of the visible words' values with the log odds of the model's own answer
over random ablations of 30 % of the words; the drop is what the answer loses, in log odds, without
the three strongest words. The row of a method is that of the position the answer is read from, at
the highest layer. Texts come in an order drawn by the seed: choose on the first, report the rest.

Without data, sentences from templates are drawn by the seed, in which the subject of the verb is
known: how often is it the strongest word? Of all sentences, and of those that the embedded model
gets right. Where it is wrong other words made the answer, and the subject is not what to find.
"""

from __future__ import annotations

import argparse
import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import attnflow
from attnflow.errors import AttnflowError, AttributionWarning
from attnflow.evaluation.metrics import compare_paired, linear_datamodeling_score, summarize
from attnflow.evaluation.subjects.examples import read_texts
from attnflow.explainers.defaults import default_method
from attnflow.explainers.leave_out import random_ablations
from attnflow.explainers.sources import strongest
from attnflow.hosts.load import load
from attnflow.hosts.model import Model, adapter_for
from attnflow_experiments.verb_number.data import (
    Example,
    held_out,
    read_agreement,
    template_examples,
)

METHODS = (
    *("rollout", "flow", "raw", "gradient-attention", "gradient-rollout", "alti", "balanced"),
    *("balanced:readings=inputs", "balanced:readings=keys"),
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


class Judged(NamedTuple):
    """A method on one text; `first`: the subject is the strongest word, of an answer `right`."""

    lds: float
    drop: float
    first: bool
    right: bool


def judge(loaded: Model, example: Example, seed: int) -> dict[str, Judged] | None:
    """Every method on one text; None where it has too few words."""
    model, tokenizer = loaded
    text = " ".join(example.words)
    adapter = adapter_for(model)
    batch = adapter.encode(model, tokenizer, [text])
    ids = batch.inputs["input_ids"][0].tolist()
    known = adapter.token_ids(model, tokenizer)
    blank = next(known.blanks[name] for name in ("unk", "mask", "pad") if name in known.blanks)
    methods = [default_method(loaded), *map(with_log_odds, METHODS)]
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
        name: Judged(
            linear_datamodeling_score(value, hidden, response[: len(hidden)]),
            float(response[-1] - rest),
            int(np.argmax(value)) == example.subject,
            choice == example.label,
        )
        for (name, value), rest in zip(values.items(), without, strict=True)
    }


def with_log_odds(name: str) -> attnflow.Method:
    """The method; gradients are those of the log odds, as the default's are: one trace has one."""
    method: Any = attnflow.methods.make_method(name)
    return replace(method, score="log-odds") if hasattr(method, "score") else method


def row(method: attnflow.Method, trace: attnflow.AttentionTrace, words: list[Any]) -> Floats:
    """The value of each word for the answer."""
    assert trace.prediction is not None
    result = method(trace, targets=[trace.prediction.position], layers=-1)
    return np.array([result.values[-1, 0, list(word)].sum() for word in words])


def blanked(ids: list[int], words: list[Any], hidden: Any, blank: int) -> list[int]:
    """The text with these words blanked."""
    gone = {k for word, is_hidden in zip(words, hidden, strict=True) if is_hidden for k in word}
    return [blank if k in gone else token for k, token in enumerate(ids)]


def examples_of(arguments: argparse.Namespace) -> list[Example]:
    """Those of the file, in an order drawn by the seed, or sentences from templates."""
    if arguments.data is None:
        return template_examples(arguments.skip + arguments.samples, seed=arguments.seed)
    if arguments.held_out:
        examples = held_out(read_agreement(arguments.data))
    else:
        texts = read_texts(arguments.data)
        examples = [Example(tuple(each.text.split()), 0) for each in texts]
    long_enough = [each for each in examples if 5 <= len(each.words) <= 40]
    random.Random(arguments.seed).shuffle(long_enough)
    return long_enough


def main() -> None:
    """Judge every method and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=str, default=None)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--held-out", action="store_true", help="numpred.val: the unseen part")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", AttributionWarning)
    loaded = load(arguments.model)
    records: list[dict[str, Judged]] = []
    for number, example in enumerate(examples_of(arguments)[arguments.skip :]):
        try:
            record = judge(loaded, example, arguments.seed + number)
        except AttnflowError as error:
            print(f"left out: {error}")
            continue
        records += [] if record is None else [record]
        if len(records) >= arguments.samples:
            break
    print(f"{len(records)} texts; means with 95 % intervals; difference from rollout in LDS\n")
    subjects = arguments.data is None
    print(f"| | LDS | drop | LDS − rollout |{_SUBJECTS if subjects else ''}")
    print(f"|---|---|---|---|{'---|---|' if subjects else ''}")
    for name in records[0]:
        print(line_of(name, records, subjects=subjects))


_SUBJECTS = " subject first | of right answers |"


def line_of(name: str, records: list[dict[str, Judged]], *, subjects: bool) -> str:
    """The line of a method in the table."""
    rows = [record[name] for record in records]
    lds = np.array([each.lds for each in rows])
    gap = compare_paired(lds, np.array([record["rollout"].lds for record in records]))
    cells = [summarize(lds), summarize(np.array([each.drop for each in rows]))]
    shown = [f"{c.mean:.2f} ({c.low:.2f} … {c.high:.2f})" for c in cells]
    shown.append(f"{gap.difference:+.2f} ({gap.low:+.2f} … {gap.high:+.2f})")
    if subjects:
        every = [each.first for each in rows], [each.first for each in rows if each.right]
        shares = [summarize(np.array(hits, dtype=np.float64)) for hits in every]
        shown += [f"{c.mean:.2f} ({c.low:.2f} … {c.high:.2f}), n = {c.n}" for c in shares]
    return f"| {name} | {' | '.join(shown)} |"


if __name__ == "__main__":
    main()
