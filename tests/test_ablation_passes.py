"""Ablated passes against plain loops: one set at a time, 4-D masks of our own, eager attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

import attnflow
from attnflow.errors import InputError, ModelError, TokensError
from attnflow.explainers import ablation as ablation_module
from attnflow.explainers.ablation import CompletionAblation, log_odds
from attnflow.explainers.completion_passes import CompletionPasses

WINDOW = 7
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
GPT2 = {"vocab_size": 97, "n_embd": 48, "n_layer": 4, "n_head": 6, "initializer_range": 0.3}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**SIZES, "sliding_window": WINDOW}),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**SIZES, "head_dim": 8, "sliding_window": WINDOW, "layer_types": LAYERS},
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
}
# Nothing; the first; one; several; the last, which predicts; more than a window; nearly all.
SETS = [(), (0,), (3,), (1, 2, 9), (21,), (20, 21), tuple(range(4, 13)), tuple(range(1, 21))]


def build(name: str, attention: str = "sdpa") -> Any:
    kind, config, options = MODELS[name]
    torch.manual_seed(0)
    built = getattr(transformers, config)(**options, attn_implementation=attention)
    return getattr(transformers, kind)(built).eval()


def ids(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 97, length).tolist()


PROMPT, COMPLETION = ids(22, 1), ids(4, 2)


def mask_of(length: int, hidden: Sequence[int], window: int | None, after: int = 0) -> torch.Tensor:
    place = torch.arange(length)
    allowed = place[:, None] >= place[None]
    if window is not None:
        allowed = allowed & (place[:, None] - place[None] < window)
    allowed = allowed.clone()
    allowed[after:, list(hidden)] = False
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(length, length).masked_fill(~allowed, lowest)[None, None]


def by_loop(
    name: str, hidden: Sequence[int], prompt: Sequence[int] = PROMPT, after: int = 0
) -> NDArray[np.float64]:
    """The definition: the whole text, one mask for each kind of layer, no cache, no batch.

    after: the first position from which the hidden ones cannot be seen.
    """
    model = build(name, "eager")
    text = torch.tensor([[*prompt, *COMPLETION[:-1]]])
    n = text.shape[1]
    mask: Any = mask_of(n, hidden, WINDOW if name == "mistral" else None, after)
    if name == "gemma3":
        windowed = mask_of(n, hidden, WINDOW, after)
        mask = {"full_attention": mask, "sliding_attention": windowed}
    with torch.no_grad():
        logits = model(
            text, attention_mask=mask, position_ids=torch.arange(n)[None], use_cache=False
        ).logits
    rows = logits[0, -len(COMPLETION) :].log_softmax(-1)
    return rows.gather(-1, torch.tensor(COMPLETION)[:, None])[:, 0].double().numpy()


def ablation(name: str, attention: str = "sdpa", **options: Any) -> CompletionAblation:
    return CompletionAblation(
        model=build(name, attention), prompt_ids=PROMPT, completion_ids=COMPLETION, **options
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", list(MODELS))
def test_hiding_is_a_mask_over_keys_with_positions_as_they_were(name: str, attention: str) -> None:
    one = ablation(name, attention)
    assert one.takes_prefix_from_cache
    expected = np.stack([by_loop(name, hidden) for hidden in SETS])
    assert np.abs(expected[1:] - expected[0]).max(axis=1).min() > 1e-3  # every set matters
    np.testing.assert_allclose(one.token_log_probs(SETS), expected, atol=2e-5)


@pytest.mark.parametrize("name", list(MODELS))
def test_beside_a_cache_sets_are_hidden_from_what_follows_them_all(name: str) -> None:
    sets = [(), (3, 4), (1, 2, 9), tuple(range(4, 13))]
    one = ablation(name, batch_tokens=30)
    assert one._packs is (name in ("llama", "gpt2"))
    beside = one.log_probs_beside(sets, 13)
    expected = np.stack([by_loop(name, hidden, after=13) for hidden in sets])
    np.testing.assert_allclose(beside, expected, atol=2e-5)
    assert np.abs(beside[1:] - ablation(name).token_log_probs(sets[1:])).max() > 1e-3
    last = len(PROMPT) - 1  # where the first token of the completion is read
    expected = np.stack([by_loop(name, hidden, after=last) for hidden in sets])
    np.testing.assert_allclose(one.log_probs_beside(sets, last + 1), expected, atol=2e-5)
    blanked = ablation(name, by="replace", blank=5)  # no cache: hidden from all
    assert not blanked.hides_beside
    np.testing.assert_array_equal(blanked.log_probs_beside(sets, 13), blanked.token_log_probs(sets))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("tokens", [1, 60, 100_000])
def test_batches_change_nothing(name: str, tokens: int) -> None:
    np.testing.assert_allclose(
        ablation(name, batch_tokens=tokens).token_log_probs(SETS),
        ablation(name).token_log_probs(SETS),
        atol=2e-5,
    )


@pytest.mark.parametrize("name", list(MODELS))
def test_replacing_runs_the_prompt_with_blanks(name: str) -> None:
    one = ablation(name, by="replace", blank=5)
    for hidden in SETS:
        blanked = [5 if k in hidden else token for k, token in enumerate(PROMPT)]
        np.testing.assert_allclose(
            one.token_log_probs([hidden])[0], by_loop(name, (), blanked), atol=2e-5
        )


@pytest.mark.parametrize("name", list(MODELS))
def test_deleting_closes_up_positions(name: str) -> None:
    one = ablation(name, by="delete")
    together = one.token_log_probs(SETS)
    for hidden, row in zip(SETS, together, strict=True):
        rest = [token for k, token in enumerate(PROMPT) if k not in hidden]
        np.testing.assert_allclose(row, by_loop(name, (), rest), atol=2e-5)


def test_the_prefix_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ablation("llama")
    assert one.takes_prefix_from_cache
    lengths = []
    forward = one.model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        lengths.append(kwargs["input_ids"].shape[1])
        return forward(*args, **kwargs)

    monkeypatch.setattr(one.model, "forward", counted)
    one.token_log_probs([(20,), (20,), ()])
    assert sum(lengths) <= len(COMPLETION) + 1 + len(COMPLETION)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_much_of_a_long_text_is_run_whole_and_without_a_mask(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [(3, 4), (20,), (20, 21)]
    expected = ablation(name).token_log_probs(sets)
    shapes: list[tuple[int, int, bool]] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watch(query: Any, key: Any, value: Any, attn_mask: Any = None, **options: Any) -> Any:
        shapes.append((query.shape[-2], key.shape[-2], attn_mask is None))
        return attend(query, key, value, attn_mask=attn_mask, **options)

    one = ablation(name)
    assert one.takes_prefix_from_cache
    assert one._passes.prompt_keys
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    monkeypatch.setattr(ablation_module, "_LARGE_MASK", 100)
    np.testing.assert_allclose(one.token_log_probs(sets), expected, atol=2e-5)
    if name == "llama":  # the second begins late; the last token is hidden by a mask
        assert set(shapes) == {(23, 23, True), (4, 24, False), (5, 25, False)}
    else:  # a window needs its mask whatever is run
        assert not any(without for *_, without in shapes)


def test_a_check_that_does_not_fit_leaves_what_was_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2 * 10**9, 150 * 10**9))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 75 * 10**9)

    def too_large(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(CompletionPasses, "_continued", too_large)
    result = attnflow.generate(build("llama"), {"input_ids": [PROMPT]}, completion=COMPLETION)
    assert result.values.shape[1:] == (len(COMPLETION), len(PROMPT))
    assert "75 GB were in use" in result.provenance["unchecked"]
    assert not result.verdicts


def test_a_cache_that_is_not_exact_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose later tokens read more than keys and values of earlier ones."""
    one = ablation("llama")
    forward = one.model.forward

    def shifted(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        if kwargs.get("past_key_values") is not None:
            result.logits[..., 5] += 3
        return result

    monkeypatch.setattr(one.model, "forward", shifted)
    # the signature must still name what the model takes
    names = {"position_ids", "past_key_values", "logits_to_keep"}
    one._passes.__dict__["accepts"] = frozenset(names)
    assert not one.takes_prefix_from_cache
    np.testing.assert_allclose(one.token_log_probs([(3,)])[0], by_loop("llama", (3,)), atol=2e-5)


def test_tokens_are_summed_and_odds_are_odds() -> None:
    one = ablation("llama")
    every = one.token_log_probs(SETS)
    np.testing.assert_allclose(one.log_probs(SETS), every.sum(axis=1), atol=1e-5)
    p = np.exp(every)
    np.testing.assert_allclose(log_odds(every), np.log(p / (1 - p)), atol=1e-5)
    assert np.isfinite(log_odds(np.array([0.0, -800.0]))).all()


def test_equal_sets_run_once_and_no_sets_give_nothing() -> None:
    one = ablation("gpt2")
    assert one.token_log_probs([]).shape == (0, 4)
    twice = one.log_probs([(3, 1), (1, 3, 3)])
    assert twice[0] == twice[1]


def tiny_t5() -> Any:
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0, initializer_factor=3.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(config).eval()


@pytest.mark.parametrize("by", ["hide", "replace", "delete"])
def test_encoder_decoders_lose_encoder_positions(by: Any) -> None:
    model = tiny_t5()
    prompt, written = PROMPT[:9], COMPLETION
    one = CompletionAblation(model=model, prompt_ids=prompt, completion_ids=written, by=by, blank=5)
    assert not one.takes_prefix_from_cache
    sets: list[tuple[int, ...]] = [(), (0,), (2, 3), (8,)]
    together = one.token_log_probs(sets)
    for hidden, row in zip(sets, together, strict=True):
        remaining = list(prompt)
        mask = torch.ones(1, 9, dtype=torch.long)
        if by == "hide":
            mask[0, list(hidden)] = 0
        elif by == "replace":
            remaining = [5 if k in hidden else token for k, token in enumerate(prompt)]
        else:
            remaining = [token for k, token in enumerate(prompt) if k not in hidden]
            mask = torch.ones(1, len(remaining), dtype=torch.long)
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([remaining]),
                attention_mask=mask,
                decoder_input_ids=torch.tensor([[0, *written[:-1]]]),
            ).logits
        rows = logits[0].log_softmax(-1).gather(-1, torch.tensor(written)[:, None])[:, 0]
        np.testing.assert_allclose(row, rows.double().numpy(), atol=2e-5)
    if by == "hide":
        assert np.abs(together[1:] - together[0]).max(axis=1).min() > 1e-4


