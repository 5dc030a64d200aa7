"""`attnflow explain`: which tokens of a text the model's output draws on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from attnflow.attribution import Attribution
from attnflow.cli.documents import read_text
from attnflow.cli.options import (
    AnswerOption,
    CarefulOption,
    ConfirmOption,
    DecoderTextOption,
    FileOption,
    JsonOption,
    LayersOption,
    MethodOption,
    ModelOption,
    OptionOption,
    OutputOption,
    RatherThanOption,
    TableOption,
    TargetsOption,
    WordsOption,
    check_text,
    check_texts_model,
    parse_method,
    parse_target,
    prepare_models,
)
from attnflow.cli.output import (
    FIGURES,
    check_figure,
    check_output,
    print_how_sure,
    print_json,
    write_cut,
    write_graph,
    write_result,
)
from attnflow.cli.photos import PhotoOptions, explain_photos, names_photos, photo_path
from attnflow.cli.progress import progress_bars
from attnflow.errors import (
    AttributionWarning,
    CollapseWarning,
    InputError,
    SaturationWarning,
)
from attnflow.methods import Flow, Method
from attnflow.methods.rows import pooled_row
from attnflow.show import terminal
from attnflow.show.sentences import (
    TABLE_LEGENDS,
    caveats,
    reading_place,
    sources_sentence,
    unit_of,
)
from attnflow.tokens import TokenRef
from attnflow.trace import AttentionTrace

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

__all__ = ["explain"]

_WORTH_AN_ESTIMATE = 50_000  # pairs of one layer: below this, flow takes seconds
_LONG = 20.0  # seconds after which people want to know how many more


def explain(
    text: Annotated[
        str | None,
        typer.Argument(
            help="The text to explain, or - for standard input. With a vision model: the path of "
            "a photo, or of a folder of photos."
        ),
    ] = None,
    file: FileOption = None,
    images: Annotated[
        list[Path] | None,
        typer.Option("--image", help="The photo to explain, instead of its path as TEXT."),
    ] = None,
    model: ModelOption = None,
    method: MethodOption = None,
    targets: TargetsOption = None,
    layers: LayersOption = None,
    option: OptionOption = None,
    words: WordsOption = False,
    decoder_text: DecoderTextOption = None,
    answer: AnswerOption = None,
    rather_than: RatherThanOption = None,
    careful: CarefulOption = False,
    confirm: ConfirmOption = True,
    cut: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="With --method flow: show the minimum cut between the target and this source, "
            "which is a position or a token. The cut is the edges that hold the flow back.",
        ),
    ] = None,
    all_targets: Annotated[
        bool,
        typer.Option("--all-targets", help="Explain every position. Needs --json or --output."),
    ] = False,
    table: TableOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Which figure to write: one of {', '.join(FIGURES)}. Default: layers; with "
            "--all-targets pairs; with --cut the graph with the cut. For photos: overlay (the "
            "default), or methods for several methods side by side.",
        ),
    ] = None,
) -> None:
    """Show which words, or parts of a photo, an answer draws on.

    Without --method it uses the default of `attnflow.explain`: the method that agrees best with
    ablations on models of this kind.
    """
    text = photo_path(text, file, images)
    if text is not None and file is None and (images or names_photos(text, model)):
        others = {"--words": words, "--decoder-text": decoder_text, "--careful": careful}
        others |= {"--cut": cut, "--table": table, "--all-targets": all_targets}
        explain_photos(
            text,
            model,
            PhotoOptions(
                None if method is None and not option else _choice(method, option, None),
                targets,
                layers,
                answer,
                rather_than,
                figure,
                as_json,
                output,
                others,
            ),
        )
        return
    text = read_text(text, file)
    choice = _choice(method, option, figure)
    all_targets = all_targets or figure == "pairs"
    several = all_targets or len(targets or []) > 1
    _check_request(choice, text, targets, cut, all_targets, several, as_json, output)
    check_figure(figure, output, choice, cut=cut, words=words, several=several, layers=layers)
    loaded = _load(model)
    if careful:
        _check_careful(choice, targets, layers, cut, figure, all_targets)
        result = _carefully(loaded, text, answer, rather_than, confirm)
        result = result.merge_words() if words else result
        _deliver(result, [], as_json, output, figure, None, table, bool(layers))
        return
    applied = choice or _default(loaded)
    trace = _capture(loaded, text, decoder_text, applied, answer, rather_than)
    every = all_targets or (not targets and output is not None and output.suffix == ".html")
    references = None if every else _targets_or_prediction(targets, trace)
    layer = layers[0] if layers else None
    if isinstance(applied, Flow) and cut is not None and references is not None:
        _show_cut(applied, trace, references[0], parse_target(cut), layer, output)
        return
    if output is not None and figure == "graph" and references is not None:
        write_graph(applied, trace, references[0], layer, output)
        return
    result, remarks = _apply(applied, trace, references, layers)
    result = pooled_row(result) if references is None and not every else result
    if confirm and not targets and rather_than is None:
        result = _confirmed(result, loaded, text, answer)
    result = result.merge_words() if words else result
    behind = None if words else trace
    _deliver(result, remarks, as_json, output, figure, behind, table, bool(layers))


def _choice(method: str | None, option: list[str] | None, figure: str | None) -> Method | None:
    """The method that is named; the graph of attention, and options alone, mean rollout."""
    if method is None and not option and figure != "graph":
        return None
    return parse_method(method or "rollout", option)


def _deliver(
    result: Attribution,
    remarks: list[AttributionWarning],
    as_json: bool,
    output: Path | None,
    figure: str | None,
    trace: AttentionTrace | None,
    table: bool,
    every_layer: bool,
) -> None:
    """Print the result, or write it; what the method warns of goes beside it."""
    in_table = not as_json and output is None
    notes = caveats(result) if in_table else []
    for remark in remarks:
        if not (notes and isinstance(remark, (CollapseWarning, SaturationWarning))):
            typer.echo(f"attnflow: {remark}", err=True)
    if as_json:
        print_json(result.to_dict())
    elif output is not None:
        write_result(result, output, figure=figure, trace=trace)
    else:
        _show(result, notes, table=table, every_layer=every_layer)


def _check_request(
    method: Method | None,
    text: str,
    targets: list[str] | None,
    cut: str | None,
    all_targets: bool,
    several: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Everything that can be known before the work: a long run must not fail on a file name."""
    check_text(text)
    if as_json and output is not None:
        raise InputError("--json prints the result and --output writes it to a file: choose one.")
    if output is not None:
        check_output(output, animated=True)
    if all_targets and (targets or (not as_json and output is None)):
        raise InputError("--all-targets goes with --json or --output, and without --targets.")
    if several and not all_targets and not as_json and output is None:
        raise InputError("The table shows one target; for several add --json or --output.")
    if cut is not None and not isinstance(method, Flow):
        raise InputError("--cut explains a flow; add --method flow.")
    if cut is not None and (as_json or several):
        raise InputError("--cut shows one flow; leave out --json and --all-targets.")


