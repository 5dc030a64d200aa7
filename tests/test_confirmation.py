"""How sure is an explanation? The strongest sources hidden together, against plain masks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow import Attribution, Confirmation
from attnflow.errors import FileError, InputError, MethodError, ModelError
from attnflow.methods import Careful, LeaveOneOut
from attnflow.show.view import view
from attnflow.testing import tiny_decoder, tiny_encoder
from test_gradient_attention import TEXT, model_of
from test_targets import encoder_decoder

START = 11
PROMPT = {"input_ids": TEXT[:, :START]}
ANSWER = TEXT[0, START:15].tolist()


def log_probs(model: Any, hidden: list[int]) -> list[float]:
    """Of the answer's tokens with the keys of some positions masked, positions as they were."""
    ids = TEXT[:, :14]
    mask = torch.ones_like(ids)
    mask[:, hidden] = 0
    with torch.no_grad():
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=torch.arange(14)[None]
        ).logits
    rows = logits[0, START - 1 :].log_softmax(-1)
    return [float(rows[k, token]) for k, token in enumerate(ANSWER)]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("method", [None, "rollout"])
def test_the_strongest_sources_are_hidden_together(family: str, method: str | None) -> None:
    model = model_of(family)
    result = attnflow.generate(model, PROMPT, completion=ANSWER, confirm=True, method=method)
    confirmation = result.confirmation
    assert confirmation is not None
    scores = result.values[-1].sum(axis=0)
    scores[0] = -1.0  # the first token is no source
    best = np.argsort(-scores)[:3].tolist()
    assert confirmation.positions == tuple((k,) for k in best)
    np.testing.assert_allclose(confirmation.log_probs, log_probs(model, []), atol=1e-4)
    np.testing.assert_allclose(confirmation.log_probs_without, log_probs(model, best), atol=1e-4)
    assert confirmation.drop == pytest.approx(
        sum(log_probs(model, [])) - sum(log_probs(model, best)), abs=1e-3
    )


def test_a_target_has_a_confirmation_of_its_own() -> None:
    model = model_of("llama")
    result = attnflow.generate(model, PROMPT, completion=ANSWER, confirm=True, targets=2)
    confirmation = result.confirmation
    assert confirmation is not None
    assert confirmation.targets == (str(ANSWER[2]),)
    hidden = [k for (k,) in confirmation.positions]
    assert confirmation.log_prob_without == pytest.approx(log_probs(model, hidden)[2], abs=1e-4)


def test_generate_and_explain_confirm_on_request(tmp_path: Path) -> None:
    model, tokenizer = tiny_decoder()
    plain = attnflow.generate((model, tokenizer), "the keys to", max_new_tokens=3)
    assert plain.confirmation is None
    both = attnflow.generate(
        (model, tokenizer), ["the keys to", "the key"], max_new_tokens=3, confirm=True
    )
    assert all(result.confirmation is not None for result in both)
    result = attnflow.explain((model, tokenizer), "the keys to the", confirm=True)
    confirmation = result.confirmation
    assert confirmation is not None
    assert result.prediction is not None
    assert confirmation.probability == pytest.approx(result.prediction.probability, rel=1e-4)
    assert set(confirmation.sources) <= {"keys", "to", "the"}
    assert str(confirmation) in result._repr_html_()
    for name in ("result.json", "result.safetensors"):
        result.save(tmp_path / name)
        assert Attribution.load(tmp_path / name).confirmation == confirmation
    assert result.normalize().merge_words().confirmation == confirmation


def test_the_view_shows_what_is_hidden() -> None:
    model, tokenizer = tiny_decoder()
    result = attnflow.explain((model, tokenizer), "the keys to the", confirm=True)
    document = view(result)["results"][0]
    shown, confirmation = document["confirmation"], result.confirmation
    assert confirmation is not None
    assert shown["sentence"] == str(confirmation)
    assert shown["indices"] == [list(each) for each in confirmation.positions]
    assert shown["share"] == pytest.approx(confirmation.share)
    assert document["remarks"] == []
    plain = attnflow.explain((model, tokenizer), "the keys to the")
    assert view(plain)["results"][0]["confirmation"] is None


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders_hide_what_the_encoder_reads(name: str) -> None:
    model = encoder_decoder(name)
    result = attnflow.generate(model, PROMPT, completion=ANSWER, confirm=True, method="rollout")
    confirmation = result.confirmation
    assert confirmation is not None
    hidden = [k for (k,) in confirmation.positions]
    start = int(model.config.decoder_start_token_id)
    written = torch.tensor([[start, *ANSWER[:-1]]])
    for positions, expected in (
        ([], confirmation.log_probs),
        (hidden, confirmation.log_probs_without),
    ):
        mask = torch.ones_like(TEXT[:, :START])
        mask[:, positions] = 0
        with torch.no_grad():
            logits = model(
                input_ids=TEXT[:, :START], attention_mask=mask, decoder_input_ids=written
            ).logits
        rows = logits[0].log_softmax(-1)
        again = [float(rows[k, token]) for k, token in enumerate(ANSWER)]
        np.testing.assert_allclose(expected, again, atol=1e-4)


