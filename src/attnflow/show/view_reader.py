"""Results from a view document: the JSON that the page hands out, read back.

Values survive to four digits of their row's strongest, bounds are rounded outwards by as much, and
all else a result holds comes back as it was. The name of a model in a folder is the folder's alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution, Confirmation
from attnflow.attribution.passages import DOCUMENTS
from attnflow.errors import FileError
from attnflow.show.packing import numbers_of, unpack_bits, unpack_bounds, unpack_layer
from attnflow.tokens import Grid, Tokens
from attnflow.trace import Prediction

__all__ = ["FORMAT", "VERSION", "results_of", "unpack_values"]

FORMAT, VERSION = "attnflow-view", 1
Floats = NDArray[np.float64]


def unpack_values(document: Mapping[str, Any], index: int = 0) -> Floats:
    """The values of one result of a document, layer × target × source; what was left out is 0.

    >>> from attnflow import AttentionTrace, Rollout
    >>> from attnflow.show.view import view
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> unpack_values(view(Rollout()(trace)))[0].round(3).tolist()
    [[1.0, 0.0], [0.25, 0.75]]
    """
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise FileError(
            f"This is not a view of version {VERSION}: its format is {document.get('format')!r}, "
            f"its version {document.get('version')!r}."
        )
    shape = _shape(document)
    layers = document["results"][index]["values"]
    return np.stack([unpack_layer(layer, shape) for layer in layers])


def results_of(document: Mapping[str, Any]) -> list[Attribution]:
    """The results that a view document shows, to four digits of each row's strongest value.

    >>> from attnflow import AttentionTrace, Rollout
    >>> from attnflow.show.view import view
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> result = Rollout(residual=0.4)(trace).normalize("max")
    >>> back = results_of(view(result))[0]
    >>> back.method.residual, back.steps == result.steps
    (0.4, True)
    """
    axes = {name: _axis(document, name) for name in ("targets", "sources")}
    return [_result(document, index, axes) for index in range(len(document["results"]))]


def _result(document: Mapping[str, Any], index: int, axes: Mapping[str, Any]) -> Attribution:
    from attnflow.methods import method_from_dict

    record = document["results"][index]
    values = unpack_values(document, index)
    prediction = record.get("prediction", document.get("prediction"))
    return Attribution(
        **axes,
        **_bounds(record, values),
        **_marks(record, values.shape),
        values=values,
        layers=tuple(record["layers"]),
        method=method_from_dict(record["method"]),
        prediction=None if prediction is None else Prediction.from_dict(prediction),
        steps=tuple(record.get("steps", ())),
        provenance={
            **(record.get("provenance") or _provenance(document, axes["targets"])),
            **_pictures(document),
        },
        confirmation=_confirmation(record.get("confirmation")),
    )


def _pictures(document: Mapping[str, Any]) -> dict[str, Any]:
    """The pictures behind results over patches, as results carry them."""
    records = [document["image"]] if document.get("image") else document.get("images") or []
    pictures = [record.get("picture") for record in records]
    return {"images": pictures} if pictures and None not in pictures else {}


def _shape(document: Mapping[str, Any]) -> tuple[int, int]:
    return len(document["targets"]["texts"]), len(document["sources"]["texts"])


def _axis(document: Mapping[str, Any], name: str) -> Tokens:
    """Documents of 0.1.0 have texts and positions only, and the grid of the sources beside them."""
    record = dict(document[name])
    image = document.get("image")
    if "grid" in record:
        return Tokens.from_dict(record)
    grid = None
    if image is not None and name == "sources":
        grid = Grid(**{key: value for key, value in image.items() if key != "picture"})
    return Tokens(tuple(record["texts"]), tuple(record["positions"]), None, grid)


def _bounds(record: Mapping[str, Any], values: Floats) -> dict[str, Any]:
    if record.get("bounds") is None:
        return {}
    lower, upper = unpack_bounds(record["bounds"], record["values"], values)
    return {"lower": lower, "upper": upper}


def _marks(record: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Saturation, mass elsewhere and dependence, where there are any."""
    marks: dict[str, Any] = {
        name: numbers_of(record[name], np.float32).astype(np.float64).reshape(shape[:2])
        for name in ("elsewhere", "dependence")
        if record.get(name) is not None
    }
    if record.get("saturated") is not None:
        marks["saturated"] = np.stack(
            [unpack_bits(layer, (shape[1], shape[2])) for layer in record["saturated"]]
        )
    return marks


def _confirmation(record: Mapping[str, Any] | None) -> Confirmation | None:
    """None where there is none, or where a document of 0.1.0 kept its sentence only."""
    if record is None or "log_probs" not in record:
        return None
    return Confirmation.from_dict(record)


def _provenance(document: Mapping[str, Any], targets: Tokens) -> dict[str, Any]:
    """Of a document of 0.1.0: what its page says of the model and the text."""
    about: dict[str, Any] = {"model": document.get("model"), "view": document.get("title")}
    if (document.get("answer") or {}).get("kind") == "completion":
        about["completion"] = "".join(targets.surfaces())
    marks = [[p["name"], *p["columns"]] for p in document.get("passages", ())]
    return {**about, **({DOCUMENTS: marks} if marks else {})}
