"""`attnflow explain` on photos: one file or a folder of them, by a vision model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from attnflow.attribution import Attribution
from attnflow.cli import inputs, options, writing
from attnflow.errors import FileError, InputError, ModelError
from attnflow.errors.progress import listening, tell
from attnflow.methods import Method
from attnflow.show.progress import progress_bars
from attnflow.show.sentences import picture_sentence, place_of
from attnflow.show.terminal import picture_map

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

_FIGURES = ("overlay", "methods")
_SHEET = "contact-sheet.png"
_MOST_ON_SHEET = 60  # photos
# The model's default first, then others.
_SIDE_BY_SIDE = (None, "alti", "norm-rollout", "rollout", "gradient-rollout", "raw")


def explain_photos(
    place: str,
    model: str | None,
    method: Method | str | None,
    request: dict[str, Any],
    others: Mapping[str, object],
    figure: str | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Explain one photo, or each of a folder; `others` are the options that only texts take."""
    path = Path(place).expanduser()
    for name, value in others.items():
        if value:
            raise InputError(f"{name} is about text; leave it out for an image.")
    if isinstance(request["targets"], list) and len(request["targets"]) > 1:
        raise InputError("A map shows one target; give --targets once.")
    if figure == "methods" and method is not None:
        raise InputError("--figure methods shows several side by side; leave out --method.")
    _check_figure(figure, output, as_json=as_json, several=path.is_dir())
    if not path.exists():
        raise FileError(f"There is no image {place!r}: no file of this name is there.")
    options.prepare_models()
    loaded = inputs.load_for_photo(model, place)
    methods = _SIDE_BY_SIDE if figure == "methods" else (method,)
    if path.is_dir():
        _explain_folder(loaded, path, methods, request, as_json, output)
        return
    if output is not None and output.suffix == ".html":
        request["targets"] = request["targets"] or "all"  # a reader chooses there
    with progress_bars("running the model"):
        results = _explain(loaded, path, methods, request)
    _deliver(results, as_json, output)


def _check_figure(figure: str | None, output: Path | None, *, as_json: bool, several: bool) -> None:
    """Check that the map can be written there, before any work is done."""
    if figure is not None and figure not in _FIGURES:
        raise InputError(f"--figure {figure}: of an image it is {' or '.join(_FIGURES)}.")
    if figure is not None and (
        output is None or (not several and output.suffix not in writing.PICTURES)
    ):
        raise InputError(f"--figure {figure} needs a file: --output {figure}.png.")
    if not several or as_json:
        writing.check_output(output, as_json=as_json)
    elif output is not None and output.suffix in (".json", ".safetensors", ".html"):
        raise InputError(
            f"--output {str(output)!r} is one file for several photos: name a folder, or "
            "a picture such as sheet.png for all of them on one."
        )


def _explain_folder(
    model: Model,
    folder: Path,
    methods: tuple[Method | str | None, ...],
    request: Mapping[str, Any],
    as_json: bool,
    output: Path | None,
) -> None:
    from attnflow.data import list_photos

    photos = list_photos(folder)
    failures = 0
    sheet = output if output is None or output.suffix in writing.PICTURES else output / _SHEET
    on_sheet: list[Attribution] = []
    with progress_bars("photos"):
        for number, photo in enumerate(photos):
            tell("photos", number, len(photos))
            try:
                with listening(None):  # the bar counts photos
                    results = _explain(model, photo, methods, request)
            except (InputError, FileError) as error:
                failures += 1
                typer.echo(f"attnflow: {error}", err=True)
                continue
            on_sheet += results[:1] if len(on_sheet) < _MOST_ON_SHEET else []
            if output is None or output != sheet:
                file = None if output is None else writing.make_folder(output) / f"{photo.name}.png"
                _deliver(results, as_json, file)
    if failures == len(photos):
        raise InputError(f"None of the {len(photos)} images in {str(folder)!r} could be read.")
    if sheet is not None and not as_json:
        _write_sheet(on_sheet, sheet, len(photos) - failures)


def _write_sheet(results: list[Attribution], file: Path, count: int) -> None:
    """Draw all photos on one picture: what the model says of each, and what that rests on."""
    from attnflow.show.plots import overlay_figure

    names = [
        "\n".join([_name(each), *(verdict.claim for verdict in each.verdicts[:1] if verdict)])
        for each in results
    ]
    heading = f"the first {len(results)} of {count} photos" if len(results) < count else ""
    writing.write_figure(overlay_figure(results, names=names, heading=heading), file)


def _explain(
    model: Model, photo: Path, methods: tuple[Method | str | None, ...], request: Mapping[str, Any]
) -> list[Attribution]:
    """Explain a photo by each method, once; of several, those that cannot are left out."""
    from attnflow.explainers.texts import explain

    results: list[Attribution] = []
    names = [str(method or "default") for method in methods]
    for name, method in zip(names, methods, strict=True):
        try:
            result = explain(model, photo, method, **request)
            if result.method not in [each.method for each in results]:
                results.append(result)
        except ModelError as error:
            if len(methods) == 1:
                raise
            typer.echo(f"attnflow: left out, {name}: {error}", err=True)
    if not results:
        raise ModelError(f"None of {', '.join(names)} can explain this model.")
    return results


def _deliver(results: list[Attribution], as_json: bool, output: Path | None) -> None:
    result = results[0]
    heading = _name(result)
    writing.tell_remarks(result)
    if as_json:
        writing.print_json(result.to_dict())
    elif output is None:
        _show(result, str(result.provenance.get("image", "")))
    else:
        from attnflow.show.plots import overlay_figure

        writing.write_result(result, output, lambda _: overlay_figure(results, heading=heading))


def _name(result: Attribution) -> str:
    """Name a photo by its file and what the model says of it."""
    name = str(result.provenance.get("image", ""))
    return name if result.prediction is None else f"{name}: {result.prediction}"


def _show(result: Attribution, name: str) -> None:
    console = Console(highlight=False)
    if result.prediction is not None:
        answer = escape(str(result.prediction))
        console.print(f"{escape(name)}: the model says [bold]{answer}[/bold].", soft_wrap=True)
    row = result if len(result.targets) == 1 else result.row(result.targets.positions[0])
    subject = None if result.prediction is None else result.prediction.label
    writing.print_verdict(result, console)
    console.print(Text(picture_sentence(row, subject=subject)), soft_wrap=True)
    console.print()
    console.print(picture_map(row, console=console))
    layer = place_of(max(row.layers))
    writing.print_dim(f"{row.title}, {layer}. --output overlay.png draws it on the photo.", console)
