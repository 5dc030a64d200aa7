"""`attnflow evaluate`: which attribution to trust for a model and a file of texts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Console
from rich.markup import escape

from attnflow import storage
from attnflow.cli.evaluate_images import ImageOptions, evaluate_images, names_images
from attnflow.cli.evaluate_prompts import PromptOptions, evaluate_prompts, write_prompts
from attnflow.cli.options import (
    ChatOption,
    JsonOption,
    ModelOption,
    SeedOption,
    parse_method,
    prepare_models,
)
from attnflow.cli.output import print_json, tell_written
from attnflow.cli.progress import progress_bars
from attnflow.errors import FileError, InputError, StoppedError
from attnflow.methods import MEASURED_METHODS, METHODS

if TYPE_CHECKING:
    from attnflow.evaluation import Evaluation
    from attnflow.evaluation.ablation import CompletionEvaluation
    from attnflow.evaluation.images import ImageEvaluation
    from attnflow.evaluation.table import Table

__all__ = ["evaluate"]

_NAME = "evaluation"


def evaluate(
    data: Annotated[
        Path,
        typer.Option(
            metavar="FILE|FOLDER",
            help="The texts: .txt (one text on each line), .csv, .tsv, .jsonl or .parquet. A file "
            "with a column 'prompt' is about what a language model writes after each prompt. For "
            "images: a folder, or a table with a column 'path' and, where known, 'label' and "
            "'box'.",
        ),
    ],
    model: ModelOption = None,
    column: Annotated[
        str | None,
        typer.Option(help="The column of the texts. Default: 'text' or 'sentence'."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME[:KEY=VALUE,...]",
            help=f"A method with its options. May be repeated. The methods are "
            f"{', '.join(METHODS)}; for prompts also {', '.join(MEASURED_METHODS)} and default.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How a source is taken away. For texts: unk, mask, pad or delete; default: the "
            "first of these that the tokenizer has. For prompts: hide (the default), replace or "
            "delete. For images: mean (the default), blur or zero.",
        ),
    ] = None,
    level: Annotated[
        str, typer.Option(help="For prompts: what a source is: token, word, sentence or document.")
    ] = "word",
    max_new_tokens: Annotated[
        int, typer.Option(help="For prompts: how many tokens the model writes, at most.")
    ] = 20,
    chat: ChatOption = False,
    min_words: Annotated[int, typer.Option(help="Leave out texts with fewer words.")] = 2,
    skip: Annotated[
        int,
        typer.Option(
            help="Leave out this many of the texts drawn first: those that options were chosen on."
        ),
    ] = 0,
    samples: Annotated[int, typer.Option(help="How many texts are drawn, at most.")] = 500,
    seed: SeedOption = 0,
    batch_size: Annotated[
        int, typer.Option(help="How many changed texts go through the model at once.")
    ] = 64,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write CSV, Markdown and a figure to this folder, and keep the run in it.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the run in this .jsonl file, and go on with it if it is there. Default: "
            f"{_NAME}.jsonl in the folder of --output.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which method to trust for MODEL on the texts of DATA.

    Every method is held against what the model uses: words are taken away, and the answer loses
    something. Without --method all methods are compared. A file with a column 'prompt' (and, where
    known, 'completion', 'answer' and 'documents') is about what a language model or an
    encoder-decoder writes after each prompt.
    """
    from attnflow.evaluation.texts import holds_prompts, read_texts

    journal = output / f"{_NAME}.jsonl" if resume is None and output is not None else resume
    if column is None and names_images(data):
        image_options = ImageOptions(method, by, skip, samples, seed, batch_size)
        _evaluate_images(data, model, image_options, journal, output, as_json)
        return
    if column is None and holds_prompts(data):
        options = PromptOptions(method, level, by, max_new_tokens, chat, skip, samples, seed)
        _evaluate_prompts(data, model, options, journal, output, as_json)
        return
    if chat or level != "word":
        raise InputError("--chat and --level are for prompts; this file has no column 'prompt'.")
    methods = None if method is None else [parse_method(name) for name in method]
    texts = read_texts(data, column=column)
    prepare_models()
    from attnflow.evaluation import evaluate_methods
    from attnflow.evaluation.importance.blanking import BlankToken

    if by is not None and by not in get_args(BlankToken):
        raise InputError(f"--by is one of {', '.join(get_args(BlankToken))}; got {by!r}.")
    with _stoppable(journal), progress_bars("loading the model"):
        evaluation = evaluate_methods(
            model,
            [each.text for each in texts],
            methods=methods,
            labels=[each.label for each in texts],
            by=by,  # type: ignore[arg-type]  # checked above
            min_words=min_words,
            skip=skip,
            samples=samples,
            seed=seed,
            batch_size=batch_size,
            resume=journal,
        )
    if output is not None:
        parts = {"--min-words": min_words, "--skip": skip, "--samples": samples, "--seed": seed}
        command = _command(data, model, column, method, by, parts)
        _write(evaluation, output, command=command, source=data.name)
    if as_json:
        print_json(evaluation.to_dict())
    else:
        _show(evaluation, data.name)


