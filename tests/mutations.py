"""Files of ours with something changed: each is refused with a sentence, or still holds a value
that could have been made.

`mutate_files(count, seed)` tries that many and counts what went wrong; the suite tries some
hundreds, a long run as many as it likes.
"""

from __future__ import annotations

import json
import random
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnflow import AttentionTrace, Attribution, Flow, LayeredGraph, Rollout
from attnflow.errors import FileError
from attnflow.methods import quiet_about_limits
from attnflow.testing import random_attention
from attnflow.trace import Prediction

Value = AttentionTrace | LayeredGraph | Attribution
SECONDS = 5.0  # reading a file of a few kilobytes takes milliseconds

JUNK: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 10**400, -0.5, 1.5, 1e300, 1e-300),
    *("", "x", "causal", "cross", "float64", "S2000000000", "O", "\ud800", "9" * 5000),
    *(float("nan"), float("inf"), float("-inf"), [], {}, [[]], [None], {"a": 1}, [1, 2, 3]),
]


@dataclass
class Tally:
    """How many files were tried, and what went wrong with which."""

    tried: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


def values() -> list[Value]:
    """One of each noun, with everything it can carry."""
    said = Prediction("singular", 0.75, 0, (("singular", 0.75), ("plural", 0.25)))
    weights = random_attention(2, 1, 4, seed=3)
    trace = AttentionTrace.from_arrays(
        weights * 0.5,
        ["[CLS]", "Ġun", "lock", "é"],
        sinks=np.full((2, 1, 4), 0.5),
        layers=[1, 3],
        prediction=said,
        gradients=weights - 0.25,
        measured={"residual-share": np.full((2, 4), 0.25)},
    )
    with quiet_about_limits():
        flow = Flow(residual=[0.25, 0.5])(trace, targets=[3, 0]).normalize("sum")
        rollout = Rollout()(trace).spans({"first": (0, 2), "second": (2, 4)}).mean_over_layers()
    return [trace, Flow().graph(trace), flow, rollout]


def mutate_files(count: int, seed: int = 0) -> Tally:
    """Try `count` changed files, of every noun and both formats in turn."""
    rng = random.Random(seed)
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        originals = []
        for k, value in enumerate(values()):
            for suffix in (".json", ".safetensors"):
                path = Path(folder) / f"original{k}{suffix}"
                value.save(path)
                originals.append((type(value), suffix, path.read_bytes()))
        for number in range(count):
            noun, suffix, content = originals[number % len(originals)]
            change = rng.choice(CHANGES[suffix])
            path = Path(folder) / f"changed{suffix}"
            path.write_bytes(change(content, rng))
            _try(noun, path, f"{noun.__name__}{suffix} {change.__name__} #{number}", tally)
    return tally


def _try(noun: type[Value], path: Path, what: str, tally: Tally) -> None:
    tally.tried += 1
    begin = time.perf_counter()
    try:
        value = noun.load(path)
    except FileError as error:
        tally.refused += 1
        if len(str(error)) > 1500 or "." not in str(error):
            tally.wrong.append(f"{what}: a message of {len(str(error))} characters")
    except BaseException as error:
        tally.wrong.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")
    else:
        reason = _why_wrong(value)
        if reason:
            tally.wrong.append(f"{what}: accepted, but {reason}")
    if time.perf_counter() - begin > SECONDS:
        tally.wrong.append(f"{what}: took {time.perf_counter() - begin:.1f} s")


def _why_wrong(value: Value) -> str:
    """What does not hold of a value that was loaded; checked without the code that loaded it."""
    if isinstance(value, LayeredGraph):
        arrays = {"capacities": value.capacities}
        ok = bool((value.capacities >= 0).all()) and value.capacities.ndim == 3
        return _why_wrong_arrays(arrays) or ("" if ok else "a capacity is negative")
    if isinstance(value, AttentionTrace):
        return _why_wrong_trace(value)
    return _why_wrong_result(value)


def _why_wrong_arrays(arrays: dict[str, Any]) -> str:
    for name, array in arrays.items():
        if array is None:
            continue
        if array.flags.writeable:
            return f"{name} can be written to"
        if array.dtype not in (np.float32, np.float64, np.bool_):
            return f"{name} is of type {array.dtype}"
        if not np.isfinite(array).all():
            return f"{name} is not finite"
    return ""


def _why_wrong_trace(trace: AttentionTrace) -> str:
    arrays = {"weights": trace.weights, "sinks": trace.sinks, "gradients": trace.gradients}
    reason = _why_wrong_arrays({**arrays, **trace.measured})
    if reason:
        return reason
    layers, heads, n, keys = trace.weights.shape
    total = trace.weights.sum(axis=-1, dtype=np.float64)
    total = total if trace.sinks is None else total + trace.sinks
    checks = {
        "the shape is wrong": n == keys == len(trace.tokens) and layers == len(trace.layers),
        "a weight is negative": bool((trace.weights >= 0).all()),
        "a row does not sum to 1": bool((np.abs(total - 1) <= trace.row_tolerance).all()),
        "layers do not increase": list(trace.layers) == sorted(set(trace.layers)),
        "layers are no numbers": all(type(k) is int and k > 0 for k in trace.layers),
        "the kind is unknown": trace.kind in ("bidirectional", "causal", "cross"),
        "a measurement is negative": all((m >= 0).all() for m in trace.measured.values()),
        "gradients do not fit": trace.gradients is None or trace.gradients.shape[1] == heads,
        "the prediction is nowhere": trace.prediction is None or trace.prediction.position < n,
        "tokens are no text": all(isinstance(t, str) for t in trace.tokens),
        "positions are no numbers": all(type(p) is int and p >= 0 for p in trace.tokens.positions),
    }
    return next((name for name, holds in checks.items() if not holds), "")


