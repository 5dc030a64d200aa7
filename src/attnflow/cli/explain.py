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
from attnflow.cli import inputs, options, writing
from attnflow.cli.photos import explain_photos
from attnflow.cli.trace import explain_transcripts
from attnflow.errors import InputError, did_you_mean
from attnflow.errors.arguments import check_named
from attnflow.methods import Flow, MixingMethod, make_method, quiet_about_limits
from attnflow.models import READER
from attnflow.show import sentences, terminal
from attnflow.show.progress import progress_bars

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

FIGURES = ("layers", "pairs", "bars", "graph")
_ALL = "all"
_SENTENCES = 8  # targets that get a sentence


@options.described
def explain(
    text: Annotated[str | None, typer.Argument()] = None,
    words: options.Words = None,
    images: options.Images = None,
    model: options.Model = None,
    method: options.Method = None,
    targets: Annotated[
        list[str] | None, typer.Option("--targets", "--target", metavar="POSITION|TOKEN|all")
    ] = None,
    layers: Annotated[list[int] | None, typer.Option(metavar="NUMBER")] = None,
    level: str = "token",
    answer: Annotated[str | None, typer.Option(metavar="NAME|NUMBER")] = None,
    contrast: options.Contrast = None,
    check: options.Check = True,
    cut: Annotated[str | None, typer.Option(metavar="SOURCE")] = None,
    table: options.Table = False,
    as_json: options.Json = False,
    output: options.Output = None,
    figure: Annotated[str | None, typer.Option(metavar="NAME")] = None,
) -> None:
    """Show which words, or parts of a photo, an answer draws on.

    The default method is the quick one that agrees best with ablations on models of this kind:
    balanced for text, gradient-attention for photos. `attnflow methods` lists the others.

    Examples:
      attnflow explain "the keys to the cabinet" --table
      attnflow explain review.txt --model ./my-classifier --output picture.png
      attnflow explain "the key to the cabinets" --method flow --cut key
      attnflow explain --model ./my-vision-model photo.jpg --output overlay.png
      attnflow explain transcript.json --target "the call to send_money"

    text: The text to explain, a file that holds it (text, PDF, Word, HTML), or - for standard
        input. With a vision model: a photo, or a folder of photos. Or a .json or .jsonl file with
        the messages of an agent.
    targets: The position or token to explain, or 'all'. Positions count from 0, negative ones from
        the end. May be repeated. Default: where the answer is read. Of a transcript: 'the call to
        NAME', 'NAME.ARGUMENT', 'the answer', or words that the assistant wrote.
    layers: Only this layer, counted from 1. May be repeated. Default: all layers.
    level: What a source is: token, or word, whose pieces are merged.
    answer: With a gradient method: the class or token to explain, by its name or its number.
        Default: the model's answer.
    cut: With --method flow: show the minimum cut between the target and this source, which is a
        position or a token. The cut is the edges that hold the flow back.
    figure: Which figure to write: one of layers, pairs, bars, graph. Default: layers; for several
        targets pairs; with --cut the graph with the cut. For photos: overlay (the default), or
        methods for several methods side by side.
    """
    explainer = None if method is None else make_method(method)
    request: dict[str, Any] = {
        "targets": options.parse_targets(targets),
        "layers": layers or None,
        "answer": None if answer is None else options.parse_target(answer),
        "contrast": contrast,
        "check": check,
    }
    check_named("--level", level, ("token", "word"))
    if text is not None and words is None and inputs.names_transcript(text):
        explain_transcripts(text, model, explainer, targets, as_json, output)
        return
    if text is not None and words is None and not images and inputs.names_photos(text, model):
        others = {"--level": level != "token", "--cut": cut, "--table": table}
        explain_photos(text, model, explainer, request, others, figure, as_json, output)
        return
    text = inputs.read_text(text, words)
    if figure == "pairs" and targets is None:
        request["targets"] = _ALL
    writing.check_output(output, animated=True, as_json=as_json)
    inputs.check_images(images)
    _check_figure(figure, output, explainer, cut, level, request, as_json)
    pace = writing.Pace(model or READER, text)
    options.prepare_models()
    loaded = inputs.load_for_text(model)
    if cut is not None or figure == "graph":
        _show_graph(loaded, text, explainer, request, cut, output)
        return
    reads_trace = explainer is None or not explainer.reruns_model
    if output is not None and output.suffix == ".html" and reads_trace and not images:
        request["targets"] = request["targets"] or _ALL  # a reader chooses there
    request |= {"level": level, "images": images or None}
    from attnflow.explainers.texts import explain as run

    on_screen = output is None and not as_json  # the caveats are shown there
    with (
        pace,
        progress_bars("running the model"),
        quiet_about_limits() if on_screen else nullcontext(),
    ):
        result = run(loaded, text, explainer, **request)
    if as_json:
        writing.print_json(result.to_dict())
    elif output is None:
        _show(result, table=table, every_layer=bool(layers))
    elif output.suffix == writing.ANIMATION:
        _animate(result, output, loaded, text if level == "token" else None)
    else:
        writing.write_result(result, output, lambda result: writing.draw_result(result, figure))


