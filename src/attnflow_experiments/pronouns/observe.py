"""Readings of a language model: sentences with a pronoun to fill in, measured once.

A masked model sees the whole sentence and its row is that of the mask; a causal one sees what
stands before the pronoun and its row is that of the last position, which predicts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.errors import ModelError, TokensError
from attnflow.errors.progress import tell
from attnflow.evaluation.passes import Passes
from attnflow.hosts.adapter import Scores
from attnflow.hosts.capture import capture
from attnflow.methods import Flow, Method, quiet_about_limits
from attnflow.trace import AttentionTrace
from attnflow_experiments.known_answer.experiment import LESS_NEUTRAL, LESS_NEUTRAL_METHOD
from attnflow_experiments.layers import METHODS, Floats
from attnflow_experiments.observe import neutral_traces, padded
from attnflow_experiments.pronouns.data import PLACE, PronounSentence, occurrences
from attnflow_experiments.report import Protocol

_BATCH: Final = 16
# Attention is computed in single precision: shares of it, and products of shares, are right to
# about six digits, and their differences to about 1e-7 of a row.
_RELATIVE: Final = 1e-6
_ABSOLUTE: Final = 1e-7
# Decoders park attention on their first token, whatever it is; a name must not be that token.
_OPENING: Final = "\n"


def lean(one: Floats, other: Floats, tie: float = 0.0) -> Floats:
    """(one − other) / (|one| + |other|): 1 is all the first, −1 all the second, 0 a tie.

    Values may be negative where a baseline was subtracted, so shares would not do. Differences up
    to `tie`, or within rounding of the values, are ties. nan stays nan.
    """
    difference, size = one - other, np.abs(one) + np.abs(other)
    contrast = np.divide(difference, size, out=np.zeros_like(size), where=size != 0)
    even = (np.abs(difference) <= tie) | (np.abs(contrast) <= _RELATIVE)
    return np.where(even, 0.0, contrast)


@dataclass(frozen=True, eq=False)
class Reading:
    """One sentence as one model read it.

    `attributions[method]` is layer × antecedent, nan where the model does not see an antecedent;
    `leans[method]` is one number a layer, positive for the first antecedent. `saturated` says
    where both flows are the same whatever the target.
    """

    sentence: PronounSentence
    layers: tuple[int, ...]
    probabilities: tuple[float, ...]
    attributions: Mapping[str, Floats]
    leans: Mapping[str, Floats]
    saturated: NDArray[np.bool_]

    @property
    def pronoun_lean(self) -> float:
        """The same for the two pronouns' probabilities."""
        first, second = (np.array([p]) for p in self.probabilities[:2])
        return float(lean(first, second)[0])

    @property
    def odds(self) -> float:
        """log of the first pronoun's probability over the second's."""
        return float(np.log(self.probabilities[0]) - np.log(self.probabilities[1]))

    @property
    def unseen(self) -> tuple[str, ...]:
        """Antecedents that stand after the pronoun, where a causal model cannot see them."""
        missing = np.isnan(next(iter(self.attributions.values()))[0])
        return tuple(w for w, no in zip(self.sentence.antecedents, missing, strict=True) if no)


@dataclass(frozen=True, eq=False)
class _Encoded:
    """A sentence as the model takes it: token ids, where the antecedents stand, the pronouns."""

    ids: list[int]
    pieces: tuple[list[int], list[int]]
    pronouns: list[int]