def _evaluate_prompts(
    data: Path,
    model: str | None,
    options: PromptOptions,
    journal: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    prepare_models()
    with _stoppable(journal):
        evaluation = evaluate_prompts(data, model, options, journal)
    _hand_over(evaluation, data, output, as_json)


def _evaluate_images(
    data: Path,
    model: str | None,
    options: ImageOptions,
    journal: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    prepare_models()
    with _stoppable(journal, "images"):
        evaluation = evaluate_images(data, model, options, journal)
    _hand_over(evaluation, data, output, as_json)


def _hand_over(
    evaluation: CompletionEvaluation | ImageEvaluation,
    data: Path,
    output: Path | None,
    as_json: bool,
) -> None:
    """Written, printed as JSON, or shown as tables with the verdict."""
    if output is not None:
        write_prompts(evaluation, output, name=_NAME)
    if as_json:
        print_json(evaluation.to_dict())
        return
    console = Console(highlight=False)
    count = f"{len(evaluation.used)} {evaluation.example_name}s"
    _say(console, f"{count} from {data.name}; means with 95 % bootstrap intervals.")
    _show_tables(console, evaluation.tables(), evaluation.verdict())


@contextmanager
def _stoppable(journal: Path | None, plural: str = "texts") -> Iterator[None]:
    """Say what an interruption has left."""
    try:
        yield
    except KeyboardInterrupt:
        if journal is None or not journal.is_file():
            raise
        done = journal.read_bytes().count(b"\n") - 1
        raise StoppedError(
            f"interrupted; {done} {plural} are kept in {str(journal)!r}, and the same command goes "
            "on from there."
        ) from None


def _show(evaluation: Evaluation, source: str) -> None:
    from attnflow.evaluation.tables import heading, tables_of

    console = Console(highlight=False)
    _say(console, heading(evaluation, source))
    _show_tables(console, tables_of(evaluation), evaluation.verdict())


def _show_tables(console: Console, tables: Iterable[Table], verdict: Iterable[str]) -> None:
    for table in tables:
        console.print(f"\n[bold]{escape(table.title)}[/bold]", soft_wrap=True)
        for line in table.lines():
            console.print(line, markup=False, soft_wrap=True)
        if table.note:
            _say(console, table.note, style="dim")
    console.print()
    for sentence in verdict:
        _say(console, sentence, first="→ ", later="  ")


def _say(
    console: Console, sentence: str, *, style: str = "", first: str = "", later: str = ""
) -> None:
    """Whole words on each line; rich would break at hyphens of method names."""
    wrapped = textwrap.fill(
        sentence,
        max(40, console.width),
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
        break_long_words=False,
    )
    console.print(wrapped, markup=False, style=style, soft_wrap=True)


def _write(evaluation: Evaluation, output: Path, *, command: str, source: str) -> None:
    from attnflow.evaluation.tables import markdown_of, panels_of
    from attnflow.show import plots

    table, page, figure = (output / f"{_NAME}.{ending}" for ending in ("csv", "md", "png"))
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{str(output)!r} cannot be written to: {error}.") from error
    storage.write_text(table, evaluation.to_csv())
    storage.write_text(page, markdown_of(evaluation, command=command, source=source))
    plots.interval_panels(panels_of(evaluation), figure)
    for path in (table, page, figure):
        tell_written(path)


def _command(
    data: Path,
    model: str | None,
    column: str | None,
    methods: list[str] | None,
    by: str | None,
    numbers: dict[str, int],
) -> str:
    """What to type to get the same numbers; of paths only the last part."""
    parts = ["attnflow evaluate", f"--data {data.name}"]
    parts += [f"--model {Path(model).name if Path(model).is_dir() else model}"] if model else []
    parts += [f"--column {column}"] if column else []
    parts += [f"--method {name}" for name in methods or []]
    parts += [f"--by {by}"] if by else []
    parts += [f"{name} {number}" for name, number in numbers.items()]
    return " ".join(parts)
