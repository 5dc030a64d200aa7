"""When does flow say something? Capacities and residuals held against the target and ablations.

    python benchmarks/flow_meaning.py --encoder FOLDER --decoder FOLDER --text FILE \\
        --classifier FOLDER --reviews FILE

Writes flow_meaning.json and two tables. *Rows*: how far rows depend on their target (mean total
variation between normalised rows) and where flows are held back, by depth. *Ablations*: LDS of one
row from the predicting position at the top, on the development prompts of the ablation experiment,
beside gradient rollout on the same prompts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow import (
    AttentionTrace,
    Flow,
    GradientRollout,
    Method,
    Rollout,
    ShapleyFlow,
    capture,
)
from attnflow.evaluation import Evaluation, Prompts, evaluate
from attnflow.evaluation.subjects.rankings import CompletionCase
from attnflow.methods import quiet_about_limits
from attnflow_experiments.ablation.data import facts, passages

RECORD = ("gradients", "residual-share", "norms-residual", "alti")
FLOWS: dict[str, Flow] = {
    "attention, residual ½": Flow(),
    "attention, one-step": Flow(residual="one-step"),
    "attention, measured residual": Flow(capacities="measured-residual"),
    "norms": Flow(capacities="norms"),
    "alti": Flow(capacities="alti"),
    "gradients, residual ½": Flow(capacities="gradients"),
    "gradients, no residual": Flow(capacities="gradients", residual=None),
}
LONG_REVIEW, REVIEWS = 15, 16  # rows are the mean of so many texts of so many words or more
SLOW = ("norms", "alti")  # to measure in a language model
CAUSAL: dict[str, Flow] = {
    "attention, residual ½, first dropped": Flow(drop=(0,)),
    "attention, one-step, first dropped": Flow(residual="one-step", drop=(0,)),
}
JOINT: dict[str, Method] = {
    "joint: attention, residual ½": ShapleyFlow(tolerance=0.02),
    "joint: attention, one-step": ShapleyFlow(residual="one-step", tolerance=0.02),
    "joint: gradients, residual ½": ShapleyFlow(capacities="gradients", tolerance=0.02),
}
BESIDE: dict[str, Method] = {
    "rollout, residual ½": Rollout(),
    "rollout, one-step": Rollout(residual="one-step"),
    "gradient rollout": GradientRollout(),
}


def row_facts(trace: AttentionTrace, flows: dict[str, Flow]) -> dict[str, Any]:
    """Dependence and place of the cut, by capacities and by depth."""
    count = len(trace.layers)
    layers = sorted({1, 2, *(max(1, round(count * share)) for share in (0.25, 0.5, 0.75, 1))})
    rows: dict[str, Any] = {}
    for name, flow in flows.items():
        with quiet_about_limits():
            result = flow(trace, targets=list(range(trace.length)), layers=layers)
        assert result.dependence is not None
        rows[name] = {
            "layers": layers,
            "dependence": [round(float(d.mean()), 4) for d in result.dependence],
            "held": [result.provenance["held"][str(layer)] for layer in layers],
        }
        print(f"  {name}: {rows[name]['dependence']} {rows[name]['held'][-1]}", flush=True)
    return rows


def classifier_rows(folder: Path, reviews: Path) -> dict[str, Any]:
    """As `row_facts`, the mean over the first long texts of a classifier's own."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    lines = reviews.read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.split("\t")[0].strip() for line in lines]
    long = [text for text in texts if len(text.split()) >= LONG_REVIEW][:REVIEWS]
    each = [row_facts(capture((model, tokenizer), t, record=RECORD), FLOWS) for t in long]
    rows: dict[str, Any] = {}
    for name in FLOWS:
        rows[name] = {
            "layers": each[0][name]["layers"],
            "dependence": np.mean([facts[name]["dependence"] for facts in each], axis=0).tolist(),
            "held": {
                place: float(np.mean([facts[name]["held"][-1][place] for facts in each]))
                for place in each[0][name]["held"][-1]
            },
        }
    return rows


def last_row(method: Method, traces: dict[int, AttentionTrace], case: CompletionCase) -> Any:
    """One value for each prompt token: the row of the predicting position at the top."""
    key = hash(tuple(case.prompt_ids))
    if key not in traces:
        traces.clear()
        import torch

        inputs = {"input_ids": torch.tensor([case.prompt_ids])}
        record = ("gradients", "residual-share")
        traces[key] = capture(case.model, inputs, record=record)
    trace = traces[key]
    with quiet_about_limits():
        values: NDArray[np.float64] = method(trace, targets=[trace.length - 1], layers=-1).values
    return values[0, 0]


