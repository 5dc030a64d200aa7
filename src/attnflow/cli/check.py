"""`attnflow check`: is what attnflow sees in a model what the model computes?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from attnflow.cli import inputs, options
from attnflow.errors.progress import tell
from attnflow.show.progress import progress_bars

_TEXT = "The author talked to Sara about the key to the cabinets."
_MARKS = {True: "[green]ok[/green]", False: "[red]NO[/red]", None: "[dim]--[/dim]"}


@options.described
def check(
    model: Annotated[str, typer.Argument(callback=options.check_model_name)], text: str = _TEXT
) -> None:
    """Check that attnflow sees what MODEL computes.

    Examples:
      attnflow check ./my-model
      attnflow check smollm2 --text "The keys are here."

    model: A Hugging Face name or a local folder.
    text: The text to check it on.
    """
    inputs.check_text(text, "check the model on")
    options.prepare_models()
    from attnflow.hosts.check import check_model
    from attnflow.hosts.load import as_model, example_inputs

    with progress_bars("loading the model"):
        loaded = as_model(model, needs_tokenizer=False)
        tell("checking", 0, 0)
        checks = check_model(loaded, example_inputs(loaded, text))
    console = Console(highlight=False)
    for outcome in checks:
        mark = _MARKS[outcome.passed]
        console.print(f"{mark}  {outcome.name}: {escape(outcome.detail)}", soft_wrap=True)
    if any(outcome.passed is False for outcome in checks):
        console.print("[bold]verdict: do not trust attributions of this model[/bold]")
        raise typer.Exit(1)
    console.print("[bold]verdict: attention of this model is captured faithfully[/bold]")
