"""Raw attention, attention rollout and attention flow (Abnar & Zuidema, 2020).

A method is a frozen value that can be called on a trace: `Rollout(residual=0.5)(trace)`. Every
choice the result depends on is one of its fields; there is no other state. Its repr is the
provenance that files, figures and the command line show.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import InputError, MethodError, did_you_mean
from attnflow.graph import LayeredGraph
from attnflow.maxflow.reference import solve_pair
from attnflow.mixing import Heads, Mixing, Residual
from attnflow.tokens import Target
from attnflow.trace import AttentionTrace

__all__ = [
    "METHODS",
    "Flow",
    "Method",
    "OptionHelp",
    "Raw",
    "Rollout",
    "describe_options",
    "make_method",
    "method_from_dict",
]


@dataclass(frozen=True, kw_only=True)
class Method(Mixing):
    """What all methods share: the mixing, being callable, and being written down."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[Target] | Target | None = None,
        layers: Sequence[int] | int | None = None,
    ) -> Attribution:
        """Attribute these targets at these layers (default: all) to the input positions."""

    @property
    def heads_to_capture(self) -> Heads | None:
        """How capture may reduce each layer as it is seen; None where every head is needed."""
        return self.heads

    def to_dict(self) -> dict[str, Any]:
        """Name and options, for files."""
        return {"name": self.name, "options": asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Raw(Method):
    """Raw attention: the weights of each layer as they are, the paper's baseline."""

    name: ClassVar[str] = "raw"
    residual: Residual = None

    def __call__(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[Target] | Target | None = None,
        layers: Sequence[int] | int | None = None,
    ) -> Attribution:
        """The weights of these layers, rows of these targets."""
        rows = trace.tokens.indices_of(targets)
        wanted = _wanted_layers(trace.layers, layers)
        matrices = self.matrices(trace)
        picked = np.stack([matrices[trace.layers.index(number)][rows] for number in wanted])
        return _attribution(self, trace, picked, wanted, rows)


@dataclass(frozen=True, kw_only=True)
class Rollout(Method):
    """Attention rollout: the product of all layers' matrices from the input up.

    start_layer: the first layer that counts; those below are taken as identity.
    top_head: use only this head at the layer being explained, on top of the rollout of all heads
        below it (single-head rollout, the paper's appendix).
    """

    name: ClassVar[str] = "rollout"
    start_layer: int = 1
    top_head: int | None = None

    def __call__(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[Target] | Target | None = None,
        layers: Sequence[int] | int | None = None,
    ) -> Attribution:
        """The rollout of these layers, rows of these targets."""
        rows = trace.tokens.indices_of(targets)
        available = _from_start(trace.layers, self.start_layer)
        wanted = _wanted_layers(available, layers)
        matrices = self.matrices(trace)
        tops = matrices if self.top_head is None else self._with_top_head().matrices(trace)
        below = np.eye(trace.length)
        found: dict[int, NDArray[np.float64]] = {}
        for number in available:
            index = trace.layers.index(number)
            if number in wanted:
                found[number] = tops[index][rows] @ below
            below = matrices[index] @ below
        return _attribution(self, trace, np.stack([found[n] for n in wanted]), wanted, rows)

    @property
    def heads_to_capture(self) -> Heads | None:
        """Single-head rollout needs one head beside the mixture, so all are kept."""
        return self.heads if self.top_head is None else None

    def _with_top_head(self) -> Mixing:
        if self.top_head is None:
            raise MethodError("top_head is not set.")
        return Mixing(heads=self.top_head, residual=self.residual, discard=self.discard)


@dataclass(frozen=True, kw_only=True)
class Flow(Method):
    """Attention flow: the maximum flow from the target down to each input, edges as pipes.

    start_layer: the first layer that counts; the graph ends below it.
    normalized: divide each row by its sum, as the authors' code does, instead of the flow itself.
    threads: how many cores to use; None is all of them. Does not change the result.
    """

    name: ClassVar[str] = "flow"
    start_layer: int = 1
    normalized: bool = False
    threads: int | None = None

    def graph(self, trace: AttentionTrace) -> LayeredGraph:
        """The flow network of this trace, from the start layer up."""
        used = [trace.layers.index(n) for n in _from_start(trace.layers, self.start_layer)]
        return LayeredGraph.from_capacities(self.matrices(trace)[used])

    def __call__(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[Target] | Target | None = None,
        layers: Sequence[int] | int | None = None,
    ) -> Attribution:
        """One maximum flow for each target and source, each with its certificate."""
        rows = trace.tokens.indices_of(targets)
        available = _from_start(trace.layers, self.start_layer)
        wanted = _wanted_layers(available, layers)
        graph = self.graph(trace)
        lower = np.empty((len(wanted), len(rows), trace.length))
        upper = np.empty_like(lower)
        for a, b, source in np.ndindex(lower.shape):
            level = available.index(wanted[a]) + 1
            pair = solve_pair(graph, layer=level, target=rows[b], source=source)
            lower[a, b, source], upper[a, b, source] = pair.lower, pair.upper
        result = _attribution(self, trace, lower.copy(), wanted, rows, lower=lower, upper=upper)
        return result.normalize("sum") if self.normalized else result


METHODS: Mapping[str, type[Method]] = {cls.name: cls for cls in (Raw, Rollout, Flow)}


def make_method(name: str | Method, options: Mapping[str, Any] | None = None) -> Method:
    """A method by name with options, or a method as it is."""
    if isinstance(name, Method):
        if options:
            raise MethodError(f"{name!r} already has its options; got {dict(options)} as well.")
        return name
    if name not in METHODS:
        raise MethodError(
            f"Unknown method {name!r}.{did_you_mean(str(name), METHODS)} "
            f"The methods are {', '.join(METHODS)}."
        )
    kind = METHODS[name]
    allowed = [f.name for f in fields(kind)]
    for option in options or {}:
        if option not in allowed:
            raise MethodError(
                f"{name!r} has no option {option!r}.{did_you_mean(option, allowed)} "
                f"Its options are {', '.join(allowed)}."
            )
    return kind(**(options or {}))


def method_from_dict(record: Mapping[str, Any]) -> Method:
    """The inverse of `Method.to_dict`."""
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in record["options"].items()}
    return make_method(record["name"], options)


