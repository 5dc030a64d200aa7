"""`attnflow evaluate`: which attribution to trust for a model and some data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from attnflow import storage
from attnflow.cli import options, writing
from attnflow.data import find_files, name_subject
from attnflow.errors import InputError, StoppedError
from attnflow.methods import METHODS, make_method, trace_methods
from attnflow.show.progress import progress_bars

if TYPE_CHECKING:
    from attnflow.evaluation import Evaluation
    from attnflow.evaluation.subjects.base import Subject

_RERUNS = [name for name in METHODS if name not in trace_methods()]

_NAME = "evaluation"


@options.described
def evaluate(
    file: Annotated[Path | None, typer.Argument(metavar="DATA")] = None,
    data: Annotated[Path | None, typer.Option(metavar="FILE|FOLDER")] = None,
    model: options.Model = None,
    column: str | None = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            help=f"A method with its options. May be repeated. The methods are "
            f"{', '.join(trace_methods())}; for prompts also {', '.join(_RERUNS)} and default.",
        ),
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    level: str | None = None,
    max_new_tokens: int | None = None,
    chat: options.Chat = False,
    min_words: int | None = None,
    skip: int = 0,
    samples: int = 500,
    seed: options.Seed = 0,
    batch_size: int | None = None,
    output: Annotated[Path | None, typer.Option(metavar="FOLDER")] = None,
    journal: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    as_json: options.Json = False,
) -> None:
    """Say which method to trust for MODEL on DATA.

    DATA are texts, prompts or images.

    Every method is held against what the model uses: words are taken away, and the answer loses
    something. The default is all methods, to be compared. A file with a column 'prompt' (and, where
    known, 'completion', 'answer' and 'documents') is about what a language model or an
    encoder-decoder writes after each prompt.

    Examples:
      attnflow evaluate texts.csv --samples 50
      attnflow evaluate texts.csv --model ./my-classifier --output out

    file: The texts, prompts or images.
    data: The same as an option: .txt (one text on each line), .csv, .tsv, .jsonl, .json, .parquet
        or .arrow. A file with a column 'prompt' is about what a language model writes after each
        prompt. For images: a folder, or a table with a column 'path' and, where known, 'label' and
        'box'.
    column: The column of the texts. Default: 'text' or 'sentence'.
    by: How a source is taken away. For texts: unk, mask, pad or delete; default: the first of
        these that the tokenizer has. For prompts: hide (the default), replace or delete. For
        images: mean (the default), blur or zero.
    level: For prompts: what a source is: token, word (the default), sentence or document.
    max_new_tokens: For prompts: how many tokens the model writes, at most. Default: 20.
    min_words: Leave out texts with fewer words. Default: 2.
    skip: Leave out this many of the texts drawn first: those that options were chosen on.
    samples: How many texts are drawn, at most.
    batch_size: How many changed texts (default: 64) or images (default: 32) go through the model
        at once.
    output: Write CSV, Markdown and a figure to this folder, and keep the run in it.
    journal: Keep the run in this .jsonl file, and go on with it if it is there. Default:
        evaluation.jsonl in the folder of --output.
    """
    data = file or data
    if data is None or (file is not None and data != file):
        raise InputError("Name one file or folder of texts: attnflow evaluate texts.csv.")
    find_files(data)
    for name in methods or ():
        make_method(name) if name != "default" else None
    journal = output / f"{_NAME}.jsonl" if journal is None and output is not None else journal
    typer.echo(f"attnflow: loading the model that is held against {data}.", err=True)
    options.prepare_models()
    from attnflow.evaluation import evaluate as run

    choices = {
        **{"column": column, "by": by, "level": level, "max_new_tokens": max_new_tokens},
        **{"chat": chat or None, "min_words": min_words, "batch_size": batch_size},
    }
    subject = _make_subject(data, {n: value for n, value in choices.items() if value is not None})
    numbers: dict[str, Any] = {"skip": skip, "samples": samples, "seed": seed}
    with _stoppable(journal, subject.plural), progress_bars("loading the model"):
        evaluation = run(model, data, methods, subject=subject, journal=journal, **numbers)
    if output is not None:
        _write(evaluation, output, data, _command(data, model, methods, {**choices, **numbers}))
    if as_json:
        writing.print_json(evaluation.to_dict())
    else:
        _show(evaluation, data.name)


def _make_subject(data: Path, choices: Mapping[str, Any]) -> Subject:
    """Return the subject of the data with the options that were given, which must be its own."""
    from attnflow.evaluation.subjects import SUBJECTS

    name = "text" if "column" in choices else name_subject(data)
    known = {field.name for field in fields(SUBJECTS[name])}
    for option in choices:
        if option not in known:
            raise InputError(
                f"--{option.replace('_', '-')} is no option of {name}s, which {data.name!r} holds."
            )
    return SUBJECTS[name](**choices)


@contextmanager
def _stoppable(journal: Path | None, plural: str) -> Iterator[None]:
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
    console = Console(highlight=False)
    _say(console, evaluation.heading(source))
    for table in evaluation.tables():
        console.print(f"\n[bold]{escape(table.title)}[/bold]", soft_wrap=True)
        for line in table.lines():
            console.print(line, markup=False, soft_wrap=True)
        if table.note:
            _say(console, table.note, style="dim")
    console.print()
    for sentence in evaluation.verdict():
        _say(console, sentence, initial_indent="→ ", subsequent_indent="  ")


def _say(console: Console, sentence: str, *, style: str = "", **indents: str) -> None:
    """Print whole words on each line; rich would break at hyphens of method names."""
    layout: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False, **indents}
    wrapped = textwrap.fill(sentence, max(40, console.width), **layout)
    console.print(wrapped, markup=False, style=style, soft_wrap=True)


def _write(evaluation: Evaluation, output: Path, data: Path, command: str) -> None:
    from attnflow.show import plots

    table, page, figure = (output / f"{_NAME}.{ending}" for ending in ("csv", "md", "png"))
    writing.make_folder(output)
    storage.write_text(table, evaluation.to_csv())
    storage.write_text(page, evaluation.to_markdown(source=data.name, command=command))
    plots.interval_panels(evaluation.panels(), figure)
    for path in (table, page, figure):
        writing.tell_written(path)


def _command(
    data: Path, model: str | None, methods: list[str] | None, choices: Mapping[str, Any]
) -> str:
    """Return what to type to get the same numbers; of paths only the last part."""
    words = ["attnflow evaluate", f"--data {data.name}"]
    words += [f"--model {Path(model).name if Path(model).is_dir() else model}"] if model else []
    words += [f"--methods {name}" for name in methods or []]
    for name, value in choices.items():
        if value is not None and name != "batch_size":
            option = f"--{name.replace('_', '-')}"
            words.append(option if value is True else f"{option} {value}")
    return " ".join(words)
