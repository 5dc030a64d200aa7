"""`attnflow ask`: the answer to a question, and under it the documents it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from attnflow.cli import inputs, options, writing
from attnflow.data.documents import read_documents
from attnflow.methods import make_method
from attnflow.models import WRITER
from attnflow.show.progress import progress_bars
from attnflow.show.sentences import reading_place, sentence_of

if TYPE_CHECKING:
    from attnflow.attribution.passages import Statement
    from attnflow.explainers.answers import Answer


@options.described
def ask(
    question: Annotated[str, typer.Argument()],
    files: Annotated[list[str] | None, typer.Argument(metavar="DOCUMENTS")] = None,
    documents: options.Documents = None,
    model: options.Model = None,
    method: options.Method = None,
    max_new_tokens: options.MaxNewTokens = 64,
    chat: Annotated[bool | None, typer.Option("--chat/--no-chat")] = None,
    check: options.Check = True,
    confirm: Annotated[bool, typer.Option("--confirm")] = False,
    selects: Annotated[bool, typer.Option("--select-passages")] = False,
    seed: options.SamplingSeed = None,
    as_json: options.Json = False,
    output: options.Output = None,
) -> None:
    """Answer QUESTION from documents and name its sources.

    Under the answer each of its statements has a line: what it rests on, from hiding that, and what
    it draws on, by shares.

    The default method is balanced: one pass, and of the quick ones the nearest to leaving sentences
    out. --method careful takes ten passes for each statement and is surer.

    Examples:
      attnflow ask "How many days are there to pay?" contract.pdf 'notes/*.txt'
      attnflow ask "Who signed?" contracts/ --confirm --output answer.html

    question: The question.
    files: The documents: text, Markdown, HTML, PDF or Word files, folders of them, patterns such
        as 'notes/*.txt', or - for standard input. A PDF is cited by its pages.
    documents: The same as an option. May be repeated.
    chat: Use the chat template, or do not. Default: use it if there is one.
    check: Read each statement again without the sentence that is named and without any document,
        and say what it rests on. This takes about as long as reading the documents.
    confirm: Leave out each document that is named, ask again, and say whether the answer changes.
    selects: Where the documents do not fit into the model, keep the passages that a lexical search
        (BM25) finds for the question.
    """
    inputs.check_question(question)
    explainer = None if method is None else make_method(method)
    texts = read_documents([*(files or []), *(documents or [])])
    writing.check_output(output)
    words = " ".join([question, *(document.text for document in texts)])
    pace = writing.Pace(model or WRITER, words, max_new_tokens)
    options.prepare_models()
    from attnflow.explainers.answers import ask as run
    from attnflow.explainers.selection import select_passages
    from attnflow.hosts.load import as_model

    inputs.tell_preparation(model)
    sampling: dict[str, Any] = {} if seed is None else {"seed": seed}
    console, pieces = Console(highlight=False), list[str]()

    def write(piece: str) -> None:
        pieces.append(piece)
        console.print(Text(piece, style="bold"), end="", soft_wrap=True)

    with pace, progress_bars("reading and answering", write=None if as_json else write):
        loaded = as_model(model, default=WRITER)
        if selects:
            fitting = {"max_new_tokens": max_new_tokens, "chat": chat}
            texts = select_passages(loaded, question, texts, **fitting)  # type: ignore[arg-type]
        answer = run(
            loaded,
            question,
            texts,
            explainer,
            max_new_tokens=max_new_tokens,
            chat=chat,
            check=check,
            confirm=confirm,
            **sampling,
        )
    if as_json:
        writing.print_json(answer.to_dict())
    else:
        show_answer(answer, console, is_written="".join(pieces).strip() == answer.text.strip())
    if output is not None:
        writing.write_result(answer.result, output, page=answer.to_html)


def _quotes(statement: Statement) -> list[str]:
    """Return the strongest sentence of each document that the verdict names; else of the first."""
    numbers = () if statement.verdict is None else statement.verdict.passages
    several = [each for each in statement.sources if each.passage in numbers]
    if len(several) > 1:
        return [f"{each.place}: {each.text}" for each in several]
    return [each.text for each in statement.sources[:1]]


def show_answer(answer: Answer, console: Console, *, is_written: bool = False) -> None:
    """Print the answer, then for each statement what it rests on, the sentence, and its shares.

    is_written: whether the answer stands there already.
    """
    if not is_written:
        console.print(Text(answer.text.strip(), style="bold"))
    console.print()
    for statement in answer.statements:
        verdict, quoted = statement.verdict, f"“{statement.text}”"
        if verdict is not None and verdict.kind == "none":
            console.print(Text(sentence_of(verdict, quoted), style="bold yellow"), soft_wrap=True)
            continue
        shares = f"{quoted} {statement.shares}."
        line = shares if verdict is None else sentence_of(verdict, quoted)
        console.print(Text(line), soft_wrap=True)
        for text in _quotes(statement):
            console.print(Text(f"    {text}", style="dim"), soft_wrap=True)
        if verdict is not None:
            console.print(Text(f"    It {statement.shares}.", style="dim"), soft_wrap=True)
    for line in (*map(str, answer.omissions), *answer.remarks):
        console.print(Text(line), soft_wrap=True)
    if all(each.verdict is not None and each.verdict.kind == "none" for each in answer.statements):
        return  # no share is told
    result = answer.result
    console.print()
    about = f"{result.title}, {reading_place(result)}"
    writing.print_dim(f"Shares are of what a statement draws from the documents: {about}.", console)
