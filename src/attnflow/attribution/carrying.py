"""An answer carried on through what the model wrote, until only what it was given is left.

A generated token draws on the prompt and on what was generated before it. The share that falls on
generated text goes on to what that text draws on: with G the shares between generated tokens, which
is strictly triangular, and P their shares of the prompt, the whole is `(I - G)^-1 P`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution.passages import DOCUMENTS, MESSAGES, passages_of, statements_of
from attnflow.errors import InputError, MethodError, percent, shorten
from attnflow.tokens.units import split_units

if TYPE_CHECKING:
    from attnflow.attribution.result import Attribution

Values = NDArray[np.float64]
INSERTED = "inserted"
"""Where the provenance of a result says which sources after the prompt the model did not write,
such as the result of a tool: [first, one after the last] each, in sources."""
WROTE = "what it wrote"

_ROWS = 256  # that are solved at once
_BRANCHES, _LEAST, _DEPTH = 3, 0.05, 8  # of a path: what is not followed is in its rest


def carried(result: Attribution) -> Attribution:
    """Return the same targets over what the model was given: no generated token is a source.

    The part of a row that falls on a generated token goes on to what that token draws on, in the
    shares of its own row, and so on. Every row keeps its sum; what reaches a token that draws on
    nothing is `elsewhere`. It takes a completion that was explained token by token with
    `sources="all"`.

    >>> import numpy as np
    >>> from attnflow import Attribution, Raw, Tokens
    >>> rows = np.array([[[1.0, 3.0, 0.0], [0.0, 1.0, 1.0]]])  # over two words and the first answer
    >>> words = Tokens(("it", "rains", "Yes")), Tokens(("Yes", "."), (2, 3))
    >>> about = {"prompt_length": 2}
    >>> result = Attribution(rows, (1,), words[1], words[0], Raw(), provenance=about)
    >>> result.carried().values.tolist()
    [[[1.0, 3.0], [0.25, 1.75]]]
    """
    columns, others = _sides(result)
    shares, sums = _shares(result.values)
    values = np.stack(
        [
            carry_on((part[:, others], part[:, columns[:end]]) for part, end in _blocks(layer))
            for layer in shares
        ]
    )
    values *= sums[..., None]
    left = sums - values.sum(axis=-1)
    stuck = np.where(left > 1e-9 * sums, left, 0.0)
    elsewhere = stuck if result.elsewhere is None else stuck + result.elsewhere
    return replace(
        _given_side(result, others),
        values=values,
        elsewhere=None if result.elsewhere is None and not stuck.any() else elsewhere,
        steps=(*result.steps, "carried()"),
    )


def carry_on(blocks: Iterable[tuple[Values, Values]]) -> Values:
    """Return `(tokens, sources)`: the shares of generated tokens, carried on to what was given.

    blocks: the rows of some tokens at a time, in their order: shares of what was given, and of the
    generated tokens up to the last of the block. Only what this returns is held in memory.
    """
    parts: list[Values] = []
    for given_shares, written_shares in blocks:
        done = sum(map(len, parts))
        reached = given_shares.astype(np.float64)
        for begin, part in zip(np.cumsum([0, *map(len, parts)]), parts, strict=False):
            reached += written_shares[:, begin : begin + len(part)] @ part
        own = written_shares[:, done : done + len(reached)]
        among = np.eye(len(reached))
        among[:, : own.shape[1]] -= own  # the last token of all is no source
        parts.append(np.asarray(np.linalg.solve(among, reached), dtype=np.float64))
    return np.concatenate(parts)


def _blocks(rows: Values) -> Iterator[tuple[Values, int]]:
    for begin in range(0, len(rows), _ROWS):
        part = rows[begin : begin + _ROWS]
        yield part, begin + len(part)


def _shares(values: Values) -> tuple[Values, Values]:
    sums = values.sum(axis=-1)
    shares = np.divide(
        values, sums[..., None], out=np.zeros_like(values), where=sums[..., None] > 0
    )
    return shares, sums


def _sides(result: Attribution) -> tuple[list[int], list[int]]:
    """Return the column of each target, and the columns that the model was given; or raise.

    The last token is no source: its column is one after the end, of which nothing is read.
    """
    positions, length = result.sources.positions, result.provenance.get("prompt_length")
    place_of = {position: column for column, position in enumerate(positions)}
    marks = [range(int(first), int(end)) for first, end in result.provenance.get(INSERTED, ())]
    others = [
        k
        for k, position in enumerate(positions)
        if (length is not None and position < length) or any(k in mark for mark in marks)
    ]
    columns = [place_of[p] for p in result.targets.positions if p in place_of]
    if length is None or not columns or len(columns) + len(others) < len(positions):
        raise InputError(
            "carried() needs a row for each generated token, and generated tokens among the "
            'sources: generate(..., sources="all"), without targets=. This result has '
            f"{len(result.targets)} targets and {len(positions)} sources."
        )
    if (result.values < 0).any():
        raise MethodError(
            f"carried() hands shares on, and rows of {result.method.name!r} hold negative values; "
            "leave method= out, or take 'gradient-attention'."
        )
    names = [result.sources[k] for k in columns]
    later = np.triu(result.values[:, : len(columns)][:, :, columns].sum(axis=0))
    if names != list(result.targets)[: len(names)] or later.any():
        raise InputError(
            "carried() follows a text that one decoder reads and writes; here the sources beside "
            f"the prompt are {shorten(names)}, and the targets {result.targets.listing()}."
        )
    return columns, others


def _given_side(result: Attribution, columns: Sequence[int]) -> Attribution:
    """Return the result over what the model was given, with its documents and messages there."""
    place_of = {column: place for place, column in enumerate(columns)}
    places: dict[str, Any] = {INSERTED: []}
    for key in {DOCUMENTS, MESSAGES} & result.provenance.keys():
        marks = [
            (name, [place_of[k] for k in range(int(first), int(end)) if k in place_of])
            for name, first, end in result.provenance[key]
        ]
        places[key] = [[name, part[0], part[-1] + 1] for name, part in marks if part]
    return replace(
        result,
        values=result.values[..., columns],
        lower=None,
        upper=None,
        saturated=None,
        dependence=None,
        sources=result.sources.select(columns),
        provenance={**result.provenance, **places},
    )


# --- paths ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One step of a path: a sentence that was drawn on, and what it draws on in turn.

    place: where the sentence stands. share: of the target, along this path. is_written: whether
    the model wrote it, so that the path goes on. columns: its sources. rest: the share that is in
    none of the steps.
    """

    place: str
    text: str
    share: float
    is_written: bool
    columns: tuple[int, ...]
    steps: tuple[Step, ...] = ()
    rest: float = 0.0

    def __str__(self) -> str:
        return f'{self.place} ({percent(self.share)}): "{" ".join(self.text.split())}"'

    @property
    def lines(self) -> list[str]:
        """A line for each step behind this one, indented by how far it is away."""
        return [
            line
            for step in self.steps
            for line in (f"← {step}", *(f"    {deeper}" for deeper in step.lines))
        ]

    @property
    def strongest(self) -> tuple[Step, ...]:
        """The strongest of the next steps, its strongest, and so on."""
        return () if not self.steps else (self.steps[0], *self.steps[0].strongest)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        steps = [step.to_dict() for step in self.steps]
        return {**vars(self), "columns": list(self.columns), "steps": steps}


