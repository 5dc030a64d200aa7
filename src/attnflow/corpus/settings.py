"""Everything the rows of a corpus depend on beside the model and the data, as one frozen value.

Where the work is done (`Local`, `Ray`) is no part of it, so that a run may be gone on with on
another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from attnflow.data import find_column
from attnflow.errors import InputError, MethodError, did_you_mean, shorten
from attnflow.errors.arguments import check_count
from attnflow.methods import Method, make_method, method_from_dict
from attnflow.tokens import TokenRef
from attnflow.tokens.units import Level, check_level

ROLES = ("text", "prompt", "completion", "documents", "image", "id")
"""The parts that a column of the data may play."""
_SUBJECTS = ("text", "prompt", "image")
_COMPANIONS = {
    "text": ("documents", "id"),
    "prompt": ("completion", "documents", "id"),
    "image": ("id",),
}
_LEAST = {"top": 1, "max_new_tokens": 0, "batch_tokens": 1, "shard_size": 1, "layers": -1}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The column of the data that plays each part; None where there is none.

    text: what is explained. prompt: what a language model continues, with its `completion` where
    there is one. documents: a list of texts that stand before it, divided by blank lines. image: a
    path, or the bytes of a file. id: what a row of the result is found again by.
    """

    text: str | None = None
    prompt: str | None = None
    completion: str | None = None
    documents: str | None = None
    image: str | None = None
    id: str | None = None

    @classmethod
    def find(cls, names: Sequence[str], roles: Mapping[str, str]) -> Columns:
        """Return the columns that are named, and those that bear the usual name of a part."""
        by_role = {role: find_column(names, role, name) for role, name in roles.items()}
        subjects = [role for role in _SUBJECTS if role in by_role]
        subjects += [role for role in _SUBJECTS if find_column(names, role) is not None]
        if not subjects:
            raise InputError(
                f"The data have no column 'text', 'sentence', 'prompt' or 'image'; theirs are "
                f"{', '.join(map(repr, names)) or 'none'}. Say which to explain: "
                "Settings(columns={'text': ...}), 'prompt' or 'image' (--text, --prompt, --image)."
            )
        subject = subjects[0]
        by_role.setdefault(subject, find_column(names, subject))
        if "completion" in by_role and subject != "prompt":
            raise InputError("A completion follows a prompt: name the column of the prompts too.")
        for role in _COMPANIONS[subject]:
            column = find_column(names, role)
            if role not in by_role and column not in by_role.values():
                by_role[role] = column
        return cls(**by_role)

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [name for role in ROLES if (name := getattr(self, role)) is not None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The request that is made of every text of a corpus.

    methods: methods or their names; none stands for the default of `explain` or `generate`.
    columns: the names of columns that are not called like their part: {"text": "body"}. The parts
        are text, prompt, completion, documents, image and id.
    targets: None (where the answer is read; every token of a completion), "all", or some positions
        and tokens. layers: the layer that is read; -1 is the highest.
    level: what a source is, a token, a word, a sentence or a document. top: how many of them.
    values: keep the values of all sources too.
    max_new_tokens: where there is no completion, one of so many tokens is made; 0 makes none.
    chat: whether prompts go through the model's chat template.
    check: say what each answer rests on, by the first method. Every text is read once or twice
        more, alone, so a run takes several times as long.
    batch_tokens: how many tokens go through the model at once, padding included.
    shard_size: how many texts are committed together.

    >>> Settings(methods=["rollout"], top=3).methods[0].name
    'rollout'
    """

    methods: Sequence[Method | str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    targets: Sequence[TokenRef] | TokenRef | Literal["all"] | None = None
    layers: int = -1
    level: Level = "token"
    top: int = 5
    values: bool = False
    max_new_tokens: int = 0
    chat: bool = False
    check: bool = False
    batch_tokens: int = 2048
    shard_size: int = 512

    def __post_init__(self) -> None:
        methods = tuple(make_method(method) for method in self.methods)
        rerun = next((method.label for method in methods if method.reruns_model), None)
        if rerun is not None:
            raise MethodError(
                f"{rerun!r} runs the model again for every text, which a corpus does not do; "
                "attnflow.explain and attnflow.generate do."
            )
        labels = [method.label for method in methods]
        if len(set(labels)) < len(labels):
            raise InputError(f"methods={labels}: name each method once.")
        object.__setattr__(self, "methods", methods)
        object.__setattr__(self, "columns", _check_roles(self.columns))
        object.__setattr__(self, "targets", _list_targets(self.targets))
        check_level(self.level)
        for name, least in _LEAST.items():
            check_count(name, getattr(self, name), least)

    def find_columns(self, names: Sequence[str]) -> Columns:
        """Return which of the data's columns play which part; refuse what cannot go with them."""
        columns = Columns.find(names, self.columns)
        if columns.prompt is not None and self.targets is not None:
            raise InputError("Of a completion every token is a target; leave targets out.")
        if self.max_new_tokens and columns.prompt is None:
            raise InputError("max_new_tokens is for prompts: name the column they are in.")
        return columns

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**vars(self), "methods": [make_method(each).to_dict() for each in self.methods]}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Settings:
        """Return what `to_dict` was called on."""
        return cls(**{**record, "methods": [method_from_dict(m) for m in record["methods"]]})


def _check_roles(columns: Any) -> dict[str, str]:
    if not isinstance(columns, Mapping):
        raise InputError(
            f"columns names columns by their part, such as {{'text': 'body'}}; got "
            f"{shorten(columns)}."
        )
    for role in columns:
        if role not in ROLES:
            raise InputError(
                f"A column is one of {', '.join(ROLES)}; got {shorten(role)}."
                f"{did_you_mean(str(role), ROLES)}"
            )
    by_role = {role: name for role, name in columns.items() if name is not None}
    subjects = [role for role in _SUBJECTS if role in by_role]
    if len(subjects) > 1:
        raise InputError(f"A corpus is explained by one of text, prompt and image; got {subjects}.")
    return by_role


def _list_targets(targets: Any) -> Literal["all"] | list[TokenRef] | None:
    if targets is None or (isinstance(targets, str) and targets == "all"):
        return None if targets is None else "all"
    several = [targets] if isinstance(targets, (str, int)) else list(targets)
    if not several or not all(isinstance(each, (str, int)) for each in several):
        raise InputError(
            f"targets is None, 'all', or positions and tokens; got {shorten(targets)}."
        )
    return several
