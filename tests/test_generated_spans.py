"""Spans of the prompt as the sources of a completion, and caches of other kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow.errors import InputError
from attnflow.explainers.reader import Reader
from attnflow.hosts.model import Model
from attnflow.hosts.recorder import RecordedLayer
from attnflow.methods import Rollout
from attnflow.testing import tiny_decoder
from test_generation import FAMILIES, PROMPT

SPANS = {"beginning": (0, 3), "middle": (2, 5), "end": (6, 7)}  # two overlap, two tokens are left
METHODS = ["rollout", Rollout(residual="one-step", drop=(0,)), Rollout(start_layer=2), None, "raw"]


def generated(model: Any, method: Any, **options: Any) -> Any:
    prompt = {"input_ids": PROMPT}
    return attnflow.generate(model, prompt, max_new_tokens=5, method=method, **options)


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_spans_as_sources_are_the_sums_of_tokens(family: str, method: Any) -> None:
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    expected = generated(model, method).spans(SPANS)
    result = generated(model, method, sources=SPANS)
    np.testing.assert_allclose(result.values, expected.values, atol=1e-6)
    np.testing.assert_allclose(result.elsewhere, expected.elsewhere, atol=1e-6)
    assert result.sources == expected.sources
    assert result.steps == expected.steps
    assert result.layers == expected.layers


def test_a_streamed_rollout_keeps_a_column_for_each_span() -> None:
    model = FAMILIES["llama"]().eval()
    reader = Reader.of(Model(model), "rollout", SPANS)
    cache = reader.cache([reader.method], PROMPT, [0], 16)
    weights = torch.eye(8)[None, None].expand(1, 4, 8, 8)
    layer = RecordedLayer(torch.nn.Identity(), weights, 8, number=1)
    cache.see_rows(layer, weights, slice(0, 8))
    (rows,) = [rows.rows for rows in cache._layers.values()]
    assert rows.shape == (1, 16, len(SPANS) + 2)  # one for the rest, one for generated tokens


def test_prompts_of_different_lengths_have_their_own_spans() -> None:
    model, tokenizer = tiny_decoder()
    prompts = ["the keys to the", "the author talked to sara"]
    options: dict[str, Any] = {"max_new_tokens": 3, "method": "rollout"}
    pair = (model, tokenizer)
    together = attnflow.generate(pair, prompts, sources={"first two": (0, 2)}, **options)
    for prompt, result in zip(prompts, together, strict=True):
        alone = attnflow.generate(pair, prompt, **options).spans({"first two": (0, 2)})
        np.testing.assert_allclose(result.values, alone.values, atol=1e-5)
        np.testing.assert_allclose(result.elsewhere, alone.elsewhere, atol=1e-5)


def test_the_check_hides_spans() -> None:
    model, tokenizer = tiny_decoder()
    result = attnflow.generate(
        (model, tokenizer),
        "the author talked to sara",
        max_new_tokens=2,
        sources={"who": "author", "to whom": "sara"},
    )
    (verdict,) = result.verdicts
    assert verdict is not None
    assert set(verdict.sources) <= {"who", "to whom"}


def test_wrong_spans_are_refused() -> None:
    model = FAMILIES["llama"]().eval()
    with pytest.raises(InputError, match="spans of the prompt by name"):
        generated(model, None, sources={})
    with pytest.raises(InputError, match="end"):
        generated(model, None, sources={"end": (6, 90)})


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("method", [None, "rollout"])
def test_a_static_cache_gives_the_same_rows(family: str, method: Any) -> None:
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    expected = generated(model, method)
    result = generated(model, method, cache_implementation="static")
    assert list(result.provenance["completion_ids"]) == list(expected.provenance["completion_ids"])
    np.testing.assert_allclose(result.values, expected.values, atol=1e-5)
