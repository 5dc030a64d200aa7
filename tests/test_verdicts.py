"""What a statement rests on: each kind of verdict, from a model whose rule is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnflow import Attribution, Raw, Tokens
from attnflow.attribution.passages import Statement
from attnflow.attribution.verdict import Verdict, support_of, telling
from attnflow.errors import InputError
from attnflow.explainers import answer_checks, rereading, verdicts
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.request import Completion
from attnflow.explainers.rereading import Reading
from attnflow.tokens.units import Unit

PLACES = {"a.txt": range(2), "b.txt": range(2, 4), "c.txt": range(4, 6)}
SHARES = {"a.txt": 0.5, "b.txt": 0.3, "c.txt": 0.2}
Rule = Callable[[set[str]], float]


class KnownModel:
    """Its log-probability of the one token follows from which documents it sees, by a rule.

    is_told: documents tell what others say, so that nothing is lost until it is hidden for good.
    """

    completion_ids: tuple[int, ...] = (7,)
    hides_beside = True

    def __init__(self, rule: Rule, is_told: bool = False) -> None:
        self.rule, self.is_told, self.sets = rule, is_told, 0

    def token_log_probs(self, sets: Sequence[Sequence[int]]) -> Any:
        self.sets += len(sets)
        seen = [{name for name, place in PLACES.items() if not {*place} & {*one}} for one in sets]
        return np.array([[self.rule(names)] for names in seen])

    def log_probs_beside(self, sets: Sequence[Sequence[int]], start: int) -> Any:
        assert all(position < start for one in sets for position in one)
        beside = KnownModel(self.rule).token_log_probs
        return beside([()] * len(sets)) if self.is_told else beside(sets)


def judge(
    rule: Rule, monkeypatch: pytest.MonkeyPatch, is_told: bool = False
) -> tuple[Verdict, int]:
    values = [SHARES[name] / len(place) for name, place in PLACES.items() for _ in place]
    values += [0.0] * (6 - len(values))  # what is no document
    result = Attribution(
        np.array([[values]]), (1,), Tokens(("45",), (6,)), Tokens(tuple("abcdef")), Raw(),
        provenance={
            "completion_ids": [7], "prompt_length": 6,
            "documents": [[name, place[0], place[-1] + 1] for name, place in PLACES.items()],
        },
    )  # fmt: skip
    model = KnownModel(rule, is_told)
    monkeypatch.setattr(rereading, "ablate", lambda *_, **__: model)
    loaded: Any = SimpleNamespace(tokenizer=None, calibration=None)
    (verdict,), _ = verdicts.judge_statements(
        result, loaded, Reading(result, loaded, Completion(Prompt([0] * 6), [7]))
    )
    assert verdict is not None
    return verdict, model.sets


CASES: dict[str, tuple[Rule, str, tuple[str, ...]]] = {
    "memory": (lambda _: -0.1, "none", ("a.txt",)),
    "one": (lambda seen: -0.1 if "a.txt" in seen else -8, "rests", ("a.txt, sentence 1",)),
    "a copy": (
        lambda seen: -0.1 if seen & {"a.txt", "b.txt"} else -8, "either", ("a.txt", "b.txt")),
    "a copy further down": (
        lambda seen: -0.1 - 0.01 * ("b.txt" in seen) if seen & {"a.txt", "c.txt"} else -8,
        "either", ("a.txt", "c.txt")),
    "known, but others mislead": (
        lambda seen: -0.1 if "a.txt" in seen else -6 if seen else -1.6, "rests",
        ("a.txt, sentence 1",)),
    "not the one with the largest share": (
        lambda seen: -9 + 2 * ("a.txt" in seen) + 6 * ("b.txt" in seen), "rests",
        ("b.txt, sentence 1",)),
    "half each": (
        lambda seen: -9 + 4 * ("a.txt" in seen) + 3 * ("b.txt" in seen) + 2 * ("c.txt" in seen),
        "together", ("a.txt", "b.txt")),
    "both needed, not the first": (
        lambda seen: -0.1 if {"b.txt", "c.txt"} <= seen else -8, "together",
        ("b.txt", "c.txt")),
    "any document": (lambda seen: -9 + 3 * len(seen), "together", ("a.txt", "b.txt")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_kind_follows_from_what_hiding_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, kind, sources = CASES[name]
    verdict, passes = judge(rule, monkeypatch)
    assert (verdict.kind, verdict.sources) == (kind, sources)
    assert verdict.log_prob == rule(set(PLACES))
    assert verdict.prior == rule(set())
    assert verdict.alone == rule({source.split(",")[0] for source in sources})
    assert (verdict.left < 0.5) is (kind != "none")
    assert (verdict.rests_on_documents > 0.5) is (kind != "none")
    first = "a.txt" in sources[0] and kind in ("none", "rests")
    assert passes <= (4 if first else 9)  # a second round, and a third, only where needed
    assert Verdict.from_dict(verdict.to_dict()) == verdict


@pytest.mark.parametrize(
    ("beside", "kind", "sources"),
    [
        (-1.6, "rests", ("a.txt, sentence 1",)),  # alone it has a fifth of what a.txt gives
        (-1.2, "either", ("a.txt", "b.txt")),
    ],
)
def test_enough_alone_is_what_keeps_a_quarter_of_the_probability(
    beside: float, kind: str, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is likelier than nothing beside a document that says it is no second source."""

    def rule(seen: set[str]) -> float:
        if "a.txt" in seen:
            return -0.03
        return beside if "b.txt" in seen else -3.9 if seen else -5.3

    verdict, passes = judge(rule, monkeypatch)
    assert (verdict.kind, verdict.sources) == (kind, sources)
    assert (verdict.log_prob, verdict.alone) == (-0.03, -0.03)
    assert passes <= 10


