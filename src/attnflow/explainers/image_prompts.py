"""A measured method on a prompt with images: visibility, carried on to the patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnflow.attribution import Attribution
from attnflow.errors import MethodError
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.reader import Reader
from attnflow.hosts.capture import capture
from attnflow.hosts.transformers.visibility import image_visibility
from attnflow.methods import RerunMethod, Visibility
from attnflow.methods.towers import carried

__all__ = ["measure_images"]


def measure_images(
    reader: Reader, method: RerunMethod, prompt: Prompt, ids: Sequence[int]
) -> Attribution:
    """What each target of a completion loses while parts of its prompt fade."""
    if not isinstance(method, Visibility):
        raise MethodError(
            f"{method.name!r} runs the model again without words of its prompt; with images it "
            "cannot say what a patch is worth. 'visibility' and the methods that read attention do."
        )
    inputs = reader.text_inputs(prompt.ids, list(ids))
    trace = capture(reader.model, inputs, heads="mean")
    first, patches = len(prompt.ids) - 1, trace.encoder_length or 0
    columns = reader.columns(trace, len(prompt.ids))
    targets = reader.targets(list(ids))
    rows = np.zeros((1, len(targets), trace.length))
    for row, target in zip(rows[0], targets, strict=True):
        answer = [(first + k, ids[k]) for k in target.tokens]
        losses = image_visibility(
            reader.module, inputs, len(prompt.ids), answer, steps=method.steps
        )
        row[patches:] = losses.double().cpu().numpy()
    values = carried(rows, trace, "rollout")[..., columns]
    return Attribution(
        values,
        (trace.layers[-1],),
        targets=reader.names_after(prompt.ids, targets),
        sources=trace.tokens.select(columns),
        method=replace(method, alone=0),
        provenance={**trace.provenance, **reader.about(prompt.ids, list(ids))},
    )