@dataclass(frozen=True)
class _Place:
    """A sentence among the sources."""

    name: str
    text: str
    columns: tuple[int, ...]
    is_written: bool


def follow(
    result: Attribution, rows: Sequence[int] | None = None, *, start: Values | None = None
) -> Step:
    """Return the path from some rows, by default all, back to what the model was given.

    Steps are sentences, strongest first; a share is of what falls on sentences. start: what the
    rows together draw on each source, where it is known better than from the rows.

    >>> from attnflow import generate
    >>> from attnflow.testing import tiny_decoder
    >>> result = generate(tiny_decoder(), "the keys to", sources="all", max_new_tokens=3)
    >>> round(sum(step.share for step in result.follow([0]).steps), 6)
    1.0
    """
    numbers = list(range(len(result.targets)) if rows is None else rows)
    return Path.of(result).tree(numbers, start)


def paths_of(result: Attribution) -> list[Step]:
    """Return the path of each generated statement; none where nothing can be carried on."""
    try:
        path = Path.of(result)
    except (InputError, MethodError):
        return []
    return [path.tree(statement.rows) for statement in statements_of(result)]


class Path:
    """The rows of the highest layer as shares of what falls on sentences."""

    def __init__(self, result: Attribution, columns: Sequence[int], others: Sequence[int]) -> None:
        self.result = result
        self.places = _places(result, columns, others)
        in_sentence = np.zeros(len(result.sources))
        for place in self.places:
            in_sentence[list(place.columns)] = 1.0
        top = result.layers.index(max(result.layers))
        self.in_sentence = in_sentence
        self.shares, self.sums = _shares(result.values[top] * in_sentence)
        self.row_of = {column: row for row, column in enumerate(columns)}
        self.columns = np.array([*columns, *[-1] * (len(result.targets) - len(columns))])

    @classmethod
    def of(cls, result: Attribution) -> Path:
        """Return that of a result whose rows can be carried on; or raise."""
        return cls(result, *_sides(result))

    def tree(self, rows: Sequence[int], start: Values | None = None) -> Step:
        """Return the way back from some rows; start as in `follow`."""
        surfaces = self.result.targets.surfaces()
        text = "".join(surfaces[row] for row in rows).strip()
        steps, rest = self._steps(self._reach(rows, start), 1)
        columns = tuple(k for k in self.columns[list(rows)].tolist() if k >= 0)
        return Step(WROTE, text, 1.0, True, columns, steps, rest)

    def ends(self, rows: Sequence[int], start: Values | None = None) -> list[Step]:
        """Return what the rows rest on in the end, strongest first, without steps."""
        reached = self._reach(rows, start)
        columns = [k for k in self.columns.tolist() if k >= 0]
        others = [place for place in self.places if not place.is_written]
        sums = [np.zeros((len(self.shares), 0))]
        sums += [self.shares[:, list(p.columns)].sum(axis=1, keepdims=True) for p in others]
        onward = carry_on([(np.concatenate(sums, axis=1), self.shares[:, columns])])
        total = reached[columns] @ onward[: len(columns)]
        total += [reached[list(place.columns)].sum() for place in others]
        return [
            Step(others[k].name, others[k].text, float(total[k]), False, others[k].columns)
            for k in np.argsort(-total, kind="stable").tolist()
        ]

    def _reach(self, rows: Sequence[int], start: Values | None) -> Values:
        """Return what some rows draw on outside themselves, as shares."""
        mass = self.sums[list(rows)]
        mass = mass / mass.sum() if mass.sum() > 0 else mass
        if start is None:
            return self._leave(rows, mass)
        direct = np.zeros_like(start)
        for place in self.places:  # a sentence has what its tokens say together, for and against
            values = start[list(place.columns)]
            speaking = np.maximum(values, 0.0)
            scale = max(values.sum(), 0.0) / speaking.sum() if speaking.any() else 0.0
            direct[list(place.columns)] = speaking * scale
        direct = direct / direct.sum() if direct.sum() > 0 else direct
        inside = [row for row in rows if self.columns[row] >= 0]
        outside = direct.copy()
        outside[self.columns[inside]] = 0.0
        return outside + self._leave(inside, direct[self.columns[inside]])

    def _leave(self, rows: Sequence[int], mass: Values) -> Values:
        """Return where a mass on some written tokens goes when it has left all of them."""
        part = self.shares[list(rows)]
        own = self.columns[list(rows)]
        among = np.where(own >= 0, part[:, own], 0.0)
        out = np.linalg.solve((np.eye(len(own)) - among).T, mass) @ part
        out[own[own >= 0]] = 0.0
        return np.asarray(out, dtype=np.float64)

    def _steps(self, reached: Values, depth: int) -> tuple[tuple[Step, ...], float]:
        sums = np.array([reached[list(place.columns)].sum() for place in self.places])
        order = np.argsort(-sums, kind="stable")[:_BRANCHES]
        order = order[sums[order] >= (_LEAST if depth > 1 else 0)]
        steps = tuple(
            self._step(self.places[k], reached, float(sums[k]), depth)
            for k in order.tolist()
            if sums[k] > 0
        )
        return steps, max(float(sums.sum()) - sum(step.share for step in steps), 0.0)

    def _step(self, place: _Place, reached: Values, share: float, depth: int) -> Step:
        steps: tuple[Step, ...] = ()
        rest = 0.0
        if place.is_written and depth < _DEPTH:
            rows = [self.row_of[column] for column in place.columns]
            onward = self._leave(rows, reached[list(place.columns)])
            steps, rest = self._steps(onward, depth + 1)
        return Step(place.name, place.text, share, place.is_written, place.columns, steps, rest)


def _places(result: Attribution, columns: Sequence[int], others: Sequence[int]) -> list[_Place]:
    """Return the sentences of what was given, and of what was written."""
    places = []
    for passage in passages_of(_given_side(result, others)):
        for number, unit in enumerate(passage.sentences, 1):
            members = tuple(others[k] for k in unit.tokens)
            places.append(_Place(passage.place_of(number), unit.text, members, False))
    marks = result.provenance.get(MESSAGES, ())
    parts: dict[str, list[int]] = {}
    for column in columns:
        names = [str(name) for name, first, end in marks if int(first) <= column < int(end)]
        parts.setdefault(names[0] if names else WROTE, []).append(column)
    for name, part in parts.items():
        sentences = split_units([result.sources[k] for k in part], "sentence")
        for number, unit in enumerate(sentences, 1):
            members = tuple(part[k] for k in unit.tokens)
            places.append(_Place(f"{name}, sentence {number}", unit.text, members, True))
    return places