def _check_figure(
    figure: str | None,
    output: Path | None,
    method: Any,
    cut: str | None,
    level: str,
    request: dict[str, Any],
    as_json: bool,
) -> None:
    """Check that this can be drawn and written there, before any work is done."""
    targets, layers = request["targets"], request["layers"] or []
    several = targets == _ALL or len(targets or ()) > 1
    suffix = None if output is None else output.suffix
    mixes = method is None or isinstance(method, MixingMethod)
    cuts = cut is not None
    refusals = {
        f"Unknown figure {figure!r}.{did_you_mean(str(figure), FIGURES)} Allowed: "
        f"{', '.join(FIGURES)}.": figure is not None and figure not in FIGURES,
        f"A figure is written as {', '.join(writing.PICTURES)}; got {str(output)!r}.": (
            (figure or cuts) and output is not None and suffix not in writing.PICTURES
        ),
        f"--figure {figure} needs a file: --output {figure}.png.": figure and output is None,
        "--cut draws a figure of its own; leave out --figure.": figure and cuts,
        "--cut explains a flow; add --method flow.": cuts and not isinstance(method, Flow),
        "--cut shows one flow; leave out --json, and give one of --targets.": (
            cuts and (as_json or several)
        ),
        "This figure shows one target; give one of --targets.": (
            several and (suffix == writing.ANIMATION or figure in ("layers", "bars", "graph"))
        ),
        "A .gif is built up from the lowest layer to the highest; leave out --layers.": (
            suffix == writing.ANIMATION and layers
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
    from attnflow.explainers.answer_rows import answer_position
    from attnflow.hosts.capture import capture
    from attnflow.show import plots

    with progress_bars("running the model"):
        trace = capture(model, text, methods=[] if method is None else [method])
    layer = request["layers"][0] if request["layers"] else trace.layers[-1]
    if layer not in trace.layers:
        numbers = ", ".join(map(str, trace.layers))
        raise InputError(f"--layers {layer}: choose from {numbers}.")
    target = request["targets"][0] if request["targets"] else answer_position(trace)
    if target is None:
        raise InputError(
            "This model reads its answer from no single position: choose one with --targets."
        )
    if cut is None:
        assert output is not None  # checked before the work
        layers = [number for number in trace.layers if number <= layer]
        axes = plots.attention_graph(trace, target=target, layers=layers, mixing=method)
        writing.write_figure(axes.get_figure(root=True), output)
        return
    source = options.parse_target(cut)
    ends: dict[str, Any] = {"target": target, "source": source, "layer": layer}
    if output is not None:
        writing.write_figure(plots.cut_graph(method, trace, **ends).get_figure(root=True), output)
        return
    minimum = method.minimum_cut(trace, **ends)
    console = Console(highlight=False)
    console.print(
        f"flow from {escape(repr(minimum.target))} at layer {minimum.layer} to "
        f"{escape(repr(minimum.source))}: [bold]{minimum.value:.6f}[/bold]"
    )
    console.print(f"held back {escape(minimum.place)}")
    console.print(terminal.cut_table(minimum))


def _animate(result: Attribution, output: Path, model: Model, text: str | None) -> None:
    """Write an animation; it shows the graph of the tokens of `text` beside the result."""
    from attnflow.hosts.capture import capture
    from attnflow.show import plots

    draws_graph = text is not None and isinstance(result.method, MixingMethod)
    trace = capture(model, text, methods=[result.method]) if draws_graph else None
    plots.build_up(result, output, trace=trace)
    writing.tell_written(output)


def _show(result: Attribution, *, table: bool, every_layer: bool) -> None:
    """Print what must be known first, the answer and its sources in sentences, then the table."""
    console = Console(highlight=False)
    for note in sentences.caveats(result):
        console.print(note, style="yellow", soft_wrap=True)
    if result.prediction is not None:
        console.print(f"The model says [bold]{escape(str(result.prediction))}[/bold].")
    writing.print_verdict(result, console)
    if result.sources.images:
        writing.print_maps(result, console)
    elif len(result.targets) == 1:
        _show_target(result, console, table=table, every_layer=every_layer)
    else:
        _show_targets(result, console, table=table)
    for remark in sentences.remarks(result):
        writing.print_dim(f"{remark[0].upper()}{remark[1:]}.", console)


def _show_target(result: Attribution, console: Console, *, table: bool, every_layer: bool) -> None:
    subject = sentences.answer_subject(result)
    console.print(Text(sentences.sources_sentence(result, k=4, subject=subject)), soft_wrap=True)
    console.print()
    writing.print_shaded(result, console)
    if table:
        most = None if every_layer else terminal.MOST_LAYERS
        console.print(terminal.layers_table(result, console=console, most=most))
        console.print(terminal.contributions(result))
    place = f"{sentences.reading_place(result)}, read at {result.targets.text[0]}"
    legend = sentences.TABLE_LEGENDS[sentences.unit_of(result)]
    hint = legend if table else "--table shows every layer."
    position = result.targets.positions[0]
    writing.print_dim(f"{result.title}, {place}, position {position}. {hint}", console)


def _show_targets(result: Attribution, console: Console, *, table: bool) -> None:
    """Print a sentence for each of the first targets, as where a model has no answer of its own."""
    if result.prediction is None:
        console.print("No single answer is read here: every target is explained by itself.")
    for row in range(min(_SENTENCES, len(result.targets))):
        console.print(Text(sentences.sources_sentence(result, [row])), soft_wrap=True)
    if len(result.targets) > _SENTENCES:
        console.print(f"… and {len(result.targets) - _SENTENCES} more; --json prints all.")
    hint = "--table shows one target: choose it with --targets."
    hint = hint if table else "--targets chooses one."
    writing.print_dim(f"{result.title}, {sentences.reading_place(result)}. {hint}", console)