def test_sentences() -> None:
    one = Confirmation(("a", "b"), ((1,), (2, 3)), ("x",), (math.log(0.71),), (math.log(0.0031),))
    assert str(one) == "Hiding a, b takes the probability from 0.71 to 0.003."
    assert one.share == pytest.approx(1 - 0.0031 / 0.71)
    several = Confirmation(("a",), ((1,),), ("x", "y"), (-1.0, -3.0), (-2.0, -6.0), "replace")
    sentence = "Blanking a takes the mean probability of the answer's 2 tokens from 0.14 to 0.02."
    assert str(several) == sentence
    assert several.drop == pytest.approx(4.0)
    assert Confirmation.from_dict(several.to_dict()) == several


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (((), (), ("x",), (-1.0,), (-1.0,)), "at least one"),
        ((("a",), ((1,), (2,)), ("x",), (-1.0,), (-1.0,)), "got 2 for 1"),
        ((("a",), ((1,),), ("x",), (), (-1.0,)), "log_probs has 0 values for 1 tokens"),
        ((("a",), ((1,),), ("x",), (0.5,), (-1.0,)), "at most 0"),
        ((("a",), ((-1,),), ("x",), (-1.0,), (-1.0,)), "whole numbers from 0"),
    ],
)
def test_a_confirmation_is_checked(fields: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Confirmation(*fields)


def test_what_cannot_be_confirmed_is_said() -> None:
    model, tokenizer = tiny_decoder()
    with pytest.raises(InputError, match="explain what follows the text"):
        attnflow.explain((model, tokenizer), "the keys to", confirm=True, targets=1)
    encoder = tiny_encoder()
    with pytest.raises(ModelError, match="is not one"):
        attnflow.explain(encoder, "the keys", method="careful")


# -- methods that run the model again ---------------------------------------------------------


@pytest.mark.parametrize("method", [Careful(), LeaveOneOut(), "careful:verify=2"])
def test_measured_methods_are_methods_like_others(method: Any, tmp_path: Path) -> None:
    model, tokenizer = tiny_decoder()
    text: dict[str, Any] = {"prompt": "the keys to the", "completion": "cabinets are"}
    result = attnflow.generate(
        (model, tokenizer), **text, method=method, targets=["answer", 1], confirm=True
    )
    assert list(result.targets) == ["cabinets are", "are"]
    assert list(result.sources) == ["keys", "to", "the"]
    assert result.confirmation is not None
    result.save(tmp_path / "result.json")
    loaded = Attribution.load(tmp_path / "result.json")
    assert loaded.method == result.method
    np.testing.assert_array_equal(loaded.values, result.values)


def test_careful_everywhere_the_default_is() -> None:
    model, tokenizer = tiny_decoder()
    written = attnflow.generate(
        (model, tokenizer), "the keys to", max_new_tokens=3, targets="answer", method="careful"
    )
    assert written.method.name == "careful"
    assert written.values.shape == (1, 1, 2)
    assert written.provenance["passes"] <= 10
    result = attnflow.explain((model, tokenizer), "the keys to the", method="careful")
    assert result.prediction is not None
    expected = attnflow.generate(
        (model, tokenizer),
        "the keys to the",
        Careful(),
        completion=tokenizer.convert_tokens_to_ids([result.prediction.label]),
    )
    np.testing.assert_allclose(result.values, expected.values, rtol=1e-5)
    with pytest.raises(MethodError, match="sources= is for methods that read attention"):
        attnflow.generate((model, tokenizer), "the keys to", "careful", sources="all")


def test_an_unknown_method_in_a_file_is_named(tmp_path: Path) -> None:
    model, tokenizer = tiny_decoder()
    result = attnflow.explain((model, tokenizer), "the keys to the", method="careful")
    path = tmp_path / "result.json"
    result.save(path)
    path.write_text(path.read_text().replace('"careful"', '"carefull"'))
    with pytest.raises(FileError, match="Did you mean 'careful'"):
        Attribution.load(path)
