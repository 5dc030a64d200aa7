"""Operations on a result: shares, words, spans, a mean, a rest, a difference.

These functions are methods of `Attribution`. Each gives a new result and notes itself in its steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnflow.attribution import rescaling
from attnflow.attribution.rescaling import Bounds, Normalization, Span, Values
from attnflow.errors import InputError, TargetError, shorten, whole_number
from attnflow.errors.arguments import check_named, checked_arguments
from attnflow.tokens import TokenRef, Tokens

if TYPE_CHECKING:
    from attnflow.attribution.result import Attribution

MEAN_OVER_LAYERS = 0  # the number of the one layer of such a mean; real layers count from 1
_ROW_ARRAYS = ("elsewhere", "dependence")  # layer × target


def normalize(result: Attribution, how: Normalization = "sum") -> Attribution:
    """Return each value as a share: "sum" of its row's absolute sum, "max" of its strongest source.

    Rows without negative values then add up to 1 ("sum"). A row with negative values, such as
    a difference from a baseline, keeps its signs and is never divided by its sum, which may be
    near zero. `elsewhere` is in the same unit. A row of zeros stays as it is.
    """
    check_named("normalize", how, ("sum", "max"))
    fields: dict[str, Any] = {"values": rescaling.shares(result.values, how)}
    if result.elsewhere is not None:
        sizes = rescaling.row_sizes(result.values, how)
        fields["elsewhere"] = np.divide(
            result.elsewhere, sizes, out=result.elsewhere.copy(), where=sizes > 0
        )
    if result.bounds is not None:
        fields |= rescaling.share_bounds(result.values, result.bounds, how)._asdict()
    return replace(result, **fields, steps=(*result.steps, f"normalize({how!r})"))


def merge_words(result: Attribution) -> Attribution:
    """Make words of word pieces: sources are summed (a word got what its pieces got), targets are
    averaged (a word draws as its pieces do on average). So are the bounds.
    """
    rows, columns = result.targets.groups(), result.sources.groups()
    return replace(
        result,
        **_linear(result, lambda array: rescaling.merge(array, rows, columns)),
        **_row_means(
            result, lambda array: np.stack([array[:, list(r)].mean(axis=1) for r in rows], axis=1)
        ),
        saturated=None,  # a property of one source token, not of a sum of several
        targets=result.targets.merged(rows),
        sources=result.sources.merged(columns),
        steps=(*result.steps, "merge_words()"),
    )


def mean_over_layers(result: Attribution) -> Attribution:
    """Return the mean of all layers, as one layer with the number 0."""
    return replace(
        result,
        **_linear(result, lambda array: array.mean(axis=0, keepdims=True)),
        **_row_means(result, lambda array: array.mean(axis=0, keepdims=True)),
        saturated=None,  # a property of one layer's flow
        layers=(MEAN_OVER_LAYERS,),
        steps=(*result.steps, "mean_over_layers()"),
    )


def spans(result: Attribution, spans: Mapping[str, Span]) -> Attribution:
    """Return the mass on each named span of sources: (start, end) positions, or a text.

    What falls outside all spans goes to `elsewhere`. Spans may overlap. Bounds are summed as
    values are: they enclose the sum of the exact values.
    """
    members = rescaling.resolve_spans(result.sources, spans)
    covered = sorted(set().union(*members.values()))
    left = result.values.sum(axis=-1) - result.values[:, :, covered].sum(axis=-1)
    return replace(
        result,
        **_linear(
            result,
            lambda array: np.stack(
                [array[:, :, k].sum(axis=-1) for k in members.values()], axis=-1
            ),
        ),
        saturated=None,
        elsewhere=left if result.elsewhere is None else left + result.elsewhere,
        sources=Tokens(
            tuple(members), tuple(result.sources.positions[k[0]] for k in members.values())
        ),
        steps=(*result.steps, f"spans({', '.join(map(repr, members))})"),
    )


@checked_arguments
def without(result: Attribution, sources: Sequence[TokenRef] | TokenRef) -> Attribution:
    """Leave these sources out (positions, or tokens wherever they occur) and scale each row
    back to the absolute sum it had, signs as they were.

    A row with nothing but zeros left stays zero, and `elsewhere` gets what it had. How rows
    depend on their targets is not known any more: `dependence` is None.
    """
    indices = result.sources.occurrences_of(sources, required=True)
    rest = [k for k in range(len(result.sources)) if k not in set(indices)]
    if not indices or not rest:
        raise TargetError(
            f"without({shorten(sources)}) would leave out {len(indices)} of {len(result.sources)} "
            f"sources; they are {result.sources.listing()}."
        )
    fields: dict[str, Any] = {"values": rescaling.scale_rest(result.values, rest)}
    if result.bounds is not None:
        fields |= rescaling.rest_bounds(result.values, result.bounds, rest)._asdict()
    single = isinstance(sources, str) or whole_number(sources) is not None
    references: list[Any] = [sources] if single else list(sources)  # type: ignore[arg-type]
    return replace(
        result,
        **fields,
        saturated=None if result.saturated is None else result.saturated[:, :, rest],
        elsewhere=_elsewhere_without(result, rest),
        dependence=None,
        sources=result.sources.select(rest),
        steps=(*result.steps, f"without({shorten(references)})"),
    )


def minus(
    result: Attribution,
    baseline: Attribution,
    *,
    name: str = "baseline",
    match: Literal["tokens", "positions"] = "tokens",
) -> Attribution:
    """Return this result less another: what is more than the baseline's. Values may be negative.

    Layers, targets and sources must be the same in both. With `match="positions"` sources of
    the baseline may be other tokens at the same positions, as those of another prompt are.
    Where both have bounds, the difference has.
    """
    _check_baseline(result, baseline, match)
    bounds, other = result.bounds, baseline.bounds
    both = result.elsewhere is not None and baseline.elsewhere is not None
    fields: dict[str, Any] = {"lower": None, "upper": None}
    if bounds is not None and other is not None:  # least at the greatest subtrahend
        fields["lower"] = np.nextafter(bounds.lower - other.upper, -np.inf)
        fields["upper"] = np.nextafter(bounds.upper - other.lower, np.inf)
    return replace(
        result,
        values=result.values - baseline.values,
        **fields,
        saturated=None,
        dependence=None,
        elsewhere=result.elsewhere - baseline.elsewhere if both else None,  # type: ignore[operator]
        steps=(*result.steps, f"minus({name})"),
    )


def of_image(result: Attribution, number: int = 0) -> Attribution:
    """Return the part of a result on one image, of sources that are patches and words together.

    Its sources are that image's positions, with their grid, so everything that draws a map
    takes it; the rest of each row is in `elsewhere`.

    >>> import numpy as np
    >>> from attnflow import Attribution, Raw, Tokens
    >>> from attnflow.tokens.patches import Grid, ImagePatches
    >>> image = ImagePatches("image 1", Grid(1, 2, 0, 1, 2))
    >>> sources = Tokens(("patch 0,0", "patch 0,1", "what"), images=(image,))
    >>> values = np.array([[[0.2, 0.5, 0.3]]])
    >>> part = Attribution(values, (1,), Tokens(("red",)), sources, Raw()).of_image(0)
    >>> part.image().tolist(), round(float(part.elsewhere[0, 0]), 1)
    ([[0.2, 0.5]], 0.3)
    """
    tokens, place = result.sources, whole_number(number)
    if place is None or not -len(tokens.images) <= place < len(tokens.images):
        some = ", ".join(image.name for image in tokens.images) or "none"
        raise InputError(
            f"There is no image {shorten(number)} among the sources, numbered from 0; they are of "
            f"{some}."
        )
    image = tokens.images[place]
    part = slice(image.start, image.start + image.grid.length)
    arrays: dict[str, Any] = {
        name: array[..., part].copy()
        for name, array in result.arrays().items()
        if name not in _ROW_ARRAYS
    }
    rest = result.values.sum(axis=-1) - arrays["values"].sum(axis=-1)
    return replace(
        result,
        **arrays,
        elsewhere=rest if result.elsewhere is None else result.elsewhere + rest,
        sources=Tokens(tokens.texts[part], tokens.positions[part], grid=image.grid),
        steps=(*result.steps, f"on {image.name}"),
    )


def _elsewhere_without(result: Attribution, rest: Sequence[int]) -> Values | None:
    """Return what is elsewhere when only these sources stay: also all of a row with none left."""
    empty = ~result.values[:, :, list(rest)].any(axis=-1)
    mass = np.where(empty, result.values.sum(axis=-1), 0.0)
    if result.elsewhere is None and not mass.any():
        return None
    return mass if result.elsewhere is None else result.elsewhere + mass


def _check_baseline(result: Attribution, baseline: Attribution, match: str) -> None:
    if not isinstance(baseline, type(result)):
        raise InputError(f"A baseline is an Attribution; got {type(baseline).__name__}.")
    check_named("match", match, ("tokens", "positions"), InputError)
    if baseline.layers != result.layers:
        raise InputError(
            f"A baseline must have the same layers: {shorten(list(baseline.layers))} are not "
            f"{shorten(list(result.layers))}."
        )
    for axis in ("targets", "sources"):
        ours, theirs = getattr(result, axis), getattr(baseline, axis)
        by_position = match == "positions" and axis == "sources"
        if ours.positions != theirs.positions or not (by_position or ours.texts == theirs.texts):
            raise InputError(
                f"A baseline must have the same {axis}: {shorten(theirs.listing())} are not "
                f"{shorten(ours.listing())}. Other sources at the same positions are allowed "
                'with match="positions".'
            )


def _linear(result: Attribution, change: Callable[[Values], Values]) -> dict[str, Any]:
    """Return values and bounds after a sum or a mean."""
    values = change(result.values)
    if result.bounds is None:
        return {"values": values}
    ends = Bounds(change(result.bounds.lower), change(result.bounds.upper))
    sizes = Bounds(change(np.abs(result.bounds.lower)), change(np.abs(result.bounds.upper)))
    slack = rescaling.rounding(sizes, sum(result.values.shape))
    return {"values": values, **ends.around(values, slack)._asdict()}


def _row_means(result: Attribution, change: Callable[[Values], Values]) -> dict[str, Any]:
    """Return what there is for each row, after a mean over rows."""
    arrays = result.arrays()
    return {name: change(arrays[name]) for name in _ROW_ARRAYS if name in arrays}


MEASURED = "measure_parts()"
"""The step that joins what reading again without each document measures to their shares."""
WORDS_MEASURED = "measure_words()"
"""The step that joins what blanking each of the strongest words takes away to their shares."""
_STEPS = {
    MEASURED: "documents measured, too",
    WORDS_MEASURED: "strongest words measured, too",
    "merge_words()": "words merged",
    "mean_over_layers()": "mean of layers",
    "normalize('sum')": "as shares of the row",
    "normalize('max')": "strongest = 1",
}
_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)


def step_in_words(step: str) -> str:
    """Return an operation after the method as people say it."""
    call = _CALL.fullmatch(step)
    if step in _STEPS or call is None:
        return _STEPS.get(step, step)
    verb, inner = call.groups()
    plain = re.sub(r"^\[|\]$|['\"]", "", inner)
    if verb == "minus":
        return f"less the {plain}"
    if verb == "spans":
        return f"by span: {plain}"
    return f"{verb.replace('_', ' ')} {plain}"
