"""What an answer rests on: the strongest sources hidden together, against plain masks."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers

import attnflow
from attnflow import Attribution, Verdict
from attnflow.attribution.patch_maps import patch_maps, region_of
from attnflow.errors import FileError, MethodError, ModelError
from attnflow.explainers import writer
from attnflow.explainers.ablation import ablate
from attnflow.explainers.completions import read_completion
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.request import Completion
from attnflow.methods import Careful, LeaveOneOut
from attnflow.show.sentences import remarks
from attnflow.show.view import view
from attnflow.testing import tiny_decoder, tiny_encoder, tiny_vision_model
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


def verdict_of(result: Attribution) -> Verdict:
    (verdict,) = result.verdicts
    assert verdict is not None
    return verdict


def expected_verdict(
    read: Callable[[list[int]], float], best: list[int]
) -> tuple[str, list[int], float]:
    """The kind, the tokens that are named, and what is left without them, by plain passes."""
    base = read([])
    together, first = base - read(best), base - read(best[:1])
    if together >= math.log(2):
        named = best[:1] if first >= math.log(2) else best
        return ("rests" if len(named) == 1 else "together"), named, read(named)
    return ("partly" if together >= -math.log(0.9) else "none"), best, read(best)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("method", [None, "rollout"])
def test_the_strongest_sources_are_hidden_together(family: str, method: str | None) -> None:
    model = model_of(family)
    result = attnflow.generate(model, PROMPT, completion=ANSWER, method=method)
    scores = result.values[-1].sum(axis=0)
    scores[0] = -1.0  # the first token is no source
    best = [k for k in np.argsort(-scores)[:3].tolist() if scores[k] > 0]
    kind, named, without = expected_verdict(lambda hidden: sum(log_probs(model, hidden)), best)
    verdict = verdict_of(result)
    assert (verdict.kind, verdict.tokens, verdict.part) == (kind, len(ANSWER), "word")
    assert verdict.sources == tuple(str(TEXT[0, k].item()) for k in named)
    assert verdict.log_prob == pytest.approx(sum(log_probs(model, [])), abs=1e-3)
    assert verdict.without == pytest.approx(without, abs=1e-3)
    assert verdict.prior is None


def test_a_target_has_a_verdict_of_its_own() -> None:
    model = model_of("llama")
    result = attnflow.generate(model, PROMPT, completion=ANSWER, targets=2)
    verdict = verdict_of(result)
    assert verdict.tokens == 1
    assert verdict.log_prob == pytest.approx(log_probs(model, [])[2], abs=1e-4)


def test_generate_and_explain_check_unless_told_not_to(tmp_path: Path) -> None:
    model, tokenizer = tiny_decoder()
    plain = attnflow.generate((model, tokenizer), "the keys to", max_new_tokens=3, check=False)
    assert plain.verdicts == ()
    assert attnflow.explain((model, tokenizer), "the keys to", check=False).verdicts == ()
    both = attnflow.generate((model, tokenizer), ["the keys to", "the key"], max_new_tokens=3)
    assert all(len(result.verdicts) == 1 for result in both)
    result = attnflow.explain((model, tokenizer), "the keys to the")
    verdict = verdict_of(result)
    assert result.prediction is not None
    assert math.exp(verdict.log_prob) == pytest.approx(result.prediction.probability, rel=1e-4)
    assert set(verdict.sources) <= {"keys", "to", "the"}
    assert verdict.reason in result._repr_html_().replace("Without", "without")
    for name in ("result.json", "result.safetensors"):
        result.save(tmp_path / name)
        assert Attribution.load(tmp_path / name).verdicts == result.verdicts
    assert result.normalize().merge_words().verdicts == result.verdicts


def test_another_position_is_not_checked() -> None:
    assert attnflow.explain(tiny_decoder(), "the keys to", targets=1).verdicts == ()
    assert len(attnflow.explain(tiny_decoder(), "the keys to", targets="all").verdicts) == 1


def test_the_view_shows_what_is_hidden() -> None:
    result = attnflow.explain(tiny_decoder(), "the keys to the")
    (shown,) = view(result)["results"][0]["verdicts"]
    verdict = verdict_of(result)
    assert (shown["claim"], shown["reason"]) == (verdict.claim, verdict.reason)
    assert [bar["share"] for bar in shown["bars"]] == pytest.approx(
        [math.exp(verdict.log_prob), math.exp(verdict.without)]
    )
    assert all(bar["number"] in verdict.reason for bar in shown["bars"])  # one number everywhere


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders_hide_what_the_encoder_reads(name: str) -> None:
    model = encoder_decoder(name)
    result = attnflow.generate(model, PROMPT, completion=ANSWER, method="rollout")
    start = int(model.config.decoder_start_token_id)
    written = torch.tensor([[start, *ANSWER[:-1]]])

    def read(hidden: list[int]) -> float:
        mask = torch.ones_like(TEXT[:, :START])
        mask[:, hidden] = 0
        with torch.no_grad():
            logits = model(
                input_ids=TEXT[:, :START], attention_mask=mask, decoder_input_ids=written
            ).logits
        rows = logits[0].log_softmax(-1)
        return sum(float(rows[k, token]) for k, token in enumerate(ANSWER))

    best = np.argsort(-result.values[-1].sum(axis=0))[:3].tolist()
    kind, _, without = expected_verdict(read, best)
    verdict = verdict_of(result)
    assert verdict.kind == kind
    assert verdict.log_prob == pytest.approx(read([]), abs=1e-3)
    assert verdict.without == pytest.approx(without, abs=1e-3)


def test_wording() -> None:
    word = Verdict("together", ("a", "b"), 1, math.log(0.71), math.log(0.0031), part="word")
    reason = "without them its probability goes from 71 % to less than 1 %"
    assert str(word) == f"rests on “a” and “b” together: {reason}"
    assert [number for _, number in word.bars.values()] == ["71 %", "less than 1 %"]
    phrase = Verdict("partly", ("a",), 2, -4.0, -4.5, part="word")
    assert str(phrase) == "rests in part on “a”: without it 61 % of its probability is left"
    assert [number for _, number in phrase.bars.values()] == ["100 %", "61 %"]
    unmoved = Verdict("none", ("the left half",), 1, -0.01, -0.01, part="region")
    assert unmoved.claim == "no source found, it does not need the left half"
    assert unmoved.reason == "without it its probability stays at 99 %"
    guess = Verdict("none", ("a",), 1, *map(math.log, (0.16, 0.15, 0.14, 0.004)), word="desk")
    assert guess.claim == "no source found, the documents only make it likelier"
    assert (
        guess.reason
        == "without any document the probability of “desk” goes from 16 % to less than 1 %"
    )
    made_up = replace(guess, log_prob=-5.0, prior=-9.0)
    assert made_up.claim == "no source found, the model would hardly say it"
    assert made_up.reason == "without any document the probability of “desk” stays at less than 1 %"
    known = replace(guess, prior=math.log(0.12))
    assert known.claim == "no source found, it does not need the documents"
    for verdict in (word, phrase, unmoved):
        assert verdict.rests_on_documents is None
        assert Verdict.from_dict(verdict.to_dict()) == verdict


def test_what_cannot_be_checked_says_why() -> None:
    config = transformers.BloomConfig(vocab_size=97, hidden_size=16, n_layer=2, n_head=2)
    bloom = transformers.BloomForCausalLM(config).eval()  # without a tokenizer there is no blank
    result = attnflow.generate(bloom, PROMPT, completion=ANSWER)
    assert result.verdicts == ()
    assert "counts positions by its attention mask" in result.provenance["unchecked"]
    assert any("counts positions" in remark for remark in remarks(result))
    with pytest.raises(ModelError, match="is not one"):
        attnflow.explain(tiny_encoder(), "the keys", method="careful")


# -- methods that run the model again ---------------------------------------------------------


@pytest.mark.parametrize("method", [Careful(), LeaveOneOut(), "careful:verify=2"])
def test_measured_methods_are_methods_like_others(method: Any, tmp_path: Path) -> None:
    model, tokenizer = tiny_decoder()
    text: dict[str, Any] = {"prompt": "the keys to the", "completion": "cabinets are"}
    result = attnflow.generate((model, tokenizer), **text, method=method, targets=["answer", 1])
    assert list(result.targets) == ["cabinets are", "are"]
    assert list(result.sources) == ["keys", "to", "the"]
    assert len(result.verdicts) == 1
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


# -- models that are no language models -------------------------------------------------------


def blanked(model: Any, text: str, words: Sequence[str], row: int | None, choice: int) -> float:
    """The log-probability of a class with some words unknown, by a plain pass."""
    module, tokenizer = model
    inputs = tokenizer(text, return_tensors="pt")
    names = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    for place, name in enumerate(names):
        if name in words:
            inputs["input_ids"][0, place] = tokenizer.unk_token_id
    with torch.no_grad():
        logits = module(**inputs).logits[0]
    return float((logits if row is None else logits[row]).log_softmax(-1)[choice])


@pytest.mark.parametrize(
    ("head", "target"), [("SequenceClassification", None), ("TokenClassification", 2)]
)
def test_words_of_classifiers_are_blanked(head: str, target: int | None) -> None:
    model, text = tiny_encoder(head=head), "author talked to sara about"
    verdict = verdict_of(attnflow.explain(model, text, targets=target))
    with torch.no_grad():
        logits = model.module(**model.tokenizer(text, return_tensors="pt")).logits[0]
    choice = int((logits if target is None else logits[target]).argmax())
    assert verdict.log_prob == pytest.approx(blanked(model, text, (), target, choice), abs=1e-4)
    again = blanked(model, text, verdict.sources, target, choice)
    assert verdict.without == pytest.approx(again, abs=1e-4)
    assert verdict.part == "word"


def test_the_model_that_ships_rests_on_its_noun() -> None:
    verdict = verdict_of(attnflow.explain(None, "the keys to the cabinet"))
    assert (verdict.kind, verdict.sources) == ("rests", ("keys",))


def test_a_region_of_an_image_is_covered() -> None:
    model = tiny_vision_model()
    torch.manual_seed(0)
    pixels = torch.randn(1, 3, *[model.module.config.image_size] * 2)
    result = attnflow.explain(model, {"pixel_values": pixels})
    grid = result.sources.grid
    assert grid is not None
    region = region_of(patch_maps(result)[0].values)
    verdict = verdict_of(result)
    assert region is not None
    assert verdict.sources == (region.name,)
    side = pixels.shape[-1] // grid.columns
    for patch in region.patches:
        row, column = divmod(patch, grid.columns)
        box = np.s_[..., row * side : (row + 1) * side, column * side : (column + 1) * side]
        pixels[box] = torch.nan
    mean = torch.manual_seed(0) and torch.randn_like(pixels).mean(dim=(-2, -1), keepdim=True)
    pixels = torch.where(pixels.isnan(), mean, pixels)
    assert result.prediction is not None
    with torch.no_grad():
        shares = model.module(pixel_values=pixels).logits[0].log_softmax(-1)
    before = math.log(result.prediction.probability)
    choice = {label: k for k, label in model.module.config.id2label.items()}
    assert verdict.log_prob == pytest.approx(before, abs=1e-4)
    assert verdict.without == pytest.approx(
        float(shares[choice[result.prediction.label]]), abs=1e-4
    )


def test_an_answer_that_exists_has_verdicts() -> None:
    texts = {"a.txt": "the keys to the cabinets .", "b.txt": "the author is old ."}
    statements = attnflow.grounded(tiny_decoder(), "the cabinets", texts, question="the keys")
    asked = attnflow.ask(tiny_decoder(), "the keys", texts, answer="the cabinets")
    assert statements == asked.statements
    assert all(statement.verdict is not None for statement in statements)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_the_check_runs_beside_what_the_explanation_read(family: str) -> None:
    """Keys that a pass has left are the model's own, and the prompt is not read again."""
    model = model_of(family)
    loaded = attnflow.load(model)
    completion = Completion(Prompt(TEXT[0, :START].tolist()), ANSWER)
    read_completion(loaded, completion, attnflow.BalancedGradient(), "answer")
    assert len(completion.keys) == model.config.num_hidden_layers
    read: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(
        lambda _, inputs, __: read.append(inputs[0].numel())
    )
    ablation = ablate(loaded, completion.prompt.ids, ANSWER, keys=completion.keys)
    found = ablation.log_probs_beside([[], [4, 5], [7]], 8)
    hook.remove()
    tried = [len(ANSWER), START + len(ANSWER) - 1]  # whether a cache serves this model
    assert read[:2] == tried
    assert max(read[2:]) <= 3 * (START + len(ANSWER) - 1 - 8)
    expected = ablate(loaded, completion.prompt.ids, ANSWER).log_probs_beside([[], [4, 5], [7]], 8)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found[0], log_probs(model, []), atol=1e-5)
    for known in (log_probs(model, []), [0.0] * len(ANSWER)):  # what was left there, and not so
        left: dict[str, Any] = {"keys": completion.keys, "known": known}
        ablation = ablate(loaded, completion.prompt.ids, ANSWER, **left)
        np.testing.assert_allclose(
            ablation.log_probs_beside([[], [4, 5], [7]], 8), expected, atol=1e-5
        )


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("wrong", ["", "keys", "known", "mask"])
def test_kept_keys_are_tried_in_the_pass_that_reads_beside_them(
    family: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass where they are right; where anything is not, the numbers are those without them."""
    model = model_of(family)
    loaded = attnflow.load(model)
    completion = Completion(Prompt(TEXT[0, :START].tolist()), ANSWER)
    read_completion(loaded, completion, attnflow.BalancedGradient(), "answer")
    keys, known = completion.keys, log_probs(model, [])
    sets = [[4, 5], [7]]
    fresh = ablate(loaded, completion.prompt.ids, ANSWER)
    assert fresh.hides_beside
    expected = fresh.log_probs_beside(sets, START)
    assert np.abs(expected - known).max() > 0.05
    if wrong == "keys":  # of another text
        keys = [(key.flip(-2), value) for key, value in keys]
        expected = fresh.token_log_probs(sets)
    if wrong == "known":
        known = [each - 1 for each in known]
    if wrong == "mask":  # one of its own is not heeded: each token sees all that stand before it
        inner = cast(Any, model).forward

        def causal(*args: Any, **kwargs: Any) -> Any:
            if kwargs["attention_mask"].ndim == 4:
                kwargs["attention_mask"] = None
            return inner(*args, **kwargs)

        monkeypatch.setattr(model, "forward", wraps(inner)(causal))
    read: list[int] = []
    hook = (
        cast(Any, model)
        .get_input_embeddings()
        .register_forward_hook(lambda _, inputs, __: read.append(inputs[0].numel()))
    )
    ablation = ablate(loaded, completion.prompt.ids, ANSWER, keys=keys, known=known)
    found = ablation.log_probs_beside(sets, START)
    hook.remove()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert ablation.hides_beside is (wrong != "keys")
    assert (read == [3 * len(ANSWER)]) is (wrong == "")


def count_tensors() -> int:
    """How many tensors of the shape that keys have are in memory."""
    gc.collect()
    return sum(type(each) is torch.Tensor and each.ndim == 4 for each in gc.get_objects())


@pytest.mark.parametrize("method", ["gradient-attention:balanced=true", "balanced"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_what_a_model_kept_while_it_wrote_serves_its_answer(
    family: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and verdicts are those of a prompt that is read again, and no key stays in memory."""
    model = attnflow.load(model_of(family), tokenizer=tiny_decoder().tokenizer)
    texts = {"a.txt": "the keys to the cabinets .", "b.txt": "the author is old ."}
    options = {"max_new_tokens": 4, "suppress_tokens": list(range(len(model.tokenizer), 97))}
    read: list[int] = []
    embeddings = cast(Any, model.module).get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _, ids, __: read.append(ids[0].numel()))
    before = count_tensors()
    answer = attnflow.ask(model, "the keys", texts, method, **options)
    passes, prompt = [k for k in read if k > 1], answer.result.provenance["prompt_length"]
    assert count_tensors() == before
    monkeypatch.setattr(writer, "plain_cache", lambda *_: None)
    read.clear()
    again = attnflow.ask(model, "the keys", texts, method, **options)
    hook.remove()
    assert answer.text == again.text
    np.testing.assert_allclose(answer.result.values, again.result.values, atol=1e-6)
    for found, expected in zip(answer.result.verdicts, again.result.verdicts, strict=True):
        assert (found.kind, found.sources) == (expected.kind, expected.sources)
        assert found.without == pytest.approx(expected.without, abs=1e-4)
    if method != "balanced":  # which goes back through the prompt
        assert passes[0] == prompt
        assert sum(k for k in read if k > 1) >= sum(passes) + prompt - 1
