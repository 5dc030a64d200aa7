"""`attnflow bench`: every method on the same prompts, with intervals and costs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from attnflow.cli import options
from attnflow.cli.writing import tell_written
from attnflow.errors import InputError
from attnflow.models import WRITER
from attnflow_experiments.options import DeviceOption, Output, output_option

app = typer.Typer(
    name="bench",
    help="Hold methods against each other on the same prompts.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="\b\nExamples:\n  attnflow bench --quick --output out/bench\n"
    "  attnflow bench --data FOLDER --method default --method mine.py:my_method --output out/bench",
)
_OUTPUT = Output(Path("out/bench"))
_SHORT = ("facts", "squad")


@app.callback()
def bench(
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="[LABEL=]NAME|FOLDER", help="A model. May be repeated."),
    ] = None,
    data_set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this data set. May be repeated. Default: all in FOLDER, or two that ship.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE.py:FUNCTION",
            help="A method, a peer, or a function of your own. May be repeated. Default: all ours, "
            "and the peers where --peers is given.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the data sets are. Default: a small sample that ships, in minutes.",
        ),
    ] = None,
    part: Annotated[
        str, typer.Option(help="'development', to choose by, 'held-out', to report once, or 'all'.")
    ] = "development",
    samples: Annotated[
        int | None,
        typer.Option(help="How many items of each data set count. Default: 20; 4 when quick."),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The peers' packages, made by `make bench-peers`."),
    ] = None,
    processes: Annotated[int, typer.Option(help="How many processes run an item each.")] = 1,
    is_quick: Annotated[
        bool,
        typer.Option("--quick", help="Four items of two data sets, as without --data: minutes."),
    ] = False,
    device: DeviceOption = "cpu",
    output: Annotated[
        Output,
        output_option(
            "Tables, the page and the journal. The same command goes on from where it stopped.",
            str(_OUTPUT.folder),
        ),
    ] = _OUTPUT,
) -> None:
    """Hold methods against each other: the same prompts, the same ablations, one table.

    Each model runs each data set once; what ablations say of a prompt is measured once for all
    methods.
    """
    options.prepare_models()
    from attnflow_experiments.bench.data import DATA_SETS
    from attnflow_experiments.bench.findings import gather
    from attnflow_experiments.bench.methods import (
        OURS,
        PEER_PACKAGES,
        PHOTO_METHODS,
        TEXT_METHODS,
        TEXT_PEERS,
    )
    from attnflow_experiments.bench.overview import write_sheets
    from attnflow_experiments.bench.plan import BenchPlan
    from attnflow_experiments.bench.run import run_bench
    from attnflow_experiments.bench.sample import write_sample
    from attnflow_experiments.bench.tables import bench_report, write_page

    if data is not None and not data.is_dir():
        raise InputError(f"--data {str(data)!r} is not a folder.")
    if peers is not None and not peers.is_dir():
        raise InputError(f"--peers {str(peers)!r} is not a folder; `make bench-peers` makes one.")
    usual = [name for name, each in DATA_SETS.items() if each.kind == "prompts"]
    kind = DATA_SETS[data_set[0]].kind if data_set and data_set[0] in DATA_SETS else "prompts"
    methods = {
        "prompts": (*OURS, *(PEER_PACKAGES if peers else ())),
        "texts": (*TEXT_METHODS, *(TEXT_PEERS if peers else ())),
        "photos": PHOTO_METHODS,
    }
    is_quick = is_quick or data is None
    folder = output.folder or Path()
    with TemporaryDirectory() as sample:
        plan = BenchPlan(
            models=labelled(model or [WRITER]),
            data_sets=tuple(data_set or (_SHORT if is_quick else usual)),
            methods=tuple(method or methods[kind]),
            data=data or write_sample(Path(sample)),
            output=folder,
            part=part,  # type: ignore[arg-type]  # checked there
            samples=(4 if is_quick else 20) if samples is None else samples,
            peers=peers,
            device=device,
            processes=processes,
        )
        with output.keeping():
            run_bench(plan)
    findings = gather(plan)
    report = output.finish(bench_report(plan, findings))
    for path in write_sheets(plan, findings, folder):
        tell_written(path)
    tell_written(write_page(report, folder / "bench.html"))


def labelled(models: list[str]) -> dict[str, str]:
    """Return models by their labels; without one, the last part of a name or folder is it."""
    pairs = [each.split("=", 1) if "=" in each else [Path(each).name, each] for each in models]
    by_label = {pair[0]: pair[1] for pair in pairs}
    if len(by_label) < len(pairs):
        raise InputError("Two models have the same label; give each its own: --model LABEL=NAME.")
    return by_label
