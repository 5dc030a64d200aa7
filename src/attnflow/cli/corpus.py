"""`attnflow corpus`: a corpus explained into a folder, and what it says as a whole."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from attnflow import storage
from attnflow.cli import options, writing
from attnflow.errors import InputError, optional_import, percent, shorten
from attnflow.errors.arguments import check_named
from attnflow.errors.progress import Progress as StageProgress
from attnflow.errors.progress import listening

if TYPE_CHECKING:
    from attnflow.corpus import Local, Ray, Summary

_SECONDS_BETWEEN_LINES = 60.0
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
_OTHER_ENGINES = {
    "local": ("ray", "the local engine takes the GPUs that there are"),
    "ray": ("local", "Ray has actors"),
}
_PAGE = "_summary.html"  # with an underscore, so that readers of Parquet leave it out

app = typer.Typer(
    name="corpus",
    help="Explain many texts into Parquet files, and sum them up.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
@options.described
def run(
    data: Annotated[list[str], typer.Option(metavar="FILE|FOLDER|PATTERN")],
    output: Annotated[Path, typer.Option(metavar="FOLDER")],
    model: options.Model = None,
    methods: options.Methods = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN")] = None,
    prompt: Annotated[str | None, typer.Option(metavar="COLUMN")] = None,
    completion: Annotated[str | None, typer.Option(metavar="COLUMN")] = None,
    documents: Annotated[str | None, typer.Option(metavar="COLUMN")] = None,
    image: Annotated[str | None, typer.Option(metavar="COLUMN")] = None,
    key: Annotated[str | None, typer.Option("--id", metavar="COLUMN")] = None,
    targets: Annotated[list[str] | None, typer.Option(metavar="TARGET")] = None,
    layers: int = -1,
    level: str = "token",
    top: int = 5,
    values: Annotated[bool, typer.Option("--values")] = False,
    max_new_tokens: int = 0,
    chat: options.Chat = False,
    check: Annotated[bool, typer.Option("--check")] = False,
    batch_tokens: int = 2048,
    shard_size: int = 512,
    engine: str = "local",
    processes: int | None = None,
    threads: int | None = None,
    actors: int | None = None,
    gpus: float | None = None,
    address: str | None = None,
) -> None:
    """Explain every text of DATA into the folder OUTPUT.

    If a run was stopped, the same command goes on with it.

    The default method is that of `attnflow explain`, the quick one that agrees best with ablations.

    Examples:
      attnflow corpus run --data texts.csv --output explained
      attnflow corpus run --data 'shards/*.parquet' --model ./my-model --output explained

    data: A file (.parquet, .jsonl, .csv, .tsv, .txt, .arrow), a folder, a pattern in quotes, or a
        folder that `datasets` saved. May be repeated.
    output: The folder of the rows. A run that is there already goes on.
    text: The column of the texts. Default: its own name.
    prompt: The column of the prompts. Default: its own name.
    completion: The column of the completions. Default: its own name.
    documents: The column of the documents, a list of texts. Default: its own name.
    image: The column of the images, paths or bytes. Default: its own name.
    key: The column of an id.
    targets: 'all', a position or a token. May be repeated. Default: where the answer is read.
    layers: The layer that is read. -1 is the highest.
    level: What a source is: token, word, sentence or document.
    top: How many sources are kept for each target.
    values: Keep the values of all sources, too.
    max_new_tokens: Where a prompt has no completion, write one of this many tokens.
    check: Say what each answer rests on: it is read again without what is named, which takes
        several times as long.
    batch_tokens: How many tokens go through the model at once, with padding.
    shard_size: How many texts are written together.
    engine: 'local' for processes, or 'ray' for a cluster.
    processes: How many processes the local engine starts. Default: one for each GPU, or else for
        each core.
    threads: How many threads a process has. Default: its share of the cores.
    actors: How many actors Ray starts, each with a copy of the model. Default: 2.
    gpus: How many GPUs an actor of Ray has.
    address: The address of a Ray cluster. Default: one on this machine.
    """
    optional_import("pyarrow", extra="corpus", purpose="Explaining a corpus")
    place = _make_engine(
        engine, processes=processes, threads=threads, actors=actors, gpus=gpus, address=address
    )
    options.prepare_models()
    from attnflow import corpus

    roles = {"text": text, "prompt": prompt, "completion": completion, "documents": documents}
    roles |= {"image": image, "id": key}
    settings = corpus.Settings(
        methods=methods or (),
        columns={role: name for role, name in roles.items() if name is not None},
        targets=options.parse_targets(targets),
        layers=layers,
        level=level,  # type: ignore[arg-type]  # checked there
        top=top,
        values=values,
        max_new_tokens=max_new_tokens,
        chat=chat,
        check=check,
        batch_tokens=batch_tokens,
        shard_size=shard_size,
    )
    with _progress():
        result = corpus.run(model, data, output, settings=settings, engine=place)
    failed = f", {result.errors:,} of them without a result" if result.errors else ""
    typer.echo(f"{result.texts:,} texts in {str(output)!r}{failed}", err=True)
    typer.echo(f"The strongest sources as a table: {output / '_sources.csv'}", err=True)
    typer.echo(f"What they say: attnflow corpus summary {output}", err=True)


def _make_engine(name: str, **choices: Any) -> Local | Ray:
    """Return the engine of this name; an option of the other one is refused."""
    from attnflow import corpus

    engines: dict[str, Any] = {"local": corpus.Local, "ray": corpus.Ray}
    check_named("engine", name, list(engines), InputError)
    choices = {option: value for option, value in choices.items() if value is not None}
    known = [field.name for field in fields(engines[name])]
    for option, value in choices.items():
        if option not in known:
            owner, why = _OTHER_ENGINES[name]
            raise InputError(f"--{option} {shorten(value)} is for --engine {owner}; {why}.")
    return engines[name](**choices)


@app.command()
@options.described
def summary(
    folder: Annotated[Path, typer.Argument()],
    as_json: options.Json = False,
    output: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
) -> None:
    """Say which sources are strongest and where methods disagree.

    Examples:
      attnflow corpus summary explained
      attnflow corpus summary explained --output summary.html

    folder: The folder that `attnflow corpus run` wrote.
    output: The page. Default: _summary.html in the folder.
    """
    optional_import("pyarrow", extra="corpus", purpose="Reading a corpus")
    from attnflow import corpus

    result = corpus.summarize(folder)
    if as_json:
        writing.print_json(result.to_dict())
        return
    _show(result, Console(highlight=False))
    page = output or folder / _PAGE
    storage.write_text(page, result.to_html())
    writing.tell_written(page)


def _show(summary: Summary, console: Console) -> None:
    record = summary.to_dict()
    for sentence, count in record["errors"].items():
        console.print(f"{count:,} texts failed: {escape(sentence)}", style="yellow", soft_wrap=True)
    for sentence, share in record["verdicts"].items():
        console.print(f"{percent(share, 1)} of the answers {sentence}")
    for name, method in record["methods"].items():
        console.print(f"[bold]{escape(name)}[/bold]: {method['rows']:,} rows", soft_wrap=True)
        sources = list(method["strongest"].items())[:5]
        listing = ", ".join(f"{text} {percent(n / method['rows'], 1)}" for text, n in sources)
        console.print(f"  strongest most often: {escape(listing)}", soft_wrap=True)
        if method["first_wins"] is not None:
            share = percent(method["first_wins"], 1)
            console.print(f"  the first {record['level']} is the strongest in {share} of the rows")
        console.print(f"  the strongest holds {percent(method['share'], 1)} of a row on average")
    for pair in record["pairs"]:
        names = " and ".join(pair["methods"])
        console.print(
            f"{escape(names)} name the same strongest source in {percent(pair['agreement'], 1)}"
        )


@contextmanager
def _progress() -> Iterator[None]:
    """Show a bar in a terminal; elsewhere write one JSON line a minute, and one at the end."""
    state, console = _State(), Console(stderr=True)
    if console.is_terminal:
        with Progress(*_COLUMNS, console=console, transient=True) as bars:
            task = bars.add_task("starting", total=None, state="")

            def show(progress: StageProgress) -> None:
                if state.hear(progress):
                    bars.update(task, completed=state.texts, total=state.total)
                    bars.update(task, description="texts", state=state.sentence())

            with listening(show):
                yield
        return
    last_line = -_SECONDS_BETWEEN_LINES

    def write_line(progress: StageProgress) -> None:
        nonlocal last_line
        if state.hear(progress) and time.monotonic() - last_line >= _SECONDS_BETWEEN_LINES:
            last_line = time.monotonic()
            typer.echo(json.dumps(state.to_dict()), err=True)

    with listening(write_line):
        yield
    if state.resumed is not None:
        typer.echo(json.dumps(state.to_dict()), err=True)


@dataclass
class _State:
    """The state of a run, from what it tells. `resumed` texts were there already."""

    texts: int = 0
    total: int = 0
    resumed: int | None = None
    errors: int = 0
    tokens: int = 0
    begin: float = field(default_factory=time.monotonic)

    def hear(self, progress: StageProgress) -> bool:
        """Take a stage of the run; return True for the texts, which come last."""
        if progress.stage == "tokens":
            self.tokens = progress.done
        elif progress.stage == "texts without a result":
            self.errors = progress.done
        elif progress.stage == "expected seconds":
            length = timedelta(seconds=progress.done)
            pace = progress.total / progress.done
            typer.echo(f"{progress.total:,} texts take about {length} ({pace:,.1f}/s)", err=True)
        elif progress.stage == "texts":
            if self.resumed is None:
                self.resumed, self.begin = progress.done, time.monotonic()
            self.texts, self.total = progress.done, progress.total
        return progress.stage == "texts"

    def to_dict(self) -> dict[str, Any]:
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

    def sentence(self) -> str:
        state = self.to_dict()
        parts = [f"{self.texts:,} of {self.total:,}"]
        if state["seconds_left"] is not None:
            parts.append(f"{state['tokens_per_second']:,.0f} tokens/s")
            parts.append(f"{timedelta(seconds=round(state['seconds_left']))} left")
        parts += [f"{self.errors:,} failed"] if self.errors else []
        return " · ".join(parts)
