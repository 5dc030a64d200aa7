"""`attnflow explain` on photos: one file or a folder of them, by a vision model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from attnflow import storage
from attnflow.attribution import Attribution
from attnflow.cli.options import parse_target, prepare_models
from attnflow.cli.output import PICTURES, check_output, print_json, tell_written, write_figure
from attnflow.cli.progress import progress_bars
from attnflow.errors import FileError, InputError, ModelError
from attnflow.errors.progress import listening, tell
from attnflow.methods import Method, make_method
from attnflow.show.sentences import picture_sentence, place_of
from attnflow.show.terminal import picture_map
from attnflow.tokens.pictures import PICTURE_ENDINGS, names_picture

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

__all__ = ["PhotoOptions", "explain_photos", "load_vision_model", "names_photos", "photo_path"]

FIGURES = ("overlay", "methods")
_SIDE_BY_SIDE = (
    *("gradient-attention", "alti", "norm-rollout", "rollout", "gradient-rollout", "raw"),
)


@dataclass(frozen=True)
class PhotoOptions:
    """What the command line says of photos; `others` are options that photos do not take."""

    method: Method | None
    targets: Sequence[str] | None
    layers: list[int] | None
    answer: int | None
    contrast: str | None
    figure: str | None
    as_json: bool
    output: Path | None
    others: Mapping[str, object]


def photo_path(text: str | None, file: Path | None, images: Sequence[Path] | None) -> str | None:
    """TEXT, or the photo that --image names in its place."""
    if not images:
        return text
    question = text or (f"the text of {file}" if file is not None else None)
    if question is not None:
        raise InputError(
            "explain takes a text or a photo. A question about a photo is answered, and each word "
            f"of the answer explained, by: attnflow generate --image {images[0]} {question!r}."
        )
    if len(images) > 1:
        raise InputError(
            f"explain takes one --image; got {len(images)}. Name a folder to explain every photo "
            "in it."
        )
    return str(images[0])


def names_photos(text: str | None, model: str | None) -> bool:
    """Whether TEXT is the path of an image, or of a folder that holds some and a model is named.

    With a model, what reads like the name of an image is one.
    """
    if text is None:
        return False
    is_name = text.lower().endswith(PICTURE_ENDINGS) and not text.split()[1:]
    if names_picture(text) or (model is not None and is_name):  # a file that is not there is told
        return True
    try:
        return (
            model is not None
            and Path(text).is_dir()
            and any(file.suffix.lower() in PICTURE_ENDINGS for file in Path(text).iterdir())
        )
    except (OSError, ValueError):
        return False


def explain_photos(place: str, model: str | None, options: PhotoOptions) -> None:
    """Explain one photo, or each photo of a folder; what cannot be read is said and passed over."""
    path = Path(place).expanduser()
    _check(options, several=path.is_dir())
    if not path.exists():
        raise FileError(f"There is no image {place!r}: no file of this name is there.")
    loaded = load_vision_model(model, place)
    if not path.is_dir():
        with progress_bars("running the model"):
            results = _results(loaded, path, options)
        _deliver(results, options, options.output)
        return
    from attnflow.data import list_photos

    photos = list_photos(path)
    failures: list[str] = []
    with progress_bars("photos"):
        for number, photo in enumerate(photos):
            tell("photos", number, len(photos))
            try:
                with listening(None):  # the bar counts photos
                    results = _results(loaded, photo, options)
            except (InputError, FileError) as error:
                failures.append(str(error))
                typer.echo(f"attnflow: {error}", err=True)
                continue
            _deliver(results, options, _beside(options.output, photo))
    if len(failures) == len(photos):
        raise InputError(f"None of the {len(photos)} images in {place!r} could be read.")


def load_vision_model(model: str | None, place: str) -> Model:
    """The model, if it is one that takes an image."""
    if model is None:
        raise InputError(
            f"{place!r} is an image, and the models that come with attnflow read text. Name a "
            "vision model: --model FOLDER, with its weights and preprocessor_config.json."
        )
    prepare_models()
    from attnflow.hosts.load import as_model
    from attnflow.hosts.registry import adapter_for
    from attnflow.hosts.vision_language.towers import towers_of

    with progress_bars("loading the model"):
        loaded = as_model(model, needs_tokenizer=False)
    if towers_of(loaded.module) is not None:
        raise InputError(
            f"--model {model!r} ({type(loaded.module).__name__}) answers questions about images: "
            f'attnflow generate --model {model} --image {place} "what is in the image?".'
        )
    if not adapter_for(loaded.module).reads_images(loaded.module):
        raise InputError(
            f"{place!r} is an image, and --model {model!r} ({type(loaded.module).__name__}) reads "
            "text. Give a text, or a vision model."
        )
    return loaded


def _check(options: PhotoOptions, *, several: bool) -> None:
    """Everything that can be known before the work."""
    for name, value in options.others.items():
        if value:
            raise InputError(f"{name} is about text; leave it out for an image.")
    output, figure = options.output, options.figure
    if options.as_json and output is not None:
        raise InputError("--json prints the result and --output writes it to a file: choose one.")
    if figure is not None and figure not in FIGURES:
        raise InputError(f"--figure {figure}: of an image it is {' or '.join(FIGURES)}.")
    if figure is not None and (output is None or (not several and output.suffix not in PICTURES)):
        raise InputError(f"--figure {figure} needs a file: --output {figure}.png.")
    if figure == "methods" and options.method is not None:
        raise InputError("--figure methods shows several side by side; leave out --method.")
    if len(options.targets or ()) > 1:
        raise InputError("A map shows one target; give --targets once.")
    if several and output is not None:
        if output.suffix in (*PICTURES, ".html", ".json", ".safetensors"):
            raise InputError(
                f"--output {str(output)!r} is a file, and there are several photos: name a folder."
            )
    elif output is not None:
        check_output(output)


def _results(loaded: Model, path: Path, options: PhotoOptions) -> list[Attribution]:
    """One result, or one for each method that this model can be explained by."""
    if options.figure != "methods":
        return [_result(loaded, path, options, options.method)]
    results = []
    for name in _SIDE_BY_SIDE:
        tell(name, 0, 1)
        try:
            results.append(_result(loaded, path, options, make_method(name)))
        except ModelError as error:
            typer.echo(f"attnflow: left out, {name}: {error}", err=True)
    if not results:
        raise ModelError(f"None of {', '.join(_SIDE_BY_SIDE)} can explain this model.")
    return results


def _result(
    loaded: Model,
    path: Path,
    options: PhotoOptions,
    method: Method | None,
) -> Attribution:
    from attnflow.explainers.texts import explain

    page = options.output is not None and options.output.suffix == ".html"
    targets: Any = [parse_target(target) for target in options.targets or ()] or None
    return explain(
        loaded,
        path,
        method,
        targets="all" if page and targets is None else targets,
        layers=options.layers or None,
        answer=options.answer,
        contrast=options.contrast,
    )


def _beside(folder: Path | None, photo: Path) -> Path | None:
    """Where a photo's overlay goes: into the folder, by the photo's own name."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{str(folder)!r} cannot be written to: {error}.") from error
    return folder / f"{photo.name}.png"


