"""`attnflow corpus`: a corpus explained into a folder, and what it says as a whole."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
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
    parse_target,
    prepare_models,
)
from attnflow.cli.output import print_json, tell_written
from attnflow.errors import InputError, did_you_mean, optional_import, percent, shorten
from attnflow.errors.progress import Progress as StageProgress
from attnflow.errors.progress import listening
from attnflow.methods import make_method

if TYPE_CHECKING:
    from attnflow.corpus import Local, Ray, Summary

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
    methods: MethodsOption = None,
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
            help="'all', a position or a token. May be repeated. Default: where the answer is "
            "read.",
        ),
    ] = None,
    layers: Annotated[int, typer.Option(help="The layer that is read. -1 is the highest.")] = -1,
    level: Annotated[
        str, typer.Option(help="What a source is: token, word, sentence or document.")
    ] = "token",
    top: Annotated[int, typer.Option(help="How many sources are kept for each target.")] = 5,
    values: Annotated[
        bool, typer.Option("--values", help="Keep the values of all sources, too.")
    ] = False,
    max_new_tokens: Annotated[
        int, typer.Option(help="Where a prompt has no completion, write one of this many tokens.")
    ] = 0,
    chat: ChatOption = False,
    batch_tokens: Annotated[
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
        int | None,
        typer.Option(help="How many actors Ray starts, each with a copy of the model. Default: 2."),
    ] = None,
    gpus: Annotated[float | None, typer.Option(help="How many GPUs an actor of Ray has.")] = None,
    address: Annotated[
        str | None, typer.Option(help="The address of a Ray cluster. Default: one on this machine.")
    ] = None,
) -> None:
    """Explain every text of DATA into the folder OUTPUT.

    If a run was stopped, the same command goes on with it.
    """
    method_list = [make_method(name) for name in methods or ()]
    target_refs: Any = [parse_target(target) for target in targets or ()] or None
    optional_import("pyarrow", extra="corpus", purpose="Explaining a corpus")
    local: dict[str, Any] = {"processes": processes, "threads": threads}
    cluster: dict[str, Any] = {"actors": actors, "gpus": gpus, "address": address}
    place = _engine(engine, {**local, **cluster})
    prepare_models()
    from attnflow import corpus

    roles = {"text": text, "prompt": prompt, "completion": completion, "documents": documents}
    roles |= {"image": image, "id": key}
    settings = corpus.Settings(
        methods=method_list,
        columns={role: name for role, name in roles.items() if name is not None},
        targets="all" if target_refs == ["all"] else target_refs,
        layers=layers,
        level=level,  # type: ignore[arg-type]  # checked there
        top=top,
        values=values,
        max_new_tokens=max_new_tokens,
        chat=chat,
        batch_tokens=batch_tokens,
        shard_size=shard_size,
    )
    with _progress() as state, listening(state.hear):
        result = corpus.run(model, data, output, settings=settings, engine=place)
    failed = f", {result.errors:,} of them without a result" if result.errors else ""
    typer.echo(f"{result.texts:,} texts in {str(output)!r}{failed}", err=True)
    typer.echo(f"What they say: attnflow corpus summary {output}", err=True)


def _engine(name: str, options: Mapping[str, Any]) -> Local | Ray:
    """Return the engine of this name; an option of the other one is refused."""
    from attnflow import corpus

    engines: dict[str, Any] = {"local": corpus.Local, "ray": corpus.Ray}
    if name not in engines:
        hint = did_you_mean(name, list(engines))
        raise InputError(f"engine is 'local' or 'ray'; got {shorten(name)}.{hint}")
    options = {option: value for option, value in options.items() if value is not None}
    known = [field.name for field in fields(engines[name])]
    other = next((option for option in options if option not in known), None)
    if other is not None:
        owner = "ray" if name == "local" else "local"
        why = {"local": "the local engine takes the GPUs that there are", "ray": "Ray has actors"}
        raise InputError(
            f"--{other} {shorten(options[other])} is for --engine {owner}; {why[name]}."
        )
    return engines[name](**options)


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


@dataclass
class _State:
    """The state of a run, from what it tells. `resumed` texts were there already."""

    show: Callable[[_State], None]
    texts: int = 0
    total: int = 0
    resumed: int | None = None
    errors: int = 0
    tokens: int = 0
    begin: float = field(default_factory=time.monotonic)

    def hear(self, progress: StageProgress) -> None:
        """Take a stage of the run; texts come last."""
        if progress.stage == "tokens":
            self.tokens = progress.done
        elif progress.stage == "texts without a result":
            self.errors = progress.done
        elif progress.stage == "texts":
            if self.resumed is None:
                self.resumed, self.begin = progress.done, time.monotonic()
            self.texts, self.total = progress.done, progress.total
            self.show(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, paces and times rounded."""
        seconds = time.monotonic() - self.begin
        pace = (self.texts - (self.resumed or 0)) / seconds if seconds else 0.0
        return {
            "texts": self.texts,
            "total": self.total,
            "resumed": self.resumed or 0,
            "errors": self.errors,
            "tokens_per_second": round(self.tokens / seconds if seconds else 0.0, 1),
            "texts_per_second": round(pace, 2),
            "seconds": round(seconds, 1),
            "seconds_left": round((self.total - self.texts) / pace, 1) if pace else None,
        }


@contextmanager
def _progress() -> Iterator[_State]:
    """Show a bar in a terminal; elsewhere write one JSON line a minute, and one at the end."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = _Lines()
        state = _State(lines)
        yield state
        if state.resumed is not None:
            lines.write(state)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting", total=None, state="")

        def show(state: _State) -> None:
            bars.update(
                task,
                description="texts",
                completed=state.texts,
                total=state.total,
                state=_sentence(state.to_dict()),
            )

        yield _State(show)


def _sentence(state: Mapping[str, Any]) -> str:
    sentence = [f"{state['texts']:,} of {state['total']:,}"]
    if state["seconds_left"] is not None:
        sentence.append(f"{state['tokens_per_second']:,.0f} tokens/s")
        sentence.append(f"{_duration(state['seconds_left'])} left")
    sentence += [f"{state['errors']:,} failed"] if state["errors"] else []
    return " · ".join(sentence)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class _Lines:
    """JSON lines on standard error, the first at once, then one a minute."""

    def __init__(self) -> None:
        self._last = -_SECONDS_BETWEEN_LINES

    def __call__(self, state: _State) -> None:
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self.write(state)

    def write(self, state: _State) -> None:
        """Write a line now."""
        self._last = time.monotonic()
        print(json.dumps(state.to_dict()), file=sys.stderr, flush=True)  # noqa: T201