def test_the_document_that_carries_it_is_found_below_three_larger_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("a.txt", "b.txt", "c.txt", "d.txt", "e.txt")
    shares = dict(zip(names, (0.4, 0.3, 0.15, 0.1, 0.05), strict=True))
    monkeypatch.setitem(globals(), "SHARES", shares)
    monkeypatch.setitem(
        globals(), "PLACES", {name: range(k, k + 1) for k, name in enumerate(names)}
    )
    verdict, passes = judge(lambda seen: -0.1 if "e.txt" in seen else -8, monkeypatch)
    assert (verdict.kind, verdict.sources) == ("rests", ("e.txt, sentence 1",))
    assert passes <= 4  # it is tried first


def test_a_document_that_the_answer_does_not_read_is_not_hidden_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Needed are one document and any other beside it, so that the first round is not enough."""
    verdict, passes = judge(
        lambda seen: -0.1 if "a.txt" in seen and len(seen) > 1 else -8, monkeypatch
    )
    assert (verdict.kind, verdict.sources) == ("rests", ("a.txt, sentence 1",))
    assert passes == 4  # nothing, all, the first, all others: neither of the two alone


@pytest.mark.parametrize(
    ("rule", "is_told", "kind", "passes"),
    [
        (lambda seen: -0.1 if "a.txt" in seen else -8, False, "rests", 3),
        (lambda seen: -0.1 if "a.txt" in seen else -8, True, "rests", 4),
        (lambda seen: -0.1 if seen else -0.3, False, "none", 3),
        (lambda seen: -2.1 + 2 / 3 * len(seen), False, "none", 4),  # all are of some use
    ],
)
def test_a_sentence_is_hidden_for_good_only_where_hiding_it_from_the_answer_does_not_tell(
    rule: Rule, is_told: bool, kind: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing, all, all others and, where that leaves it open, the sentence are hidden."""
    verdict, count = judge(rule, monkeypatch, is_told)
    assert (verdict.kind, count) == (kind, passes)
    assert verdict.without == pytest.approx(rule({"b.txt", "c.txt"}))


