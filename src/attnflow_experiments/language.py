"""The experiments on language models that answer over documents, as commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow.cli import options
from attnflow.errors import InputError
from attnflow_experiments.options import (
    NOWHERE,
    DeviceOption,
    KeptFolderOption,
    LanguageModelOption,
    PartOption,
    load_on,
)


def documents(
    model: LanguageModelOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|FILE",
            help="A folder with questions.jsonl, as in SQuAD, or a file of JSON lines with "
            "question, answers, documents and support; both fill up, too. Without it only the "
            "ordinary documents that ship are asked about.",
        ),
    ] = None,
    part: PartOption = "development",
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]", help="A method, or 'default'. May be repeated."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this data: ordinary, paragraphs or supports. May be repeated."),
    ] = None,
    questions: Annotated[
        int | None, typer.Option(help="How many questions of each kind, at most.")
    ] = None,
    places: Annotated[
        int, typer.Option(help="Of how many documents, with the right one at each place.")
    ] = 5,
    orders: Annotated[
        int, typer.Option(help="At how many places each question of DATA is asked.")
    ] = 1,
    length: Annotated[
        list[int] | None,
        typer.Option(
            metavar="TOKENS", help="Fill up with other documents to this length. May be repeated."
        ),
    ] = None,
    reads_answers: Annotated[
        bool, typer.Option("--given", help="Read the right answer instead of the model's own.")
    ] = False,
    device: DeviceOption = "cpu",
    output: KeptFolderOption = NOWHERE,
) -> None:
    """Is the right document named, wherever it stands?

    Questions over documents are asked as `attnflow ask` asks them; those answered rightly count.
    """
    options.prepare_models()
    from attnflow_experiments.ablation.data import PARTS
    from attnflow_experiments.documents.experiment import KINDS, SourcesExperiment

    if part not in PARTS:
        raise InputError(f"--part is {' or '.join(PARTS)}; got {part!r}.")
    available = KINDS[:1] if data is None else KINDS[2:] if data.is_file() else KINDS[:2]
    experiment = SourcesExperiment(
        part=part,
        methods=tuple(methods or ("default",)),
        kinds=tuple(kind or available),
        questions=questions,
        places=places,
        orders=orders,
        lengths=tuple(length or ()),
        reads_answers=reads_answers,
    )
    loaded = load_on(device, model)
    journal = output.journal(f"documents-{part}.jsonl")
    with output.keeping():
        report = experiment(loaded, data=data, journal=journal)
    output.finish(report)


def verdicts(
    model: LanguageModelOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A folder with known-facts.jsonl, clapnq-unanswerable.jsonl and nq.jsonl. Without "
            "it only the ordinary documents that ship are asked about.",
        ),
    ] = None,
    part: PartOption = "development",
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these questions: agreeing, contradicting, unrelated, ordinary, doubled or "
            "unanswerable. May be repeated."
        ),
    ] = None,
    questions: Annotated[
        int | None, typer.Option(help="How many facts, and questions of each kind, at most.")
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(
            metavar="TOKENS",
            help="Fill documents beside facts up to this length; 0 adds none. May be repeated.",
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit the probability that `ask` tells to these answers, and keep the curve in "
            "the model's folder, where every command finds it.",
        ),
    ] = False,
    device: DeviceOption = "cpu",
    output: KeptFolderOption = NOWHERE,
) -> None:
    """Is an answer from the documents told from memory?"""
    if calibrate and (output.folder is None or model is None or not Path(model).is_dir()):
        raise typer.BadParameter(
            f"--calibrate fits the curve of a model in a folder to answers that are kept; got "
            f"--model {model} and --output {output.folder}."
        )
    options.prepare_models()
    from attnflow_experiments.verdicts.data import KINDS
    from attnflow_experiments.verdicts.experiment import VerdictsExperiment

    available = KINDS if data is not None else ("ordinary", "doubled")
    experiment = VerdictsExperiment(
        part=part,  # type: ignore[arg-type]  # checked there
        kinds=tuple(kind or available),  # type: ignore[arg-type]
        questions=questions,
        lengths=tuple(length or (0,)),
    )
    loaded = load_on(device, model)
    journal = output.journal(f"verdicts-{part}.jsonl")
    with output.keeping():
        report = experiment(loaded, data=data, journal=journal)
    output.finish(report)
    if calibrate and journal is not None and model is not None:
        typer.echo(f"wrote {experiment.calibrate(journal, Path(model))}", err=True)


def orders(
    data: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="A folder with injections.jsonl, emails.jsonl, poisoned-rag.jsonl, nq.jsonl, "
            "hotpot.jsonl and 2wiki.jsonl.",
        ),
    ],
    model: LanguageModelOption = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]", help="A method, or 'default'. May be repeated."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this data: injections, poison, hotpot, 2wiki. May be repeated."),
    ] = None,
    cases: Annotated[int | None, typer.Option(help="How many cases of each, at most.")] = None,
    reads_answers: Annotated[
        bool, typer.Option("--given", help="Read the answer to each order; all orders count.")
    ] = False,
    device: DeviceOption = "cpu",
    output: KeptFolderOption = NOWHERE,
) -> None:
    """Is the sentence named that gave the order?

    Injected instructions, poisoned passages, and the supports of questions of several hops.
    """
    options.prepare_models()
    from attnflow_experiments.orders.experiment import KINDS, METHODS, OrdersExperiment

    experiment = OrdersExperiment(
        methods=tuple(methods or METHODS),
        kinds=tuple(kind or KINDS),
        cases=cases,
        reads_answers=reads_answers,
    )
    loaded = load_on(device, model)
    journal = output.journal("orders.jsonl")
    with output.keeping():
        report = experiment(loaded, data=data, journal=journal)
    output.finish(report)


def ablation(
    model: LanguageModelOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Running text (enwik8.gz, enwik8, or text.txt with a paragraph a line) and "
            "questions (questions.jsonl, as in SQuAD). Without it only facts are tried.",
        ),
    ] = None,
    part: PartOption = "development",
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
    device: DeviceOption = "cpu",
    output: KeptFolderOption = NOWHERE,
) -> None:
    """Which method predicts what ablations do?

    Methods are held against ablations on facts, running text and documents, on data to choose by
    or on data to report once.
    """
    options.prepare_models()
    from attnflow_experiments.ablation.data import PARTS
    from attnflow_experiments.ablation.experiment import DEFAULT_METHODS, KINDS, AblationExperiment

    if part not in PARTS:
        raise InputError(f"--part is {' or '.join(PARTS)}; got {part!r}.")
    experiment = AblationExperiment(
        part=part,
        methods=tuple(method or DEFAULT_METHODS),
        kinds=tuple(kind or KINDS),
        samples=samples,
        skip=skip,
        ablations=ablations,
    )
    loaded = load_on(device, model)
    with output.keeping():
        report = experiment(loaded, data=data, journals=output.folder)
    output.finish(report)


COMMANDS = (documents, verdicts, orders, ablation)
