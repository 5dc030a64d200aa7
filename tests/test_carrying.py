"""Shares carried on through generated text, against following every path by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest

from attnflow import Attribution, Raw, Tokens, generate
from attnflow.attribution.carrying import INSERTED, Step, carry_on
from attnflow.attribution.passages import MESSAGES
from attnflow.errors import InputError, MethodError
from attnflow.explainers import gradient_rows
from attnflow.explainers.completions import carry_to_spans
from attnflow.hosts.transformers import row_gradients
from attnflow.testing import tiny_decoder

PROMPT = "the keys to the cabinets . the author is old ."
COMPLETION = "the keys of the author . the cabinets is old . the keys"


def random_result(
    prompt: int = 3, new: int = 6, given: tuple[int, int] | None = None, seed: int = 0
) -> Attribution:
    """Rows of random shares; `given` are columns among the generated that nobody wrote."""
    rng = np.random.default_rng(seed)
    length = prompt + new - 1
    tool = range(*given) if given else range(0)
    positions = [k for k in range(prompt, prompt + new) if k not in tool]
    values = np.zeros((1, len(positions), length))
    for row, position in enumerate(positions):
        values[0, row, :position] = rng.random(position)
    names = [f"Ġw{k}" for k in range(prompt + new)]
    return Attribution(
        values,
        (1,),
        Tokens(tuple(names[p] for p in positions), tuple(positions)),
        Tokens(tuple(names[:length])),
        Raw(),
        provenance={"prompt_length": prompt, INSERTED: [list(given)] if given else []},
    )


def paths(result: Attribution, row: int) -> Iterator[tuple[int, float]]:
    """Every way back from a row: the given column it ends at, and the product of its shares."""
    row_of = {position: k for k, position in enumerate(result.targets.positions)}
    shares = result.values[0, row] / result.values[0, row].sum()
    for column, share in enumerate(shares.tolist()):
        if share == 0:
            continue
        if column in row_of:
            for end, rest in paths(result, row_of[column]):
                yield end, share * rest
        else:
            yield column, share


@pytest.mark.parametrize("given", [None, (5, 7)])
def test_every_path_followed_by_hand(given: tuple[int, int] | None) -> None:
    result = random_result(given=given)
    carried = result.carried()
    assert set(carried.sources.positions) == {0, 1, 2, *range(*(given or (0, 0)))}
    for row in range(len(result.targets)):
        expected = dict.fromkeys(carried.sources.positions, 0.0)
        for column, product in paths(result, row):
            expected[column] += product * result.values[0, row].sum()
        np.testing.assert_allclose(
            carried.values[0, row], list(expected.values()), rtol=0, atol=1e-9
        )


def test_against_the_paths_that_networkx_lists() -> None:
    result = random_result(prompt=2, new=5, seed=3)
    graph = nx.DiGraph()
    for row, position in enumerate(result.targets.positions):
        shares = result.values[0, row] / result.values[0, row].sum()
        graph.add_weighted_edges_from((position, k, share) for k, share in enumerate(shares))
    carried = result.carried().normalize()
    for column in (0, 1):
        ways = nx.all_simple_edge_paths(graph, 6, column)
        total = sum(np.prod([graph.edges[edge]["weight"] for edge in way]) for way in ways)
        assert carried.values[0, 4, column] == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("method", [None, "rollout", "raw", "alti"])
def test_rows_of_a_model_keep_their_sums(method: str | None) -> None:
    result = generate(tiny_decoder(), PROMPT, method, completion=COMPLETION, sources="all")
    carried = result.carried()
    assert carried.values.shape == (2, 13, 11)
    np.testing.assert_allclose(carried.values.sum(-1), result.values.sum(-1), rtol=0, atol=1e-9)
    short = generate(tiny_decoder(), PROMPT, method, completion=COMPLETION)
    assert (carried.values >= short.values - 1e-6).all()  # what fell on the prompt stays there
    assert carried.steps[-1] == "carried()"
    assert "carried" in carried.title


def test_blocks_are_solved_as_one_system() -> None:
    rng = np.random.default_rng(5)
    given, written = rng.random((700, 4)), np.tril(rng.random((700, 700)), -1)
    sums = (given.sum(1) + written.sum(1))[:, None]
    given, written = given / sums, written / sums
    limits = [0, 1, 300, 556, 700]
    blocks = [(given[a:b], written[a:b, :b]) for a, b in pairwise(limits)]
    expected = np.zeros((700, 4))
    for row in range(700):
        expected[row] = given[row] + written[row, :row] @ expected[:row]
    np.testing.assert_allclose(carry_on(blocks), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(expected.sum(axis=1), 1, rtol=0, atol=1e-12)


def test_what_reaches_a_token_that_draws_on_nothing_is_elsewhere() -> None:
    result = random_result()
    values = result.values.copy()
    values[0, 1] = 0.0
    values[0, 2] = [0, 0, 0, 0, 2.0, 0, 0, 0]  # all of it on the token that draws on nothing
    carried = replace(result, values=values).carried()
    assert carried.elsewhere is not None
    assert carried.values[0, 2].sum() == 0
    assert carried.elsewhere[0, 2] == 2
    total = carried.values.sum(-1) + carried.elsewhere
    np.testing.assert_allclose(total, values.sum(-1), rtol=0, atol=1e-9)


def shares_of(step: Step) -> None:
    """Every step hands on what it got."""
    if step.steps:
        assert sum(each.share for each in step.steps) + step.rest == pytest.approx(step.share)
    for each in step.steps:
        assert each.is_written == bool(each.steps) or each.share < 0.05
        shares_of(each)


def ends(step: Step) -> dict[str, float]:
    """The shares of what was given, over all ways that a path has."""
    total: dict[str, float] = {}
    for each in step.steps:
        for place, share in ({each.place: each.share} if not each.steps else ends(each)).items():
            total[place] = total.get(place, 0.0) + share
    return total


def marked(result: Attribution, marks: list[list[str | int]]) -> Attribution:
    return replace(result, provenance={**result.provenance, MESSAGES: marks})


def test_a_path_hands_on_all_it_got_and_ends_where_carried_says() -> None:
    result = marked(random_result(), [["message 1 (system)", 0, 2], ["message 2 (user)", 2, 3]])
    path = result.follow([3, 5])
    shares_of(path)
    rows = result.carried().values[0, [3, 5]].sum(axis=0)
    total = {
        "message 1 (system), sentence 1": rows[:2].sum(),
        "message 2 (user), sentence 1": rows[2],
    }
    assert ends(path) == pytest.approx({name: sum_ / rows.sum() for name, sum_ in total.items()})
    assert path.steps[0].place == "what it wrote, sentence 1"  # four of five columns
    assert path.lines[0].startswith("← what it wrote, sentence 1 (")
    assert path.lines[1].startswith("    ← message ")
    assert path.to_dict()["steps"][0]["place"] == path.strongest[0].place


def test_a_path_of_a_model_conserves_shares() -> None:
    result = generate(tiny_decoder(), PROMPT, completion=COMPLETION, sources="all")
    for rows in (None, [12], [2, 3, 7]):
        path = result.follow(rows)
        shares_of(path)
        assert sum(step.share for step in path.steps) + path.rest == pytest.approx(1)


def test_the_place_of_a_tool_result_is_its_own() -> None:
    result = random_result(prompt=3, new=9, given=(5, 8))
    marks = [
        ["message 1 (user)", 0, 3],
        ["message 2 (assistant)", 3, 5],
        ["message 3 (tool)", 5, 8],
    ]
    result = marked(result, marks)
    path = result.follow([len(result.targets) - 1])
    shares_of(path)
    assert {"message 3 (tool), sentence 1", "message 1 (user), sentence 1"} <= ends(path).keys()
    assert any("message 2 (assistant), sentence 1" in line for line in path.lines)
    carried = result.carried()
    assert carried.provenance[MESSAGES] == [["message 1 (user)", 0, 3], ["message 3 (tool)", 3, 6]]


def test_what_cannot_be_carried_says_why() -> None:
    model = tiny_decoder()
    with pytest.raises(InputError, match='sources="all"'):
        generate(model, PROMPT, completion=COMPLETION).carried()
    with pytest.raises(InputError, match="without targets="):
        generate(model, PROMPT, completion=COMPLETION, sources="all", targets="answer").carried()
    signed = random_result()
    with pytest.raises(MethodError, match="negative values"):
        replace(signed, values=signed.values - 0.5).carried()
    with pytest.raises(InputError, match="one decoder reads and writes"):
        replace(
            signed, targets=Tokens(signed.targets.texts[::-1], signed.targets.positions)
        ).carried()


def test_spans_in_parts_are_those_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows at a time give what all rows at once do."""
    model = tiny_decoder()
    spans: dict[str, Any] = {"keys": (0, 5), "author": (6, 9)}
    carried = generate(model, PROMPT, completion=COMPLETION, sources="all").carried()
    expected = carried.normalize().layer(-1).spans(spans)
    monkeypatch.setattr(row_gradients, "_MOST_ROWS", 4)
    result = carry_to_spans(model, PROMPT, COMPLETION, spans)
    np.testing.assert_allclose(result.values, expected.values, rtol=0, atol=1e-6)
    np.testing.assert_allclose(result.elsewhere, expected.elsewhere, rtol=0, atol=1e-6)
    assert (result.targets, result.sources) == (expected.targets, expected.sources)
    assert result.steps[-1] == "carried()"


def test_no_more_than_a_part_of_the_rows_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest block is as many rows as run at once, whatever the length."""
    heights: list[int] = []

    def watch(blocks: Iterator[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        def counted() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for block in blocks:
                heights.append(len(block[1]))
                yield block

        return carry_on(counted())

    monkeypatch.setattr(row_gradients, "_MOST_ROWS", 3)
    monkeypatch.setattr(gradient_rows, "carry_on", watch)
    carry_to_spans(tiny_decoder(), PROMPT, COMPLETION, {"all": (0, 11)})
    assert sum(heights) == 13
    assert max(heights) == 3
    with pytest.raises(MethodError, match="gradient attention"):
        carry_to_spans(tiny_decoder(), PROMPT, COMPLETION, {"all": (0, 11)}, "rollout")