def _load(model: str | None) -> Model:
    prepare_models()
    from attnflow.hosts.load import load

    with progress_bars("loading the model"):
        loaded = load(model)
    check_texts_model(model, loaded.tokenizer)
    return loaded


def _default(loaded: Model) -> Method:
    from attnflow.explainers.defaults import default_method

    return default_method(loaded)


def _capture(
    loaded: Model,
    text: str,
    decoder_text: str | None,
    method: Method,
    answer: int | None,
    contrast: str | None,
) -> AttentionTrace:
    from attnflow.hosts.capture import capture

    with progress_bars("running the model"):
        return capture(
            loaded,
            text,
            decoder_text=decoder_text,
            methods=[method],
            answer=answer,
            contrast=contrast,
        )


def _check_careful(
    method: Method | None,
    targets: list[str] | None,
    layers: list[int] | None,
    cut: str | None,
    figure: str | None,
    all_targets: bool,
) -> None:
    """The careful method has one layer and one target, and reads no attention map."""
    others: dict[str, object] = {
        "--method": method,
        "--targets": targets,
        "--layers": layers,
        "--cut": cut,
    }
    others |= {"--figure graph": figure == "graph", "--all-targets": all_targets}
    for name, value in others.items():
        if value:
            raise InputError(f"--careful explains what follows the text; leave out {name}.")


def _carefully(
    loaded: Model, text: str, answer: int | None, contrast: str | None, confirm: bool
) -> Attribution:
    from attnflow.explainers.texts import explain as run

    options: dict[str, Any] = {"answer": answer, "contrast": contrast, "confirm": confirm}
    with progress_bars("running the model"):
        return run(loaded, text, "careful", **options)


