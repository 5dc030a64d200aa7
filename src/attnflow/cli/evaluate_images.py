"""`attnflow evaluate` on images: which map to trust for a vision model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from attnflow.cli.options import parse_method
from attnflow.cli.progress import progress_bars
from attnflow.errors import InputError
from attnflow.tokens.pictures import PICTURE_ENDINGS

if TYPE_CHECKING:
    from attnflow.evaluation.images import ImageEvaluation

__all__ = ["ImageOptions", "evaluate_images", "names_images"]

_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class ImageOptions:
    """What the command line says of an evaluation on images."""

    methods: list[str] | None
    by: str | None
    skip: int
    samples: int
    seed: int
    batch_size: int


def names_images(data: Path) -> bool:
    """Whether DATA is a folder, an image, or a table whose rows name images."""
    if data.is_dir() or data.suffix.lower() in PICTURE_ENDINGS:
        return True
    if data.suffix.lower() not in _TABLES:
        return False
    from attnflow.evaluation.images import holds_images

    return holds_images(data)


def evaluate_images(
    data: Path, model: str | None, options: ImageOptions, journal: Path | None
) -> ImageEvaluation:
    """Run or go on with an evaluation of a folder or a table of images."""
    from attnflow.evaluation.images import evaluate_images as run
    from attnflow.evaluation.images import read_images
    from attnflow.evaluation.images.ablation import Hiding

    if model is None:
        raise InputError(
            f"{data.name!r} holds images; name a vision model: --model FOLDER, with its weights "
            "and preprocessor_config.json."
        )
    if options.by is not None and options.by not in get_args(Hiding):
        raise InputError(
            f"--by is one of {', '.join(get_args(Hiding))} for images; got {options.by!r}."
        )
    methods = None if options.methods is None else [parse_method(m) for m in options.methods]
    with progress_bars("loading the model"):
        return run(
            model,
            read_images(data),
            methods=methods,
            by=options.by or "mean",  # type: ignore[arg-type]  # checked above
            skip=options.skip,
            samples=options.samples,
            seed=options.seed,
            batch_size=options.batch_size,
            resume=journal,
        )
