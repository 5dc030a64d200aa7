"""Encoder–decoders by default: the strongest words are blanked, and that joins the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow import BalancedGradient
from attnflow.attribution.operations import WORDS_MEASURED, step_in_words
from attnflow.corpus import Settings
from attnflow.evaluation.subjects.rankings import CompletionCase, named_rankings
from attnflow.explainers import measured_words
from attnflow.explainers.ablation import ablate
from attnflow.explainers.batches import CompletionBatches, PromptText, TextBatches
from attnflow.explainers.comparison import compare
from attnflow.explainers.defaults import default_method
from attnflow.explainers.measured_words import measure_words
from attnflow.explainers.sources import Sources
from attnflow.hosts.load import as_model
from families import FAMILIES
from test_answers import BOTH_SIDES, tokenizer_with
from test_rereading import result_of

TEXT = "w7 w12 w30 w9 w41 w5"
WORDS = list(range(6))
ONE_PASS = BalancedGradient(readings="keys+inputs", score="log-odds")


def pair(name: str = "T5") -> tuple[Any, Any]:
    family, before, after = BOTH_SIDES[name]
    model = next(each for each in FAMILIES if each.name == family).build()
    return model, tokenizer_with(before, after)


def test_half_of_a_share_is_as_measured() -> None:
    """By hand: what three words have together is divided as they cost, and half of it as before."""
    result = result_of([[[4.0, 2.0, -1.0, 3.0]]])
    words = Sources(("a", "b", "c"), ((0,), (1, 2), (3,)), 4)
    log_odds = {(): 2.0, (0,): 1.0, (1, 2): -1.0, (3,): 2.5}
    asked: list[frozenset[int]] = []

    def read(sets: Sequence[frozenset[int]]) -> Any:
        asked.extend(sets)
        odds = np.array([[log_odds[tuple(sorted(each))]] for each in sets])
        return -np.log1p(np.exp(-odds))

    found = measure_words(result, words, [([0], [0])], read)
    goals = 0.5 * 8 * np.array([1.0, 3.0, -0.5]) / 4.5 + 0.5 * np.array([4.0, 1.0, 3.0])
    sums = found.values[0, 0][[0, 1, 3]] + [0, found.values[0, 0, 2], 0]
    assert sums == pytest.approx(goals)
    assert found.values[0, 0, 1] / found.values[0, 0, 2] == pytest.approx(-2)  # as it was within
    assert asked == [frozenset(), frozenset({0}), frozenset({1, 2}), frozenset({3})]
    assert step_in_words(found.steps[-1]) == "strongest words measured, too"


def test_only_the_strongest_words_of_a_row_are_blanked() -> None:
    """Two rows with their own strongest: all are read once, and each row changes in its own."""
    values = np.arange(24.0).reshape(2, 12)[::-1] * [[1.0], [-1.0]]
    result = result_of([values.tolist()])
    words = Sources(tuple("abcdefghijkl"), tuple((k,) for k in range(12)), 12)
    asked: list[frozenset[int]] = []

    def read(sets: Sequence[frozenset[int]]) -> Any:
        asked.extend(sets)
        return np.array([[-1.0 - len(each), -1.0 - 2 * len(each)] for each in sets])

    found = measure_words(result, words, [([0], [0]), ([1], [1])], read).values[0]
    changed = [set(np.flatnonzero(found[row] != values[row])) for row in (0, 1)]
    assert asked[0] == frozenset()
    assert asked[1:] == [frozenset({k}) for k in range(12)]
    assert changed[0] <= set(range(4, 12))
    assert changed[1] <= set(range(8))
    assert min(map(len, changed)) >= 6
    assert found[0].sum() == pytest.approx(values[0].sum())


def blanked(model: Any, tokenizer: Any, words: Sequence[int], ids: list[int], blank: int) -> Any:
    """The log odds of each written token without some words, by the model alone."""
    encoded = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    first = next(k for k, token in enumerate(encoded[0].tolist()) if token > 3)  # behind the frame
    encoded[0, [first + k for k in words]] = blank
    decoder = torch.tensor([[model.config.decoder_start_token_id, *ids[:-1]]])
    with torch.no_grad():
        logits = model(input_ids=encoded, decoder_input_ids=decoder).logits[0].double()
    log_probs = logits.log_softmax(-1)[range(len(ids)), ids]
    return (log_probs - torch.log1p(-log_probs.exp())).numpy(), first


def joined(values: Any, losses: Any) -> Any:
    """What the words of a row must come to, written out."""
    size = np.abs(values).sum()
    if losses.max() <= 0:  # no word is worth anything, so all stays as it was
        return values
    return 0.5 * size * losses / np.abs(losses).sum() + 0.5 * values


@pytest.mark.parametrize("name", BOTH_SIDES)
def test_generate_joins_what_each_word_costs_each_token(name: str) -> None:
    model, tokenizer = pair(name)
    ids = [9, 33, 20]
    result = attnflow.generate((model, tokenizer), TEXT, completion=ids, check=False)
    plain = attnflow.generate((model, tokenizer), TEXT, ONE_PASS, completion=ids, check=False)
    assert result.steps == (WORDS_MEASURED,)
    assert plain.steps == ()
    assert result.method == ONE_PASS
    whole, first = blanked(model, tokenizer, [], ids, 3)
    without = np.stack([blanked(model, tokenizer, [k], ids, 3)[0] for k in WORDS])
    columns, changes = [first + k for k in WORDS], []
    for row in range(len(ids)):
        losses = whole[row] - without[:, row]
        before = plain.values[-1, row, columns]
        expected, size = joined(before, losses), np.abs(before).sum()
        # losses of a tiny model are so small that rounding shows
        assert result.values[-1, row, columns] == pytest.approx(expected, abs=0.01 * size)
        changes.append(np.abs(expected - before).max() / size)
    assert max(changes) > 0.02  # or nothing is joined


@pytest.mark.parametrize("name", BOTH_SIDES)
def test_every_door_explains_a_text_alike(name: str) -> None:
    """`explain`, its report and a corpus give the answer's row, with the words measured."""
    model, tokenizer = pair(name)
    result = attnflow.explain((model, tokenizer), TEXT, check=False)
    plain = attnflow.explain((model, tokenizer), TEXT, ONE_PASS, check=False)
    assert result.steps == (WORDS_MEASURED,)
    assert plain.steps == ()
    trace = attnflow.capture((model, tokenizer), TEXT, heads="mean")
    assert trace.prediction is not None
    ids = [tokenizer.convert_tokens_to_ids(trace.prediction.label)]
    if name == "T5":  # the others begin with more than a start token
        whole, first = blanked(model, tokenizer, [], ids, 3)
        without = np.stack([blanked(model, tokenizer, [k], ids, 3)[0] for k in WORDS])
        columns = [first + k for k in WORDS]
        expected = joined(plain.values[-1, 0, columns], (whole - without)[:, 0])
        assert result.values[-1, 0, columns] == pytest.approx(expected, rel=1e-3, abs=1e-6)
    loaded = as_model((model, tokenizer))
    ((many,),) = TextBatches(loaded).explain([TEXT])
    assert many.values[-1] == pytest.approx(result.values[-1], abs=1e-6)
    every = attnflow.explain(loaded, TEXT, targets="all", check=False)
    answer = result.targets.positions[0]
    assert every.row(answer).values == pytest.approx(result.values, abs=1e-6)
    report = compare(loaded, TEXT, check=False).results[0]
    assert report.row(answer).values[-1] == pytest.approx(result.values[-1], abs=1e-6)
    Settings(methods=[result.method])  # a corpus may be asked for it by name


