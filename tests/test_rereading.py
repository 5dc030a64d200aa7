"""What documents are worth to an answer: held against plain passes and plain least squares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow import Attribution, Raw, Tokens
from attnflow.attribution.operations import step_in_words
from attnflow.attribution.passages import passages_of
from attnflow.explainers.questions import question_text
from attnflow.explainers.rereading import (
    effects,
    groups_to_hide,
    measure_documents,
    measure_parts,
    sets_to_hide,
)
from attnflow.testing import tiny_decoder

TEXTS = {
    "a.txt": "the keys to the cabinets . the author is old .",
    "b.txt": "the authors of the book are here .",
    "c.txt": "the book is old .",
}
MEASURED = 0.75


def result_of(values: Any) -> Attribution:
    columns = np.asarray(values).shape[-1]
    rows = np.asarray(values).shape[-2]
    targets = Tokens(tuple(map(str, range(rows))), tuple(range(columns, columns + rows)))
    sources = Tokens(tuple(map(str, range(columns))))
    return Attribution(np.asarray(values, float), (1,), targets, sources, Raw())


def plain_effects(sets: Sequence[Sequence[int]], response: Any, count: int) -> Any:
    """Least squares with every set that hides one part, or none, four times (a weight of two)."""
    rows, values = [], []
    for hidden, value in zip(sets, response, strict=True):
        row = [0.0 if part in hidden else 1.0 for part in range(count)] + [1.0]
        for _ in range(4 if len(hidden) <= 1 else 1):
            rows.append(row)
            values.append(value)
    return np.linalg.pinv(np.array(rows)) @ np.array(values)


def test_shares_are_those_of_plain_passes() -> None:
    """Three documents, all eight sets of them, each by a pass whose mask takes the tokens away."""
    model, tokenizer = tiny_decoder()
    asked = {"documents": TEXTS, "max_new_tokens": 4}
    answer = attnflow.ask((model, tokenizer), "the keys", **asked)
    unchecked = attnflow.ask((model, tokenizer), "the keys", **asked, check=False)
    ids, length = (
        answer.result.provenance["completion_ids"],
        answer.result.provenance["prompt_length"],
    )
    text, _ = question_text("the keys", answer.documents, chat=False)
    prompt = tokenizer(text)["input_ids"]
    columns = [each.columns for each in passages_of(answer.result)]
    places = [[answer.result.sources.positions[k] for k in each] for each in columns]
    start = max(max(each) for each in places) + 1

    def read(hidden: Sequence[int]) -> float:
        count = length + len(ids) - 1
        seen = torch.ones(count, count, dtype=torch.bool).tril()
        seen[start:, [place for part in hidden for place in places[part]]] = False
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([[*prompt, *ids[:-1]]]),
                attention_mask=torch.zeros(1, 1, count, count).masked_fill(~seen, -1e30),
                position_ids=torch.arange(count)[None],
            ).logits[0, -len(ids) :]
        rows = logits.log_softmax(-1).double()
        total = rows.gather(-1, torch.tensor(ids)[:, None]).sum()
        return float(total - torch.log1p(-total.exp()))

    sets = [each for size in range(4) for each in combinations(range(3), size)]
    worth = plain_effects(sets, [read(each) for each in sets], 3)[:3]
    assert worth.max() > 0  # or nothing would change
    before = unchecked.result.values[-1, 0]
    sums = np.array([before[list(each)].sum() for each in columns])
    size = np.abs(sums).sum()
    expected = MEASURED * size * worth / np.abs(worth).sum() + (1 - MEASURED) * sums
    after = answer.result.values[-1, 0]
    found = np.array([after[list(each)].sum() for each in columns])
    assert found == pytest.approx(expected, rel=1e-3)
    others = [k for k in range(len(after)) if not any(k in each for each in columns)]
    assert after[others] == pytest.approx(before[others])
    shares = {source.name: source.share for source in answer.statements[0].sources}
    positive = np.maximum(expected, 0) / np.maximum(expected, 0).sum()
    assert [shares[name] for name in TEXTS] == pytest.approx(positive.tolist(), abs=1e-3)
    assert step_in_words(answer.result.steps[-1]) == "documents measured, too"


def test_two_documents_of_which_either_is_enough_both_count() -> None:
    """The gradients see one of the copies; each hidden alone would change nothing."""
    result = result_of([[[0.0, 7.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.5]]])
    parts = [[0, 1], [2, 3], [4], [5], [6]]

    def read(sets: Sequence[frozenset[int]]) -> Any:
        both_gone = [bool({0, 1} <= each and {2, 3} <= each) for each in sets]
        return np.array([[-6.0 if gone else -0.1] for gone in both_gone])

    after = measure_parts(result, parts, [([0], [0])], read).values[0, 0]
    first, second, *others = [after[part].sum() for part in parts]
    assert second > 2  # by the gradients alone 1 of 8
    assert first > second
    assert np.abs(others).max() < second / 2
    assert after[7] == 0.5  # the question is no document


def test_a_row_keeps_its_part_of_a_statement() -> None:
    """Two rows make one statement; a third, of another, stays as it was."""
    values = [[[1.0, 3.0, 1.0, 1.0], [2.0, 2.0, 0.5, 0.5], [1.0, 1.0, 1.0, 1.0]]]
    parts = [[0, 1], [2, 3]]

    def read(sets: Sequence[frozenset[int]]) -> Any:
        gone = [[-5.0 * (0 in each), -5.0 * (0 in each), -1.0] for each in sets]
        return np.array(gone) - 0.1

    statements = [([0, 1], [0, 1]), ([2], [2])]
    after = measure_parts(result_of(values), parts, statements, read).values[0]
    grown = after[:2, :2] / np.array(values)[0, :2, :2]
    assert grown == pytest.approx(np.full((2, 2), grown[0, 0]))  # where in it stays as it was
    assert grown[0, 0] > 1
    assert after[:2].sum() == pytest.approx(11)
    assert after[2] == pytest.approx([1, 1, 1, 1])  # nothing is worth anything to it


def test_what_no_token_says_is_spread() -> None:
    """All tokens of the second document speak against what hiding it shows."""
    result = result_of([[[2.0, 2.0, -1.0, -1.0]]])

    def read(sets: Sequence[frozenset[int]]) -> Any:
        return np.array([[-4.0 * (2 in each) - 0.1] for each in sets])

    after = measure_parts(result, [[0, 1], [2, 3]], [([0], [0])], read).values[0, 0]
    assert after[2] == after[3] > 1.5
    assert after[0] == after[1] > 0


def test_of_many_documents_the_weakest_are_hidden_together() -> None:
    sums = np.zeros((2, 20))
    sums[0, 4], sums[1, 19] = 5.0, 5.0  # each the strongest of one statement
    sums[0, :4] = 0.1
    groups = groups_to_hide(sums)
    assert len(groups) == 16
    assert {(4,), (19,)} < set(groups)
    assert sorted(k for group in groups for k in group) == list(range(20))
    assert groups_to_hide(np.ones((1, 16))) == [(k,) for k in range(16)]


@pytest.mark.parametrize("count", [2, 3, 5, 16])
def test_sets_are_of_each_part_and_of_halves(count: int) -> None:
    sets = sets_to_hide(count)
    every = set(range(count))
    assert len(sets) == len(set(sets)) <= 2 + count + 8
    assert {(), tuple(every), *((k,) for k in every)} <= set(sets)
    for hidden in sets:
        assert tuple(sorted(every - set(hidden))) in sets or len(hidden) == 1
    if count <= 3:
        assert len(sets) == 2**count


def test_effects_are_those_of_plain_least_squares() -> None:
    random = np.random.default_rng(3)
    sets = sets_to_hide(6)
    response = random.normal(size=len(sets))
    assert effects(sets, response, 6) == pytest.approx(plain_effects(sets, response, 6)[:6])


def test_one_document_is_measured_by_its_sentences() -> None:
    text = {"a.txt": "the keys are here . the author is old . the book is old ."}
    asked = {"documents": text, "max_new_tokens": 3}
    answer = attnflow.ask(tiny_decoder(), "the keys", **asked)
    before = attnflow.ask(tiny_decoder(), "the keys", **asked, check=False)
    (passage,) = passages_of(answer.result)
    assert len(passage.sentences) > 1
    changed = answer.result.values[-1, 0] - before.result.values[-1, 0]
    inside = [k for sentence in passage.sentences for k in sentence.tokens]
    assert np.abs(changed[inside]).max() > 0
    assert np.delete(changed, inside) == pytest.approx(0)


def test_where_nothing_can_be_hidden_beside_a_cache_shares_stay() -> None:
    """An encoder–decoder has its documents in its encoder. A method by name stays as it is."""

    class Refused:
        class ablation:  # noqa: N801
            hides_beside = False

    provenance = {
        "documents": [["a", 0, 1], ["b", 1, 2]], "prompt_length": 2, "completion_ids": [1],
        "statements": [[0, 1, 0, "x"]],
    }  # fmt: skip
    tokens = Tokens(("x",), (2,)), Tokens(("A", "B"))
    result = Attribution(np.ones((1, 1, 2)), (1,), *tokens, Raw(), provenance=provenance)
    assert measure_documents(result, Refused()) is result  # type: ignore[arg-type]
    asked = {"documents": TEXTS, "max_new_tokens": 3, "method": "rollout"}
    checked = attnflow.ask(tiny_decoder(), "the keys", **asked)
    plain = attnflow.ask(tiny_decoder(), "the keys", **asked, check=False)
    assert np.array_equal(checked.result.values, plain.result.values)
