"""`attnflow explain`: which words of a text, or parts of a photo, the model's answer draws on."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from attnflow.attribution import Attribution
from attnflow.cli.inputs import check_text, load_for_text, names_photos, read_text
from attnflow.cli.options import (
    ConfirmOption,
    ContrastOption,
    FileOption,
    ImagesOption,
    JsonOption,
    MethodOption,
    ModelOption,
    OutputOption,
    TableOption,
    parse_target,
    prepare_models,
)
from attnflow.cli.output import (
    ANIMATION,
    PICTURES,
    check_output,
    draw_result,
    print_confirmation,
    print_json,
    print_maps,
    tell_written,
    write_figure,
    write_result,
)
from attnflow.cli.photos import explain_photos
from attnflow.cli.progress import progress_bars
from attnflow.errors import InputError, did_you_mean
from attnflow.errors.arguments import check_named
from attnflow.methods import Flow, Method, MixingMethod, make_method, quiet_about_limits
from attnflow.show import terminal
from attnflow.show.sentences import (
    TABLE_LEGENDS,
    answer_subject,
    caveats,
    reading_place,
    sources_sentence,
    unit_of,
)
from attnflow.tokens import TokenRef

if TYPE_CHECKING:
    from attnflow.hosts.model import Model
    from attnflow.trace import AttentionTrace

FIGURES = ("layers", "pairs", "bars", "graph")
_ALL = "all"
_SENTENCES = 8  # targets that get a sentence


def explain(
    text: Annotated[
        str | None,
        typer.Argument(
            help="The text to explain, or - for standard input. With a vision model: the path of "
            "a photo, or of a folder of photos."
        ),
    ] = None,
    file: FileOption = None,
    images: ImagesOption = None,
    model: ModelOption = None,
    method: MethodOption = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POSITION|TOKEN|all",
            help="The position or token to explain, or 'all'. Positions count from 0, negative "
            "ones from the end. May be repeated. Default: where the answer is read.",
        ),
    ] = None,
    layers: Annotated[
        list[int] | None,
        typer.Option(
            metavar="NUMBER",
            help="Only this layer, counted from 1. May be repeated. Default: all layers.",
        ),
    ] = None,
    level: Annotated[
        str, typer.Option(help="What a source is: token, or word, whose pieces are merged.")
    ] = "token",
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|NUMBER",
            help="With a gradient method: the class or token to explain, by its name or its "
            "number. Default: the model's answer.",
        ),
    ] = None,
    contrast: ContrastOption = None,
    confirm: ConfirmOption = None,
    cut: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="With --method flow: show the minimum cut between the target and this source, "
            "which is a position or a token. The cut is the edges that hold the flow back.",
        ),
    ] = None,
    table: TableOption = False,
    as_json: JsonOption = False,
    output: OutputOption = None,
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Which figure to write: one of {', '.join(FIGURES)}. Default: layers; for "
            "several targets pairs; with --cut the graph with the cut. For photos: overlay (the "
            "default), or methods for several methods side by side.",
        ),
    ] = None,
) -> None:
    """Show which words, or parts of a photo, an answer draws on.

    Without --method it uses the default of `attnflow.explain`: the method that agrees best with
    ablations on models of this kind. `attnflow methods` lists the others.

    Examples: attnflow explain "the key to the cabinets" --table;
    attnflow explain "the key to the cabinets" --method flow --cut key;
    attnflow explain --model FOLDER photo.jpg --output overlay.png.
    """
    explainer = None if method is None else make_method(method)
    request: dict[str, Any] = {
        "targets": _parse_targets(targets),
        "layers": layers or None,
        "answer": None if answer is None else parse_target(answer),
        "contrast": contrast,
    }
    check_named("--level", level, ("token", "word"))
    if text is not None and file is None and not images and names_photos(text, model):
        others = {"--level": level != "token", "--cut": cut, "--table": table}
        explain_photos(text, model, explainer, request, others, figure, as_json, output)
        return
    text = check_text(read_text(text, file))
    if figure == "pairs" and targets is None:
        request["targets"] = _ALL
    _check_figure(figure, output, explainer, cut, level, request, as_json)
    prepare_models()
    loaded = load_for_text(model)
    if cut is not None or figure == "graph":
        _show_graph(loaded, text, explainer, request, cut, output)
        return
    on_screen = output is None and not as_json  # the caveats are shown there
    with progress_bars("running the model"), quiet_about_limits() if on_screen else nullcontext():
        result = _explain(loaded, text, explainer, request, confirm, level, images or None, output)
    if as_json:
        print_json(result.to_dict())
    elif output is None:
        _show(result, table=table, every_layer=bool(layers))
    else:
        _write(result, output, figure, loaded, text if level == "token" else None)


def _parse_targets(targets: list[str] | None) -> Any:
    if targets == [_ALL]:
        return _ALL
    return None if not targets else [parse_target(target) for target in targets]


def _explain(
    model: Model,
    text: str,
    method: Method | None,
    request: dict[str, Any],
    confirm: bool | None,
    level: str,
    images: list[Path] | None,
    output: Path | None,
) -> Attribution:
    """Call the pipeline; a page shows every target, and an answer is confirmed where it can be."""
    from attnflow.explainers.texts import explain as run

    if confirm is None:
        arguments = (request["targets"], request["contrast"], images)
        can_confirm = model.adapter.supports_row_gradients(model.module)
        confirm = can_confirm and all(value is None for value in arguments)
    reads_trace = method is None or not method.reruns_model
    if output is not None and output.suffix == ".html" and reads_trace and images is None:
        request = {**request, "targets": request["targets"] or _ALL}
    return run(model, text, method, level=level, images=images, confirm=confirm, **request)


def _check_figure(
    figure: str | None,
    output: Path | None,
    method: Method | None,
    cut: str | None,
    level: str,
    request: dict[str, Any],
    as_json: bool,
) -> None:
    """Check that this can be drawn and written there, before any work is done."""
    check_output(output, animated=True, as_json=as_json)
    targets, layers = request["targets"], request["layers"] or []
    several = targets == _ALL or len(targets or ()) > 1
    suffix = None if output is None else output.suffix
    mixes = method is None or isinstance(method, MixingMethod)
    cuts = cut is not None
    refusals = {
        f"Unknown figure {figure!r}.{did_you_mean(str(figure), FIGURES)} Allowed: "
        f"{', '.join(FIGURES)}.": figure is not None and figure not in FIGURES,
        f"A figure is written as {', '.join(PICTURES)}; got {str(output)!r}.": (
            (figure or cuts) and output is not None and suffix not in PICTURES
        ),
        f"--figure {figure} needs a file: --output {figure}.png.": figure and output is None,
        "--cut draws a figure of its own; leave out --figure.": figure and cuts,
        "--cut explains a flow; add --method flow.": cuts and not isinstance(method, Flow),
        "--cut shows one flow; leave out --json, and give one of --targets.": (
            cuts and (as_json or several)
        ),
        "This figure shows one target; give one of --targets.": (
            several and (suffix == ANIMATION or figure in ("layers", "bars", "graph"))
        ),
        "A .gif is built up from the lowest layer to the highest; leave out --layers.": (
            suffix == ANIMATION and layers
        ),
        "This figure goes up to one layer; give --layers once.": (
            len(layers) > 1 and (cuts or figure == "graph")
        ),
        "--figure graph draws attention weights between tokens: use it with --method raw, rollout "
        f"or flow (now {getattr(method, 'name', None)!r}) and without --level.": (
            figure == "graph" and (level != "token" or not mixes)
        ),
    }
    for sentence, refused in refusals.items():
        if refused:
            raise InputError(sentence)


def _show_graph(
    model: Model,
    text: str,
    method: Any,
    request: dict[str, Any],
    cut: str | None,
    output: Path | None,
) -> None:
    """Draw the attention graph of one target, or show or draw its minimum cut."""
    from attnflow.hosts.capture import capture
    from attnflow.show import plots

    with progress_bars("running the model"):
        trace = capture(model, text, methods=[] if method is None else [method])
    layer = request["layers"][0] if request["layers"] else trace.layers[-1]
    if layer not in trace.layers:
        numbers = ", ".join(map(str, trace.layers))
        raise InputError(f"--layers {layer}: choose from {numbers}.")
    target = _graph_target(trace, request["targets"])
    if cut is None:
        assert output is not None  # checked before the work
        layers = [number for number in trace.layers if number <= layer]
        axes = plots.attention_graph(trace, target=target, layers=layers, mixing=method)
        write_figure(axes.get_figure(root=True), output)
        return
    ends: dict[str, Any] = {"target": target, "source": parse_target(cut), "layer": layer}
    if output is not None:
        write_figure(plots.cut_graph(method, trace, **ends).get_figure(root=True), output)
        return
    minimum = method.minimum_cut(trace, **ends)
    console = Console(highlight=False)
    console.print(
        f"flow from {escape(repr(minimum.target))} at layer {minimum.layer} to "
        f"{escape(repr(minimum.source))}: [bold]{minimum.value:.6f}[/bold]"
    )
    console.print(f"held back {escape(minimum.place)}")
    console.print(terminal.cut_table(minimum))


def _graph_target(trace: AttentionTrace, targets: list[TokenRef] | None) -> TokenRef:
    if targets:
        return targets[0]
    if trace.prediction is None or trace.prediction.pooled:
        raise InputError(
            "This model reads its answer from no single position: choose one with --targets."
        )
    return trace.prediction.position


def _write(
    result: Attribution, output: Path, figure: str | None, model: Model, text: str | None
) -> None:
    """Write the result; an animation shows the graph of the tokens of `text` beside it."""
    from attnflow.show import plots

    if output.suffix == ANIMATION:
        from attnflow.hosts.capture import capture

        draws_graph = text is not None and isinstance(result.method, MixingMethod)
        trace = capture(model, text, methods=[result.method]) if draws_graph else None
        plots.build_up(result, output, trace=trace)
        tell_written(output)
    elif result.sources.images:
        write_result(result, output, plots.image_words_figure)
    else:
        write_result(result, output, lambda result: draw_result(result, figure))


def _show(result: Attribution, *, table: bool, every_layer: bool) -> None:
    """Print what must be known first, the answer and its sources in sentences, then the table."""
    console = Console(highlight=False)
    for note in caveats(result):
        console.print(note, style="yellow", soft_wrap=True)
    if result.prediction is not None:
        console.print(f"The model says [bold]{escape(str(result.prediction))}[/bold].")
    if result.sources.images:
        print_maps(result, console)
    elif len(result.targets) == 1:
        _show_target(result, console, table=table, every_layer=every_layer)
    else:
        _show_targets(result, console, table=table)
    print_confirmation(result.confirmation, console)


def _show_target(result: Attribution, console: Console, *, table: bool, every_layer: bool) -> None:
    sentence = sources_sentence(result, k=4, subject=answer_subject(result))
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
    position = f"{result.targets.text[0]}, position {result.targets.positions[0]}"
    hint = TABLE_LEGENDS[unit_of(result)] if table else "--table shows every layer."
    about = f"{result.title}, {reading_place(result)}, read at {position}. {hint}"
    console.print(Text(about, style="dim"), soft_wrap=True)


def _show_targets(result: Attribution, console: Console, *, table: bool) -> None:
    """Print a sentence for each of the first targets, as where a model has no answer of its own."""
    if result.prediction is None:
        console.print("No single answer is read here: every target is explained by itself.")
    for row in range(min(_SENTENCES, len(result.targets))):
        console.print(Text(sources_sentence(result, [row])), soft_wrap=True)
    if len(result.targets) > _SENTENCES:
        console.print(f"… and {len(result.targets) - _SENTENCES} more; --json prints all.")
    hint = (
        "--table shows one target: choose it with --targets."
        if table
        else ("--targets chooses one.")
    )
    about = f"{result.title}, {reading_place(result)}. {hint}"
    console.print(Text(about, style="dim"), soft_wrap=True)
