"""Results from a view document: the JSON that the page hands out, read back.

Values survive to four digits of their row's strongest, bounds are rounded outwards by as much, and
all else a result holds comes back as it was. The name of a model in a folder is the folder's alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.files import fields_of
from attnflow.errors import FileError
from attnflow.show.packing import unpack_bits, unpack_bounds, unpack_layer, unpack_numbers

FORMAT, VERSION = "attnflow-view", 1


def unpack_values(document: Mapping[str, Any], index: int = 0) -> NDArray[np.float64]:
    """Return the values of one result of a document, layer × target × source; what was left out
    is 0.

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
    shape = len(document["targets"]["texts"]), len(document["sources"]["texts"])
    return np.stack([unpack_layer(layer, shape) for layer in document["results"][index]["values"]])


def results_of(document: Mapping[str, Any]) -> list[Attribution]:
    """Return the results that a view document shows, to four digits of each row's strongest.

    >>> from attnflow import AttentionTrace, Rollout
    >>> from attnflow.show.view import view
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> result = Rollout(residual=0.4)(trace).normalize("max")
    >>> back = results_of(view(result))[0]
    >>> back.method.residual, back.steps == result.steps
    (0.4, True)
    """
    return [_result(document, index) for index in range(len(document["results"]))]


def _result(document: Mapping[str, Any], index: int) -> Attribution:
    record, values = document["results"][index], unpack_values(document, index)
    axes = {"targets": document["targets"], "sources": document["sources"]}
    fields = fields_of({**record, **axes})
    images = [document["image"]] if document["image"] else document["images"]
    pictures = [image["picture"] for image in images]
    if pictures and None not in pictures:  # they stand in the document once
        fields["provenance"] = {**fields["provenance"], "images": pictures}
    return Attribution(values=values, **fields, **_arrays(record, values))


def _arrays(record: Mapping[str, Any], values: NDArray[np.float64]) -> dict[str, Any]:
    """Return bounds, saturation, mass elsewhere and dependence, where there are any."""
    layers, targets, sources = values.shape
    arrays: dict[str, Any] = {
        name: unpack_numbers(record[name], np.float32).astype(np.float64).reshape(layers, targets)
        for name in ("elsewhere", "dependence")
        if record[name] is not None
    }
    if record["bounds"] is not None:
        bounds = unpack_bounds(record["bounds"], record["values"], values)
        arrays["lower"], arrays["upper"] = bounds
    if record["saturated"] is not None:
        marks = [unpack_bits(layer, (targets, sources)) for layer in record["saturated"]]
        arrays["saturated"] = np.stack(marks)
    return arrays