def ablations(model: Any, tokenizer: Any, text: Path | None, count: int, sets: int) -> Any:
    """Mean LDS of every method on each kind of development prompts."""
    traces: dict[int, AttentionTrace] = {}
    flows = {name: flow for name, flow in FLOWS.items() if flow.capacities not in SLOW}
    methods: dict[str, Method] = {**BESIDE, **flows, **CAUSAL, **JOINT}
    rankings: dict[str, Callable[[CompletionCase], Any] | str] = {
        name: partial(last_row, method, traces) for name, method in methods.items()
    }
    prompts = {"facts": facts("development")}
    if text is not None:
        prompts["running text"] = passages(text, "development")
    tables: dict[str, Any] = {}
    for kind, items in prompts.items():
        evaluation = evaluate(
            (model, tokenizer),
            items,
            rankings,
            subject=Prompts(ablations=sets, exclude_last_word=True, max_new_tokens=1),
            samples=count,
        )
        tables[kind] = _means(evaluation)
        for name, scores in tables[kind].items():
            print(f"  {kind}: {name}: {scores}", flush=True)
    return tables


def _means(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    for name, reason in evaluation.refused.items():
        print(f"  refused: {name}: {reason}")
    return {
        name: {
            key: round(float(np.nanmean(evaluation.values(name, key))), 3)
            for key in ("lds", "drop")
        }
        | {"prompts": len(evaluation.used)}
        for name in evaluation.rows
        if name not in evaluation.refused
    }


def main() -> None:
    """Measure, then write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", type=Path, help="folder of an encoder")
    parser.add_argument("--decoder", type=Path, help="folder of a language model")
    parser.add_argument("--text", type=Path, help="enwik8.gz, for running text")
    parser.add_argument("--classifier", type=Path, help="folder of a classifier of texts")
    parser.add_argument("--reviews", type=Path, help="its texts, as GLUE's dev.tsv")
    parser.add_argument("--only-ablations", action="store_true")
    parser.add_argument("--slow", action="store_true", help="norms and alti of the decoder too")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--ablations", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    if arguments.classifier and not arguments.reviews:
        parser.error("--classifier needs its texts: --reviews FILE")
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    report: dict[str, Any] = {}
    prose = (Path(__file__).parent / "prose.txt").read_text(encoding="utf-8")
    from attnflow.models.verb_number import load_verb_number

    small, vocabulary = load_verb_number()
    text = "the keys to the old cabinet by the door"
    trace = capture((small, vocabulary), text, record=RECORD)
    print("verb number", flush=True)
    report["verb number"] = row_facts(trace, FLOWS)
    if arguments.encoder:
        print("encoder", flush=True)
        tokenizer = AutoTokenizer.from_pretrained(arguments.encoder)
        model = AutoModel.from_pretrained(arguments.encoder)
        inputs = dict(tokenizer(prose, return_tensors="pt", truncation=True, max_length=64))
        plain = {k: f for k, f in FLOWS.items() if f.capacities != "gradients"}
        report["encoder"] = row_facts(capture((model, tokenizer), inputs, record=RECORD[1:]), plain)
    if arguments.decoder:
        tokenizer = AutoTokenizer.from_pretrained(arguments.decoder)
        model = AutoModelForCausalLM.from_pretrained(arguments.decoder)
        inputs = dict(tokenizer(prose, return_tensors="pt", truncation=True, max_length=64))
        if not arguments.only_ablations:
            print("decoder", flush=True)
            record = RECORD if arguments.slow else RECORD[:2]
            traced = capture((model, tokenizer), inputs, record=record)
            slow = () if arguments.slow else SLOW
            flows = {k: f for k, f in {**FLOWS, **CAUSAL}.items() if f.capacities not in slow}
            report["decoder"] = row_facts(traced, flows)
        if arguments.prompts:
            report["ablations"] = ablations(
                model, tokenizer, arguments.text, arguments.prompts, arguments.ablations
            )
    if arguments.classifier:
        report["classifier"] = classifier_rows(arguments.classifier, arguments.reviews)
        print(f"the mean: {report['classifier']}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "flow_meaning.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