@dataclass(frozen=True, kw_only=True)
class PronounReader:
    """A language model, masked or causal, that reads sentences.

    protocol: "sound" opens a causal model's text with a line end, unless its tokenizer begins with
        a token of its own, and adds one-step rollout less a neutral prompt; "paper" takes texts as
        they are and divides rows of flow by their sum.
    """

    model: Any
    tokenizer: Any
    protocol: Protocol = "sound"

    def __post_init__(self) -> None:
        name = type(self.model).__name__
        if not name.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel")):
            raise ModelError(
                f"{name} fills in no word: a masked language model (its name ends in ForMaskedLM) "
                "or a causal one (ForCausalLM, LMHeadModel) is needed."
            )
        if not getattr(self.tokenizer, "is_fast", False):
            raise TokensError(
                f"{type(self.tokenizer).__name__} does not say where its tokens stand in a text, "
                "so antecedents cannot be found; a fast tokenizer (tokenizer.json) is needed."
            )

    @property
    def masked(self) -> bool:
        """True where the model fills a mask, and so sees what stands after it."""
        return type(self.model).__name__.endswith("ForMaskedLM")

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods that are compared; a neutral prompt is made for causal models."""
        methods = {**METHODS, "flow": Flow(normalized=self.protocol == "paper")}
        if not self.masked and self.protocol == "sound":
            methods[LESS_NEUTRAL] = LESS_NEUTRAL_METHOD
        return methods

    def __call__(self, sentences: Sequence[PronounSentence]) -> list[Reading]:
        """Every sentence; equal ones are read once."""
        distinct = list(dict.fromkeys(sentences))
        encoded = [self._encode(sentence) for sentence in distinct]
        readings: dict[PronounSentence, Reading] = {}
        for start in range(0, len(distinct), _BATCH):
            part = slice(start, start + _BATCH)
            batch = self._read(distinct[part], encoded[part])
            readings.update(zip(distinct[part], batch, strict=True))
            tell("reading", len(readings), len(distinct))
        return [readings[sentence] for sentence in sentences]

    def _read(
        self, sentences: Sequence[PronounSentence], encoded: Sequence[_Encoded]
    ) -> list[Reading]:
        passes = Passes.over((self.model, self.tokenizer), _BATCH)
        rows = [{name: x[0].numpy() for name, x in padded([s.ids]).items()} for s in encoded]
        answers = passes.read(rows, lambda k, scores: _answer(scores, encoded[k].pronouns))
        inputs = padded([one.ids for one in encoded])
        traces = capture((self.model, self.tokenizer), [inputs], heads="mean")
        neutral: Sequence[AttentionTrace | None] = [None] * len(traces)
        if LESS_NEUTRAL in self.methods:
            neutral = neutral_traces(self.model, self.tokenizer, traces)
        return [
            self._reading(sentence, one, trace, other, *answer)
            for sentence, one, trace, other, answer in zip(
                sentences, encoded, traces, neutral, answers, strict=True
            )
        ]

    def _reading(
        self,
        sentence: PronounSentence,
        encoded: _Encoded,
        trace: AttentionTrace,
        neutral: AttentionTrace | None,
        row: int,
        probabilities: tuple[float, ...],
    ) -> Reading:
        attributions, leans = {}, {}
        pieces = encoded.pieces
        saturated = np.zeros(len(trace.layers), dtype=bool)
        for name, method in self.methods.items():
            result = _on_antecedents(method, trace, row, pieces)
            values = _summed(result, pieces)
            if name == LESS_NEUTRAL and neutral is not None:
                values = values - _summed(_on_antecedents(method, neutral, row, pieces), pieces)
            attributions[name] = values
            leans[name] = lean(values[:, 0], values[:, 1], _tie(name, method, pieces))
            saturated |= _saturated(result, pieces)
        return Reading(sentence, trace.layers, probabilities, attributions, leans, saturated)

    # -- texts --------------------------------------------------------------------------------

    def _encode(self, sentence: PronounSentence) -> _Encoded:
        text = self._text(sentence)
        tokens = self.tokenizer(text, return_offsets_mapping=True)
        places = [tuple(span) for span in tokens["offset_mapping"]]
        first, second = (_pieces(places, occurrences(text, w)) for w in sentence.antecedents)
        pronouns = [self._pronoun_id(sentence, text, word) for word in sentence.pronouns]
        return _Encoded(list(tokens["input_ids"]), (first, second), pronouns)

    def _text(self, sentence: PronounSentence) -> str:
        if self.masked:
            if not sentence.has_place:
                raise TokensError(
                    f"{type(self.model).__name__} fills a mask, and {sentence.text!r} has none; "
                    f"write {PLACE} where the pronoun stands."
                )
            return sentence.text.replace(PLACE, str(self.tokenizer.mask_token))
        if not sentence.before:
            raise TokensError(
                f"Nothing stands before the pronoun in {sentence.text!r}, and a causal model sees "
                "only that; use a masked model."
            )
        return self._opening() + sentence.before

    def _opening(self) -> str:
        first = self.tokenizer("a")["input_ids"][0]
        own = first in set(self.tokenizer.all_special_ids)
        return "" if own or self.protocol == "paper" else _OPENING

    def _pronoun_id(self, sentence: PronounSentence, text: str, pronoun: str) -> int:
        """The token a pronoun is in its place: the one token that the text with it has more, or
        has instead of the mask.
        """
        before = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        if self.masked:
            filled = sentence.text.replace(PLACE, pronoun)
            at = before.index(self.tokenizer.mask_token_id)
        else:
            filled, at = f"{text} {pronoun}", len(before)
        after = list(self.tokenizer(filled, add_special_tokens=False)["input_ids"])
        rest = before[at + 1 :]
        same = after[:at] == before[:at] and after[at + 1 :] == rest
        if not same or len(after) != at + 1 + len(rest) or after[at] == self.tokenizer.unk_token_id:
            raise TokensError(
                f"The pronoun {pronoun!r} is not one token of this model in {filled!r}; its "
                "probability cannot be read from one position. Choose words such as his, her, he, "
                "she, him."
            )
        return int(after[at])


def _answer(scores: Scores, pronouns: Sequence[int]) -> tuple[int, tuple[float, ...]]:
    """The position the answer is read from, and the pronouns' probabilities there."""
    shares = scores.logits.double().softmax(dim=-1)
    return scores.position, tuple(float(shares[k]) for k in pronouns)


