"""`attnflow experiment ablation`: attributions of a language model held against ablations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow.cli.options import prepare_models
from attnflow.cli.progress import progress_bars
from attnflow.errors import InputError, StoppedError

__all__ = ["ablation"]


def ablation(
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME|FOLDER", help="A causal language model. Default: SmolLM2."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Running text (enwik8.gz, enwik8, or text.txt with a paragraph a line) and "
            "questions (questions.jsonl, as in SQuAD). Without it only facts are tried.",
        ),
    ] = None,
    part: Annotated[
        str, typer.Option(help="'development', to choose by, or 'held-out', to report once.")
    ] = "development",
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "--methods",
            metavar="NAME[:KEY=VALUE,...]",
            help="A method, 'default', 'raw-mean', 'leave-one-out' or 'ablation-regression'. May "
            "be repeated. Differences are those from the first.",
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this data: facts, text or documents. May be repeated."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="How many prompts of each kind count, at most.")
    ] = None,
    skip: Annotated[
        int,
        typer.Option(
            help="Leave out this many prompts of each kind: those that were looked at before."
        ),
    ] = 0,
    ablations: Annotated[
        int, typer.Option(help="Over how many random ablations the LDS is taken.")
    ] = 64,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda or mps.")] = "cpu",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write CSV and Markdown to this folder, and keep the run in it. The same command "
            "goes on from where it stopped.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the random ablations.")] = 0,
) -> None:
    """Which method predicts what ablations do?

    Methods are held against ablations on facts, running text and documents, on data to choose by
    or on data to report once.
    """
    prepare_models()
    from attnflow.hosts.load import as_model
    from attnflow_experiments.ablation.data import PARTS
    from attnflow_experiments.ablation.experiment import DEFAULT_METHODS, AblationExperiment
    from attnflow_experiments.ablation.observe import KINDS
    from attnflow_experiments.report import finish

    if part not in PARTS:
        raise InputError(f"--part is {' or '.join(PARTS)}; got {part!r}.")
    experiment = AblationExperiment(
        part=part,
        methods=tuple(method or DEFAULT_METHODS),
        kinds=tuple(kind or KINDS),
        samples=samples,
        skip=skip,
        ablations=ablations,
        seed=seed,
    )
    loaded = as_model(model, default="smollm2")
    command = _command(model, data, part, method, kind, samples, skip, ablations, seed)
    try:
        host = loaded.module.float().to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts that it has it
        raise InputError(f"--device {device!r} cannot be used: {error}") from error
    try:
        with progress_bars():
            report = experiment(
                host,
                loaded.tokenizer,
                data=data,
                journals=output,
                command=command,
            )
    except KeyboardInterrupt:
        if output is None:
            raise
        raise StoppedError(
            f"interrupted; what is done is kept in {str(output)!r}, and the same command goes on "
            "from there."
        ) from None
    finish(report, output)


def _command(
    model: str | None,
    data: Path | None,
    part: str,
    method: list[str] | None,
    kind: list[str] | None,
    samples: int | None,
    skip: int,
    ablations: int,
    seed: int,
) -> str:
    """What to type to get the same numbers; of paths only the last part."""
    parts = ["attnflow experiment ablation"]
    parts += [f"--model {Path(model).name}"] if model else []
    parts += [f"--data {data.name}"] if data else []
    parts += [f"--part {part}", *(f"--method {name}" for name in method or ())]
    parts += [f"--kind {name}" for name in kind or ()]
    parts += [f"--samples {samples}"] if samples else []
    parts += [f"--skip {skip}"] if skip else []
    return " ".join([*parts, f"--ablations {ablations} --seed {seed}"])