def test_prompts_of_a_corpus_are_explained_as_by_generate() -> None:
    model, tokenizer = pair()
    loaded = as_model((model, tokenizer))
    one = attnflow.generate(loaded, TEXT, completion="w9 w20", check=False)
    ((many,),) = CompletionBatches(loaded).explain([PromptText(TEXT, "w9 w20")])
    assert many.values[-1] == pytest.approx(one.values[-1], abs=1e-6)


def test_what_is_asked_for_by_name_is_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is a contrast, and a model whose tokenizer has nothing to blank with."""
    model, tokenizer = pair()

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr(measured_words, "scale_as_measured", refused)
    attnflow.explain((model, tokenizer), TEXT, ONE_PASS, check=False)
    attnflow.explain((model, tokenizer), TEXT, contrast="w9", check=False)
    attnflow.generate((model, tokenizer), TEXT, ONE_PASS, completion="w9", check=False)
    options: dict[str, Any] = {"targets": ["w20"], "contrast": "w9", "check": False}
    attnflow.generate((model, tokenizer), TEXT, completion="w9 w20", **options)
    with pytest.raises(AssertionError, match="measured"):
        attnflow.explain((model, tokenizer), TEXT, check=False)
    tokenizer.unk_token = None
    attnflow.explain((model, tokenizer), TEXT, check=False)
    attnflow.generate((model, tokenizer), TEXT, completion=[9], check=False)


def test_an_evaluation_takes_words_away_as_its_judge_does() -> None:
    """The default is measured by what LDS is taken over, like every method that runs again."""
    loaded = as_model(pair())
    ids = loaded.tokenizer(TEXT)["input_ids"]
    words = Sources(tuple("abcdef"), tuple((k,) for k in WORDS), len(ids))
    hidden = CompletionCase(loaded, ablate(loaded, ids, [9, 33]), words)
    replaced = replace(hidden, ablation=ablate(loaded, ids, [9, 33], by="replace"))
    default = named_rankings(["default"])["default"]
    plain = words.scores(hidden.attribution(default_method(loaded)))
    for case in (hidden, replaced):
        whole, *without = case.ablation.log_probs([(), *words.positions])
        losses = [odds(whole) - odds(value) for value in without]
        expected = joined(plain, np.array(losses))
        assert words.scores(default(case)) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert words.scores(default(hidden)) != pytest.approx(words.scores(default(replaced)), abs=1e-3)


def odds(log_prob: float) -> float:
    return float(log_prob - np.log1p(-np.exp(log_prob)))
