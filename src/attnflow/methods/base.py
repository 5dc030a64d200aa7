"""Methods: frozen values that are called on a trace, and what their results warn of."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution, dependence_of
from attnflow.errors import (
    CollapseWarning,
    InputError,
    MethodError,
    SaturationWarning,
    shorten,
    whole_number,
)
from attnflow.errors.arguments import check_count
from attnflow.methods.mixing import Heads
from attnflow.tokens import TokenRef
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import GRADIENTS, ScoreName


@dataclass(frozen=True)
class Requirements:
    """The requirements of a method on a trace.

    heads: how capture may mix the heads of each layer as it is seen; None where every head counts.
    record: what must be recorded beside the weights: "gradients", or names of measurements.
    score: what gradients are taken of; None where there are none.
    needs_matrix: whether all weights of a layer must be there at once; a method that does without
        also works on a trace in factors.

    >>> from attnflow import GradientRollout
    >>> GradientRollout().requires.record, GradientRollout().requires.needs_matrix
    (('gradients',), False)
    """

    heads: Heads | None = "mean"
    record: tuple[str, ...] = ()
    score: ScoreName | None = None
    needs_matrix: bool = True


@dataclass(frozen=True)
class Selection:
    """The rows and layers of a call, resolved against a trace.

    rows: the indices of the targets. layers: the model's numbers of the layers to give, out of
    `available`, those the method computes. columns: the indices of the sources, None for all.

    >>> Selection(rows=(4,), layers=(3,), available=(2, 3)).levels
    [2]
    """

    rows: tuple[int, ...]
    layers: tuple[int, ...]
    available: tuple[int, ...]
    columns: tuple[int, ...] | None = None

    @property
    def levels(self) -> list[int]:
        """The place of each layer among the available ones, counted from 1 at the bottom."""
        return [self.available.index(number) + 1 for number in self.layers]


class Compared(NamedTuple):
    """Rows of a result that others are held against: their targets' indices, and their values."""

    rows: Sequence[int]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Execution:
    """How a call is carried out; nothing here changes its result.

    threads: how many cores to use, where a method can use several; None is all of them.

    >>> Execution(threads=2).threads
    2
    """

    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            check_count("threads", self.threads, 1, error=MethodError)


_TITLES = {
    "raw": "Raw attention",
    "flow": "Attention flow",
    "alti": "ALTI",
    "balanced": "Balanced gradients",
}


