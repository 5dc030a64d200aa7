"""What is asked of a corpus: everything its rows depend on, as one frozen value.

How the work is carried out (the engine, how many processes, where) is no part of it, so that a run
may be gone on with on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from attnflow.errors import InputError, did_you_mean, shorten, whole_number
from attnflow.methods import Method, make_method, method_from_dict
from attnflow.tokens import TokenRef
from attnflow.tokens.units import Level, check_level

__all__ = ["ALL", "PREDICTION", "Columns", "Settings", "method_label"]

PREDICTION = "prediction"
ALL = "all"
Targets = Literal["prediction", "all"] | tuple[TokenRef, ...]

_USUAL_TEXT = ("text", "sentence")
_ROLES = ("text", "prompt", "completion", "documents", "image", "id")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which column plays which part; None where there is none.

    text: what is explained. prompt: what a language model continues, with its `completion` where
    there is one. documents: a list of texts that stand before it, divided by blank lines. image: a
    path, or the bytes of a file. id: what a row of the result is found again by.

    >>> Columns.of(["id", "question", "completion"], prompt="question")
    Columns(text=None, prompt='question', completion='completion', documents=None, image=None, \
id='id')
    """

    text: str | None = None
    prompt: str | None = None
    completion: str | None = None
    documents: str | None = None
    image: str | None = None
    id: str | None = None

    @classmethod
    def of(cls, present: Sequence[str], **roles: str | None) -> Columns:
        """The columns that are named, and those that bear the usual name of a part."""
        for role, name in roles.items():
            if name is not None and name not in present:
                raise InputError(
                    f"There is no column {shorten(name)} for the {role}."
                    f"{did_you_mean(name, present)} The columns are "
                    f"{', '.join(map(repr, present)) or 'none'}."
                )
        by_role = {role: name for role, name in roles.items() if name is not None}
        if not {"text", "prompt", "image"} & by_role.keys():
            by_role |= _subject(present)
        subject = next(role for role in ("text", "prompt", "image") if role in by_role)
        others = {"text": ("documents", "id"), "image": ("id",)}
        for role in others.get(subject, ("completion", "documents", "id")):
            if role in present and role not in by_role and role not in by_role.values():
                by_role[role] = role
        columns = cls(**by_role)
        columns._check_together()
        return columns

    def _check_together(self) -> None:
        subjects = [r for r in ("text", "prompt", "image") if getattr(self, r) is not None]
        if len(subjects) > 1:
            raise InputError(
                f"A corpus is explained by one of text, prompt and image; got {subjects}."
            )
        if self.completion is not None and self.prompt is None:
            raise InputError("A completion follows a prompt: name the column of the prompts too.")

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [name for role in _ROLES if (name := getattr(self, role)) is not None]


def _subject(present: Sequence[str]) -> dict[str, str]:
    """What is explained when no column is named: the first that bears a usual name."""
    for usual in (*_USUAL_TEXT, "prompt", "image"):
        for name in present:
            if name.lower() == usual:
                return {"text" if usual in _USUAL_TEXT else usual: name}
    raise InputError(
        f"The data have no column 'text', 'sentence', 'prompt' or 'image'; theirs are "
        f"{', '.join(map(repr, present)) or 'none'}. Say which to explain: text=..., prompt=... or "
        "image=... (--text, --prompt, --image)."
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked of every text of a corpus.

    model: a name or a folder; None is the model that ships with attnflow.
    methods: none stands for the default of `explain`, or of `explain_completion`.
    targets: "prediction" (where the answer is read from; every token of a completion), "all", or
        some positions and tokens. layer: the layer that is read; -1 is the highest.
    level: what a source is, a token, a word, a sentence or a document. top: how many of them.
    values: keep the values of all sources too.
    max_new_tokens: where there is no completion, one of so many tokens is made; 0 makes none.
    tokens_per_batch: how many tokens go through the model at once, padding included.
    shard_size: how many texts are committed together.

    >>> Settings(methods=("rollout",), top=3).methods[0].name
    'rollout'
    """

    model: str | None = None
    columns: Columns = field(default_factory=lambda: Columns(text="text"))
    methods: tuple[Method, ...] = ()
    targets: Targets = "prediction"
    layer: int = -1
    level: Level = "token"
    top: int = 5
    values: bool = False
    chat: bool = False
    max_new_tokens: int = 0
    tokens_per_batch: int = 2048
    shard_size: int = 512

    def __post_init__(self) -> None:
        methods = tuple(make_method(method) for method in self.methods)
        labels = [method_label(method) for method in methods]
        if len(set(labels)) < len(labels):
            raise InputError(f"methods={labels}: name each method once.")
        object.__setattr__(self, "methods", methods)
        object.__setattr__(self, "targets", _checked_targets(self.targets))
        check_level(self.level)
        for name, least in _LEAST.items():
            number = whole_number(getattr(self, name))
            if number is None or number < least:
                raise InputError(
                    f"{name} is a whole number of at least {least}; got "
                    f"{shorten(getattr(self, name))}."
                )
        if self.columns.prompt is not None and self.targets != PREDICTION:
            raise InputError("Of a completion every token is a target; leave targets out.")
        if self.max_new_tokens and self.columns.prompt is None:
            raise InputError("max_new_tokens is for prompts: name the column they are in.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        methods = [method.to_dict() for method in self.methods]
        targets = self.targets if isinstance(self.targets, str) else list(self.targets)
        return {**record, "columns": asdict(self.columns), "methods": methods, "targets": targets}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Settings:
        """The inverse of `to_dict`."""
        targets = record["targets"]
        return cls(
            **{
                **record,
                "columns": Columns(**record["columns"]),
                "methods": tuple(method_from_dict(each) for each in record["methods"]),
                "targets": targets if isinstance(targets, str) else tuple(targets),
            }
        )


_LEAST = {"top": 1, "max_new_tokens": 0, "tokens_per_batch": 1, "shard_size": 1, "layer": -1}


def _checked_targets(targets: Any) -> Targets:
    if isinstance(targets, str) and targets in (PREDICTION, ALL):
        return targets  # type: ignore[return-value]  # one of the two
    several = [targets] if isinstance(targets, (str, int)) else list(targets)
    if not several or not all(isinstance(each, (str, int)) for each in several):
        raise InputError(
            f"targets is 'prediction', 'all', or positions and tokens; got {shorten(targets)}."
        )
    return tuple(several)


def method_label(method: Method) -> str:
    """A method as the command line writes it: its name, and every option that is not the default.

    >>> from attnflow import Rollout
    >>> method_label(Rollout(residual=0.4))
    'rollout:residual=0.4'
    """
    # `label_of` of evaluation is for people, this one can be typed again: values differ.
    options = [
        f"{f.name}={_written(getattr(method, f.name))}"
        for f in fields(method)
        if getattr(method, f.name) != f.default
    ]
    return f"{method.name}:{','.join(options)}" if options else method.name


def _written(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
