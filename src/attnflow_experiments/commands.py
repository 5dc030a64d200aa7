"""`attnflow experiment NAME`: one command for each experiment.

Their options look alike because typer has one shape for a declaration; each says something else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow import storage
from attnflow.cli import options, writing
from attnflow.errors import InputError
from attnflow.models import WRITER
from attnflow.show.progress import progress_bars
from attnflow_experiments import EXPERIMENTS, language
from attnflow_experiments.options import NOWHERE, FolderOption, ProtocolOption
from attnflow_experiments.pronouns.data import OURS, PAPERS, parse_sentence, read_winogender
from attnflow_experiments.verb_number.data import (
    Example,
    held_out,
    read_agreement,
    template_examples,
)

app = typer.Typer(
    name="experiment",
    help="Run one of the paper's experiments; without a name, list them.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)


for command in language.COMMANDS:
    app.command(name=command.__name__)(command)


@app.callback()
def _list(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        for name, experiment in EXPERIMENTS.items():
            typer.echo(f"{name}  {experiment.question}. It takes {experiment.time}.")


@app.command(name="verb-number")
def verb_number(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Agreement data of Linzen et al. (2016): lines 'VBZ<tab>words before the verb', "
            "or a table with the header sentence subj_idx verb_idx verb_pos verb inflected_verb. "
            "Default: sentences from built-in templates, which are not natural text."
        ),
    ] = None,
    held_out_only: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="DATA is numpred.val: use only the part the embedded model never saw.",
        ),
    ] = False,
    samples: Annotated[int, typer.Option(help="How many sentences.")] = 2_000,
    protocol: ProtocolOption = "sound",
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Another verb-number model, as training/verb_number.py writes it.",
        ),
    ] = None,
    output: FolderOption = NOWHERE,
    seed: options.Seed = 0,
) -> None:
    """Tables 1 and 2: attention against blank-out and gradients.

    Raw attention, rollout and flow of the verb-number model are correlated with blank-out scores
    and input gradients, layer by layer.
    """
    options.prepare_models()
    from attnflow.models.verb_number import load_verb_number
    from attnflow_experiments.verb_number.experiment import VerbNumber

    experiment = VerbNumber(protocol=protocol, samples=samples, seed=seed)  # type: ignore[arg-type]
    examples, source = _sentences(data, held_out_only, samples, seed)
    model, vocabulary = load_verb_number(weights)
    with progress_bars():
        report = experiment(examples, model, vocabulary, source=source)
    output.finish(report)


@app.command(name="held-out")
def write_held_out(
    data: Annotated[Path, typer.Argument(metavar="FILE", help="numpred.val of these data.")],
    output: Annotated[Path, typer.Argument(metavar="TABLE", help="The .tsv to write.")],
) -> None:
    """Write the agreement data that the embedded model never saw.

    The table has the columns text and label (0 singular, 1 plural), as `attnflow evaluate --data`
    reads it.
    """
    examples = held_out(read_agreement(data))
    lines = ["text\tlabel", *(f"{' '.join(each.words)}\t{each.label}" for each in examples)]
    storage.write_text(output, "\n".join(lines) + "\n")
    writing.tell_written(output)


@app.command(name="known-answer")
def known_answer(
    model: options.Model = None,
    mathformer: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The folder of the package mathformer, for sums and products. Default: where it "
            "is installed, if it is.",
        ),
    ] = None,
    prompts: Annotated[int, typer.Option(help="How many prompts to make.")] = 960,
    wording: Annotated[
        str, typer.Option(help="'test', or 'development', which options were chosen by.")
    ] = "test",
    output: FolderOption = NOWHERE,
    seed: options.Seed = 0,
) -> None:
    """Prompts that state a fact: is its source ranked first?

    The prompts state a fact and ask for it, so that the true source of the answer is known. Sums
    and products are tried, too, where the package mathformer is there.
    """
    options.prepare_models()
    from attnflow.hosts.load import as_model
    from attnflow_experiments.known_answer.data import load_mathformer, mathformer_folder
    from attnflow_experiments.known_answer.experiment import KnownAnswer

    experiment = KnownAnswer(prompts=prompts, seed=seed, wording=wording)  # type: ignore[arg-type]
    loaded = as_model(model, default=WRITER)
    folder = mathformer_folder(mathformer)
    with progress_bars():
        tables = [*experiment.of_language_model(loaded.module, loaded.tokenizer)]
        for sign in "*+" if folder else "":
            calculator, vocabulary = load_mathformer(folder, sign)
            tables.extend(experiment.of_arithmetic(calculator, vocabulary, sign))
    if folder is None:
        typer.echo("attnflow: mathformer is not installed; sums are left out.", err=True)
    output.finish(experiment.report(tables))


@app.command(name="pronouns")
def pronouns(
    model: options.Model = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A Winogender table with the header 'sentid sentence' and ids such as "
            "accountant.taxpayer.0.male.txt. The tables then sum up all sentences. Default: the "
            "paper's sentences and more of their form."
        ),
    ] = None,
    sentence: Annotated[
        str | None,
        typer.Option(help="One sentence instead, with [MASK] in the pronoun's place."),
    ] = None,
    antecedents: Annotated[
        str | None,
        typer.Option(help="The two words its pronoun may refer to, such as author,Sara."),
    ] = None,
    pronouns: Annotated[
        str | None,
        typer.Option(help="The pronoun that goes with each of them, such as his,her."),
    ] = None,
    protocol: ProtocolOption = "sound",
    output: FolderOption = NOWHERE,
) -> None:
    """Figure 4: which antecedent does each method prefer?

    Raw attention, rollout and flow each prefer one of two antecedents, and the model prefers a
    pronoun. The tables say how often these agree.
    """
    options.prepare_models()
    from attnflow.hosts.load import as_model
    from attnflow_experiments.pronouns.experiment import Pronouns

    experiment = Pronouns(protocol=protocol)  # type: ignore[arg-type]
    if data is not None and sentence is not None:
        raise InputError("--data and --sentence are two experiments; give one of them.")
    if sentence is None and (antecedents or pronouns):
        raise InputError("--antecedents and --pronouns belong to a --sentence; none is given.")
    schemas = None if data is None else read_winogender(data)
    sentences = PAPERS if protocol == "paper" else OURS
    if sentence is not None:
        sentences = (parse_sentence(sentence, antecedents, pronouns),)
    loaded = as_model(model, default=WRITER)
    with progress_bars():
        report = (
            experiment.of_sentences(loaded.module, loaded.tokenizer, sentences)
            if schemas is None
            else experiment.of_winogender(loaded.module, loaded.tokenizer, schemas)
        )
    output.finish(report)


def _sentences(
    data: Path | None, held_out_only: bool, samples: int, seed: int
) -> tuple[list[Example], str]:
    if data is None:
        if held_out_only:
            raise InputError("--held-out is a part of numpred.val: say where that is with --data.")
        return template_examples(samples, seed=seed), "templates (not natural text)"
    examples = read_agreement(data)
    if held_out_only:
        return held_out(examples), f"the held-out part of {data.name}"
    return examples, data.name


@app.command(name="scenes")
def scenes(
    model: options.Model = None,
    count: Annotated[int, typer.Option("--scenes", help="How many scenes.")] = 300,
    part: Annotated[
        str, typer.Option(help="'test', or 'development', which the default was chosen by.")
    ] = "test",
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the run in this file, and go on from it."),
    ] = None,
    output: FolderOption = NOWHERE,
) -> None:
    """Drawn scenes: does an answer point at its object?

    Without --model it is the small one that ships; a folder that training/scenes.py wrote is
    another.
    """
    options.prepare_models()
    from attnflow.models.scenes import load_scenes
    from attnflow_experiments.scenes.experiment import Scenes

    experiment = Scenes(scenes=count, part=part)  # type: ignore[arg-type]
    loaded = load_scenes(None if model in (None, "scenes") else Path(str(model)))
    with progress_bars():
        report = experiment(*loaded, journal=resume)
    output.finish(report)


@app.command(name="sst2")
def sst2(
    model: Annotated[
        str,
        typer.Option(
            callback=options.check_model_name,
            help="A sequence classifier: a Hugging Face name or a local folder, for example what "
            "training/sst2.py writes.",
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="A TSV as in GLUE: a header with sentence (or text) and, if there are labels, "
            "label; then one text on each line."
        ),
    ],
    samples: Annotated[int, typer.Option(help="How many texts.")] = 100,
    protocol: ProtocolOption = "sound",
    label: Annotated[
        str | None,
        typer.Option(help="The class to explain, by name or number. Default: the last one."),
    ] = None,
    output: FolderOption = NOWHERE,
    seed: options.Seed = 0,
) -> None:
    """Table 3: attention against gradients of a classifier.

    Raw attention, rollout and flow of a text classifier are correlated with its input gradients.
    """
    options.prepare_models()
    from attnflow.evaluation.subjects.examples import read_texts
    from attnflow.hosts.load import load
    from attnflow_experiments.sst2.experiment import Sst2

    experiment = Sst2(protocol=protocol, samples=samples, label=label, seed=seed)  # type: ignore[arg-type]
    loaded = load(model)
    examples = read_texts(data)
    with progress_bars():
        report = experiment(
            examples,
            loaded.module,
            loaded.tokenizer,
            source=data.name,
        )
    output.finish(report)


for info in app.registered_commands:
    runs = [f"  attnflow experiment {info.name} {each}" for each in EXPERIMENTS[info.name or ""][2]]
    info.epilog = "\b\nExamples:\n" + "\n".join(line.rstrip() for line in runs)