def test_the_word_that_is_told_is_one_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word that tells most stays without the document that another word was read from."""

    class TwoWords(KnownModel):
        completion_ids = (7, 8)

        def token_log_probs(self, sets: Sequence[Sequence[int]]) -> Any:
            hidden = [not set(PLACES["a.txt"]) - set(one) for one in sets]
            nothing = [len(one) == 6 for one in sets]
            return np.array(
                [
                    [-9.0, -4.0] if without_all else [-1.2 - 0.2 * first, -0.5 - 2.5 * first]
                    for first, without_all in zip(hidden, nothing, strict=True)
                ]
            )

        def log_probs_beside(self, sets: Sequence[Sequence[int]], start: int) -> Any:
            return self.token_log_probs(sets)

    values = [[SHARES[name] / len(place) for name, place in PLACES.items() for _ in place]] * 2
    result = Attribution(
        np.array([values]), (1,), Tokens(("Tuesday", "9"), (6, 7)), Tokens(tuple("abcdef")), Raw(),
        provenance={
            "completion_ids": [7, 8], "prompt_length": 6, "statements": [[0, 2, 0, "Tuesday 9"]],
            "documents": [[name, place[0], place[-1] + 1] for name, place in PLACES.items()],
        },
    )  # fmt: skip
    words = [Unit("Tuesday", (0, 7), (0,)), Unit("9", (8, 9), (1,))]
    monkeypatch.setattr(rereading, "ablate", lambda *_, **__: TwoWords(lambda _: 0.0))
    monkeypatch.setattr(verdicts, "_new_words", lambda *_: words)
    loaded: Any = SimpleNamespace(tokenizer=None, calibration=None)
    (verdict,), _ = verdicts.judge_statements(
        result, loaded, Reading(result, loaded, Completion(Prompt([0] * 6), [7, 8]))
    )
    assert verdict is not None
    assert (verdict.claim, verdict.word) == ("rests on a.txt, sentence 1", "9")
    assert (verdict.log_prob, verdict.without) == (-0.5, -3.0)


def test_a_statement_has_no_source_only_where_none_of_its_words_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The word that tells which is weak; one that all documents have is from the documents."""

    class NumberAndUnit(KnownModel):
        completion_ids = (7, 8)

        def token_log_probs(self, sets: Sequence[Sequence[int]]) -> Any:
            seen = [[n for n, p in PLACES.items() if not {*p} & {*one}] for one in sets]
            number = {0: -3.8, 3: -1.0}
            return np.array(
                [[number.get(len(n), -1.6), -0.05 if n else self.rule(set())] for n in seen]
            )

        def log_probs_beside(self, sets: Sequence[Sequence[int]], start: int) -> Any:
            return self.token_log_probs(sets)

    values = [[SHARES[name] / len(place) for name, place in PLACES.items() for _ in place]] * 2
    result = Attribution(
        np.array([values]), (1,), Tokens(("59", "euros"), (6, 7)), Tokens(tuple("abcdef")), Raw(),
        provenance={
            "completion_ids": [7, 8], "prompt_length": 6, "statements": [[0, 2, 0, "59 euros"]],
            "documents": [[name, place[0], place[-1] + 1] for name, place in PLACES.items()],
        },
    )  # fmt: skip
    words = [Unit("59", (0, 2), (0,)), Unit("euros", (3, 8), (1,))]
    monkeypatch.setattr(verdicts, "_new_words", lambda *_: words)
    monkeypatch.setattr(verdicts, "_words_of", lambda _: {"euros"})
    loaded: Any = SimpleNamespace(tokenizer=None, calibration=None)
    kinds = []
    for prior in (-5.0, -0.06):  # the unit is from the documents, or known without them
        model = NumberAndUnit(lambda _, prior=prior: prior)
        monkeypatch.setattr(rereading, "ablate", lambda *_, model=model, **__: model)
        (verdict,), _ = verdicts.judge_statements(
            result, loaded, Reading(result, loaded, Completion(Prompt([0] * 6), [7, 8]))
        )
        assert verdict is not None
        assert verdict.word == "59"
        kinds.append(verdict.kind)
    assert kinds[0] != "none"
    assert kinds[1] == "none"


class HalfHidden:
    """An ablation that loses so many nats without three words and without one: hidden from the
    answer only, and for good.
    """

    keys, prompt_ids, hides_beside = (0,), (0,) * 6, True

    def __init__(self, beside: tuple[float, float], for_good: tuple[float, float]) -> None:
        self.beside, self.for_good, self.passes = beside, for_good, 0

    def token_log_probs(self, sets: Sequence[Sequence[int]]) -> Any:
        self.passes += sum(map(bool, sets))
        return np.array([[-0.1 - {0: 0.0, 3: self.for_good[0]}.get(len(one), self.for_good[1])]
                         for one in sets])  # fmt: skip

    def log_probs_beside(self, sets: Sequence[Sequence[int]], start: int) -> Any:
        assert start == len(self.prompt_ids)
        return HalfHidden(self.beside, self.beside).token_log_probs(sets)