class Variant(NamedTuple):
    """Another name of a class of methods: one sentence, and the options that it stands for.

    >>> from attnflow import Rollout
    >>> Rollout.variants["alti"].options
    {'matrices': 'alti'}
    """

    summary: str
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A frozen value that is called on a trace and gives an `Attribution`.

    A method of your own is a frozen dataclass with a `name` and a `_compute`; every choice its
    result depends on is a field. `METHODS.register` makes it known by name: on the command line, in
    files, in `explain` and in `evaluate`.

    >>> from attnflow import Rollout, AttentionTrace
    >>> trace = AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["a", "b"])
    >>> Rollout()(trace, targets="b").values.tolist()
    [[[0.25, 0.75]]]
    """

    name: ClassVar[str]
    variants: ClassVar[Mapping[str, Variant]] = {}
    reruns_model: ClassVar[bool] = False

    @final
    def __call__(
        self,
        trace: AttentionTrace,
        *,
        targets: Sequence[TokenRef] | TokenRef | None = None,
        layers: Sequence[int] | int | None = None,
        sources: Sequence[TokenRef] | TokenRef | None = None,
        threads: int | None = None,
    ) -> Attribution:
        """Attribute these targets at these layers to these sources (default: all of each).

        threads: how many cores to use, where the method can use several; None is all of them.

        Warns with a `CollapseWarning` or a `SaturationWarning` where the values of the highest
        layer hardly depend on the target; the result says so too (`collapsed`, `saturated`).
        """
        selection = self.select(trace, targets, layers, sources)
        result = self._compute(trace, selection, Execution(threads))
        warn_of_limits(result)
        return result

    @abstractmethod
    def _compute(
        self, trace: AttentionTrace, selection: Selection, execution: Execution
    ) -> Attribution:
        """Return the answer for a trace that was checked and a selection that was resolved."""

    @final
    def select(
        self,
        trace: AttentionTrace,
        targets: Sequence[TokenRef] | TokenRef | None = None,
        layers: Sequence[int] | int | None = None,
        sources: Sequence[TokenRef] | TokenRef | None = None,
    ) -> Selection:
        """Return what a call with these arguments asks for; errors name what is allowed."""
        tokens = checked_trace(trace).tokens
        available = layers_from(trace.layers, getattr(self, "start_layer", 1))
        return Selection(
            rows=tuple(tokens.indices_of(targets)),
            layers=_resolve_layers(available, layers),
            available=available,
            columns=None if sources is None else tuple(tokens.indices_of(sources)),
        )

    @property
    def requires(self) -> Requirements:
        """The contents that a trace must have: `capture(model, text, methods=[...])` records it."""
        return Requirements()

    @property
    def options(self) -> dict[str, Any]:
        """The choices that the result depends on, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @final
    @property
    def changed_options(self) -> dict[str, Any]:
        """The options that are not as the method's name alone would set them."""
        usual: dict[str, Any] = {}
        for field in fields(self):
            factory = field.default_factory
            usual[field.name] = field.default if factory is MISSING else factory()
        if self.name in self.variants:
            usual |= self.variants[self.name].options
        return {name: value for name, value in self.options.items() if value != usual[name]}

    @final
    @property
    def label(self) -> str:
        """The method as people read and write it: its name and the options that were changed.

        >>> from attnflow import Rollout
        >>> Rollout(residual=0.4, drop=(0, 1)).label
        'rollout:residual=0.4,drop=0,1'
        """
        options = [
            f"{name}={','.join(map(str, value)) if isinstance(value, (tuple, list)) else value}"
            for name, value in self.changed_options.items()
        ]
        return f"{self.name}:{','.join(options)}" if options else self.name

    @final
    @property
    def title(self) -> str:
        """The same in words, for the heading of a figure or a page.

        >>> from attnflow import Flow, Rollout
        >>> Rollout(residual=0.4).title, Flow().title
        ('Rollout, residual 0.4', 'Attention flow')
        """
        words = [_TITLES.get(self.name, self.name.replace("-", " ").capitalize())]
        for option, value in self.changed_options.items():
            several = isinstance(value, (tuple, list))
            text = " and ".join(map(str, value)) or "none" if several else str(value)
            name = option.replace("_", " ")
            words.append(name if value is True else f"{name} {text}")
        return ", ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Return name and options, for files."""
        return {"name": self.name, "options": self.options}


def requirements_of(methods: Iterable[Method]) -> Requirements:
    """Return what one trace must hold to serve all of these methods.

    Heads stay apart unless all methods mix them in the same way.

    >>> from attnflow import Raw, Rollout
    >>> requirements_of([Raw(), Rollout(heads="max")])
    Requirements(heads=None, record=(), score=None, needs_matrix=False)
    """
    each = [method.requires for method in methods]
    heads = {requirement.heads for requirement in each} or {Requirements().heads}
    record = [name for requirement in each for name in requirement.record]
    scores = {requirement.score for requirement in each if requirement.score is not None}
    if len(scores) > 1:
        raise MethodError(
            f"These methods take gradients of different scores ({', '.join(sorted(scores))}), and "
            "a trace holds those of one; capture once for each score."
        )
    return Requirements(
        heads=heads.pop() if len(heads) == 1 else None,
        record=tuple(dict.fromkeys(record)),
        score=scores.pop() if scores else None,
        needs_matrix=any(requirement.needs_matrix for requirement in each),
    )


def checked_trace(trace: object) -> AttentionTrace:
    """Return the trace, or raise an error that says how to get one."""
    if isinstance(trace, AttentionTrace):
        return trace
    raise MethodError(
        f"A method is called on an AttentionTrace; got {type(trace).__name__}. "
        "AttentionTrace.from_arrays(weights, tokens) or attnflow.capture(model, text) makes one."
    )


def required(method: Method, trace: AttentionTrace, name: str) -> NDArray[np.floating[Any]]:
    """Return gradients or a measurement, or raise an error that says how to record them."""
    recorded = trace.gradients if name == GRADIENTS else trace.measured.get(name)
    if recorded is not None:
        return recorded
    carried = [*([] if trace.gradients is None else [GRADIENTS]), *trace.measured]
    raise MethodError(
        f"{method.name!r} needs {name!r}, and this trace carries {', '.join(carried) or 'nothing'} "
        "beside its weights. Capture it with: attnflow.capture(model, text, "
        f"record={method.requires.record!r})."
    )


def checked_start(start: object) -> int:
    """Return the number of a start layer; whether a trace has it is seen later."""
    number = whole_number(start)
    if number is None:
        raise MethodError(
            f"start_layer={shorten(start)}: it is the number of a layer, counted from 1."
        )
    return number


