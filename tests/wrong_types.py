"""Values of the wrong kind for every argument of the public functions.

A call either works or raises an `AttnflowError` with a sentence: never a bare exception from
inside. A value that happens to be allowed (an empty list of spans is not, 1.0 as a share is) may
simply work.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attnflow
from attnflow.errors import AttnflowError
from attnflow.evaluation import CompletionPrompt, Prompts, Texts
from attnflow.evaluation.faithfulness import Faithfulness
from attnflow.evaluation.importance import BlankOut, InputGradient, ValueZeroing
from attnflow.evaluation.subjects.examples import read_prompts, read_texts
from attnflow.explainers.ablation import CompletionAblation
from attnflow.methods import (
    METHODS,
    AblationRegression,
    Careful,
    LeaveOneOut,
    make_method,
)
from attnflow.testing import random_trace, tiny_decoder, tiny_encoder

__all__ = ["Outcome", "wrong_type_calls"]

_LONGEST_MESSAGE = 2_000


class Odd:
    """An object nobody expects."""

    def __repr__(self) -> str:
        return "Odd()"


HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 10**30, -(10**30), 0.5, -0.5, 1e308),
    *(float("nan"), float("inf"), 1j, "", " ", "nonsense", "0", "x" * 100_000, "\ud800", "\x00"),
    *(b"bytes", [], (), {}, set(), [None], [[]], [1, "a"], {"a": 1}, {1: 2}, range(3)),
    *(np.int64(1), np.float32(0.5), np.array(1), np.array([0, 1]), np.array([]), np.zeros((2, 2))),
    *(np.array(["a"]), np.nan, torch.tensor(1), torch.tensor([0, 1]), torch.zeros(2, 2)),
    *(Odd(), Odd, print, Path("nowhere"), iter([1]), slice(1)),
)


@dataclass(frozen=True)
class Outcome:
    """One call that went wrong: what was called, with which value, and what came out."""

    call: str
    argument: str
    value: str
    problem: str


@dataclass(frozen=True)
class _Call:
    name: str
    function: Callable[..., Any]
    valid: Mapping[str, Any]


def _calls(folder: Path) -> Iterator[_Call]:
    """Every public function and method with arguments that work."""
    trace = random_trace(3, 2, 5, record=("gradients", "alti", "gradient-attention"))
    weights = np.array(trace.weights)
    tokens = list(trace.tokens)
    result = attnflow.Flow()(trace)
    loaded = tiny_encoder(head="SequenceClassification")
    text: dict[str, Any] = {
        "model": loaded,
        "text": "the key",
    }
    yield _Call(
        "AttentionTrace.from_arrays",
        attnflow.AttentionTrace.from_arrays,
        {
            **{"weights": weights, "tokens": tokens, "layers": [1, 2, 3], "kind": None},
            **{"sinks": None, "mixed_heads": None, "gradients": None, "measured": None},
            **{"row_tolerance": None, "encoder_length": None, "stages": None, "prediction": None},
        },
    )
    yield _Call("Tokens", attnflow.Tokens, {"texts": tuple(tokens), "positions": (), "words": None})
    graph = attnflow.LayeredGraph.from_capacities
    yield _Call("LayeredGraph.from_capacities", graph, {"capacities": weights.mean(axis=1)})
    for name in METHODS:
        method = make_method(name)
        options = {key: getattr(method, key) for key in make_method(name).to_dict()["options"]}
        yield _Call(f"{type(method).__name__}", type(method), options)
    ask = {"trace": trace, "targets": [0], "layers": [1], "sources": None, "threads": 1}
    for method in (attnflow.Rollout(), attnflow.Flow(), attnflow.Raw()):
        yield _Call(f"{method.name}()", method, ask)
    cut = {"trace": trace, "target": 0, "source": 1, "layer": 3}
    yield _Call("Flow.minimum_cut", attnflow.Flow().minimum_cut, cut)
    yield _Call("Flow.estimate", attnflow.Flow().estimate, {"trace": trace, "targets": [0]})
    yield _Call("make_method", make_method, {"name": "rollout", "options": {"residual": 0.5}})
    yield _Call("Attribution.row", result.row, {"target": 0})
    yield _Call("Attribution.layer", result.layer, {"number": 1})
    yield _Call("Attribution.top", result.top, {"k": 2, "target": 0, "layer": 1, "common": True})
    yield _Call("Attribution.normalize", result.normalize, {"how": "sum"})
    yield _Call("Attribution.spans", result.spans, {"spans": {"a": (0, 2)}})
    yield _Call("Attribution.without", result.without, {"sources": [1]})
    yield _Call("Attribution.minus", result.minus, {"baseline": result, "name": "b"})
    yield _Call("Attribution.save", result.save, {"path": folder / "result.json"})
    result.save(folder / "kept.json")
    yield _Call("Attribution.load", attnflow.Attribution.load, {"path": folder / "kept.json"})
    yield _Call("AttentionTrace.save", trace.save, {"path": folder / "trace.safetensors"})
    yield _Call("AttentionTrace.load", attnflow.AttentionTrace.load, {"path": folder / "kept.json"})
    more = {"heads": None, "record": (), "answer": None, "methods": (), "decoder_text": None}
    yield _Call("capture", attnflow.capture, {**text, **more})
    texts = {"model": loaded, "inputs": ["the key"], "heads": None, "record": ()}
    yield _Call("capture of several", attnflow.capture, texts)
    ask = {"method": "rollout", "targets": None, "layers": None, "level": "token", "answer": None}
    yield _Call("explain", attnflow.explain, {**text, **ask})
    yield from _showing(attnflow.Rollout()(trace))
    yield from _judging(loaded.module, loaded.tokenizer)
    yield from _writing(folder)


def _showing(result: attnflow.Attribution) -> Iterator[_Call]:
    one = result.row(0)
    yield _Call("Attribution.plot", one.plot, {"kind": "bars", "target": None, "layer": 1})
    yield _Call("Attribution.to_html", one.to_html, {"title": None, "image": None})
    yield _Call("Attribution.image", one.image, {"target": None, "layer": 1})
    yield _Call("Prediction", attnflow.Prediction, {"label": "a", "probability": 1, "position": 0})


def _judging(model: Any, tokenizer: Any) -> Iterator[_Call]:
    """Methods and measures held against what a classifier does."""
    ask: dict[str, Any] = {"model": (model, tokenizer), "texts": ["the key to the book"]}
    counts = {"samples": 1, "skip": 0, "seed": 0}
    more = {"model": (model, tokenizer), "data": ["the key to the book"], "methods": ["raw"]}
    yield _Call("evaluate", attnflow.evaluate, {**more, **counts, "journal": None})
    yield _Call("Texts", Texts, {"by": "unk", "min_words": 1, "batch_size": 8, "column": None})
    for measure in (BlankOut(), InputGradient(), ValueZeroing()):
        own = {"answer": None, "batch_size": 8}
        yield _Call(f"{measure.name}()", measure, {**ask, **own})
        options = {field.name: getattr(measure, field.name) for field in fields(measure)}
        yield _Call(type(measure).__name__, type(measure), options)
    rankings = {"mine": [np.arange(7.0)]}
    yield _Call("Faithfulness()", Faithfulness(), {**ask, "rankings": rankings, "answer": None})
    yield _Call("Faithfulness", Faithfulness, {"by": "unk", "random_orders": 1, "seed": 0})
    yield _Call("read_texts", read_texts, {"path": Path(__file__), "column": None})


def _writing(folder: Path) -> Iterator[_Call]:
    """What a language model writes, and what its completion loses without parts of its prompt."""
    model, tokenizer = tiny_decoder()
    pair = {"model": (model, tokenizer), "prompt": "the keys to"}
    how = {"method": None, "sources": "prompt", "max_new_tokens": 1, "completion": None}
    yield _Call("generate", attnflow.generate, {**pair, **how})
    how = {"completion": " are", "targets": None, "check": False}
    for method in (LeaveOneOut(), AblationRegression(samples=4), Careful()):
        run = partial(attnflow.generate, method=method)
        yield _Call(f"{method.name}()", run, {**pair, **how})
        options = {field.name: getattr(method, field.name) for field in fields(method)}
        yield _Call(type(method).__name__, type(method), options)
    ids = {"model": model, "prompt_ids": (3, 4, 5), "completion_ids": (6, 7)}
    hiding = {"by": "hide", "blank": None, "batch_tokens": None}
    yield _Call("CompletionAblation", _ablated, {**ids, **hiding, "sets": [(1,)]})
    counts = {"ablations": 2, "hidden": 0.3, "top": 1, "max_new_tokens": 1}
    names = {"level": "word", "by": "hide", "score": "log-odds", "stop": None, "batch_tokens": None}
    flags = {"curves": False, "documents": False, "chat": False, "exclude_last_word": False}
    yield _Call("Prompts", Prompts, {**counts, **names, **flags})
    spans = {"answer": None, "expected": None, "inside": None, "documents": None, "stated": None}
    yield _Call(
        "CompletionPrompt", CompletionPrompt, {"prompt": "a b", "completion": None, **spans}
    )
    yield _Call("read_prompts", read_prompts, {"path": folder / "no.jsonl"})


def _ablated(*, sets: Any, **options: Any) -> Any:
    return CompletionAblation(**options).log_probs(sets)


def _cases(folder: Path, seed: int) -> Iterator[tuple[_Call, str, Any]]:
    """Every argument with one hostile value, then every argument with another, and so on."""
    rng = np.random.default_rng(seed)
    arguments = [
        (call, argument, rng.permutation(len(HOSTILE)).tolist())
        for call in _calls(folder)
        for argument in call.valid
    ]
    for turn in range(len(HOSTILE)):
        for call, argument, order in arguments:
            value = HOSTILE[order[turn]]
            if value is not call.valid[argument]:
                yield call, argument, value


def wrong_type_calls(folder: Path, count: int, seed: int = 0) -> tuple[int, list[Outcome]]:
    """Try `count` calls, each with one hostile value; how many were tried, and what went wrong."""
    with contextlib.chdir(folder):  # a text is a fine name for a journal: it is kept there
        outcomes = [_tried(*case) for case in islice(_cases(folder, seed), count)]
    return len(outcomes), [outcome for outcome in outcomes if outcome is not None]


def _tried(call: _Call, argument: str, value: Any) -> Outcome | None:
    problem = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call.function(**{**call.valid, argument: value})
        except AttnflowError as error:
            if not str(error).strip():
                problem = "an error without a sentence"
            elif len(str(error)) > _LONGEST_MESSAGE:
                problem = f"a message of {len(str(error)):,} characters"
        except Exception as error:  # this is what is looked for
            problem = f"{type(error).__name__}: {str(error)[:200]}"
    shown = repr(value)
    return Outcome(call.name, argument, shown[:60], problem) if problem else None
