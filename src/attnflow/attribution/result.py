"""Attribution: what a method found, `values[layer, target, source]`.

The axes are always these three, whatever was asked for. Every operation returns a new value. One
that changes numbers or names notes itself in `steps`, so that a saved file or a figure's title
tells the way it was made; choosing (`row`, `layer`) shows in the axes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from attnflow import storage
from attnflow.attribution import carrying, files, operations
from attnflow.attribution.dependence import COLLAPSED
from attnflow.attribution.patch_maps import patch_maps
from attnflow.attribution.rescaling import Bounds, Values
from attnflow.attribution.verdict import Verdict
from attnflow.errors import InputError, TargetError, shorten, whole_number
from attnflow.errors.arguments import check_count, check_named, checked_arguments
from attnflow.tokens import TokenRef, Tokens
from attnflow.tokens.patches import enlarge
from attnflow.tokens.text import common_tokens, readable
from attnflow.trace import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from attnflow.methods import Method
    from attnflow.show.page import InteractiveView


class Contribution(NamedTuple):
    """One source of one target: what `top` lists, its token printed as people write it.

    >>> Contribution("Ġkey", position=2, value=0.5)
    ('key', position 2, 0.5)
    """

    token: str
    position: int
    value: float

    def __repr__(self) -> str:
        return f"({readable(self.token)!r}, position {self.position}, {self.value:.3g})"


@dataclass(frozen=True, eq=False)
class Attribution:
    """How much each target at each layer draws on each source.

    `lower` and `upper` enclose the exact value where a solver certifies it; those of a derived
    result enclose what the same operations make of the exact values. `saturated` marks flow values
    that equal what the source can pass on to anyone, and so say nothing about the target.
    `elsewhere[layer, target]` is what falls on positions that are not among the sources, such as
    the generated tokens when the sources are a prompt's. `dependence[layer, target]`, from 0 to 1,
    is how far the target's row differs from the rows of other targets; see `collapsed`.
    `verdicts` say what the answer rests on, where that was measured by hiding it: one for the whole
    answer, or one for each statement of an answer over documents (None where it names no source).
    They stay as they are whatever is done to the values.

    >>> from attnflow import AttentionTrace, Rollout
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["the", "key"])
    >>> result = Rollout()(trace)
    >>> result.row("key").values.tolist()
    [[[0.25, 0.75]]]
    >>> result.top(1, target="key")
    [('key', position 1, 0.75)]
    """

    values: Values
    layers: tuple[int, ...]
    targets: Tokens
    sources: Tokens
    method: Method
    lower: Values | None = None
    upper: Values | None = None
    saturated: NDArray[np.bool_] | None = None
    elsewhere: Values | None = None
    prediction: Prediction | None = None
    steps: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    dependence: Values | None = None
    verdicts: tuple[Verdict | None, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", _checked_layers(self.layers))
        expected = (len(self.layers), len(self.targets), len(self.sources))
        for name, array in self.arrays().items():
            shape = expected if name in files.ARRAYS else expected[:2]
            _check_array(name, array, shape, truth=name == "saturated")
        _check_bounds(self.values, self.lower, self.upper)
        object.__setattr__(self, "steps", _checked_steps(self.steps))
        if not all(isinstance(verdict, Verdict | None) for verdict in self.verdicts):
            raise InputError(f"verdicts are a tuple of Verdict; got {shorten(self.verdicts)}.")
        if not isinstance(self.provenance, Mapping):
            raise InputError(f"provenance gives values by name; got {shorten(self.provenance)}.")
        object.__setattr__(self, "provenance", MappingProxyType(dict(self.provenance)))

    # -- choosing -----------------------------------------------------------------------------

    @checked_arguments
    def row(self, target: TokenRef) -> Attribution:
        """Only this target: a position, or a token that occurs once."""
        index = self.targets.index_of(target)
        return self._cut(np.s_[:, index : index + 1], targets=self.targets.select([index]))

    def layer(self, number: int) -> Attribution:
        """Only this layer, by its number in the model (from 1); -1 is the highest."""
        index = self._layer_index(number)
        return self._cut(np.s_[index : index + 1, :], layers=(self.layers[index],))

    @property
    def collapsed(self) -> tuple[int, ...]:
        """The layers at which the rows of different targets are nearly the same.

        Nearly the same means that they differ in less than `COLLAPSED` of their mass on average.

        >>> import numpy as np
        >>> from attnflow import AttentionTrace, Raw
        >>> from attnflow.methods import quiet_about_limits
        >>> same_for_all = np.tile([0.9, 0.1], (1, 2, 1))
        >>> trace = AttentionTrace.from_arrays(same_for_all, ["a", "b"])
        >>> with quiet_about_limits():
        ...     Raw()(trace).collapsed
        (1,)
        """
        if self.dependence is None:
            return ()
        means = self.dependence.mean(axis=1).tolist()
        return tuple(n for n, mean in zip(self.layers, means, strict=True) if mean < COLLAPSED)

    @checked_arguments
    def top(
        self,
        k: int = 5,
        *,
        target: TokenRef | None = None,
        layer: int = -1,
        common: bool | Collection[str] = True,
    ) -> list[Contribution]:
        """The k sources this target draws on most at this layer, strongest first.

        `common=False` leaves out punctuation, line ends and function words; a list of words
        leaves out those instead.
        """
        check_count("k", k, 1)
        if target is None and len(self.targets) > 1:
            raise TargetError(
                "top() lists the sources of one target and this result has "
                f"{len(self.targets)}; name it: top(target=...). "
                f"The targets are {self.targets.listing()}."
            )
        row = 0 if target is None else self.targets.index_of(target)
        values = self.values[self._layer_index(layer), row]
        order = np.argsort(-values, kind="stable")
        if common is not True:
            words = None if common is False else common
            order = order[~common_tokens(self.sources, words)[order]]
        return [
            Contribution(self.sources[i], self.sources.positions[i], float(values[i]))
            for i in order[:k].tolist()
        ]

    @checked_arguments
    def image(self, *, target: TokenRef | None = None, layer: int = -1) -> Values:
        """The map of one target over the image's patches, at the image's size: (height, width).

        Prefix tokens (class, registers) are left out; `top` and `values` have them.
        """
        maps = patch_maps(self, target=target, layer=layer)
        if len(maps) > 1:
            raise InputError(
                f"image() is about one image and there are {len(maps)} among these sources; "
                "attribution.patch_maps gives the map of each."
            )
        grid, values = maps[0]
        return enlarge(values, grid.height, grid.width)

    def _layer_index(self, number: int) -> int:
        layer = whole_number(number)
        if layer == -1:
            return self.layers.index(max(self.layers))  # whatever order they were asked for in
        if layer is None or layer not in self.layers:
            raise InputError(
                f"There is no layer {shorten(number)} in this result; it has "
                f"{', '.join(map(str, self.layers))}."
            )
        return self.layers.index(layer)

    def _cut(self, where: Any, **fields: Any) -> Attribution:
        arrays = {name: array[where] for name, array in self.arrays().items()}
        return replace(self, **arrays, **fields)

    # -- changing: `operations` says what each means and does it -----------------------------------

    normalize = operations.normalize
    merge_words = operations.merge_words
    mean_over_layers = operations.mean_over_layers
    spans = operations.spans
    without = operations.without
    minus = operations.minus
    of_image = operations.of_image
    carried = carrying.carried
    follow = carrying.follow

    @property
    def bounds(self) -> Bounds | None:
        """`lower` and `upper` as one value, where there are any."""
        if self.lower is None or self.upper is None:
            return None
        return Bounds(self.lower, self.upper)

    # -- showing ------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """The method and every step after it, in words: what a figure or a page is headed with."""
        return " · ".join([self.method.title, *map(operations.step_in_words, self.steps)])

    @property
    def recipe(self) -> str:
        """The same as code, with every option: how to make this result again."""
        return " · ".join([repr(self.method), *self.steps])

    def __repr__(self) -> str:
        layers, targets, sources = self.values.shape
        axes = f"{layers} layers × {targets} targets × {sources} sources"
        return f"<Attribution {axes}, {self.recipe}>"

    def __str__(self) -> str:
        from attnflow.show.sentences import result_lines

        return "\n".join(result_lines(self))

    def _repr_html_(self) -> str:
        from attnflow.show.page import result_html

        return result_html(self)

    def plot(
        self,
        kind: Literal["layers", "pairs", "bars"] | None = None,
        *,
        target: TokenRef | None = None,
        layer: int | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """A figure of this result (needs matplotlib); `attnflow.show.plots` has more.

        "layers": sources × layers of one target; "pairs": targets × sources at one layer, by
        default the highest; "bars": the sources of one target at one layer. The default is
        "layers" of one target, and "pairs" of several.
        """
        from attnflow.show import plots

        kinds: dict[str, Callable[..., Axes]] = {
            "layers": plots.layers_map,
            "pairs": plots.pairs_map,
            "bars": plots.source_bars,
        }
        result = self if target is None else self.row(target)
        if kind is None:
            kind = "pairs" if len(result.targets) > 1 else "layers"
        check_named("kind", kind, list(kinds), InputError)
        return kinds[kind](result if layer is None else result.layer(layer), ax=ax)

    @checked_arguments
    def to_html(self, *, title: str | None = None, image: Any = None) -> str:
        """The interactive viewer with this result inside, as one HTML file that fetches nothing.

        `image`: the pixels (height, width, 3) behind a result over patches.
        """
        from attnflow.show.page import page
        from attnflow.show.view import view

        return page(view(self, title=title, image=image))

    def viewer(
        self, *, title: str | None = None, image: Any = None, height: int = 760
    ) -> InteractiveView:
        """The same viewer in a notebook's cell, `height` pixels high."""
        from attnflow.show.page import InteractiveView

        html = self.to_html(title=title, image=image)
        return InteractiveView(html, self._repr_html_(), height)

    # -- keeping ------------------------------------------------------------------------------

    to_pandas = files.to_pandas

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: nested lists with the axes layer, target, source."""
        arrays = {name: array.tolist() for name, array in self.arrays().items()}
        return {**files.header_of(self), **arrays}

    @checked_arguments
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to .safetensors or .json; `load` gives the same bits back."""
        storage.write(path, "Attribution", files.header_of(self), self.arrays())

    @classmethod
    @checked_arguments
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote, or the first result of a page's JSON; both are checked."""
        if (page := files.page_result(path)) is not None:
            return page  # type: ignore[return-value]
        header, arrays = storage.read(path, "Attribution")
        with storage.unpacking(path):
            files.check_file(path, header, arrays)
            return cls(**{**files.fields_of(header), **arrays})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays there are, by name: values, bounds, marks."""
        names = (*files.ARRAYS, *files.ROW_ARRAYS)
        return {n: a for n in names if (a := getattr(self, n)) is not None}


# -- what must hold of a result, whether a method, a user or a file made it -----------------------


def _checked_layers(layers: object) -> tuple[int, ...]:
    """Return the layers' numbers, from 1 (0 is a mean over layers)."""
    items = list(layers) if isinstance(layers, Iterable) else []
    numbers = [
        number for number in map(whole_number, items) if number is not None and 0 <= number < 2**31
    ]
    if not numbers or len(numbers) != len(items):
        raise InputError(
            f"layers are whole numbers from 1, one for each layer of values; got {shorten(layers)}."
        )
    return tuple(numbers)


