"""Attribution: what a method found, `values[layer, target, source]`.

The axes are always these three, whatever was asked for. Every operation returns a new value and
notes itself in `steps`, so a saved file or a figure's title tells the whole way it was made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from attnflow import storage
from attnflow.attribution.rescaling import (
    Span,
    Values,
    merge,
    resolve_spans,
    share_of_max,
    share_of_sum,
)
from attnflow.errors import InputError, MethodError, TargetError, did_you_mean, optional_import
from attnflow.tokens import TokenRef, Tokens
from attnflow.tokens.common_words import common_tokens
from attnflow.tokens.patches import enlarge
from attnflow.trace import Prediction

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from attnflow.methods import Method
    from attnflow.show.page import InteractiveView

__all__ = ["MEAN_OVER_LAYERS", "Attribution", "Contribution", "Normalization"]

Normalization = Literal["sum", "max"]
MEAN_OVER_LAYERS = 0  # the number of the one layer of such a mean; real layers count from 1
_ARRAYS = ("values", "lower", "upper", "saturated")


class Contribution(NamedTuple):
    """One source of one target: what `top` lists."""

    token: str
    position: int
    value: float


@dataclass(frozen=True, eq=False)
class Attribution:
    """How much each target at each layer draws on each source.

    `lower` and `upper` enclose the true value where a solver certifies it. `saturated` marks flow
    values that equal what the source can pass on to anyone, and so say nothing about the target.
    `elsewhere[layer, target]` is what falls on positions that are not among the sources, such as
    the generated tokens when the sources are a prompt's.
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

    def __post_init__(self) -> None:
        expected = (len(self.layers), len(self.targets), len(self.sources))
        for name in _ARRAYS:
            array = getattr(self, name)
            if array is not None:
                if array.shape != expected:
                    raise InputError(f"{name} has shape {array.shape}, expected {expected}.")
                array.flags.writeable = False
        if self.elsewhere is not None:
            if self.elsewhere.shape != expected[:2]:
                raise InputError(
                    f"elsewhere has shape {self.elsewhere.shape}, expected {expected[:2]}."
                )
            self.elsewhere.flags.writeable = False
        object.__setattr__(self, "provenance", MappingProxyType(dict(self.provenance)))

    # -- choosing -----------------------------------------------------------------------------

    def row(self, target: TokenRef) -> Attribution:
        """Only this target: a position, or a token that occurs once."""
        index = self.targets.index_of(target)
        return self._cut(np.s_[:, index : index + 1], targets=self.targets.select([index]))

    def layer(self, number: int) -> Attribution:
        """Only this layer, by its number in the model (from 1); -1 is the highest."""
        index = self._layer_index(number)
        return self._cut(np.s_[index : index + 1, :], layers=(self.layers[index],))

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
        if k < 1:
            raise InputError(f"top(k) needs k of at least 1; got {k}.")
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
        order = order[:k]
        return [
            Contribution(self.sources[i], self.sources.positions[i], float(values[i]))
            for i in order.tolist()
        ]

    def image(self, *, target: TokenRef | None = None, layer: int = -1) -> Values:
        """The map of one target over the image's patches, at the image's size: (height, width).

        Prefix tokens (class, registers) are left out; `top` and `values` have them.
        """
        grid = self.sources.grid
        if grid is None:
            raise InputError(
                "image() needs sources that are the patches of an image; these are "
                f"{self.sources.listing()}."
            )
        if target is None and len(self.targets) > 1:
            raise TargetError(
                f"image() shows one target and this result has {len(self.targets)}; name it: "
                "image(target=...), for example '[CLS]'."
            )
        row = 0 if target is None else self.targets.index_of(target)
        patches = self.values[self._layer_index(layer), row, grid.prefix :]
        return enlarge(patches.reshape(grid.rows, grid.columns), grid.height, grid.width)

    def _layer_index(self, number: int) -> int:
        if number == -1:
            return len(self.layers) - 1
        if number not in self.layers:
            raise InputError(
                f"There is no layer {number} in this result; it has "
                f"{', '.join(map(str, self.layers))}."
            )
        return self.layers.index(number)

    def _cut(self, where: Any, **changed: Any) -> Attribution:
        arrays = {name: array[where] for name, array in self._arrays().items()}
        return replace(self, **arrays, **changed)

    # -- rescaling ----------------------------------------------------------------------------

    def normalize(self, how: Normalization = "sum") -> Attribution:
        """Rescale each row: "sum" to shares that add up to 1, "max" to the strongest source = 1.

        Bounds stay bounds: a share is least when it is itself least and all others are greatest.
        A row of zeros stays zero.
        """
        if how not in ("sum", "max"):
            hint = did_you_mean(str(how), ("sum", "max"))
            raise MethodError(f"Unknown normalization {how!r}.{hint} Allowed: 'sum', 'max'.")
        rescale = share_of_sum if how == "sum" else share_of_max
        changed: dict[str, Any] = {"values": rescale(self.values, self.values)}
        if self.elsewhere is not None:
            whole = self.values.sum(axis=-1) if how == "sum" else self.values.max(axis=-1)
            changed["elsewhere"] = np.divide(
                self.elsewhere, whole, out=np.zeros_like(whole), where=whole > 0
            )
        if self.lower is not None and self.upper is not None:
            changed["lower"] = rescale(self.lower, self.upper)
            changed["upper"] = rescale(self.upper, self.lower)
        return replace(self, **changed, steps=(*self.steps, f"normalize({how!r})"))

    def merge_words(self) -> Attribution:
        """Word pieces to words: sources are summed (a word got what its pieces got), targets are
        averaged (a word draws as its pieces do on average).
        """
        rows, columns = self.targets.groups(), self.sources.groups()
        changed: dict[str, Any] = {
            name: merge(array, rows, columns)
            for name in ("values", "lower", "upper")
            if (array := getattr(self, name)) is not None
        }
        if self.elsewhere is not None:
            changed["elsewhere"] = np.stack(
                [self.elsewhere[:, list(r)].mean(axis=1) for r in rows], axis=1
            )
        return replace(
            self,
            **changed,
            saturated=None,  # a property of one source token, not of a sum of several
            targets=self.targets.merged(rows),
            sources=self.sources.merged(columns),
            steps=(*self.steps, "merge_words()"),
        )

    def mean_over_layers(self) -> Attribution:
        """The mean of all layers, as one layer with the number 0."""
        names = ("values", "lower", "upper", "elsewhere")
        changed: dict[str, Any] = {
            name: array.mean(axis=0, keepdims=True)
            for name in names
            if (array := getattr(self, name)) is not None
        }
        return replace(
            self,
            **changed,
            saturated=None,  # a property of one layer's flow
            layers=(MEAN_OVER_LAYERS,),
            steps=(*self.steps, "mean_over_layers()"),
        )

    def spans(self, spans: Mapping[str, Span]) -> Attribution:
        """The mass on each named span of sources: (start, end) positions, or a text.

        What falls outside all spans goes to `elsewhere`. Spans may overlap.
        """
        members = resolve_spans(self.sources, spans)
        covered = sorted(set().union(*members.values()))
        left = self.values.sum(axis=-1) - self.values[:, :, covered].sum(axis=-1)
        return replace(
            self,
            values=np.stack([self.values[:, :, k].sum(axis=-1) for k in members.values()], axis=-1),
            lower=None,  # a sum of flows to single sources is no flow: it has no certificate
            upper=None,
            saturated=None,
            elsewhere=left if self.elsewhere is None else left + self.elsewhere,
            sources=Tokens(
                tuple(members), tuple(self.sources.positions[k[0]] for k in members.values())
            ),
            steps=(*self.steps, f"spans({', '.join(map(repr, members))})"),
        )

    def without(self, sources: Sequence[TokenRef] | TokenRef) -> Attribution:
        """Leave these sources out (positions, or tokens wherever they occur) and scale each row
        back to the mass it had.
        """
        asked = [sources] if isinstance(sources, (str, int)) else list(sources)
        gone = self.sources.occurrences_of(asked)
        kept = [k for k in range(len(self.sources)) if k not in set(gone)]
        if not gone or not kept:
            raise TargetError(
                f"without({asked!r}) would leave out {len(gone)} of {len(self.sources)} sources; "
                f"they are {self.sources.listing()}."
            )
        rest = self.values[:, :, kept]
        mass, left = self.values.sum(axis=-1), rest.sum(axis=-1)
        factor = np.divide(mass, left, out=np.zeros_like(mass), where=left > 0)[..., None]
        scaled: dict[str, Any] = {
            name: array[:, :, kept] * factor
            for name in ("values", "lower", "upper")
            if (array := getattr(self, name)) is not None
        }
        return replace(
            self,
            **scaled,
            saturated=None if self.saturated is None else self.saturated[:, :, kept],
            sources=self.sources.select(kept),
            steps=(*self.steps, f"without({asked!r})"),
        )

    def minus(self, baseline: Attribution, *, name: str = "baseline") -> Attribution:
        """This result less another of the same shape: what is more than the baseline's.

        Values may be negative. Where both have bounds, the difference has.
        """
        if baseline.values.shape != self.values.shape:
            raise InputError(
                f"A baseline must have the same shape: {baseline.values.shape} is not "
                f"{self.values.shape} (layers, targets, sources)."
            )
        bounds: dict[str, Any] = {"lower": None, "upper": None}
        pairs = (self.lower, self.upper, baseline.lower, baseline.upper)
        if all(bound is not None for bound in pairs):
            low, high, base_low, base_high = cast("tuple[Values, ...]", pairs)
            bounds = {"lower": low - base_high, "upper": high - base_low}
        both = self.elsewhere is not None and baseline.elsewhere is not None
        return replace(
            self,
            values=self.values - baseline.values,
            **bounds,
            saturated=None,
            elsewhere=self.elsewhere - baseline.elsewhere if both else None,  # type: ignore[operator]
            steps=(*self.steps, f"minus({name})"),
        )

    # -- showing ------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """The method and every step after it: what a figure or a file is headed with."""
        return " · ".join([repr(self.method), *self.steps])

    def __repr__(self) -> str:
        layers, targets, sources = self.values.shape
        axes = f"{layers} layers × {targets} targets × {sources} sources"
        return f"<Attribution {axes}, {self.title}>"

    def _repr_html_(self) -> str:
        from attnflow.show import static_html

        return static_html.attribution_table(
            self.values,
            layers=self.layers,
            targets=self.targets,
            sources=self.sources,
            title=self.title,
            remarks=self._remarks(),
        )

    def _remarks(self) -> list[str]:
        """What a reader of the highest layer should know beside the numbers."""
        remarks = [f"the model says {self.prediction}"] if self.prediction else []
        if self.saturated is not None and self.saturated[-1].any():
            share, layer = self.saturated[-1].mean(), self.layers[-1]
            remarks.append(f"{share:.0%} at layer {layer} are saturated: the same for any target")
        return remarks

    def plot(
        self,
        kind: Literal["layers", "pairs", "bars"] = "layers",
        *,
        target: TokenRef | None = None,
        layer: int | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """A figure of this result (needs matplotlib); `attnflow.show.plots` has more.

        "layers": sources × layers of one target; "pairs": targets × sources at one layer, by
        default the highest; "bars": the sources of one target at one layer.
        """
        from attnflow.show import plots

        kinds: dict[str, Callable[..., Axes]] = {
            "layers": plots.layers_map,
            "pairs": plots.pairs_map,
            "bars": plots.source_bars,
        }
        if kind not in kinds:
            hint = did_you_mean(str(kind), tuple(kinds))
            raise InputError(f"Unknown kind {kind!r}.{hint} Allowed: 'layers', 'pairs', 'bars'.")
        chosen = self if target is None else self.row(target)
        return kinds[kind](chosen if layer is None else chosen.layer(layer), ax=ax)

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

        whole = self.to_html(title=title, image=image)
        return InteractiveView(whole, self._repr_html_(), height)

    # -- keeping ------------------------------------------------------------------------------

    def to_pandas(self) -> pd.DataFrame:
        """One row for each value: layer, target, source, their positions, value and bounds."""
        pandas = optional_import("pandas", extra="pandas", purpose="to_pandas()")
        layer, target, source = (index.ravel() for index in np.indices(self.values.shape))
        columns: dict[str, Any] = {
            "layer": np.array(self.layers)[layer],
            "target_position": np.array(self.targets.positions)[target],
            "target": np.array(self.targets.texts, dtype=object)[target],
            "source_position": np.array(self.sources.positions)[source],
            "source": np.array(self.sources.texts, dtype=object)[source],
            "value": self.values.ravel(),
        }
        for name in _ARRAYS[1:]:
            if (array := getattr(self, name)) is not None:
                columns[name] = array.ravel()
        return pandas.DataFrame(columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: nested lists with the axes layer, target, source."""
        arrays = {name: array.tolist() for name, array in self._arrays().items()}
        return {**self._header(), **arrays}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to .safetensors or .json; `load` gives the same bits back."""
        storage.write(path, "Attribution", self._header(), self._arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        from attnflow.methods import method_from_dict

        header, arrays = storage.read(path, "Attribution")
        with storage.unpacking(path):
            said = header["prediction"]
            return cls(
                **{name: arrays[name] for name in (*_ARRAYS, "elsewhere") if name in arrays},
                layers=tuple(header["layers"]),
                targets=Tokens.from_dict(header["targets"]),
                sources=Tokens.from_dict(header["sources"]),
                method=method_from_dict(header["method"]),
                prediction=Prediction.from_dict(said) if said else None,
                steps=tuple(header["steps"]),
                provenance=header["provenance"],
            )

    def _arrays(self) -> dict[str, NDArray[Any]]:
        names = (*_ARRAYS, "elsewhere")
        return {n: a for n in names if (a := getattr(self, n)) is not None}

    def _header(self) -> dict[str, Any]:
        return {
            "axes": ["layer", "target", "source"],
            "layers": list(self.layers),
            "targets": self.targets.to_dict(),
            "sources": self.sources.to_dict(),
            "method": self.method.to_dict(),
            "prediction": self.prediction.to_dict() if self.prediction else None,
            "steps": list(self.steps),
            "provenance": dict(self.provenance),
        }
