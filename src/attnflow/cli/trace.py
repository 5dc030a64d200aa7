"""`attnflow trace`: the actions of an agent, and which of them data commanded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from attnflow.cli import inputs, options, writing
from attnflow.errors import InputError
from attnflow.methods import Method, make_method
from attnflow.models import WRITER
from attnflow.show.progress import progress_bars

if TYPE_CHECKING:
    from attnflow.explainers.transcripts import Action


@options.described
def trace(
    file: Annotated[str, typer.Argument(metavar="TRANSCRIPT")],
    model: options.Model = None,
    method: options.Method = None,
    as_json: options.Json = False,
) -> None:
    """List what an agent did, and say what data commanded.

    TRANSCRIPT is a .json file with the messages of a conversation, as OpenAI's or Anthropic's
    interface or a chat template takes them, or a .jsonl file with one on each line. Each call of a
    tool has a line: the share of it that rests on data (what tools returned, documents) and not on
    instructions; and the sentence of the data that gave the order, if data did.

    The default method is balanced, the quick one nearest to leaving sentences out.

    Examples:
      attnflow trace transcript.json
      attnflow trace runs.jsonl --json

    file: The transcript.
    """
    explainer = None if method is None else make_method(method)
    transcripts = inputs.read_transcripts(file)
    options.prepare_models()
    from attnflow.explainers.transcripts import list_actions

    loaded = inputs.load_for_text(model or WRITER)
    with progress_bars("reading the transcript"):
        actions = [list_actions(loaded, messages, explainer) for messages in transcripts]
    if as_json:
        writing.print_json([[action.to_dict() for action in each] for each in actions])
        return
    console = Console(highlight=False)
    for number, each in enumerate(actions, 1):
        if len(actions) > 1:
            console.print(Text(f"transcript {number}", style="bold"))
        for action in each:
            style = "" if action.commanded_by is None else "bold"
            console.print(Text(action.summary, style=style), soft_wrap=True)


def explain_transcripts(
    file: str,
    model: str | None,
    method: Method | None,
    targets: list[str] | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show the way back from parts of a transcript; each option is one of `attnflow explain`."""
    transcripts = inputs.read_transcripts(file)
    if output is not None and (len(transcripts) > 1 or len(targets or ()) > 1):
        raise InputError("--output writes one result: give one transcript, and one --target.")
    options.prepare_models()
    from attnflow.explainers.transcripts import explain_transcript

    loaded = inputs.load_for_text(model or WRITER)
    references: list[str | None] = [*targets] if targets else [None]
    actions: list[Action] = []
    with progress_bars("reading the transcript"):
        for messages in transcripts:
            actions += [explain_transcript(loaded, messages, each, method) for each in references]
    if as_json:
        writing.print_json([action.to_dict() for action in actions])
    elif output is None:
        for action in actions:
            Console(highlight=False).print(Text(f"{action}\n"), soft_wrap=True)
    if output is not None:
        writing.write_result(actions[0].result, output)