@pytest.mark.parametrize(
    ("beside", "for_good", "kind", "lost", "passes"),
    [
        ((5.0, 2.0), (6.0, 3.0), "rests", 2.0, 0),
        ((5.0, 0.8), (6.0, 0.1), "together", 5.0, 1),
        ((0.0, 2.0), (6.0, 3.0), "rests", 2.0, 1),  # the rest of the prompt has read the words
        ((0.8, 0.0), (0.3, 0.0), "partly", 0.3, 1),
        ((0.0, 0.0), (0.0, 0.0), "none", 0.0, 1),
    ],
)
def test_words_are_hidden_for_good_where_hiding_them_from_the_answer_does_not_tell(
    beside: tuple[float, float],
    for_good: tuple[float, float],
    kind: str,
    lost: float,
    passes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = Attribution(
        np.array([[[0.0, 0.4, 0.3, 0.2, 0.0, 0.0]]]), (1,), Tokens(("45",), (6,)),
        Tokens(tuple("abcdef")), Raw(), provenance={"log_probs": [-0.1]},
    )  # fmt: skip
    ablation = HalfHidden(beside, for_good)
    monkeypatch.setattr(rereading, "ablate", lambda *_, **__: ablation)
    loaded: Any = SimpleNamespace(tokenizer=None, facts=SimpleNamespace(encoder_decoder=False))
    verdict = answer_checks.judge_completion(result, loaded, Completion(Prompt([0] * 6), [7]))
    assert verdict is not None
    assert (verdict.kind, ablation.passes) == (kind, passes)
    assert verdict.without == pytest.approx(-0.1 - lost)


def test_what_several_statements_ask_for_is_read_in_the_same_passes() -> None:
    rounds: list[list[frozenset[int]]] = []
    reading: Any = SimpleNamespace(read=rounds.append)

    def judging(*numbers: int) -> verdicts.Judging:
        for number in numbers:
            yield [frozenset({number})]
        return Verdict("none", ("a.txt",), len(numbers), log_prob=-1.0, without=-1.0)

    first, between, last = verdicts._judge_together([judging(1, 2), None, judging(3)], reading)
    assert rounds == [[{1}, {3}], [{2}], []]
    assert [each and each.tokens for each in (first, between, last)] == [2, None, 1]


def test_judged_are_words_that_the_question_does_not_have() -> None:
    class Names:
        names = ("Is", "Ġthe", "Ġnotice", 'Ġ"', "4", "5", '",', "Ġor", "ĠLonger", "?")

        def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
            return [self.names[k] for k in ids]

    model: Any = SimpleNamespace(tokenizer=Names())
    asked, answer = [0, 1, 2, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9]  # the last of the prompt is hidden
    words = verdicts._new_words(model, asked, answer, frozenset({3}))
    assert [(word.text, word.tokens) for word in words] == [
        ('"45",', (3, 4)), ("or", (6,)), ("Longer?", (7,))
    ]  # fmt: skip
    asked = [0, 1, 2, 8]
    assert len(verdicts._new_words(model, asked, answer, frozenset())) == 2
    model.tokenizer.names = ("Is", "Ġthe", "Ċ", "Os", "lo")  # "Oslo" alone: no mark in its pieces
    (word,) = verdicts._new_words(model, [0, 1, 2], [3, 4], frozenset())
    assert (word.text, word.tokens) == ("Oslo", (0, 1))


def test_a_word_that_all_documents_have_tells_less_of_which() -> None:
    """Of "59 euros" the number is judged where each document has "euros" and one the number."""
    words = [Unit("59", (0, 2), (0,)), Unit("euros,", (3, 9), (1,))]
    every = frozenset({0})
    known: Any = SimpleNamespace(
        of=lambda tokens, hidden: {0: (-2.0, -7.0), 1: (-0.1, -5.0)}[tokens[0]][len(hidden)]
    )

    def judged(holding: dict[str, int]) -> list[str]:
        one = Statement("59 euros", (0, 1), (), tokens=(0, 1))
        return [word.text for word in verdicts._telling_words(one, words, known, every, holding)]

    assert judged({}) == ["euros,"]  # it is lost for certain, and the number was a guess
    assert judged({"euros": 2, "59": 1}) == ["euros,", "59"]
    assert judged({"euros": 4, "59": 1}) == ["59", "euros,"]


def test_an_unlikely_word_tells_less() -> None:
    assert telling(math.log(0.64), math.log(0.16)) == pytest.approx(0.8 * math.log(4))
    assert telling(math.log(0.01), math.log(0.0025)) == pytest.approx(0.1 * math.log(4))
    assert support_of(-0.5, -0.5, -0.5, -3.5) == pytest.approx(telling(-0.5, -3.5))
    assert support_of(-0.5, -2.5, -9.0, -3.5) == pytest.approx(telling(-0.5, -2.5))


def test_wrong_verdicts_are_refused() -> None:
    with pytest.raises(InputError, match="maybe"):
        Verdict("maybe", ("a.txt",), 1, -1.0, -1.0, -1.0, -1.0)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        Verdict("none", (), 1, -1.0, -1.0, -1.0, -1.0)
