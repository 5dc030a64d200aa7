"""`attnflow evaluate`: which attribution to trust for a model and a file of texts."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from attnflow.cli.options import parse_option, prepare_models
from attnflow.errors import FileError, InputError, StoppedError
from attnflow.evaluation.texts import LabelledText, read_texts
from attnflow.methods import METHODS, Method, make_method
from attnflow.models.agreement import held_out, read_agreement
from attnflow.storage import write_text

if TYPE_CHECKING:
    from attnflow.evaluation import Evaluation
    from attnflow.progress import Progress as Step
    from attnflow.progress import ProgressCallback

__all__ = ["evaluate"]

_NAME = "evaluation"


def evaluate(
    data: Annotated[
        Path,
        typer.Option(help="The texts: .txt (one a line), .csv, .tsv, .jsonl or .parquet."),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="A Hugging Face name or a local folder; default: the embedded model."),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="The column the texts are in; default: 'text' or 'sentence'."),
    ] = None,
    held_out_only: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="DATA is numpred.val of the agreement data: the part the embedded model never "
            "saw.",
        ),
    ] = False,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:OPTION=VALUE]...",
            help="A method, with options after colons (gradient-flow:residual=0.5); repeatable. "
            f"Default: all of {', '.join(METHODS)}.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="What blanks a word: unk, mask, pad, delete; default: the first there."),
    ] = None,
    min_words: Annotated[int, typer.Option(help="Leave out texts with fewer words.")] = 2,
    skip: Annotated[
        int,
        typer.Option(help="Leave out the first so many drawn: those that options were chosen on."),
    ] = 0,
    samples: Annotated[int, typer.Option(help="How many texts are drawn, at most.")] = 500,
    seed: Annotated[int, typer.Option(help="Decides which texts, and the random orders.")] = 0,
    batch_size: Annotated[int, typer.Option(help="How many perturbed texts in one pass.")] = 64,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write CSV, Markdown and a figure here; the run is kept here."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the run in this .jsonl file, and go on with it if it is there; default: "
            f"{_NAME}.jsonl in the folder of --output.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")
    ] = False,
) -> None:
    """Hold every method against what MODEL uses on the texts of DATA, and say which to trust."""
    methods = None if method is None else [parse_method(name) for name in method]
    read = _read(data, column, held_out_only)
    kept = output / f"{_NAME}.jsonl" if resume is None and output is not None else resume
    prepare_models()
    from attnflow.evaluation import evaluate_methods
    from attnflow.evaluation.importance.blanking import BlankToken

    if by is not None and by not in get_args(BlankToken):
        raise InputError(f"--by is one of {', '.join(get_args(BlankToken))}; got {by!r}.")
    with _stoppable(kept), _bar() as progress:
        found = evaluate_methods(
            model,
            [each.text for each in read],
            methods=methods,
            labels=[each.label for each in read],
            by=by,  # type: ignore[arg-type]  # checked above
            min_words=min_words,
            skip=skip,
            samples=samples,
            seed=seed,
            batch_size=batch_size,
            resume=kept,
            progress=progress,
        )
    source = f"the held-out part of {data.name}" if held_out_only else data.name
    if output is not None:
        parts = {"--min-words": min_words, "--skip": skip, "--samples": samples, "--seed": seed}
        command = _command(data, model, column, held_out_only, method, by, parts)
        _write(found, output, command=command, source=source)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        _show(found, source)


def parse_method(text: str) -> Method:
    """NAME:OPTION=VALUE:OPTION=VALUE as a method."""
    name, *options = text.split(":")
    return make_method(name, dict(map(parse_option, options)))


def _read(data: Path, column: str | None, held_out_only: bool) -> list[LabelledText]:
    if not held_out_only:
        return read_texts(data, column=column)
    if column is not None:
        raise InputError("--held-out reads the agreement data, which have no --column to choose.")
    examples = held_out(read_agreement(data))
    return [LabelledText(" ".join(example.words), str(example.label)) for example in examples]


@contextmanager
def _stoppable(kept: Path | None) -> Iterator[None]:
    """Say what an interruption has left."""
    try:
        yield
    except KeyboardInterrupt:
        if kept is None or not kept.is_file():
            raise
        done = kept.read_bytes().count(b"\n") - 1
        raise StoppedError(
            f"interrupted; {done} texts are kept in {str(kept)!r}, and the same command goes on "
            "from there."
        ) from None


@contextmanager
def _bar() -> Iterator[ProgressCallback]:
    """On standard error, and only on a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as bar:
        tasks = {"texts": bar.add_task("texts", total=None)}

        def report(step: Step) -> None:
            if step.stage not in tasks:
                tasks[step.stage] = bar.add_task(step.stage, total=step.total)
            bar.update(tasks[step.stage], completed=step.done, total=step.total)

        yield report


def _show(found: Evaluation, source: str) -> None:
    from attnflow.evaluation.tables import heading, tables_of

    console = Console(highlight=False)
    _say(console, heading(found, source))
    for table in tables_of(found):
        console.print(f"\n[bold]{escape(table.title)}[/bold]", soft_wrap=True)
        for line in table.lines():
            console.print(line, markup=False, soft_wrap=True)
        if table.note:
            _say(console, table.note, style="dim")
    console.print()
    for sentence in found.verdict():
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


def _write(found: Evaluation, output: Path, *, command: str, source: str) -> None:
    from attnflow.evaluation.tables import markdown_of, panels_of
    from attnflow.show import plots

    paths = [output / f"{_NAME}.{ending}" for ending in ("csv", "md", "png")]
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_text(paths[0], found.to_csv())
        write_text(paths[1], markdown_of(found, command=command, source=source))
        plots.interval_panels(panels_of(found), paths[2])
    except OSError as error:
        raise FileError(f"{str(output)!r} cannot be written to: {error}.") from error
    for path in paths:
        typer.echo(f"wrote {path}", err=True)


def _command(
    data: Path,
    model: str | None,
    column: str | None,
    held_out_only: bool,
    methods: list[str] | None,
    by: str | None,
    numbers: dict[str, int],
) -> str:
    """What to type to get the same numbers; of paths only the last part."""
    parts = ["attnflow evaluate", f"--data {data.name}"]
    parts += [f"--model {Path(model).name if Path(model).is_dir() else model}"] if model else []
    parts += [f"--column {column}"] if column else []
    parts += ["--held-out"] if held_out_only else []
    parts += [f"--method {name}" for name in methods or []]
    parts += [f"--by {by}"] if by else []
    parts += [f"{name} {number}" for name, number in numbers.items()]
    return " ".join(parts)
