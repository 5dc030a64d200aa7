"""`attnflow ask`: the answer to a question, and under it the documents it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from attnflow import storage
from attnflow.cli.inputs import check_text, read_documents, tell_preparation
from attnflow.cli.options import (
    JsonOption,
    MaxNewTokensOption,
    MethodOption,
    ModelOption,
    OutputOption,
    SamplingSeedOption,
    prepare_models,
)
from attnflow.cli.output import (
    check_output,
    print_confirmation,
    print_json,
    tell_written,
    write_result,
)
from attnflow.cli.progress import progress_bars
from attnflow.methods import make_method
from attnflow.show.sentences import reading_place

if TYPE_CHECKING:
    from attnflow.explainers.answers import Answer


def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOCUMENTS",
            help="The documents: files, patterns such as 'notes/*.txt', or - for standard input.",
        ),
    ] = None,
    documents: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="The same as an option. May be repeated."),
    ] = None,
    model: ModelOption = None,
    method: MethodOption = None,
    max_new_tokens: MaxNewTokensOption = 64,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Use the chat template, or do not. Default: use it if there is one.",
        ),
    ] = None,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm",
            help="Leave out each document that is named, ask again, and say whether the answer "
            "changes.",
        ),
    ] = False,
    seed: SamplingSeedOption = None,
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Answer QUESTION from documents and name its sources.

    Under the answer each of its statements has a line: the document and the sentence in it that
    the statement came from. --method careful takes ten passes for each statement and is surer.

    Example: attnflow ask "How many days are there to pay?" contract.txt 'notes/*.txt'.
    """
    check_text(question, "answer")
    explainer = None if method is None else make_method(method)
    texts = read_documents([*(files or []), *(documents or [])])
    check_output(output)
    prepare_models()
    from attnflow.explainers.answers import ask as run

    tell_preparation(model)
    with progress_bars("reading and answering"):
        answer = run(
            model,
            question,
            texts,
            explainer,
            max_new_tokens=max_new_tokens,
            chat=chat,
            confirm=confirm,
            **({} if seed is None else {"seed": seed}),
        )
    if as_json:
        print_json(answer.to_dict())
    else:
        show_answer(answer, Console(highlight=False))
    if output is None:
        return
    if output.suffix == ".html":
        storage.write_text(output, answer.to_html())
        tell_written(output)
    else:
        write_result(answer.result, output)


def show_answer(answer: Answer, console: Console) -> None:
    """Print the answer, then a line for each statement with the sentence it came from."""
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
    print_confirmation(result.confirmation, console)
    console.print()
    about = f"{result.title}, {reading_place(result)}"
    shares = f"Shares are of what a statement draws from the documents: {about}."
    console.print(Text(shares, style="dim"), soft_wrap=True)
