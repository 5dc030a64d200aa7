"""A view: results as one versioned JSON document, which is all that the viewer needs.

`viewer/FORMAT.md` says what stands in it; `packing` has the bytes, and reads it back into results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution, Verdict
from attnflow.attribution.carrying import paths_of
from attnflow.attribution.passages import passages_of, statement_parts
from attnflow.errors import InputError
from attnflow.graph import LayeredGraph
from attnflow.show.packing import (
    FORMAT,
    VERSION,
    pack_bits,
    pack_bounds,
    pack_layer,
    pack_numbers,
    picture_address,
    results_of,
    unpack_values,
)
from attnflow.show.sentences import (
    caveats,
    framing_tokens,
    image_sentences,
    prediction_rows,
    remarks,
    unit_of,
)
from attnflow.tokens import Tokens, is_special
from attnflow.tokens.text import common_tokens
from attnflow.trace import AttentionTrace

__all__ = ["FORMAT", "VERSION", "HeadWeights", "View", "results_of", "unpack_values", "view"]

View = dict[str, Any]

_DENSE = 1_000_000  # values of one result up to which every one of them is kept: 2.7 MB of base64
_GRAPH_EDGES = 60_000  # what can be drawn, and cut in a reader's browser without a pause
_UNSIGNED = 65_535
_HEAD_WEIGHTS = 2_000_000  # of all heads together, a byte each; with more there is no grid of heads
_LONGEST_DIVIDED = 20_000  # tokens of a prompt that is divided into passages


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """`weights[layer, head, row, column]`: how much of its attention each row gives each column.

    rows: the positions that look, called by the token that is read there; columns: what is looked
    at. Of a completion a row is called by the token that its position writes.

    >>> trace = AttentionTrace.from_arrays(np.full((1, 2, 2, 2), 0.5), ["the", "key"])
    >>> HeadWeights.of_trace(trace).rows
    ('the', 'key')
    """

    layers: tuple[int, ...]
    weights: NDArray[np.floating[Any]]
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of_trace(cls, trace: AttentionTrace | None) -> HeadWeights | None:
        """Take every position of a trace; None where heads are not apart, or the axes differ."""
        if trace is None or trace.weights.ndim != 4 or trace.weights.shape[1] < 2:
            return None
        if trace.weights.shape[2] != trace.weights.shape[3]:
            return None
        names = trace.tokens.names
        return cls(tuple(trace.layers), trace.weights, names, names)

    @classmethod
    def of_completion(cls, trace: AttentionTrace, prompt: int, targets: Tokens) -> HeadWeights:
        """Take the positions that write the completion, after `prompt` tokens, of a whole trace."""
        rows = slice(prompt - 1, prompt - 1 + len(targets))
        weights = trace.weights[:, :, rows].copy()
        return cls(tuple(trace.layers), weights, targets.names, trace.tokens.names)


def view(
    results: Sequence[Attribution] | Attribution,
    *,
    title: str | None = None,
    graph: LayeredGraph | None = None,
    image: Any = None,
    trace: AttentionTrace | None = None,
    heads: HeadWeights | None = None,
) -> View:
    """Return the document of one result, or of several about the same targets and sources.

    graph: the flow network, to be drawn and cut; left out where it is too large to look at.
    image: the pixels (height, width, 3) behind results over patches; default: the picture that
        the results carry.
    trace: what the results were made of; its heads are shown where they are not too many.
    heads: the heads themselves, such as those of a completion, in place of the trace's.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> document = view(Rollout()(trace))
    >>> document["title"], document["results"][0]["name"]
    ('the key', 'rollout')
    """
    attributions = [results] if isinstance(results, Attribution) else list(results)
    _check_results(attributions)
    first = attributions[0]
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title or _title(first),
        "model": _model(first),
        "prediction": _prediction(first),
        "items": _items(first),
        "targets": first.targets.to_dict(),
        "sources": first.sources.to_dict(),
        "start": (prediction_rows(first) or [0])[0],
        "answer": _answer(first),
        "passages": _passages(first),
        "heads": _heads(heads or HeadWeights.of_trace(trace)),
        "results": [_result(result) for result in attributions],
        "graph": _graph(graph, first),
        "image": _image(first, image),
        "images": _images(first),
    }


def _check_results(results: Sequence[Attribution]) -> None:
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
    texts = [result.sources[k] for k in _words_beside_images(result.sources)]
    words = Tokens(tuple(t for t in texts if not is_special(t)) or result.sources.texts)
    text = " ".join("".join(words.surfaces()).split())
    return text if len(text) <= 80 else text[:79] + "…"


def _model(result: Attribution) -> str | None:
    """Return its name; of a folder only the last part: a view is made to be passed on."""
    name = str(result.provenance.get("model") or "")
    is_path = name.startswith(("/", ".", "~")) or "\\" in name
    return (PurePath(name.replace("\\", "/")).name if is_path else name) or None


def _prediction(result: Attribution) -> dict[str, Any] | None:
    return None if result.prediction is None else result.prediction.to_dict()


def _answer(result: Attribution) -> dict[str, Any] | None:
    """Return what the reader asks about: a completion, by its sentences, or a prediction."""
    if "completion" in result.provenance:
        statements = [list(part.rows) for part in statement_parts(result)]
        return {"kind": "completion", "statements": statements}
    return None if result.prediction is None else {"kind": "prediction"}


def _passages(result: Attribution) -> list[dict[str, Any]]:
    if len(result.sources) > _LONGEST_DIVIDED or result.sources.images:
        return []
    return [
        {
            "name": passage.name,
            "kind": passage.kind,
            "columns": [passage.columns[0], passage.columns[-1] + 1],
            "sentences": [[s.tokens[0], s.tokens[-1] + 1] for s in passage.sentences],
            "places": [passage.place_of(k + 1) for k in range(len(passage.sentences))],
        }
        for passage in passages_of(result)
    ]


def _heads(heads: HeadWeights | None) -> dict[str, Any] | None:
    """Pack the weights of every head, for a look at who looks where."""
    if heads is None or heads.weights.size > _HEAD_WEIGHTS:
        return None
    bytes_of = [np.rint(255 * np.clip(layer, 0, 1)) for layer in heads.weights]
    return {
        "layers": list(heads.layers),
        "heads": heads.weights.shape[1],
        "rows": list(heads.rows),
        "columns": list(heads.columns),
        "weights": [pack_numbers(layer, np.uint8) for layer in bytes_of],
    }


# -- what is read ---------------------------------------------------------------------------------


def _items(result: Attribution) -> list[dict[str, Any]]:
    """Return sources and targets as one text: in the order of their positions where the two
    agree, and otherwise the sources, then the targets.
    """
    sources, targets = result.sources, result.targets
    apart = sources.images and "completion" in result.provenance  # positions of another numbering
    places = _one_after_other(sources, targets) if apart else _merged_places(sources, targets)
    if sources.images:  # patches are looked at, not read
        words = set(_words_beside_images(sources))
        places = [(s, t) for s, t in places if s is None or s in words]
    if sources.grid is not None:  # of an image alone too
        target_at = {position: k for k, position in enumerate(targets.positions)}
        prefix = range(sources.grid.prefix)
        places = [(k, target_at.get(sources.positions[k])) for k in prefix]
    texts = [sources[s] if s is not None else targets[t or 0] for s, t in places]
    surfaces = Tokens(tuple(texts)).surfaces()
    if "source_tokens" in result.provenance:  # whole words before pieces: each has its own spaces
        spelled = sources.surfaces(), targets.surfaces()
        surfaces = [spelled[0][s] if s is not None else spelled[1][t or 0] for s, t in places]
    signs = zip(common_tokens(texts).tolist(), framing_tokens(surfaces), strict=True)
    return [
        {"text": surface, "source": s, "target": t, "common": common, "framing": framing}
        for surface, (s, t), (common, framing) in zip(surfaces, places, signs, strict=True)
    ]


def _words_beside_images(sources: Tokens) -> list[int]:
    """Return the sources that stand in no image."""
    inside = {
        k for image in sources.images for k in range(image.start, image.start + image.grid.length)
    }
    return [k for k in range(len(sources)) if k not in inside]


def _merged_places(sources: Tokens, targets: Tokens) -> list[tuple[int | None, int | None]]:
    source_at = {position: k for k, position in enumerate(sources.positions)}
    target_at = {position: k for k, position in enumerate(targets.positions)}
    shared = source_at.keys() & target_at.keys()
    agree = all(sources[source_at[p]] == targets[target_at[p]] for p in shared)
    unique = len(source_at) == len(sources) and len(target_at) == len(targets)
    if agree and unique:
        every = sorted(source_at.keys() | target_at.keys())
        return [(source_at.get(p), target_at.get(p)) for p in every]
    return _one_after_other(sources, targets)


def _one_after_other(sources: Tokens, targets: Tokens) -> list[tuple[int | None, int | None]]:
    apart: list[tuple[int | None, int | None]] = [(k, None) for k in range(len(sources))]
    return [*apart, *((None, k) for k in range(len(targets)))]


# -- numbers --------------------------------------------------------------------------------------


def _result(result: Attribution) -> dict[str, Any]:
    dense = result.values.size <= _DENSE
    layers = [pack_layer(layer, dense=dense) for layer in result.values]
    gap, bounds = None, None
    if result.lower is not None and result.upper is not None:
        gap = float((result.upper - result.lower).max())
        bounds = pack_bounds(result.lower, result.upper, layers)
    return {
        "name": result.method.name,
        "title": result.title,
        "layers": list(result.layers),
        "values": layers,
        "bounds": bounds,
        "saturated": None if result.saturated is None else [pack_bits(k) for k in result.saturated],
        "elsewhere": _row_array(result.elsewhere),
        "dependence": _row_array(result.dependence),
        "gap": gap,
        "remarks": remarks(result),
        "unit": unit_of(result),
        "caveats": caveats(result),
        "recipe": result.recipe,
        "method": result.method.to_dict(),
        "verdicts": [_verdict(verdict) for verdict in result.verdicts],
        "sentences": image_sentences(result),
        "paths": [path.to_dict() for path in paths_of(result)] or None,
        "whole_model": result.method.reruns_model,
        "steps": list(result.steps),
        "prediction": _prediction(result),
        "provenance": {
            key: _model(result) if key == "model" else value
            for key, value in result.provenance.items()
            if key != "images"  # the picture is in the document once, not in every result
        },
    }


def _row_array(array: NDArray[np.floating[Any]] | None) -> str | None:
    return None if array is None else pack_numbers(array, np.float32)


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    """Return what a statement rests on, as the page says it."""
    if verdict is None:
        return None
    bars = [{"label": k, "share": share, "number": n} for k, (share, n) in verdict.bars.items()]
    return {**verdict.to_dict(), "claim": verdict.claim, "reason": verdict.reason, "bars": bars}


def _graph(graph: LayeredGraph | None, result: Attribution) -> dict[str, Any] | None:
    if graph is None or graph.capacities.size > _GRAPH_EDGES:
        return None
    if graph.layers != len(result.layers) or graph.length != len(result.sources):
        raise InputError(
            f"The graph has {graph.layers} layers × {graph.length} positions and the result "
            f"{len(result.layers)} × {len(result.sources)}; pass the graph of the same trace."
        )
    unit = float(graph.capacities.max()) / _UNSIGNED or 1.0
    capacities = [pack_numbers(np.rint(layer / unit), np.uint16) for layer in graph.capacities]
    return {
        "layers": list(result.layers),
        "length": graph.length,
        "unit": unit,
        "capacities": capacities,
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


def _images(result: Attribution) -> list[dict[str, Any]]:
    """Return the images among words, each with its picture if the result carries them all."""
    images = result.sources.images
    pictures = list(result.provenance.get("images") or ())
    pictures = pictures if len(pictures) == len(images) else [None] * len(images)
    return [
        {"name": image.name, "start": image.start, "picture": picture, **image.grid.to_dict()}
        for image, picture in zip(images, pictures, strict=True)
    ]
