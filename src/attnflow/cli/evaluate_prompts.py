"""`attnflow evaluate` on prompts: which attribution to trust for what a language model writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from attnflow import storage
from attnflow.cli.output import tell_written
from attnflow.cli.progress import progress_bars
from attnflow.errors import FileError, InputError

if TYPE_CHECKING:
    from attnflow.evaluation.ablation import CompletionEvaluation
    from attnflow.evaluation.images import ImageEvaluation

__all__ = ["PromptOptions", "evaluate_prompts", "write_prompts"]


@dataclass(frozen=True)
class PromptOptions:
    """What the command line says of an evaluation on prompts."""

    methods: list[str] | None
    level: str
    by: str | None
    max_new_tokens: int
    chat: bool
    skip: int
    samples: int
    seed: int


def evaluate_prompts(
    data: Path, model: str | None, options: PromptOptions, journal: Path | None
) -> CompletionEvaluation:
    """Run or go on with an evaluation of a file of prompts."""
    from attnflow.evaluation.ablation import evaluate_completions, read_prompts
    from attnflow.explainers.ablation import By

    if options.by is not None and options.by not in get_args(By):
        raise InputError(
            f"--by is one of {', '.join(get_args(By))} for prompts; got {options.by!r}."
        )
    prompts = read_prompts(data)[options.skip :]
    if not prompts:
        raise InputError(f"--skip {options.skip} leaves no prompt of {data.name!r}.")
    with progress_bars("loading the model"):
        return evaluate_completions(
            model,
            prompts,
            methods=options.methods,
            level=options.level,  # type: ignore[arg-type]  # checked there
            by=options.by or "hide",  # type: ignore[arg-type]  # checked above
            max_new_tokens=options.max_new_tokens,
            chat=options.chat,
            documents=any(prompt.documents for prompt in prompts),
            samples=options.samples,
            seed=options.seed,
            resume=journal,
        )


def write_prompts(
    evaluation: CompletionEvaluation | ImageEvaluation, output: Path, *, name: str
) -> None:
    """The same as a page and as a table, one line for each prompt or image and method."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{str(output)!r} cannot be written to: {error}.") from error
    texts = {"csv": evaluation.to_csv(), "md": evaluation.to_markdown()}
    for ending, text in texts.items():
        storage.write_text(output / f"{name}.{ending}", text)
        tell_written(output / f"{name}.{ending}")