def _confirmed(result: Attribution, loaded: Model, text: str, answer: int | None) -> Attribution:
    """With one more pass, where the model is a language model that can be run without words."""
    from attnflow.explainers.texts import next_token, with_confirmation
    from attnflow.hosts.registry import adapter_for

    if not adapter_for(loaded.module).supports_row_gradients(loaded.module):
        return result
    token = next_token(loaded, text, answer)
    return with_confirmation(result, loaded, token)


def _targets_or_prediction(
    targets: list[str] | None, trace: AttentionTrace
) -> list[TokenRef] | None:
    """Where the answer is read from; None where that is the mean of all positions."""
    if targets:
        return [parse_target(target) for target in targets]
    if trace.prediction is not None and trace.prediction.pooled:
        return None
    return [trace.prediction.position if trace.prediction else 0]


def _apply(
    method: Method,
    trace: AttentionTrace,
    targets: list[TokenRef] | None,
    layers: list[int] | None,
) -> tuple[Attribution, list[AttributionWarning]]:
    """The result, and what the method warns of."""
    _tell_estimate(method, trace, targets, layers)
    usual = warnings.showwarning
    with warnings.catch_warnings(record=True) as recorded, progress_bars():
        warnings.simplefilter("always", AttributionWarning)
        result = method(trace, targets=targets, layers=layers)
    remarks = []
    for entry in recorded:
        if isinstance(entry.message, AttributionWarning):
            remarks.append(entry.message)
        else:
            usual(entry.message, entry.category, entry.filename, entry.lineno)
    return result, remarks


def _tell_estimate(
    method: Method,
    trace: AttentionTrace,
    targets: list[TokenRef] | None,
    layers: list[int] | None,
) -> None:
    pairs = trace.length * (len(targets) if targets else trace.length)
    if not isinstance(method, Flow) or pairs < _WORTH_AN_ESTIMATE:
        return
    seconds = method.estimate(trace, targets=targets, layers=layers)
    if seconds >= _LONG:
        duration = f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
        typer.echo(f"attnflow: this will take about {duration}.", err=True)


def _show(result: Attribution, notes: list[str], *, table: bool, every_layer: bool) -> None:
    """What must be known first, the answer and its sources in a sentence, the text; the table."""
    console = Console(highlight=False)
    for note in notes:
        console.print(note, style="yellow", soft_wrap=True)
    predicting = result.prediction is not None and (
        result.prediction.position == result.targets.positions[0]
    )
    if result.prediction is not None:
        console.print(f"The model says [bold]{escape(str(result.prediction))}[/bold].")
    subject = result.prediction.label if predicting and result.prediction else None
    sentence = sources_sentence(result, k=4, subject=subject)
    console.print(Text(sentence), soft_wrap=True)
    console.print()
    shaded = terminal.shaded_text(result, console=console)
    if shaded is not None:
        console.print(shaded)
        console.print()
    if table:
        most = None if every_layer else terminal.MOST_LAYERS
        console.print(terminal.layers_table(result, console=console, most=most))
        console.print(terminal.contributions(result))
    place = reading_place(result)
    position = f"{result.targets.text[0]}, position {result.targets.positions[0]}"
    hint = f" {TABLE_LEGENDS[unit_of(result)]}" if table else " --table shows every layer."
    about = f"{result.title}, {place}, read at {position}.{hint}"
    console.print(Text(about, style="dim"), soft_wrap=True)
    if result.confirmation is not None:
        print_how_sure(result.confirmation, console)


def _show_cut(
    method: Flow,
    trace: AttentionTrace,
    target: TokenRef,
    source: TokenRef,
    layer: int | None,
    output: Path | None,
) -> None:
    number = -1 if layer is None else layer
    if output is not None:
        write_cut(method, trace, target, source, number, output)
        return
    console = Console(highlight=False)
    cut = method.minimum_cut(trace, target=target, source=source, layer=number)
    console.print(
        f"flow from {escape(repr(cut.target))} at layer {cut.layer} to "
        f"{escape(repr(cut.source))}: [bold]{cut.value:.6f}[/bold]"
    )
    console.print(f"held back {escape(cut.place)}")
    console.print(terminal.cut_table(cut))