def _pieces(places: Sequence[tuple[int, ...]], spans: Sequence[tuple[int, int]]) -> list[int]:
    """Tokens that cover a word of the text, none where the model is not shown it."""
    return [
        k
        for k, (start, end) in enumerate(places)
        if any(start < last and first < end for first, last in spans)
    ]


def _tie(name: str, method: Method, pieces: tuple[list[int], list[int]]) -> float:
    """A flow is certain to its tolerance, sums over pieces to as many times that."""
    if isinstance(method, Flow):
        return method.tolerance * max(1, *map(len, pieces))
    return _ABSOLUTE if name == LESS_NEUTRAL else 0.0


@quiet_about_limits()
def _on_antecedents(
    method: Method, trace: AttentionTrace, row: int, pieces: tuple[list[int], list[int]]
) -> Attribution:
    """The row over all sources, or, where each is a problem of its own, over those asked for."""
    sources = sorted({*pieces[0], *pieces[1]})
    if isinstance(method, Flow) and not method.normalized and sources:
        return method(trace, targets=[row], sources=sources)
    return method(trace, targets=[row])


def _summed(result: Attribution, pieces: tuple[list[int], list[int]]) -> Floats:
    """layer × antecedent: what falls on its word pieces, nan where it has none."""
    sums = np.full((len(result.layers), 2), np.nan)
    for k, word in enumerate(pieces):
        if word:
            sums[:, k] = result.values[:, 0, _columns(result, word)].sum(axis=1)
    return sums


def _saturated(result: Attribution, pieces: tuple[list[int], list[int]]) -> NDArray[np.bool_]:
    """Layers at which every piece of both antecedents gets what it would from any target."""
    if result.saturated is None:
        return np.zeros(len(result.layers), dtype=bool)
    cells = result.saturated[:, 0, _columns(result, [*pieces[0], *pieces[1]])]
    return np.asarray(cells.all(axis=1), dtype=bool)


def _columns(result: Attribution, positions: Sequence[int]) -> list[int]:
    return [result.sources.positions.index(position) for position in positions]
