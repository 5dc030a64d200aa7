"""The commands of experiments on what a language model's answer came from; `commands` adds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnflow.cli import options, writing
from attnflow.errors import InputError, StoppedError

if TYPE_CHECKING:
    from attnflow.hosts.model import Model

LanguageModelOption = Annotated[
    str | None,
    typer.Option(metavar="NAME|FOLDER", help="A causal language model. Default: SmolLM2."),
]
PartOption = Annotated[
    str, typer.Option(help="'development', to choose by, or 'held-out', to report once.")
]
DeviceOption = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda or mps.")]
KeptFolderOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Write CSV and Markdown to this folder, and keep the run in it. The same command "
        "goes on from where it stopped.",
    ),
]


def load_on(device: str, model: str | None) -> Model:
    """Return a language model in single precision on a device."""
    from attnflow.hosts.load import as_model

    loaded = as_model(model, default="smollm2")
    try:
        loaded.module.float().to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts that it has it
        raise InputError(f"--device {device!r} cannot be used: {error}") from error
    return loaded


@contextmanager
def keeping(output: Path | None) -> Iterator[None]:
    """Show progress; an interruption says where what is done is kept."""
    try:
        with writing.progress_bars():
            yield
    except KeyboardInterrupt:
        if output is None:
            raise
        raise StoppedError(
            f"interrupted; what is done is kept in {str(output)!r}, and the same command goes on "
            "from there."
        ) from None


def documents(
    context: typer.Context,
    model: LanguageModelOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|FILE",
            help="A folder with questions.jsonl, as in SQuAD, or a file of JSON lines with "
            "question, answers, documents and support. Without it only the ordinary documents "
            "that ship are asked about.",
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
    output: KeptFolderOption = None,
) -> None:
    """Is the right document named, wherever it stands?

    Questions over documents are asked as `attnflow ask` asks them; those answered rightly count.
    """
    options.prepare_models()
    from attnflow_experiments.ablation.data import PARTS
    from attnflow_experiments.documents.experiment import KINDS, SourcesExperiment
    from attnflow_experiments.report import finish

    if part not in PARTS:
        raise InputError(f"--part is {' or '.join(PARTS)}; got {part!r}.")
    available = KINDS[:1] if data is None else KINDS[2:] if data.is_file() else KINDS[:2]
    experiment = SourcesExperiment(
        part=part,
        methods=tuple(methods or ("default",)),
        kinds=tuple(kind or available),
        questions=questions,
        places=places,
        lengths=tuple(length or ()),
        reads_answers=reads_answers,
    )
    loaded = load_on(device, model)
    journal = None if output is None else output / f"documents-{part}.jsonl"
    with keeping(output):
        report = experiment(loaded, data=data, journal=journal)
    finish(report, output, context)


def orders(
    context: typer.Context,
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
    output: KeptFolderOption = None,
) -> None:
    """Is the sentence named that gave the order?

    Injected instructions, poisoned passages, and the supports of questions of several hops.
    """
    options.prepare_models()
    from attnflow_experiments.orders.experiment import KINDS, METHODS, OrdersExperiment
    from attnflow_experiments.report import finish

    experiment = OrdersExperiment(
        methods=tuple(methods or METHODS),
        kinds=tuple(kind or KINDS),
        cases=cases,
        reads_answers=reads_answers,
    )
    loaded = load_on(device, model)
    journal = None if output is None else output / "orders.jsonl"
    with keeping(output):
        report = experiment(loaded, data=data, journal=journal)
    finish(report, output, context)


def ablation(
    context: typer.Context,
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
    output: KeptFolderOption = None,
    seed: Annotated[int, typer.Option(help="The seed of the random ablations.")] = 0,
) -> None:
    """Which method predicts what ablations do?

    Methods are held against ablations on facts, running text and documents, on data to choose by
    or on data to report once.
    """
    options.prepare_models()
    from attnflow_experiments.ablation.data import PARTS
    from attnflow_experiments.ablation.experiment import DEFAULT_METHODS, KINDS, AblationExperiment
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
    loaded = load_on(device, model)
    with keeping(output):
        report = experiment(loaded, data=data, journals=output)
    finish(report, output, context)