def _check_array(name: str, array: Any, expected: tuple[int, ...], *, truth: bool = False) -> None:
    """Freeze an array of this shape that holds finite floats (or truth values)."""
    if not isinstance(array, np.ndarray) or array.dtype.kind != ("b" if truth else "f"):
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(
            f"{name} must be a numpy array of {'truth values' if truth else 'floats'}; got {kind}."
        )
    if array.shape != expected:
        raise InputError(f"{name} has shape {array.shape}, expected {expected}.")
    if not truth and not np.isfinite(array).all():
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        raise InputError(f"{name} must be finite; {name}{list(where)} is {array[where]}.")
    array.flags.writeable = False


def _check_bounds(values: Values, lower: Values | None, upper: Values | None) -> None:
    """Raise an error unless every value lies between its bounds; there are both or none."""
    if lower is None and upper is None:
        return
    if lower is None or upper is None:
        raise InputError("lower and upper go together; one of them is missing.")
    outside = (values < lower) | (values > upper)
    if outside.any():
        where = tuple(int(k) for k in np.argwhere(outside)[0])
        raise InputError(
            f"{int(outside.sum())} values lie outside their bounds; values{list(where)} is "
            f"{values[where]:.9g}, its bounds {lower[where]:.9g} and {upper[where]:.9g}."
        )


def _checked_steps(steps: object) -> tuple[str, ...]:
    """Return the operations after the method, as text."""
    names = tuple(steps) if isinstance(steps, (list, tuple)) else (steps,)
    if not all(isinstance(step, str) for step in names):
        raise InputError(f"steps are texts, one for each operation; got {shorten(steps)}.")
    return names
