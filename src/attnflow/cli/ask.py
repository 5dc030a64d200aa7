"""`attnflow ask`: the answer to a question, and under it the documents it came from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from attnflow import storage
from attnflow.cli.documents import read_documents
from attnflow.cli.generate import say_if_preparing
from attnflow.cli.options import (
    CarefulOption,
    JsonOption,
    MaxNewTokensOption,
    MethodOption,
    ModelOption,
    OutputOption,
    SamplingSeedOption,
    check_text,
    parse_method,
    prepare_models,
)
from attnflow.cli.output import (
    check_output,
    print_how_sure,
    print_json,
    tell_written,
    write_result,
)
from attnflow.cli.progress import progress_bars
from attnflow.show.sentences import reading_place

if TYPE_CHECKING:
    from attnflow.explainers.answers import Answer

__all__ = ["ask", "show_answer"]


def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    document: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="A document: a file, a pattern such as 'notes/*.txt', or - for standard input. "
            "May be repeated.",
        ),
    ] = None,
    model: ModelOption = None,
    max_new_tokens: MaxNewTokensOption = 64,
    method: MethodOption = None,
    careful: CarefulOption = False,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm",
            help="Leave out each document that is named, ask again, and say whether the answer "
            "changes.",
        ),
    ] = False,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Use the chat template, or do not. Default: use it if there is one.",
        ),
    ] = None,
    seed: SamplingSeedOption = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Answer QUESTION from documents and name its sources.

    Under the answer each of its statements has a line: the document and the sentence in it that
    the statement came from.
    """
    check_text(question, "answer")
    applied = None if method is None else parse_method(method)
    documents = read_documents(document or [])
    if output is not None:
        check_output(output)
    prepare_models()
    from attnflow.explainers.answers import ask as run

    say_if_preparing(model)
    with progress_bars("reading and answering"):
        answer = run(
            model,
            question,
            documents,
            "careful" if careful else applied,
            max_new_tokens=max_new_tokens,
            chat=chat,
            confirm=confirm,
            **({} if seed is None else {"seed": seed}),
        )
    if as_json:
        print_json(answer.to_dict())
    else:
        show_answer(answer, Console(highlight=False))
    if output is not None:
        _write(answer, output)


def show_answer(answer: Answer, console: Console) -> None:
    """The answer, then a line for each statement with the sentence it came from."""
    console.print(Text(answer.text, style="bold"))
    console.print()
    for statement in answer.statements:
        console.print(Text(str(statement)), soft_wrap=True)
        if statement.sources:
            console.print(Text(f"    {statement.sources[0].text}", style="dim"), soft_wrap=True)
    for omission in answer.omissions:
        console.print(Text(str(omission)), soft_wrap=True)
    result = answer.result
    if result.confirmation is not None:
        console.print()
        print_how_sure(result.confirmation, console)
    console.print()
    about = f"{result.title}, {reading_place(result)}"
    shares = f"Shares are of what a statement draws from the documents: {about}."
    console.print(Text(shares, style="dim"), soft_wrap=True)


def _write(answer: Answer, output: Path) -> None:
    if output.suffix == ".html":
        storage.write_text(output, answer.to_html())
        tell_written(output)
    else:
        write_result(answer.result, output, figure=None, trace=None)