def _deliver(results: list[Attribution], options: PhotoOptions, output: Path | None) -> None:
    for remark in results[0].provenance.get("image_remarks", ()):
        typer.echo(f"attnflow: {remark}.", err=True)
    if options.as_json:
        print_json(results[0].to_dict())
    elif output is None:
        _show(results[0])
    elif output.suffix in PICTURES:
        from attnflow.show import plots

        write_figure(plots.overlay_figure(results, heading=_heading(results[0])), output)
    elif output.suffix == ".html":
        storage.write_text(output, results[0].to_html())
        tell_written(output)
    else:
        results[0].save(output)
        tell_written(output)


def _heading(result: Attribution) -> str:
    name = str(result.provenance.get("image", ""))
    return name if result.prediction is None else f"{name}: {result.prediction}"


def _show(result: Attribution) -> None:
    console = Console(highlight=False)
    name = str(result.provenance.get("image", ""))
    if result.prediction is not None:
        answer = escape(str(result.prediction))
        console.print(f"{escape(name)}: the model says [bold]{answer}[/bold].", soft_wrap=True)
    one = result if len(result.targets) == 1 else result.row(result.targets.positions[0])
    subject = None if result.prediction is None else result.prediction.label
    console.print(Text(picture_sentence(one, subject=subject)), soft_wrap=True)
    console.print()
    console.print(picture_map(one, console=console))
    about = f"{one.title}, {place_of(max(one.layers))}. --output overlay.png draws it on the photo."
    console.print(Text(about, style="dim"), soft_wrap=True)
