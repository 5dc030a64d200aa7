"""`attnflow cite`: the places in documents that an answer rests on, whoever wrote it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attnflow import data
from attnflow.cli import inputs, options, writing
from attnflow.cli.ask import show_answer
from attnflow.data.documents import ENDINGS, STANDARD_INPUT, read_document, read_documents
from attnflow.errors import InputError, shorten
from attnflow.methods import make_method
from attnflow.models import WRITER
from attnflow.show.progress import progress_bars

_ROLES = ("question", "answer", "documents")
_PRINTED = ("question", "answer", "statements", "citations")


@options.described
def cite(
    rows: Annotated[Path | None, typer.Argument(metavar="[ROWS.jsonl]")] = None,
    answer: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    documents: options.Documents = None,
    question: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    model: options.Model = None,
    method: options.Method = None,
    chat: Annotated[bool | None, typer.Option("--chat/--no-chat")] = None,
    check: Annotated[bool, typer.Option("--check/--no-check")] = True,
    as_json: options.Json = False,
    output: options.Output = None,
) -> None:
    """Say which documents an answer rests on, whoever wrote it.

    Each statement of the answer has a line: what it rests on, from hiding that. The model that
    reads it need not be the one that wrote it; a statement that it would hardly have written
    itself is told. With ROWS every row is an answer of its own, and a line of JSON is printed for
    each: its citations, with their characters in the answer and in the document.

    The default method is that of `attnflow ask`: balanced, the quick one nearest to leaving
    sentences out.

    Examples:
      attnflow cite --answer answer.txt --document '*.md' --question "How long?"
      attnflow cite answers.jsonl > citations.jsonl

    rows: A table of answers, such as .jsonl or .parquet, or - for lines of JSON on standard
        input, with the columns answer, documents (a list
        of texts, or texts by name) and, if it is known, question.
    answer: The file with the answer, or - for standard input.
    documents: A document: a file, a folder, a pattern such as '*.md', or - for standard input. May
        be repeated.
    question: The question that the answer was given to. It makes the reading surer.
    chat: Use the chat template, or do not. Default: use it if there is one.
    check: Read each statement again without the sentence that is named and without any document,
        and say what it rests on. This takes about as long as reading the documents.
    """
    reading: dict[str, Any] = {"chat": chat, "check": check}
    reading["method"] = None if method is None else make_method(method)
    if rows is not None:
        if answer is None and rows.suffix.lower() in ENDINGS:
            raise InputError(
                f"{str(rows)!r} is no table of answers. One answer: attnflow cite --answer {rows} "
                "--document contract.txt."
            )
        if answer is not None or documents:
            raise InputError(
                "A table has answers and documents: leave --answer and --document out."
            )
        with tempfile.TemporaryDirectory() as folder:
            if str(rows) == STANDARD_INPUT:  # lines of JSON
                rows = Path(folder, "rows.jsonl")
                rows.write_bytes(sys.stdin.buffer.read())
            _cite_rows(rows, model, reading)
        return
    if answer is None:
        raise InputError("There is no answer: --answer FILE names it, or - for standard input.")
    if not documents:
        raise InputError("There is no document: --document FILE names one, and may be repeated.")
    if answer == STANDARD_INPUT and STANDARD_INPUT in documents:
        raise InputError("Standard input (-) is the answer or a document, not both.")
    texts = read_documents(documents, answer)
    text = read_document(answer).text
    writing.check_output(output, as_json=as_json)
    pace = writing.Pace(model or WRITER, " ".join([text, *(document.text for document in texts)]))
    options.prepare_models()
    from attnflow.explainers.answers import ask

    inputs.tell_preparation(model)
    with pace, progress_bars("reading"):
        result = ask(model, question, texts, answer=text, **reading)
    if as_json:
        writing.print_json(result.to_dict())
    else:
        show_answer(result, Console(highlight=False))
    if output is not None:
        title = question or "Answer"
        writing.write_result(result.result, output, page=lambda: result.to_html(title=title))


def _cite_rows(rows: Path, model: str | None, reading: Mapping[str, Any]) -> None:
    """Print a line of JSON for each row; one that cannot be used has an error, and others go on."""
    options.prepare_models()
    from attnflow.explainers.answers import ask
    from attnflow.hosts.load import as_model

    inputs.tell_preparation(model)
    loaded = as_model(model, default=WRITER)
    for number, (question, answer, documents) in _read_rows(rows):
        try:
            result = ask(loaded, question, documents, answer=answer, **reading)
        except InputError as error:
            writing.print_json({"row": number, "error": str(error)})
        else:
            record = result.to_dict()  # without the values of single tokens
            writing.print_json({"row": number, **{name: record[name] for name in _PRINTED}})


def _read_rows(place: Path) -> Iterator[tuple[int, tuple[Any, Any, Any]]]:
    for row in data.rows(place):
        if "answer" not in row.values or not row.values.get("documents"):
            raise InputError(
                f"{row.place} has the columns {', '.join(map(shorten, row.values))}; a row to cite "
                f"has {', '.join(_ROLES[1:])} and, if it is known, question."
            )
        yield row.number, tuple(row.values.get(role) for role in _ROLES)  # type: ignore[misc]
