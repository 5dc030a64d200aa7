"""A result as others keep it: the header and arrays of its file, and a table for pandas."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow import storage
from attnflow.attribution.verdict import Verdict
from attnflow.errors import FileError, InputError, did_you_mean, optional_import, shorten
from attnflow.tokens import Tokens
from attnflow.trace import Prediction

if TYPE_CHECKING:
    import pandas as pd

    from attnflow.attribution.result import Attribution

ARRAYS = ("values", "lower", "upper", "saturated")  # layer × target × source
ROW_ARRAYS = ("elsewhere", "dependence")  # layer × target


def header_of(result: Attribution) -> dict[str, Any]:
    """Return all of a result but its arrays, as plain values for JSON."""
    return {
        "axes": ["layer", "target", "source"],
        "layers": list(result.layers),
        "targets": result.targets.to_dict(),
        "sources": result.sources.to_dict(),
        "method": result.method.to_dict(),
        "prediction": result.prediction.to_dict() if result.prediction else None,
        "steps": list(result.steps),
        "provenance": dict(result.provenance),
        "verdicts": [None if one is None else one.to_dict() for one in result.verdicts],
    }


def fields_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that `header_of` has written, not checked yet."""
    from attnflow.methods import method_from_dict

    prediction, verdicts = header["prediction"], header["verdicts"]
    return {
        **{name: header[name] for name in ("layers", "steps", "provenance")},
        "targets": Tokens.from_dict(header["targets"]),
        "sources": Tokens.from_dict(header["sources"]),
        "method": method_from_dict(header["method"]),
        "prediction": None if prediction is None else Prediction.from_dict(prediction),
        "verdicts": tuple(None if one is None else Verdict.from_dict(one) for one in verdicts),
    }


def check_file(
    path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Raise an error for a file with other arrays than a result has, or of an unknown method."""
    from attnflow.methods import METHODS

    storage.check_dtypes(arrays, saturated=("bool",))
    unknown = [name for name in arrays if name not in (*ARRAYS, *ROW_ARRAYS)]
    if unknown:
        raise InputError(f"there is an array that no result has, {shorten(unknown[0])}")
    if "values" not in arrays:
        raise KeyError("values")
    method = header["method"]["name"]
    if isinstance(method, str) and method not in METHODS:
        raise FileError(
            f"{shorten(str(path))} was made by the method {shorten(method)}, which is not known "
            f"here.{did_you_mean(method, METHODS)} If it is a method of yours, import the module "
            "that registers it (attnflow.methods.METHODS.register) first."
        )


def page_result(path: str | os.PathLike[str]) -> Attribution | None:
    """Return the first result of a view document, the page's JSON; None for any other file."""
    file = Path(path)
    if file.suffix != ".json" or not file.is_file():
        return None
    with file.open("rb") as content:
        if b'"attnflow-view"' not in content.read(200):
            return None
    from attnflow.show.view import results_of

    with storage.unpacking(path):
        return results_of(json.loads(file.read_bytes()))[0]


def to_pandas(result: Attribution) -> pd.DataFrame:
    """Return one row for each value: layer, target, source, their positions, value and bounds."""
    pandas = optional_import("pandas", extra="pandas", purpose="to_pandas()")
    layer, target, source = (index.ravel() for index in np.indices(result.values.shape))
    columns: dict[str, Any] = {
        "layer": np.array(result.layers)[layer],
        "target_position": np.array(result.targets.positions)[target],
        "target": np.array(result.targets.texts, dtype=object)[target],
        "source_position": np.array(result.sources.positions)[source],
        "source": np.array(result.sources.texts, dtype=object)[source],
        "value": result.values.ravel(),
    }
    for name in ARRAYS[1:]:
        if (array := getattr(result, name)) is not None:
            columns[name] = array.ravel()
    return pandas.DataFrame(columns)
