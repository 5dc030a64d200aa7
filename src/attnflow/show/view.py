"""A view: results as one versioned JSON document, which is all that the viewer needs.

    {"format": "attnflow-view", "version": 1, "title", "model", "prediction",
     "items":   what is read, in order: {"text", "source", "target", "common"}; source and target
                are indices into the axes of the values, or null,
     "targets", "sources": {"texts", "positions"},
     "start":   the index of the target to open with,
     "answer":  {"kind": "completion", "statements": [[target, ...], ...]} or
                {"kind": "prediction"} or null; statements are the sentences of a completion,
     "passages": the parts of the prompt: {"name", "kind", "columns": [first, end],
                "sentences": [[first, end], ...]}, in sources,
     "heads":   {"layers", "heads", "length", "weights"} or null: every head's weights, a byte each,
     "results": [{"name", "title", "layers", "values", "saturated", "elsewhere", "gap",
                 "remarks", "unit", "caveats", "recipe", "method", "confirmation"}, ...]; remarks
                 are sentences a reader should know of, caveats those to read first;
                 confirmation is what the answer loses without its strongest sources, or null:
                 {"sources", "indices", "targets", "log_prob", "log_prob_without",
                 "probability", "probability_without", "share", "by", "sentence"}, where indices
                 are those of each source's tokens on the axis of sources,
     "graph":   {"layers", "length", "unit", "capacities"} or null,
     "image":   {"picture", "rows", "columns", "prefix", "height", "width"} or null}

`values` has one entry for each layer, so that a reader can unpack one at a time: whole numbers of
16 bits, base64, each row with a scale of its own (4 digits of the row's strongest value). A large
layer keeps only the strongest sources of each target, and says how much it left out.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.passages import DOCUMENTS, passages_of
from attnflow.errors import FileError, InputError
from attnflow.graph import LayeredGraph
from attnflow.show.png import picture_address
from attnflow.show.sentences import caveats, unit_of
from attnflow.tokens import Grid, Tokens, is_special
from attnflow.tokens.common_words import common_tokens
from attnflow.tokens.units import split_units
from attnflow.trace import AttentionTrace, Prediction

__all__ = ["FORMAT", "VERSION", "View", "results_of", "unpack_values", "view"]

FORMAT, VERSION = "attnflow-view", 1
View = dict[str, Any]
Numbers = NDArray[np.floating[Any]]

_DENSE = 1_000_000  # values of one result up to which every one of them is kept: 2.7 MB of base64
_STRONGEST = 64  # of a larger one, the strongest sources of each target
_GRAPH_EDGES = 60_000  # what can be drawn, and cut in a reader's browser without a pause
_STEPS = 32_767  # of a signed 16-bit number
_UNSIGNED = 65_535
_HEAD_WEIGHTS = 600_000  # bytes of all heads together, up to which they are shown
_LONGEST_DIVIDED = 20_000  # tokens of a prompt that is divided into passages


def view(
    results: Sequence[Attribution] | Attribution,
    *,
    title: str | None = None,
    graph: LayeredGraph | None = None,
    image: Any = None,
    trace: AttentionTrace | None = None,
) -> View:
    """The document of one result, or of several about the same targets and sources.

    graph: the flow network, to be drawn and cut; left out where it is too large to look at.
    image: the pixels (height, width, 3) behind results over patches; default: the picture that
        the results carry.
    trace: what the results were made of; its heads are shown where they are not too many.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> document = view(Rollout()(trace))
    >>> document["title"], document["results"][0]["name"]
    ('the key', 'rollout')
    """
    attributions = [results] if isinstance(results, Attribution) else list(results)
    _check(attributions)
    first = attributions[0]
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title or _title(first),
        "model": _model(first),
        "prediction": first.prediction.to_dict() if first.prediction else None,
        "items": _items(first),
        "targets": _axis(first.targets),
        "sources": _axis(first.sources),
        "start": _start(first),
        "answer": _answer(first),
        "passages": _passages(first),
        "heads": _heads(trace),
        "results": [_result(result) for result in attributions],
        "graph": _graph(graph, first),
        "image": _image(first, image),
    }


def unpack_values(document: Mapping[str, Any], index: int = 0) -> NDArray[np.float64]:
    """The values of one result of a document, layer × target × source; what was left out is 0.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> unpack_values(view(Rollout()(trace)))[0].round(3).tolist()
    [[1.0, 0.0], [0.25, 0.75]]
    """
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise FileError(
            f"This is not a view of version {VERSION}: its format is {document.get('format')!r}, "
            f"its version {document.get('version')!r}."
        )
    shape = len(document["targets"]["texts"]), len(document["sources"]["texts"])
    layers = document["results"][index]["values"]
    return np.stack([_unpack_layer(layer, shape) for layer in layers])


def results_of(document: Mapping[str, Any]) -> list[Attribution]:
    """The results that a view document shows, to four digits of each row's strongest value.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> [result.method for result in results_of(view(Rollout(residual=0.4)(trace)))][0].residual
    0.4
    """
    from attnflow.methods import method_from_dict

    image = document.get("image")
    grid = None if image is None else Grid(**{k: v for k, v in image.items() if k != "picture"})
    axes = {
        name: Tokens(tuple(document[name]["texts"]), tuple(document[name]["positions"]))
        for name in ("targets", "sources")
    }
    sources = Tokens(axes["sources"].texts, axes["sources"].positions, None, grid)
    prediction = document.get("prediction")
    marks = [[p["name"], *p["columns"]] for p in document.get("passages", ())]
    provenance = {"model": document.get("model"), "view": document.get("title")}
    if image is not None and image.get("picture"):
        provenance["images"] = [image["picture"]]
    answer = document.get("answer") or {}
    if answer.get("kind") == "completion":
        provenance["completion"] = "".join(axes["targets"].surfaces())
    return [
        Attribution(
            values=unpack_values(document, index),
            layers=tuple(record["layers"]),
            targets=axes["targets"],
            sources=sources,
            method=method_from_dict(record["method"]),
            prediction=None if prediction is None else Prediction.from_dict(prediction),
            provenance={**provenance, **({DOCUMENTS: marks} if marks else {})},
        )
        for index, record in enumerate(document["results"])
    ]


def _check(results: Sequence[Attribution]) -> None:
    if not results:
        raise InputError("A view needs at least one result; got none.")
    first = results[0]
    if not len(first.targets) or not len(first.sources) or not first.layers:
        raise InputError(f"There is nothing to show: the result is {first!r}.")
    if len(first.sources) > _UNSIGNED:
        raise InputError(
            f"A view shows up to {_UNSIGNED} sources; this result has {len(first.sources)}. Sum "
            "them over spans of the text first: result.spans(...)."
        )
    for other in results[1:]:
        if (other.targets.texts, other.sources.texts) != (first.targets.texts, first.sources.texts):
            raise InputError(
                "The results of one view are about the same targets and sources; "
                f"{other!r} has others than {first!r}. Make a view of each."
            )


def _title(result: Attribution) -> str:
    if result.sources.grid is not None:
        return str(result.provenance.get("image") or "An image")
    words = Tokens(tuple(t for t in result.sources if not is_special(t)) or result.sources.texts)
    text = " ".join("".join(words.surfaces()).split())
    return text if len(text) <= 80 else text[:79] + "…"


def _model(result: Attribution) -> str | None:
    """Its name; of a folder only the last part, because a view is made to be passed on."""
    name = str(result.provenance.get("model") or "")
    is_path = name.startswith(("/", ".", "~")) or "\\" in name
    return (PurePath(name.replace("\\", "/")).name if is_path else name) or None


def _axis(tokens: Tokens) -> dict[str, Any]:
    return {"texts": list(tokens.texts), "positions": list(tokens.positions)}


def _start(result: Attribution) -> int:
    """Where the prediction was read from, if that is a target; else the first."""
    prediction = result.prediction
    if prediction is None or prediction.position not in result.targets.positions:
        return 0
    return result.targets.positions.index(prediction.position)


def _answer(result: Attribution) -> dict[str, Any] | None:
    """What the reader asks about: a completion, by its sentences, or a prediction."""
    if "completion" in result.provenance:
        statements = split_units(list(result.targets), "sentence")
        return {"kind": "completion", "statements": [list(unit.tokens) for unit in statements]}
    return None if result.prediction is None else {"kind": "prediction"}


def _passages(result: Attribution) -> list[dict[str, Any]]:
    if len(result.sources) > _LONGEST_DIVIDED:
        return []
    return [
        {
            "name": passage.name,
            "kind": passage.kind,
            "columns": [passage.columns[0], passage.columns[-1] + 1],
            "sentences": [[s.tokens[0], s.tokens[-1] + 1] for s in passage.sentences],
        }
        for passage in passages_of(result)
    ]


def _heads(trace: AttentionTrace | None) -> dict[str, Any] | None:
    """The weights of every head, for a look at who looks where."""
    if trace is None or trace.weights.ndim != 4 or trace.weights.shape[1] < 2:
        return None
    if trace.weights.size > _HEAD_WEIGHTS or trace.weights.shape[2] != trace.weights.shape[3]:
        return None
    _, heads, length, _ = trace.weights.shape
    return {
        "layers": list(trace.layers),
        "heads": heads,
        "length": length,
        "weights": [
            _text(np.rint(255 * np.clip(layer, 0, 1)), np.uint8) for layer in trace.weights
        ],
    }


# -- what is read ---------------------------------------------------------------------------------


def _items(result: Attribution) -> list[dict[str, Any]]:
    """Sources and targets as one text: in the order of their positions where the two agree, and
    otherwise the sources, then the targets.
    """
    sources, targets = result.sources, result.targets
    if sources.grid is not None:
        return _prefix_items(sources, targets)
    places = _merged_places(sources, targets)
    texts = [sources[s] if s is not None else targets[t or 0] for s, t in places]
    surfaces = Tokens(tuple(texts)).surfaces()
    common = common_tokens(texts).tolist()
    return [
        {"text": surface, "source": source, "target": target, "common": skipped}
        for surface, (source, target), skipped in zip(surfaces, places, common, strict=True)
    ]


def _merged_places(sources: Tokens, targets: Tokens) -> list[tuple[int | None, int | None]]:
    source_at = {position: k for k, position in enumerate(sources.positions)}
    target_at = {position: k for k, position in enumerate(targets.positions)}
    shared = source_at.keys() & target_at.keys()
    agree = all(sources[source_at[p]] == targets[target_at[p]] for p in shared)
    unique = len(source_at) == len(sources) and len(target_at) == len(targets)
    if agree and unique:
        every = sorted(source_at.keys() | target_at.keys())
        return [(source_at.get(p), target_at.get(p)) for p in every]
    apart: list[tuple[int | None, int | None]] = [(k, None) for k in range(len(sources))]
    return [*apart, *((None, k) for k in range(len(targets)))]


def _prefix_items(sources: Tokens, targets: Tokens) -> list[dict[str, Any]]:
    """Of an image only the tokens that are no patches are read; the patches are looked at."""
    prefix = 0 if sources.grid is None else sources.grid.prefix
    target_at = {position: k for k, position in enumerate(targets.positions)}
    return [
        {
            "text": f" {sources[k]}" if k else sources[k],
            "source": k,
            "target": target_at.get(sources.positions[k]),
            "common": False,
        }
        for k in range(prefix)
    ]


# -- numbers --------------------------------------------------------------------------------------


def _result(result: Attribution) -> dict[str, Any]:
    dense = result.values.size <= _DENSE or len(result.sources) <= _STRONGEST
    pack = _dense_layer if dense else _sparse_layer
    gap = None
    if result.lower is not None and result.upper is not None:
        gap = float((result.upper - result.lower).max())
    return {
        "name": result.method.name,
        "title": result.title,
        "layers": list(result.layers),
        "values": [pack(layer) for layer in result.values],
        "saturated": None if result.saturated is None else [_bits(k) for k in result.saturated],
        "elsewhere": None if result.elsewhere is None else _text(result.elsewhere, np.float32),
        "gap": gap,
        "remarks": _remarks(result),
        "unit": unit_of(result),
        "caveats": caveats(result),
        "recipe": result.recipe,
        "method": result.method.to_dict(),
        "confirmation": _confirmation(result),
    }


def _remarks(result: Attribution) -> list[str]:
    """What a reader should know beside the numbers; prediction and confirmation stand apart."""
    apart = (f"the model says {result.prediction}", str(result.confirmation))
    return [remark for remark in result._remarks() if remark not in apart]


def _confirmation(result: Attribution) -> dict[str, Any] | None:
    confirmation = result.confirmation
    if confirmation is None:
        return None
    columns = {position: k for k, position in enumerate(result.sources.positions)}
    return {
        "sources": list(confirmation.sources),
        "indices": [
            [columns[place] for place in places if place in columns]
            for places in confirmation.positions
        ],
        "targets": list(confirmation.targets),
        "log_prob": confirmation.log_prob,
        "log_prob_without": confirmation.log_prob_without,
        "probability": confirmation.probability,
        "probability_without": confirmation.probability_without,
        "share": confirmation.share,
        "by": confirmation.by,
        "sentence": str(confirmation),
    }


def _dense_layer(values: Numbers) -> dict[str, Any]:
    scale = _scale(values)
    return {"scale": _text(scale, np.float32), "values": _text(_steps(values, scale), np.int16)}


def _sparse_layer(values: Numbers) -> dict[str, Any]:
    """The strongest of each row, in the order of the sources; `rest` is the sum of the others."""
    index = np.sort(np.argpartition(-np.abs(values), _STRONGEST, axis=1)[:, :_STRONGEST], axis=1)
    strongest = np.take_along_axis(values, index, axis=1)
    scale = _scale(strongest)
    return {
        "kept": _STRONGEST,
        "index": _text(index, np.uint16),
        "scale": _text(scale, np.float32),
        "values": _text(_steps(strongest, scale), np.int16),
        "rest": _text(values.sum(axis=1) - strongest.sum(axis=1), np.float32),
    }


def _scale(values: Numbers) -> Numbers:
    return np.abs(values).max(axis=1) / _STEPS


def _steps(values: Numbers, scale: Numbers) -> Numbers:
    safe = np.where(scale > 0, scale, 1.0)
    return np.rint(values / safe[:, None])


def _unpack_layer(layer: Mapping[str, Any], shape: tuple[int, int]) -> NDArray[np.float64]:
    steps = _numbers(layer["values"], np.int16).reshape(shape[0], -1)
    values = steps * _numbers(layer["scale"], np.float32).astype(np.float64)[:, None]
    if "index" not in layer:
        return values
    unpacked = np.zeros(shape)
    index = _numbers(layer["index"], np.uint16).reshape(steps.shape).astype(int)
    np.put_along_axis(unpacked, index, values, axis=1)
    return unpacked


def _graph(graph: LayeredGraph | None, result: Attribution) -> dict[str, Any] | None:
    if graph is None or graph.capacities.size > _GRAPH_EDGES:
        return None
    if graph.layers != len(result.layers) or graph.length != len(result.sources):
        raise InputError(
            f"The graph has {graph.layers} layers × {graph.length} positions and the result "
            f"{len(result.layers)} × {len(result.sources)}; pass the graph of the same trace."
        )
    unit = float(graph.capacities.max()) / _UNSIGNED or 1.0
    return {
        "layers": list(result.layers),
        "length": graph.length,
        "unit": unit,
        "capacities": [_text(np.rint(layer / unit), np.uint16) for layer in graph.capacities],
    }


def _image(result: Attribution, pixels: Any) -> dict[str, Any] | None:
    grid = result.sources.grid
    if grid is None:
        if pixels is not None:
            raise InputError(
                "image= goes with a result over the patches of an image; the sources here are "
                f"{result.sources.listing()}."
            )
        return None
    pictures = result.provenance.get("images") or (None,)
    picture = pictures[0] if pixels is None else picture_address(pixels)
    return {"picture": picture, **grid.to_dict()}


def _text(array: NDArray[Any], dtype: type[np.generic]) -> str:
    """Base64 of the numbers, little-endian whatever the machine."""
    plain = np.ascontiguousarray(array).astype(np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(plain.tobytes()).decode("ascii")


def _numbers(text: str, dtype: type[np.generic]) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), dtype=np.dtype(dtype).newbyteorder("<"))


def _bits(marks: NDArray[np.bool_]) -> str:
    return base64.b64encode(np.packbits(marks, bitorder="little").tobytes()).decode("ascii")
