"""`attnflow corpus`: a corpus explained into a folder, and what it says as a whole."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from attnflow import storage
from attnflow.cli.options import (
    ChatOption,
    JsonOption,
    MethodsOption,
    ModelOption,
    parse_method,
    parse_target,
    prepare_models,
)
from attnflow.cli.output import print_json, tell_written
from attnflow.errors import optional_import
from attnflow.errors.percent import percent

if TYPE_CHECKING:
    from attnflow.corpus import CorpusProgress, Summary

__all__ = ["app"]

_SECONDS_BETWEEN_LINES = 60.0
_PAGE = "_summary.html"  # with an underscore, so that readers of Parquet leave it out

app = typer.Typer(
    name="corpus",
    help="Explain many texts into Parquet files, and sum them up.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _column(part: str) -> Any:
    return typer.Option(metavar="COLUMN", help=f"The column of the {part}. Default: its own name.")


@app.command()
def run(
    data: Annotated[
        list[str],
        typer.Option(
            metavar="FILE|FOLDER|PATTERN",
            help="A file (.parquet, .jsonl, .csv, .tsv, .txt, .arrow), a folder, a pattern in "
            "quotes, or a folder that `datasets` saved. May be repeated.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="The folder of the rows. A run that is there already goes on."
        ),
    ],
    model: ModelOption = None,
    method: MethodsOption = None,
    text: Annotated[str | None, _column("texts")] = None,
    prompt: Annotated[str | None, _column("prompts")] = None,
    completion: Annotated[str | None, _column("completions")] = None,
    documents: Annotated[str | None, _column("documents, a list of texts")] = None,
    image: Annotated[str | None, _column("images, paths or bytes")] = None,
    key: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="The column of an id.")
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--targets",
            metavar="TARGET",
            help="'prediction' (where the answer is read), 'all', a position or a token. May be "
            "repeated.",
        ),
    ] = None,
    layer: Annotated[int, typer.Option(help="The layer that is read. -1 is the highest.")] = -1,
    level: Annotated[
        str, typer.Option(help="What a source is: token, word, sentence or document.")
    ] = "token",
    top: Annotated[int, typer.Option(help="How many sources are kept for each target.")] = 5,
    values: Annotated[
        bool, typer.Option("--values", help="Keep the values of all sources, too.")
    ] = False,
    chat: ChatOption = False,
    max_new_tokens: Annotated[
        int, typer.Option(help="Where a prompt has no completion, write one of this many tokens.")
    ] = 0,
    tokens_per_batch: Annotated[
        int, typer.Option(help="How many tokens go through the model at once, with padding.")
    ] = 2048,
    shard_size: Annotated[int, typer.Option(help="How many texts are written together.")] = 512,
    engine: Annotated[
        str, typer.Option(help="'local' for processes, or 'ray' for a cluster.")
    ] = "local",
    processes: Annotated[
        int | None,
        typer.Option(
            help="How many processes the local engine starts. Default: one for each GPU, or else "
            "for each core."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="How many threads a process has. Default: its share of the cores."),
    ] = None,
    actors: Annotated[
        int, typer.Option(help="How many actors Ray starts, each with a copy of the model.")
    ] = 2,
    gpus: Annotated[float, typer.Option(help="How many GPUs an actor of Ray has.")] = 0,
    address: Annotated[
        str | None, typer.Option(help="The address of a Ray cluster. Default: one on this machine.")
    ] = None,
) -> None:
    """Explain every text of DATA into the folder OUTPUT.

    If a run was stopped, the same command goes on with it.
    """
    methods = None if method is None else [parse_method(name) for name in method]
    target_refs: Any = [parse_target(target) for target in targets or ["prediction"]]
    optional_import("pyarrow", extra="corpus", purpose="Explaining a corpus")
    prepare_models()
    from attnflow import corpus

    with _progress() as tell:
        result = corpus.run(
            model,
            data,
            output=output,
            methods=methods,
            text=text,
            prompt=prompt,
            completion=completion,
            documents=documents,
            image=image,
            id=key,
            targets=target_refs[0] if target_refs in (["prediction"], ["all"]) else target_refs,
            layer=layer,
            level=level,  # type: ignore[arg-type]  # checked there
            top=top,
            values=values,
            chat=chat,
            max_new_tokens=max_new_tokens,
            tokens_per_batch=tokens_per_batch,
            shard_size=shard_size,
            engine=engine,  # type: ignore[arg-type]  # checked there
            processes=processes,
            threads=threads,
            actors=actors,
            gpus=gpus,
            address=address,
            progress=tell,
        )
    failed = f", {result.errors:,} of them without a result" if result.errors else ""
    typer.echo(f"{result.texts:,} texts in {str(output)!r}{failed}", err=True)
    typer.echo(f"What they say: attnflow corpus summary {output}", err=True)


@app.command()
def summary(
    folder: Annotated[Path, typer.Argument(help="The folder that `attnflow corpus run` wrote.")],
    as_json: JsonOption = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"The page. Default: {_PAGE} in the folder.")
    ] = None,
) -> None:
    """Say which sources are strongest and where methods disagree."""
    optional_import("pyarrow", extra="corpus", purpose="Reading a corpus")
    from attnflow import corpus

    result = corpus.summarize(folder)
    if as_json:
        print_json(result.to_dict())
        return
    _show(result, Console(highlight=False))
    page = output or folder / _PAGE
    storage.write_text(page, result.to_html())
    tell_written(page)


def _show(summary: Summary, console: Console) -> None:
    record = summary.to_dict()
    for sentence, count in record["errors"].items():
        console.print(f"{count:,} texts failed: {escape(sentence)}", style="yellow", soft_wrap=True)
    for name, method in record["methods"].items():
        console.print(f"[bold]{escape(name)}[/bold]: {method['rows']:,} rows", soft_wrap=True)
        sources = list(method["strongest"].items())[:5]
        listing = ", ".join(f"{text} {percent(n / method['rows'], 1)}" for text, n in sources)
        console.print(f"  strongest most often: {escape(listing)}", soft_wrap=True)
        if method["first_wins"] is not None:
            share = f"{percent(method['first_wins'], 1)}"
            console.print(f"  the first {record['level']} is the strongest in {share} of the rows")
        console.print(f"  the strongest holds {percent(method['share'], 1)} of a row on average")
    for pair in record["pairs"]:
        names = " and ".join(pair["methods"])
        console.print(
            f"{escape(names)} name the same strongest source in {percent(pair['agreement'], 1)}"
        )


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar in a terminal; elsewhere one JSON line a minute, and one at the end."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = _Lines()
        yield lines
        lines.finish()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting", total=None, state="")

        def show(state: CorpusProgress) -> None:
            bars.update(
                task,
                description="texts",
                completed=state.texts,
                total=state.total,
                state=_sentence(state),
            )

        yield show


def _sentence(state: CorpusProgress) -> str:
    parts = [f"{state.texts:,} of {state.total:,}"]
    if state.seconds_left is not None:
        parts.append(f"{state.tokens_per_second:,.0f} tokens/s")
        parts.append(f"{_duration(state.seconds_left)} left")
    parts += [f"{state.errors:,} failed"] if state.errors else []
    return " · ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class _Lines:
    """JSON lines on standard error, the first at once, then one a minute."""

    def __init__(self) -> None:
        self._last = -_SECONDS_BETWEEN_LINES
        self._state: CorpusProgress | None = None

    def __call__(self, state: CorpusProgress) -> None:
        self._state = state
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._write(state)

    def finish(self) -> None:
        """The state at the end."""
        if self._state is not None:
            self._write(self._state)

    def _write(self, state: CorpusProgress) -> None:
        self._last = time.monotonic()
        print(json.dumps(state.to_dict()), file=sys.stderr, flush=True)  # noqa: T201