def _from_start(layers: tuple[int, ...], start: int) -> tuple[int, ...]:
    if not isinstance(start, int) or not 1 <= start <= layers[-1]:
        raise MethodError(
            f"start_layer={start!r}: the layers with attention are "
            f"{', '.join(map(str, layers))}; start at one of them or below the first."
        )
    return tuple(number for number in layers if number >= start)


def _wanted_layers(
    available: tuple[int, ...], asked: Sequence[int] | int | None
) -> tuple[int, ...]:
    """The layers asked for, by their numbers; -1 is the highest."""
    if asked is None:
        return available
    numbers = [asked] if isinstance(asked, int) else list(asked)
    wanted = tuple(available[-1] if number == -1 else number for number in numbers)
    if not wanted or any(number not in available for number in wanted):
        raise InputError(
            f"layers={asked!r}: choose from {', '.join(map(str, available))} "
            "(layers are numbered from 1; -1 is the highest)."
        )
    return wanted


def _attribution(
    method: Method,
    trace: AttentionTrace,
    values: NDArray[np.float64],
    layers: tuple[int, ...],
    rows: Sequence[int],
    **extra: Any,
) -> Attribution:
    return Attribution(
        values=values,
        layers=layers,
        targets=trace.tokens.select(rows),
        sources=trace.tokens,
        method=method,
        prediction=trace.prediction,
        provenance={**trace.provenance, "kind": trace.kind},
        **extra,
    )


class OptionHelp(NamedTuple):
    """One option of a method as `attnflow methods` lists it."""

    name: str
    default: Any
    help: str


def describe_options(kind: type[Method]) -> list[OptionHelp]:
    """Every option with its default and the sentence its class's docstring gives it."""
    sentences: dict[str, str] = {}
    for ancestor in kind.__mro__:
        for name, sentence in _documented(ancestor.__doc__ or "").items():
            sentences.setdefault(name, sentence)
    return [OptionHelp(f.name, f.default, sentences.get(f.name, "")) for f in fields(kind)]


def _documented(docstring: str) -> dict[str, str]:
    """`name: sentence` paragraphs of a docstring; deeper lines go on with the sentence."""
    found: dict[str, str] = {}
    current = ""
    for line in inspect.cleandoc(docstring).splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name.isidentifier():
            current, found[name] = name, rest
        elif current and line.startswith("    "):
            found[current] += " " + line.strip()
        else:
            current = ""
    return found