def test_models_that_count_positions_by_their_mask_are_refused() -> None:
    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
    model = transformers.BloomForCausalLM(config).eval()
    with pytest.raises(ModelError, match=r"counts positions by its attention mask.*by='replace'"):
        CompletionAblation(model=model, prompt_ids=[3, 4], completion_ids=[5])
    one = CompletionAblation(
        model=model, prompt_ids=[3, 4, 5], completion_ids=[6], by="replace", blank=7
    )
    assert np.isfinite(one.log_probs([(1,)])).all()


def test_attention_that_closes_up_gaps_is_refused() -> None:
    model = build("mistral")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ModelError, match="closes up the gaps"):
        CompletionAblation(model=model, prompt_ids=PROMPT, completion_ids=COMPLETION)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "hidden"}, "Did you mean 'hide'"),
        ({"by": "replace"}, "needs blank"),
    ],
)
def test_what_cannot_be_asked_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ablation("gpt2", **options)


def test_positions_must_be_the_prompts() -> None:
    with pytest.raises(InputError, match="0 to 21"):
        ablation("gpt2").log_probs([(22,)])
    with pytest.raises(InputError, match="leave one"):
        ablation("gpt2", by="delete").log_probs([range(22)])
    with pytest.raises(TokensError, match="at least one"):
        CompletionAblation(model=build("gpt2"), prompt_ids=[3], completion_ids=[])