def _why_wrong_result(result: Attribution) -> str:
    reason = _why_wrong_arrays(result.arrays())
    if reason:
        return reason
    shape = (len(result.layers), len(result.targets), len(result.sources))
    for name, array in result.arrays().items():
        if array.shape not in (shape, shape[:2]):
            return f"{name} has shape {array.shape}"
    if (result.lower is None) != (result.upper is None):
        return "one bound is missing"
    if result.lower is not None and result.upper is not None:
        inside = (result.lower <= result.values) & (result.values <= result.upper)
        if not inside.all():
            return "a value lies outside its bounds"
    if result.method != type(result.method)(**result.method.to_dict()["options"]):
        return "the method is not the one it says"
    return "" if all(isinstance(step, str) for step in result.steps) else "a step is no text"


# -- changes ---------------------------------------------------------------------------------------


def flip_a_byte(content: bytes, rng: random.Random) -> bytes:
    """One byte becomes another."""
    place = rng.randrange(len(content))
    return content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]


def cut_short(content: bytes, rng: random.Random) -> bytes:
    """The end is missing."""
    return content[: rng.randrange(len(content))]


def swap_a_stretch(content: bytes, rng: random.Random) -> bytes:
    """Some bytes are repeated in place of others."""
    length = rng.randrange(1, 40)
    start, end = (rng.randrange(max(1, len(content) - length)) for _ in range(2))
    return content[:start] + content[end : end + length] + content[start + length :]


def change_json(content: bytes, rng: random.Random) -> bytes:
    """One entry of the document becomes junk, goes, or is doubled."""
    document = json.loads(content)
    _change_entry(document, rng)
    return _dump(document)


def nest_json(content: bytes, rng: random.Random) -> bytes:
    """One entry becomes a list in a list in a list ..."""
    document = json.loads(content)
    key = rng.choice(list(document))
    depth = rng.choice([100, 5000, 100_000])
    rest = {name: entry for name, entry in document.items() if name != key}
    opened = _dump(rest)[:-1] + b"," + json.dumps(key).encode() + b":"
    return opened + b"[" * depth + b"]" * depth + b"}"


def change_metadata(content: bytes, rng: random.Random) -> bytes:
    """The same as `change_json` for the header inside a safetensors file."""
    header, body = _split(content)
    document = json.loads(header["__metadata__"]["attnflow"])
    _change_entry(document, rng)
    header["__metadata__"]["attnflow"] = _dump(document).decode()
    return _joined(header, body)


def change_header(content: bytes, rng: random.Random) -> bytes:
    """One entry of the safetensors header itself: dtypes, shapes, offsets."""
    header, body = _split(content)
    _change_entry(header, rng)
    return _joined(header, body)


def change_numbers(content: bytes, rng: random.Random) -> bytes:
    """One number of one array becomes another float."""
    header, body = _split(content)
    name = rng.choice([key for key in header if key != "__metadata__"])
    start, end = header[name]["data_offsets"]
    width = 4 if header[name]["dtype"] == "F32" else 8
    if end - start < width:
        return content
    place = start + width * rng.randrange((end - start) // width)
    number = rng.choice([-1.0, 2.0, 0.5, float("nan"), float("inf"), 1e30, -1e-9])
    packed = struct.pack("<f" if width == 4 else "<d", number)
    return _joined(header, body[:place] + packed + body[place + width :])


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def _joined(header: dict[str, Any], body: bytes) -> bytes:
    text = _dump(header)
    return struct.pack("<Q", len(text)) + text + body


def _dump(document: Any) -> bytes:
    return json.dumps(document).encode()


def _change_entry(document: Any, rng: random.Random) -> None:
    """Go down to a random place and change what is there."""
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.8:
            place = place[key]
            continue
        action = rng.random()
        if action < 0.6:
            place[key] = rng.choice(JUNK)
        elif action < 0.8:
            del place[key]
        elif isinstance(place, list):
            place.insert(key, place[key])
        else:
            place[f"{key}?"] = place.pop(key)
        return


Change = Callable[[bytes, random.Random], bytes]
CHANGES: dict[str, list[Change]] = {
    ".json": [flip_a_byte, cut_short, swap_a_stretch, *[change_json] * 5, nest_json],
    ".safetensors": [
        *(flip_a_byte, cut_short, swap_a_stretch, change_header),
        *[change_metadata] * 4,
        *[change_numbers] * 2,
    ],
}
