"""Is a ranking of words faithful? Take away its strongest words, or keep only them, and look.

All rankings of a text share their passes: two rankings that agree on the three strongest words
need the text without these three once. Random orders are always run beside, since a model without
any three words may be at a loss whichever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from attnflow.errors import InputError, MethodError, shorten
from attnflow.errors.arguments import check_count, check_fields, checked_arguments, checked_seed
from attnflow.evaluation import metrics
from attnflow.evaluation.metrics import Floats, Positions
from attnflow.evaluation.passes import Choices, Passes, Task, Text
from attnflow.evaluation.records import RANDOM
from attnflow.explainers.blanks import BlankToken, blank_positions, check_blank
from attnflow.hosts.load import ModelLike

__all__ = ["RANDOM", "Curves", "Faithfulness"]

_MOST = 10_000  # random orders: more is a mistake
_SHARE_STEPS = [round(share * metrics.STEPS) for share in metrics.SHARES]


@dataclass(frozen=True, eq=False)
class Curves:
    """The effects of one ranking on each text: `deletion[text, step]` and `insertion[text, step]`.

    Step k of ten: the strongest k tenths of the words are blanked (deletion), or all others are
    (insertion). `score[text]` is that of the text as it is.

    >>> falling, rising = np.linspace(1, 0, 11), np.linspace(0, 1, 11)
    >>> curves = Curves(np.array([1.0]), falling[None], rising[None])
    >>> curves.comprehensiveness.round(2), curves.deletion_area
    (array([0.3]), array([0.5]))
    """

    score: Floats
    deletion: Floats
    insertion: Floats

    @property
    def comprehensiveness(self) -> Floats:
        """One value for each text, over `metrics.SHARES`; higher is more faithful."""
        pairs = zip(self.score, self.deletion[:, _SHARE_STEPS], strict=True)
        return np.array([metrics.comprehensiveness(score, curve) for score, curve in pairs])

    @property
    def sufficiency(self) -> Floats:
        """One value for each text, over `metrics.SHARES`; lower is more faithful."""
        pairs = zip(self.score, self.insertion[:, _SHARE_STEPS], strict=True)
        return np.array([metrics.sufficiency(score, curve) for score, curve in pairs])

    @property
    def deletion_area(self) -> Floats:
        """The area under each text's deletion curve; lower is more faithful."""
        return np.array([metrics.area(curve) for curve in self.deletion])

    @property
    def insertion_area(self) -> Floats:
        """The area under each text's insertion curve; higher is more faithful."""
        return np.array([metrics.area(curve) for curve in self.insertion])


def run_curves(
    orders: Sequence[Sequence[int]], run: Callable[[Sequence[Positions]], Floats]
) -> Curves:
    """Return the curves of one input by several orders; `run` scores it with sets hidden."""
    sets = [
        hidden
        for order in orders
        for curve in zip(*metrics.curve_steps(order), strict=True)
        for hidden in curve
    ]
    values = run(sets).reshape(len(orders), 2, metrics.STEPS + 1)
    return Curves(values[:, 0, 0], values[:, 0], values[:, 1])  # at first nothing is hidden


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """Deletion and insertion curves of any number of rankings, and of random orders beside them.

    by: what takes a word's place: "unk", "mask", "pad" or "delete".
    random_orders: how many random orders are averaged; each text draws its own.
    seed: the seed of the random orders.

    >>> rankings = {"by place": [[7, 6, 5, 4, 3, 2, 1]]}
    >>> curves = Faithfulness()(None, ["the key to the cabinets"], rankings)
    >>> list(curves), curves["by place"].deletion.shape
    (['by place', 'random'], (1, 11))
    """

    by: BlankToken = "unk"
    random_orders: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        checked_seed(self.seed)
        check_count("random_orders", self.random_orders, 1, _MOST, error=MethodError)

    @checked_arguments
    def __call__(
        self,
        model: ModelLike,
        texts: Sequence[str],
        rankings: Mapping[str, Sequence[ArrayLike]],
        *,
        answer: Choices = None,
        batch_size: int = 64,
    ) -> dict[str, Curves]:
        """Return curves by the name of the ranking, and of "random".

        `rankings[name][k]` has one value for each position of text k, larger for stronger; only
        words are taken away, the tokens that frame a text always stay.
        """
        passes = Passes.over(model, batch_size)
        check_blank(passes.ids, self.by)
        for name, rows in rankings.items():
            if len(rows) != len(texts):
                raise InputError(
                    f"{shorten(name)} ranks {len(rows)} texts and there are {len(texts)}."
                )
        task = Task.of(passes, texts, answer, "probability", "faithfulness")
        orders = [self._orders(k, text, rankings) for k, text in enumerate(task.texts)]
        scores = self._scores(task, orders)
        runs = [run_curves(orders[k], partial(_look_up, scores, k)) for k in range(len(orders))]
        deletion = np.stack([run.deletion for run in runs], axis=1)  # orders, texts, steps
        insertion = np.stack([run.insertion for run in runs], axis=1)
        score = np.array([answer.score for answer in task.answers])
        curves = {name: Curves(score, deletion[n], insertion[n]) for n, name in enumerate(rankings)}
        draws = slice(len(rankings), None)
        chance = Curves(score, deletion[draws].mean(axis=0), insertion[draws].mean(axis=0))
        return {**curves, RANDOM: chance}

    def _orders(
        self, number: int, text: Text, rankings: Mapping[str, Sequence[ArrayLike]]
    ) -> list[list[int]]:
        """Return the words of a text by each ranking, strongest first, then in random orders."""
        rng = np.random.default_rng([self.seed, number])
        words = np.flatnonzero(text.is_word)
        orders = [_order(name, rows[number], text, number) for name, rows in rankings.items()]
        return orders + [rng.permutation(words).tolist() for _ in range(self.random_orders)]

    def _scores(
        self, task: Task, orders: Sequence[Sequence[Sequence[int]]]
    ) -> dict[tuple[int, Positions], float]:
        """Return the score of each text with each set of words hidden, every set once."""
        places = sorted(
            {
                (k, hidden)
                for k, rankings in enumerate(orders)
                for order in rankings
                for step in metrics.curve_steps(order)
                for hidden in step
                if self.by != "delete" or len(hidden) < len(task.texts[k].tokens)
            }  # an empty text is no text
        )
        ids, texts = task.ids, task.texts
        rows = [blank_positions(texts[k].row, hidden, ids, self.by) for k, hidden in places]
        scores = task.scores(rows, [k for k, _ in places], keeps_positions=self.by != "delete")
        return dict(zip(places, scores, strict=True))


def _look_up(
    scores: Mapping[tuple[int, Positions], float], number: int, sets: Sequence[Positions]
) -> Floats:
    return np.array([scores.get((number, hidden), np.nan) for hidden in sets])


def _order(name: str, row: ArrayLike, text: Text, number: int) -> list[int]:
    """Return the words by one ranking, strongest first; ties in the order of the text."""
    if name.startswith(RANDOM):
        raise InputError(f"The name {name!r} is taken: random orders are run in any case.")
    try:
        values = np.asarray(row, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name!r} has no numbers for text {number}: {shorten(row)}.") from error
    if values.shape != (len(text.tokens),):
        raise InputError(
            f"{name!r} has values of shape {values.shape} for the {len(text.tokens)} "
            f"tokens of text {number}."
        )
    words = np.flatnonzero(text.is_word)
    return words[np.argsort(-values[words], kind="stable")].tolist()
