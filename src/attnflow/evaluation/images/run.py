"""Running an evaluation on images: every image once, for all methods together, kept as it goes."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import nn

from attnflow._version import __version__
from attnflow.errors import InputError, ModelError
from attnflow.errors.arguments import checked_arguments, checked_seed
from attnflow.errors.progress import patiently, tell
from attnflow.evaluation.fingerprint import digest_of, digest_of_weights
from attnflow.evaluation.images.ablation import STEPS, Hiding
from attnflow.evaluation.images.examples import ImageExample
from attnflow.evaluation.images.judge import CENTRE, LEAVE_ONE_OUT, RANDOM_ORDERS, ImageJudge
from attnflow.evaluation.images.questions import QUESTION_METHODS, QuestionJudge
from attnflow.evaluation.images.results import ImageEvaluation
from attnflow.evaluation.journal import Journal
from attnflow.evaluation.records import RANDOM, Record
from attnflow.evaluation.run import by_label
from attnflow.hosts.capture import provenance_of
from attnflow.hosts.load import as_model
from attnflow.hosts.registry import adapter_for
from attnflow.hosts.vision_language.towers import processor_of, towers_of
from attnflow.methods import Method

__all__ = ["IMAGE_METHODS", "evaluate_images"]

IMAGE_METHODS = (
    *("rollout", "alti", "norm-rollout", "gradient-attention", "gradient-rollout", "raw"),
)
"""What is held against hidden patches when nothing is asked for; flow and value zeroing take long
on the hundreds of patches of an image and can be named."""


@checked_arguments
def evaluate_images(
    model: nn.Module | str | os.PathLike[str],
    images: Sequence[Any],
    *,
    processor: Any = None,
    methods: Sequence[str | Method] | None = None,
    by: Hiding = "mean",
    skip: int = 0,
    samples: int | None = None,
    seed: int = 0,
    batch_size: int = 32,
    resume: str | os.PathLike[str] | None = None,
) -> ImageEvaluation:
    """Which map agrees with what this model uses on these images?

    A vision model says what is in each; a vision-language model answers each image's question, and
    its answer's first word is explained.

    model: a name, a folder, or a loaded model; then its `processor` too, if it was not loaded from
        a folder that holds one.
    images: anything `explain` takes, or `ImageExample`s with labels and boxes; `read_images` reads
        them from a folder or a table.
    methods: names or methods; default: those of `IMAGE_METHODS`. Beside them stand random orders,
        a map that guesses the centre, and each patch hidden alone.
    by: what takes the place of a hidden patch: "mean" colour, "blur", or "zero".
    skip, samples: of the images in an order drawn by `seed`, leave out so many and take so many.
    resume: a file that every image's result is kept in; if it is there, the run goes on after it.

    >>> import numpy as np
    >>> from attnflow.testing import tiny_vision_model
    >>> model, processor = tiny_vision_model()
    >>> images = list(np.random.default_rng(0).integers(0, 255, (2, 32, 32, 3), np.uint8))
    >>> evaluation = evaluate_images(model, images, processor=processor, methods=["rollout"])
    >>> evaluation.methods
    ('rollout', '(leave one patch out)', 'centre', 'random')
    """
    host = model if isinstance(model, nn.Module) else as_model(model, needs_tokenizer=False).module
    examples = [e if isinstance(e, ImageExample) else ImageExample(e) for e in images]
    if not examples:
        raise InputError("There are no images to evaluate on.")
    order = _order(len(examples), checked_seed(seed), skip, samples)
    examples = [examples[k] for k in order]
    judge = _judge(host, processor, by=by, seed=seed, batch_size=batch_size)
    usual = QUESTION_METHODS if isinstance(judge, QuestionJudge) else IMAGE_METHODS
    labelled = by_label(usual if methods is None else list(methods))
    settings = _settings(judge, labelled, examples)
    records, refused = _run(judge, labelled, examples, settings, resume)
    rows = (*(n for n in labelled if n not in refused), LEAVE_ONE_OUT, CENTRE, RANDOM)
    return ImageEvaluation(
        methods=rows,
        records=records,
        images=tuple(example.name for example in examples),
        labels=tuple(example.label for example in examples),
        refused=refused,
        settings=settings,
    )


def _judge(host: nn.Module, processor: Any, **options: Any) -> ImageJudge:
    """Of a model that says what is in an image, or of one that answers questions about it."""
    adapter = adapter_for(host)
    if towers_of(host) is not None:
        own = processor_of(host, processor)
        return QuestionJudge(model=host, processor=own, **options)
    if not adapter.reads_images(host):
        raise InputError(f"{type(host).__name__} reads no images; evaluate_methods is for texts.")
    own = adapter.image_processor(host) if processor is None else processor
    return ImageJudge(model=host, processor=own, **options)


def _order(count: int, seed: int, skip: int, samples: int | None) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    if skip < 0 or (samples is not None and samples < 1) or not order[skip:]:
        raise InputError(
            f"skip is at least 0, samples is at least 1, and some of the {count} images must be "
            f"left; got skip={skip!r}, samples={samples!r}."
        )
    return order[skip:][:samples]


def _run(
    judge: ImageJudge,
    methods: Mapping[str, Method],
    examples: Sequence[ImageExample],
    settings: Mapping[str, Any],
    resume: str | os.PathLike[str] | None,
) -> tuple[tuple[Record, ...], dict[str, str]]:
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(Path(resume), settings)) if resume else None
        tell("trying the methods", 0, 1)
        with patiently():
            refused = judge.refusals(_first_readable(judge, examples), methods)
        usable = {name: method for name, method in methods.items() if name not in refused}
        records = journal.fitting(lambda record: _fits(record, usable)) if journal else []
        for number in range(len(records), len(examples)):
            tell("images", number, len(examples))
            with patiently():
                records.append(judge.record(number, examples[number], usable))
            if journal:
                journal.append(records[-1])
    if all(record.left_out for record in records):
        raise ModelError(f"None of {len(records)} images could be used: {records[0].left_out}")
    return tuple(records), refused


def _first_readable(judge: ImageJudge, examples: Sequence[ImageExample]) -> ImageExample:
    from attnflow.hosts.images import read_photo

    reasons = []
    for example in examples:
        try:
            read_photo(example.image)
        except (InputError, OSError) as error:
            reasons.append(str(error))
        else:
            return example
    raise InputError(f"None of {len(examples)} images can be read: {reasons[0]}")


def _fits(record: Record, methods: Mapping[str, Method]) -> bool:
    if record.left_out:
        return not record.scores
    return set(record.scores) == {*methods, LEAVE_ONE_OUT, CENTRE, RANDOM}


def _settings(
    judge: ImageJudge,
    methods: Mapping[str, Method],
    examples: Sequence[ImageExample],
) -> dict[str, Any]:
    """In words, for the first line of a journal: the same settings give the same numbers."""
    about = provenance_of(judge.model, str(next(judge.model.parameters()).dtype))
    return {
        "attnflow": __version__,
        "model": about["model"],
        "weights": digest_of_weights(judge.model),
        "processor": digest_of([_processor_text(judge.processor).encode()]),
        "data": digest_of(_content(example) for example in examples),
        "images": len(examples),
        "methods": list(methods),
        "by": judge.by,
        "steps": STEPS,
        "random_orders": RANDOM_ORDERS,
        "seed": judge.seed,
    }


def _processor_text(processor: Any) -> str:
    fields = processor.to_dict() if hasattr(processor, "to_dict") else repr(processor)
    return json.dumps(fields, sort_keys=True, default=str)


def _content(example: ImageExample) -> bytes:
    """The bytes of a file, or of what is in memory, and what is known of the image."""
    about = repr((example.label, example.box, example.question)).encode()
    if isinstance(example.image, (str, os.PathLike)):
        path = Path(example.image)
        return about + (path.read_bytes() if path.is_file() else str(path).encode())
    if isinstance(example.image, (bytes, bytearray)):
        return about + bytes(example.image)
    from attnflow.hosts.images import read_photo

    return about + read_photo(example.image).image.tobytes()