def checked_flag(name: str, value: object) -> bool:
    """Return true or false; texts and numbers are neither."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise MethodError(f"{name} is true or false; got {shorten(value)}.")


def layers_from(layers: tuple[int, ...], start: int) -> tuple[int, ...]:
    """Return the layers at or above the start layer."""
    number = whole_number(start)
    if number is None or not 1 <= number <= layers[-1]:
        raise MethodError(
            f"start_layer={shorten(start)}: the layers with attention are "
            f"{', '.join(map(str, layers))}; start at one of them or below the first."
        )
    return tuple(layer for layer in layers if layer >= number)


def _resolve_layers(
    available: tuple[int, ...], layers: Sequence[int] | int | None
) -> tuple[int, ...]:
    """Return the layers a call names, by their numbers; -1 is the highest."""
    if layers is None:
        return available
    plain: Any = layers.tolist() if hasattr(layers, "tolist") else layers
    items = list(plain) if isinstance(plain, (Sequence, range, set)) else [plain]
    numbers = [whole_number(number) for number in items]
    resolved = tuple(available[-1] if number == -1 else number for number in numbers)
    if not resolved or any(number not in available for number in resolved):
        raise InputError(
            f"layers={shorten(layers)}: choose from {', '.join(map(str, available))} "
            "(layers are numbered from 1; -1 is the highest)."
        )
    return tuple(number for number in resolved if number is not None)


def attribution_of(
    method: Method,
    trace: AttentionTrace,
    values: NDArray[np.float64],
    selection: Selection,
    *,
    compared: Compared | None = None,
    notes: Mapping[str, Any] | None = None,
    only_selected_columns: bool = False,
    **more: Any,
) -> Attribution:
    """Return a result with everything it inherits from the trace; `notes` join its provenance.

    `values` has one column for each position of the trace, or with `only_selected_columns` one for
    each source of the selection. `more` are other fields of the result: bounds of the same shape,
    and with `only_selected_columns` whatever else it has. `compared` are rows of other targets,
    with one column for each position, to hold the rows against: without them it is those of the
    selection itself.

    >>> from attnflow import Raw
    >>> from attnflow.testing import random_trace
    >>> trace = random_trace(layers=1, length=2)
    >>> selection = Raw().select(trace, targets=[1])
    >>> attribution_of(Raw(), trace, np.array([[[0.25, 0.75]]]), selection).targets.texts
    ('t1',)
    """
    columns = selection.columns
    more["values"] = values
    if not only_selected_columns:
        if columns is not None:
            more = {name: array[..., list(columns)] for name, array in more.items()}
        comparison = compared or Compared(selection.rows, values)
        more["dependence"] = dependence_of(
            values, comparison.values, selection.rows, comparison.rows
        )
    inherited: dict[str, Any] = {
        "layers": selection.layers,
        "targets": trace.tokens.select(selection.rows),
        "sources": trace.tokens if columns is None else trace.tokens.select(columns),
        "prediction": trace.prediction,
        "provenance": {**trace.provenance, "kind": trace.kind, **(notes or {})},
    }
    return Attribution(**{**inherited, **more}, method=method)


_SATURATED = 0.5  # the share of saturated flows from which a layer counts as saturated
_quiet: ContextVar[bool] = ContextVar("quiet_about_limits", default=False)


@contextmanager
def quiet_about_limits() -> Iterator[None]:
    """No warnings of collapse and saturation inside: for callers that tell of them themselves.

    It holds for this thread (or task) only, unlike the filters of the module `warnings`.

    >>> with quiet_about_limits():
    ...     pass
    """
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def warn_of_limits(result: Attribution, stacklevel: int = 2) -> None:
    """Warn where the highest layer of a result says less about its targets than it seems to."""
    if _quiet.get():
        return
    layer, name = max(result.layers), result.method.name
    if result.saturated is not None:
        if result.saturated[result.layers.index(layer)].mean() > _SATURATED:
            warnings.warn(
                f"{name}: at layer {layer} most flows are saturated. They equal what their source "
                "passes on to anyone and say nothing about the target (result.saturated marks "
                'them). Ask for lower layers or for residual="one-step", whose rows differ between '
                'targets at any depth, or use method="gradient-attention".',
                SaturationWarning,
                stacklevel=stacklevel + 1,
            )
    elif layer in result.collapsed:
        warnings.warn(
            f"{name}: at layer {layer} the rows have collapsed. They are nearly the same for every "
            "target and say little about the one you ask about (result.dependence is how far they "
            'differ). Use method="gradient-attention", or lower layers.',
            CollapseWarning,
            stacklevel=stacklevel + 1,
        )
