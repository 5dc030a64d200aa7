"""Running an evaluation: every text once, for all methods together, kept as it goes."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from attnflow._version import __version__
from attnflow.errors import InputError, ModelError, shorten
from attnflow.errors.arguments import checked_arguments, checked_seed
from attnflow.errors.progress import tell
from attnflow.evaluation.fingerprint import digest_of, digest_of_tokenizer, digest_of_weights
from attnflow.evaluation.importance import BlankOut, InputGradient, Measure
from attnflow.evaluation.importance.blanking import BlankToken
from attnflow.evaluation.importance.passes import Passes
from attnflow.evaluation.journal import Journal
from attnflow.evaluation.judge import RANDOM_ORDERS, Judge
from attnflow.evaluation.records import Record
from attnflow.evaluation.results import Evaluation
from attnflow.hosts.capture import provenance_of
from attnflow.hosts.load import load
from attnflow.methods import METHODS, Method, make_method

__all__ = ["by_label", "evaluate_methods", "label_of"]

_BLANKS: tuple[BlankToken, ...] = ("unk", "mask", "pad")


@checked_arguments
def evaluate_methods(
    model: nn.Module | str | os.PathLike[str] | None,
    texts: Sequence[str],
    *,
    tokenizer: Any = None,
    methods: Sequence[str | Method] | None = None,
    measures: Mapping[str, Measure] | None = None,
    labels: Sequence[str | None] | None = None,
    by: BlankToken | None = None,
    min_words: int = 2,
    skip: int = 0,
    samples: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    resume: str | os.PathLike[str] | None = None,
) -> Evaluation:
    """Which attribution agrees with what this model uses on these texts?

    The row that is judged is that of the position the model's answer is read from, at the highest
    layer; only words are ranked. Each text is captured once for all methods.

    model: a Hugging Face name, a local path, a loaded model (then pass its `tokenizer` too), or
        None for the model that ships with attnflow.
    methods: names or methods such as `Flow(residual=0.4)`; default: all. Those that the model
        cannot be explained by are left out, with the reason.
    measures: what methods are correlated with, by a name; default: blank-out and input gradients.
    labels: the right answer of each text, if known; only the model's accuracy is read from it.
    by: what a word is blanked by, "unk", "mask", "pad" or "delete"; default: the first there is.
    min_words: texts with fewer words, as spaces divide them, are not drawn.
    skip, samples: of the texts in an order drawn by `seed`, leave out so many and take so many
        (default: all). With a larger `samples` the first ones are the same.
    resume: a file that every text's result is kept in; if it is there, the run goes on after it.

    >>> texts = ["the key to the cabinets", "some people in the old city"]
    >>> evaluation = evaluate_methods(None, texts, methods=["rollout", "alti"], samples=1)
    >>> evaluation.methods, len(evaluation.used)
    (('rollout', 'alti'), 1)
    """
    loaded = load(model, tokenizer=tokenizer)
    model, tokenizer = loaded.module, loaded.tokenizer
    seed = checked_seed(seed)
    order = _order(texts, min_words=min_words, seed=seed, skip=skip)
    if labels is not None and len(labels) != len(texts):
        raise InputError(f"{len(labels)} labels were given for {len(texts)} texts.")
    count = _count(order, samples)
    blank = by or _blank(Passes.over(model, tokenizer, batch_size))
    judge = Judge(
        model=model,
        tokenizer=tokenizer,
        measures=measures or {"blank-out": BlankOut(by=blank), "gradient": InputGradient()},
        by=blank,
        seed=seed,
        batch_size=batch_size,
    )
    labelled = by_label(methods if methods is not None else list(METHODS))
    drawn_texts = tuple(texts[k] for k in order)
    settings = {
        **_settings(judge, labelled, drawn_texts), "min_words": min_words, "skip": skip
    }  # fmt: skip
    records, refused = _run(judge, labelled, drawn_texts, count, settings, resume)
    return Evaluation(
        methods=tuple(name for name in labelled if name not in refused),
        measures=tuple(judge.measures),
        records=records,
        refused=refused,
        texts=drawn_texts,
        labels=tuple(None if labels is None else labels[k] for k in order),
        settings=settings,
    )


def _run(
    judge: Judge,
    methods: Mapping[str, Method],
    texts: Sequence[str],
    count: int,
    settings: Mapping[str, Any],
    resume: str | os.PathLike[str] | None,
) -> tuple[tuple[Record, ...], dict[str, str]]:
    """Records of the first `count` texts, and the methods that were refused."""
    with ExitStack() as stack:
        # The journal is opened first: what is wrong with it is said before anything is run.
        journal = stack.enter_context(Journal(Path(resume), settings)) if resume else None
        refused = judge.refusals(texts[:count], methods)
        usable = {name: method for name, method in methods.items() if name not in refused}
        records = journal.records(list(usable), list(judge.measures)) if journal else []
        for number in range(len(records), count):
            records.append(judge.record(number, texts[number], usable))
            if journal:
                journal.append(records[-1])
            tell("texts", number + 1, count)
    if all(record.left_out for record in records[:count]):
        raise ModelError(f"None of {count} texts could be used: {records[0].left_out}")
    return tuple(records[:count]), refused


def _settings(judge: Judge, methods: Mapping[str, Method], texts: Sequence[str]) -> dict[str, Any]:
    """In words, for the first line of a journal: the same settings give the same numbers."""
    model = judge.model
    about = provenance_of(model, str(next(model.parameters()).dtype))
    return {
        "attnflow": __version__,
        "model": about["model"],
        "weights": digest_of_weights(model),
        "tokenizer": digest_of_tokenizer(judge.tokenizer),
        "data": digest_of(["\n".join(texts).encode("utf-8", "surrogatepass")]),
        "texts": len(texts),
        "methods": list(methods),
        "measures": {name: repr(measure) for name, measure in judge.measures.items()},
        "by": judge.by,
        "random_orders": RANDOM_ORDERS,
        "seed": judge.seed,
    }


def _order(texts: Sequence[str], *, min_words: int, seed: int, skip: int) -> list[int]:
    """Which texts, in which order; the order of all is drawn, so that a longer run goes on."""
    if isinstance(texts, str) or not len(texts):
        raise InputError(f"A list of texts is needed; got {shorten(texts)}.")
    if not isinstance(skip, int) or skip < 0 or not isinstance(min_words, int) or min_words < 1:
        raise InputError(
            "skip is at least 0 and min_words at least 1; "
            f"got skip={skip!r} and min_words={min_words!r}."
        )
    order = [k for k, text in enumerate(texts) if len(text.split()) >= min_words]
    random.Random(seed).shuffle(order)
    if not order[skip:]:
        raise InputError(
            f"Of {len(texts)} texts {len(order)} have at least {min_words} words, and {skip} of "
            "these are skipped: none is left."
        )
    return order[skip:]


def _count(order: Sequence[int], samples: int | None) -> int:
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise InputError(f"samples is a number of at least 1; got {samples!r}.")
    return len(order[:samples])


def _blank(passes: Passes) -> BlankToken:
    return next((name for name in _BLANKS if name in passes.ids.blanks), "delete")


def label_of(method: Method) -> str:
    """A method's name, and every option that is not as by default.

    >>> from attnflow import Rollout
    >>> label_of(Rollout(residual=0.4))
    'rollout residual=0.4'
    """
    options = [
        f"{field.name}={value}"
        for field in fields(method)
        if (value := getattr(method, field.name)) != field.default
    ]
    return " ".join([method.name, *options])


def by_label(methods: Sequence[str | Method]) -> dict[str, Method]:
    """Methods by their labels; at least one, each once.

    >>> list(by_label(["rollout", "raw"]))
    ['rollout', 'raw']
    """
    instances = [make_method(method) for method in methods]
    labelled = {label_of(method): method for method in instances}
    if not instances or len(labelled) < len(instances):
        raise InputError(
            f"methods={[label_of(method) for method in instances]}: at least one is needed, each "
            "once."
        )
    return labelled
