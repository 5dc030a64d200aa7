"""Methods by name: for `explain`, for the command line, and for files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from attnflow.errors import MethodError, did_you_mean, shorten
from attnflow.methods.base import Method
from attnflow.methods.flow import Flow, ShapleyFlow
from attnflow.methods.gradients import BalancedGradient, GradientAttention, GradientRollout
from attnflow.methods.reruns import AblationRegression, Careful, LeaveOneOut
from attnflow.methods.rollout import Raw, Rollout

_M = TypeVar("_M", bound=type[Method])


class MethodRegistry(Mapping[str, type[Method]]):
    """The classes of methods by name; `register` adds one. `make_method` makes methods of names.

    A class may have several names: "alti" is `Rollout(matrices="alti")`.

    >>> from attnflow.methods import METHODS
    >>> METHODS["rollout"], METHODS["alti"] is METHODS["rollout"]
    (<class 'attnflow.methods.rollout.Rollout'>, True)
    """

    def __init__(self, methods: Sequence[type[Method]] = ()) -> None:
        self._methods: dict[str, type[Method]] = {}
        for method in methods:
            self._add(method.name, method)
        for method in methods:
            self.register(method)

    def register(self, method: _M) -> _M:
        """Make a method known by its name, everywhere: use it as a decorator of the class.

        A name can be given again by a class of the same place only, as when a notebook's cell runs
        twice.
        """
        name = getattr(method, "name", None)
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise MethodError(f"A method is a subclass of attnflow.Method; got {shorten(method)}.")
        if inspect.isabstract(method) or "__dataclass_params__" not in vars(method):
            raise MethodError(
                f"{method.__qualname__} is not a complete method: decorate it with "
                "@dataclass(frozen=True, kw_only=True) and write its _compute."
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise MethodError(
                f"The name of {method.__qualname__} is {shorten(name)}; a method's name is made of "
                "small letters, digits and hyphens, such as 'my-rollout'."
            )
        for each in (name, *method.variants):
            self._add(each, method)
        return method

    def _add(self, name: str, method: type[Method]) -> None:
        present = self._methods.get(name)
        if present is not None and _place(present) != _place(method):
            raise MethodError(f"There is a method {name!r} already: {'.'.join(_place(present))}.")
        self._methods[name] = method

    def __getitem__(self, name: str) -> type[Method]:
        return self._methods[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)


def _place(method: type[Method]) -> tuple[str, str]:
    return method.__module__, method.__qualname__


_NAME = re.compile(r"[a-z][a-z0-9-]*")

METHODS = MethodRegistry(
    (Raw, Rollout, Flow, ShapleyFlow, BalancedGradient, GradientAttention, GradientRollout)
)
for _rerun in (LeaveOneOut, AblationRegression, Careful):
    METHODS.register(_rerun)


def trace_methods() -> tuple[str, ...]:
    """List the names of the methods that read a trace and do not run the model again.

    >>> "alti" in trace_methods(), "careful" in trace_methods()
    (True, False)
    """
    return tuple(name for name, kind in METHODS.items() if not kind.reruns_model)


def make_method(name: str | Method, options: Mapping[str, Any] | None = None) -> Method:
    """Return a method by name with options, or a method as it is.

    The name may carry options: `"rollout:residual=0.4,heads=max"`.

    >>> make_method("rollout:residual=0.4").residual
    0.4
    """
    if isinstance(name, Method):
        if options:
            raise MethodError(
                f"{name!r} already has its options; got {shorten(dict(options))} as well."
            )
        return name
    if not isinstance(name, str):
        raise MethodError(f"A method is a name or a Method; got {type(name).__name__}.")
    if options is not None and not (
        isinstance(options, Mapping) and all(isinstance(key, str) for key in options)
    ):
        raise MethodError(f"Options are values by name; got {shorten(options)}.")
    name, in_name = parse_method(name)
    if name not in METHODS:
        raise MethodError(
            f"Unknown method {shorten(name)}.{did_you_mean(name, METHODS)} "
            f"The methods are {', '.join(METHODS)}."
        )
    kind = METHODS[name]
    usual = kind.variants[name].options if name in kind.variants else {}
    allowed = list(kind(**usual).options) if usual else [field.name for field in fields(kind)]
    for option in {**in_name, **(options or {})}:
        if option not in allowed:
            raise MethodError(
                f"{name!r} has no option {shorten(option)}.{did_you_mean(option, allowed)} "
                f"Its options are {', '.join(allowed) or 'none'}."
            )
    return kind(**{**usual, **in_name, **(options or {})})


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """Read `NAME` or `NAME:key=value,key=value` as a name and its options.

    A part without `=` goes on with the list before it: `rollout:drop=0,the,residual=0.4`.

    >>> parse_method("rollout:heads=1,2,residual=none")
    ('rollout', {'heads': [1, 2], 'residual': None})
    """
    name, colon, rest = text.partition(":")
    options: dict[str, Any] = {}
    key = ""
    for part in rest.split(",") if colon else ():
        before, equals, after = part.partition("=")
        if equals and before.strip():
            key = before.strip().replace("-", "_")
            options[key] = parse_value(after)
        elif key:
            earlier = options[key]
            values = earlier if isinstance(earlier, list) else [earlier]
            options[key] = [*values, parse_value(part)]
        else:
            raise MethodError(
                f"{shorten(text)}: options follow the method's name as NAME:key=value,key=value, "
                "for example rollout:residual=0.4,heads=max."
            )
    return name.strip(), options


def parse_value(text: str) -> Any:
    """Read the value of an option: a number, none, true, false or text.

    >>> parse_value("0.5"), parse_value("none"), parse_value("mean")
    (0.5, None, 'mean')
    """
    text = text.strip()
    constants = {"none": None, "true": True, "false": False}
    if text.lower() in constants:
        return constants[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def method_from_dict(record: Mapping[str, Any]) -> Method:
    """Return the method that `Method.to_dict` describes.

    >>> method_from_dict({"name": "raw", "options": {"heads": "max"}}).heads
    'max'
    """
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in record["options"].items()
    }
    return make_method(str(record["name"]), options)


class OptionHelp(NamedTuple):
    """One option of a method as `attnflow methods` lists it.

    >>> OptionHelp("residual", 0.5, "share of the skip connection").default
    0.5
    """

    name: str
    default: Any
    help: str


def summary_of(name: str) -> str:
    """Return the sentence that says what the method of this name is.

    >>> summary_of("raw")
    "Raw attention: the weights of each layer as they are, the paper's baseline."
    """
    kind = METHODS[name]
    if name in kind.variants:
        return kind.variants[name].summary
    return (kind.__doc__ or "").splitlines()[0]


def describe_options(name: str) -> list[OptionHelp]:
    """List every option of a method, its default and the sentence of its class's docstring.

    >>> [option.name for option in describe_options("alti")]
    ['drop', 'start_layer', 'matrices']
    """
    sentences: dict[str, str] = {}
    for ancestor in METHODS[name].__mro__:
        for option, sentence in option_sentences(ancestor.__doc__ or "").items():
            sentences.setdefault(option, sentence)
    return [
        OptionHelp(option, default, sentences.get(option, ""))
        for option, default in make_method(name).options.items()
    ]


def option_sentences(docstring: str) -> dict[str, str]:
    """Read the `name: sentence` paragraphs of a docstring; deeper lines go on with a sentence."""
    sentences: dict[str, str] = {}
    current = ""
    for line in inspect.cleandoc(docstring).splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name.isidentifier():
            current, sentences[name] = name, rest
        elif current and line.startswith("    "):
            sentences[current] += " " + line.strip()
        else:
            current = ""
    return sentences
