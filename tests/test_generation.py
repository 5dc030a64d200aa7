"""Rollout while a language model generates, against recomputing every step from full attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

import attnflow
from attnflow import generate
from attnflow.errors import CaptureError, InputError, MethodError, ModelError, TokensError
from attnflow.errors.progress import listening
from attnflow.explainers.prompts import neutral_ids
from attnflow.explainers.rollout_cache import RolloutCache
from attnflow.hosts.recorder import RecordedLayer
from attnflow.hosts.transformers.generate import run_generate
from attnflow.methods import Flow, Method, Raw, Rollout

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
WINDOW = {**SIZES, "sliding_window": 4}


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=3, n_head=4, vocab_size=64, n_positions=64, eos_token_id=None
    )
    return transformers.GPT2LMHeadModel(config)


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "gpt2": gpt2,
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**WINDOW)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=8)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**WINDOW, head_dim=8, query_pre_attn_scalar=8)
    ),
    "gpt_oss": lambda: transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**WINDOW, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    ),
}
PROMPT = torch.tensor([[1, 5, 6, 7, 8, 9, 10, 11]])
NEW = 7


def family(name: str) -> Any:
    torch.manual_seed(0)
    model = FAMILIES[name]()
    for parameter in model.parameters():  # sharper than at initialisation, so rows differ
        parameter.data *= 3 if parameter.ndim > 1 else 1
    return model.eval()


def whole_attention(model: Any, ids: list[int]) -> list[NDArray[np.float64]]:
    """(heads, n, n) of each layer by the library's own eager attention."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False)
    model.set_attn_implementation(before)
    return [layer[0].double().numpy() for layer in outputs.attentions]


def last_row_by_loops(attentions: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The rollout of the last position at every layer, written out."""
    n = attentions[0].shape[-1]
    below = [[1.0 if i == j else 0.0 for j in range(n)] for i in range(n)]
    rows = []
    for heads in attentions:
        mean = sum(heads) / len(heads)
        above = []
        for i in range(n):
            row = [0.5 * below[i][j] for j in range(n)]
            for k in range(n):
                for j in range(n):
                    row[j] += 0.5 * mean[i][k] * below[k][j]
            above.append(row)
        below = above
        rows.append(below[-1])
    return np.array(rows)


def written(result: Any) -> list[int]:
    return [int(text) for text in result.targets]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_streaming_equals_recomputing_every_step(name: str) -> None:
    model = family(name)
    result = generate(model, {"input_ids": PROMPT}, max_new_tokens=NEW, method="rollout")
    assert result.values.shape == (3, NEW, PROMPT.shape[1])
    assert result.provenance["streamed"]
    text = PROMPT[0].tolist()
    for i, token in enumerate(written(result)):
        expected = last_row_by_loops(whole_attention(model, text))
        m = PROMPT.shape[1]
        np.testing.assert_allclose(result.values[:, i], expected[:, :m], rtol=0, atol=1e-5)
        elsewhere = expected[:, m:].sum(axis=1)
        np.testing.assert_allclose(result.elsewhere[:, i], elsewhere, rtol=0, atol=1e-5)
        text.append(token)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma2"])
def test_the_text_is_that_of_the_models_own_generate(name: str) -> None:
    model = family(name)
    before = model.config._attn_implementation
    plain = model.generate(PROMPT, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    result = generate(model, {"input_ids": PROMPT}, max_new_tokens=NEW)
    assert written(result) == plain[0, PROMPT.shape[1] :].tolist()
    assert model.config._attn_implementation == before  # given back


@pytest.mark.parametrize(
    "method",
    [
        Rollout(),
        Rollout(residual="one-step", drop=(0,)),
        Rollout(receptive_field="element"),
        Rollout(receptive_field="uniform-baseline"),
        Rollout(heads="max", residual=0.3),
        Rollout(heads="min"),
        Rollout(heads=1, start_layer=2),
        Rollout(heads=(1.0, 2.0, 0.0, 1.0), residual=None),
        Rollout(residual=(0.2, 0.5, 0.9), drop=("5", "8")),
        Rollout(drop=(7,)),  # the prompt's last token, whose own row is asked for
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_every_streamed_option_equals_the_method_on_a_trace(name: str, method: Rollout) -> None:
    model = family(name)
    result = generate(model, {"input_ids": PROMPT}, max_new_tokens=NEW, method=method)
    whole = torch.tensor([[*PROMPT[0].tolist(), *written(result)[:-1]]])
    trace = attnflow.capture(model, {"input_ids": whole})
    m = PROMPT.shape[1]
    expected = method(trace, targets=list(range(m - 1, m - 1 + NEW)))
    assert result.layers == expected.layers
    np.testing.assert_allclose(result.values, expected.values[:, :, :m], rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", [Rollout(), Rollout(drop=(0,), residual="one-step"), Raw()])
def test_a_finished_text_gives_the_same(method: Method) -> None:
    model = family("llama")
    result = generate(model, {"input_ids": PROMPT}, max_new_tokens=NEW, method=method)
    again = generate(model, {"input_ids": PROMPT}, completion=written(result), method=method)
    np.testing.assert_allclose(again.values, result.values, rtol=0, atol=1e-6)
    assert again.elsewhere is not None
    np.testing.assert_allclose(again.elsewhere, result.elsewhere, rtol=0, atol=1e-6)
    assert again.targets == result.targets


def test_no_mass_is_lost() -> None:
    result = generate(family("llama"), {"input_ids": PROMPT}, max_new_tokens=NEW, method="rollout")
    total = result.values.sum(axis=-1) + result.elsewhere
    np.testing.assert_allclose(total, 1, rtol=0, atol=1e-5)
    assert (result.elsewhere[:, 0] == 0).all()  # nothing was generated before the first token
    assert (result.elsewhere[:, 1:] > 0).all()


def test_all_sources_say_which_generated_tokens() -> None:
    model = family("llama")
    short = generate(model, {"input_ids": PROMPT}, max_new_tokens=NEW, method="rollout")
    full = generate(
        model, {"input_ids": PROMPT}, max_new_tokens=NEW, method="rollout", sources="all"
    )
    m = PROMPT.shape[1]
    assert full.values.shape == (3, NEW, m + NEW - 1)
    np.testing.assert_allclose(full.values[..., :m], short.values, rtol=0, atol=1e-5)
    np.testing.assert_allclose(full.values[..., m:].sum(-1), short.elsewhere, rtol=0, atol=1e-5)


def test_flow_of_a_generated_token() -> None:
    model = family("llama")
    result = generate(model, {"input_ids": PROMPT}, max_new_tokens=3, method="flow")
    whole = torch.tensor([[*PROMPT[0].tolist(), *written(result)[:-1]]])
    trace = attnflow.capture(model, {"input_ids": whole})
    m = PROMPT.shape[1]
    expected = Flow()(trace, targets=[m - 1, m, m + 1], sources=list(range(m)))
    np.testing.assert_allclose(result.values, expected.values, rtol=0, atol=1e-7)
    assert result.lower is not None
    assert result.values.shape == (3, 3, m)


def test_relatives_of_generated_tokens() -> None:
    model = family("llama")
    result = generate(model, {"input_ids": PROMPT}, max_new_tokens=3, method="alti")
    whole = torch.tensor([[*PROMPT[0].tolist(), *written(result)[:-1]]])
    m = PROMPT.shape[1]
    trace = attnflow.capture(model, {"input_ids": whole}, record=("alti",))
    expected = attnflow.Rollout(matrices="alti")(trace, targets=[m - 1, m, m + 1])
    np.testing.assert_allclose(result.values, expected.values[..., :m], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_a_padded_batch_equals_each_prompt_alone(name: str) -> None:
    model = family(name)
    short = torch.tensor([[1, 12, 13, 14, 15]])
    padded = torch.tensor([[0, 0, 0, *short[0].tolist()], PROMPT[0].tolist()])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8])
    method = Rollout(drop=(0,))
    both = generate(
        model,
        {"input_ids": padded, "attention_mask": mask},
        max_new_tokens=NEW,
        method=method,
        pad_token_id=0,
    )
    for result, prompt in zip(both, (short, PROMPT), strict=True):
        alone = generate(
            model, {"input_ids": prompt}, max_new_tokens=NEW, method=method, pad_token_id=0
        )
        assert result.targets == alone.targets
        assert result.sources == alone.sources
        np.testing.assert_allclose(result.values, alone.values, rtol=0, atol=1e-5)
        np.testing.assert_allclose(result.elsewhere, alone.elsewhere, rtol=0, atol=1e-5)


def test_sampling_repeats_with_its_seed_and_leaves_the_random_state_alone() -> None:
    model = family("llama")
    before = torch.random.get_rng_state()
    first, second, other = (
        generate(model, {"input_ids": PROMPT}, max_new_tokens=12, seed=seed, temperature=2.0)
        for seed in (1, 1, 2)
    )
    assert written(first) == written(second) != written(other)
    np.testing.assert_array_equal(first.values, second.values)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_generated_rows_grow_past_the_room_they_were_given() -> None:
    model = family("llama")
    rows = RolloutCache(Rollout(), prompt=8, padding=[0], dropped=[[]], layers=3, room=8)
    options = {"max_new_tokens": 40, "pad_token_id": 0}
    plain: dict[str, Any] = {"tokenizer": None, "seed": None}
    sequences = run_generate(model, {"input_ids": PROMPT}, options, observer=rows, **plain)
    rows.check(sequences.shape[1] - 1)
    expected = generate(model, {"input_ids": PROMPT}, max_new_tokens=40, method="rollout")
    np.testing.assert_array_equal(rows.rows(0, 40)[0], expected.values)


def test_a_model_outside_the_interface_is_explained_afterwards() -> None:
    torch.manual_seed(0)
    config = transformers.GPTJConfig(
        n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=64, rotary_dim=4,
        eos_token_id=None,
    )  # fmt: skip
    model = transformers.GPTJForCausalLM(config).eval()
    result = generate(model, {"input_ids": PROMPT}, max_new_tokens=3, method="rollout")
    assert not result.provenance["streamed"]
    expected = last_row_by_loops(whole_attention(model, PROMPT[0].tolist()))
    np.testing.assert_allclose(result.values[:, 0], expected, rtol=0, atol=1e-5)


def test_an_encoder_decoder_draws_on_its_input() -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=64,
        decoder_start_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    result = generate(model, {"input_ids": PROMPT}, max_new_tokens=4, method="rollout")
    assert result.values.shape[1:] == (4, PROMPT.shape[1])
    np.testing.assert_allclose(result.values[-1].sum(-1) + result.elsewhere[-1], 1, atol=1e-5)
    inputs = {
        "input_ids": PROMPT,
        "decoder_input_ids": torch.tensor([[0, *written(result)[:-1]]]),
    }
    trace = attnflow.capture(model, inputs)
    m = PROMPT.shape[1]
    expected = Rollout()(trace, targets=list(range(m, m + 4))).values[..., :m]
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=1e-6)


# -- with a tokenizer -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A tiny Llama with a byte-level tokenizer of its own and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = (
        "<s> </s> <pad> Ċ Ġ My name is Ġname Ġis ĠAda , ĠI Ġam Ġfrom ĠParis user assistant Ġthing"
    )
    vocabulary = {word: k for k, word in enumerate(words.split())}
    for byte in pre_tokenizers.ByteLevel.alphabet():
        vocabulary.setdefault(byte, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}\n{{ m['content'] }}{% endfor %}"
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{**SIZES, "vocab_size": len(vocabulary), "eos_token_id": 1, "pad_token_id": 2}
    )
    return transformers.LlamaForCausalLM(config).eval(), fast


TEXT = "My name is Ada, I am from"


def test_a_text_streams_and_is_named(speaker: tuple[Any, Any]) -> None:
    model, tokenizer = speaker
    heard: list[str] = []
    with listening(lambda step: heard.append(step.text)):
        result = generate((model, tokenizer), TEXT, max_new_tokens=5)
    assert "".join(heard) == result.provenance["completion"]
    assert result.sources.texts == (
        "My", "Ġname", "Ġis", "ĠAda", ",", "ĠI", "Ġam", "Ġfrom",
    )  # fmt: skip
    assert result.targets.positions == (8, 9, 10, 11, 12)
    assert result.steps == ()


def test_the_neutral_prompt_is_subtracted(speaker: tuple[Any, Any]) -> None:
    model, tokenizer = speaker
    ids = [int(k) for k in tokenizer(TEXT)["input_ids"]]
    neutral = list(ids)
    for position in (1, 3):  # name, Ada: the words that say something
        neutral[position] = tokenizer.convert_tokens_to_ids("Ġthing")
    ours = Rollout(residual="one-step")
    written = generate((model, tokenizer), TEXT, max_new_tokens=4, method=ours)
    ids_written = written.provenance["completion_ids"]
    blank = attnflow.neutral_prompt((model, tokenizer), TEXT)
    assert blank["input_ids"] == [neutral]
    less = generate((model, tokenizer), blank, completion=ids_written, method=ours)
    result = written.minus(less, name="neutral prompt", match="positions")
    made = tokenizer.convert_tokens_to_ids(list(result.targets))
    own = generate(model, {"input_ids": torch.tensor([ids])}, completion=made, method=ours)
    base = generate(model, {"input_ids": torch.tensor([neutral])}, completion=made, method=ours)
    np.testing.assert_allclose(result.values, own.values - base.values, rtol=0, atol=1e-6)


def test_a_neutral_prompt_keeps_its_form(speaker: tuple[Any, Any]) -> None:
    _, tokenizer = speaker
    tokens = ["<s>", "My", "Ġname", "Ġis", "ĠAda", ",", "Ċ"]
    neutral = neutral_ids(tokenizer, tokenizer.convert_tokens_to_ids(tokens))
    shown = tokenizer.convert_ids_to_tokens(neutral)
    assert shown == ["<s>", "My", "Ġthing", "Ġis", "Ġthing", ",", "Ċ"]


def test_several_texts_and_a_conversation(speaker: tuple[Any, Any]) -> None:
    model, tokenizer = speaker
    texts = [TEXT, "My name is Paris"]
    both = generate((model, tokenizer), texts, max_new_tokens=3)
    for result, text in zip(both, texts, strict=True):
        alone = generate((model, tokenizer), text, max_new_tokens=3)
        np.testing.assert_allclose(result.values, alone.values, rtol=0, atol=1e-5)
    chat = generate((model, tokenizer), [{"role": "user", "content": TEXT}], max_new_tokens=3)
    assert chat.sources.texts[0] == "user"
    messages = [{"role": "user", "content": TEXT}]
    same = generate((model, tokenizer), messages, max_new_tokens=3)
    np.testing.assert_array_equal(same.values, chat.values)


def test_spans_means_and_common_tokens(speaker: tuple[Any, Any]) -> None:
    model, tokenizer = speaker
    result = generate((model, tokenizer), TEXT, max_new_tokens=3, method="rollout")
    parts = result.spans({"who": "name is Ada", "rest": (4, 8)})
    np.testing.assert_allclose(parts.values[..., 0], result.values[..., 1:4].sum(-1))
    np.testing.assert_allclose(parts.values[..., 1], result.values[..., 4:8].sum(-1))
    np.testing.assert_allclose(parts.elsewhere, result.values[..., 0] + result.elsewhere)
    mean = result.mean_over_layers()
    np.testing.assert_allclose(mean.values[0], result.values.mean(axis=0))
    assert mean.row(8).top(2, common=False)[0].token in ("Ġname", "ĠAda")
    dropped = result.without(0)
    np.testing.assert_allclose(dropped.values.sum(-1), result.values.sum(-1))
    with pytest.raises(InputError, match=r"'far' is \(3, 9\).*positions 0 to 7"):
        result.spans({"far": (3, 9)})


def test_results_are_kept_with_what_fell_elsewhere(
    speaker: tuple[Any, Any], tmp_path: Path
) -> None:
    model, tokenizer = speaker
    result = generate((model, tokenizer), TEXT, max_new_tokens=3)
    for name in ("a.json", "a.safetensors"):
        result.save(tmp_path / name)
        loaded = attnflow.Attribution.load(tmp_path / name)
        np.testing.assert_array_equal(loaded.values, result.values)
        np.testing.assert_array_equal(loaded.elsewhere, result.elsewhere)
        assert loaded.method == result.method


# -- bad input --------------------------------------------------------------------------------


def refuses(kind: type[Exception], message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_bad_input_is_named(speaker: tuple[Any, Any]) -> None:
    model, tokenizer = speaker
    ids = {"input_ids": PROMPT}

    def go(prompt: Any = ids, **options: Any) -> Any:
        return generate((model, tokenizer), prompt, **options)

    refuses(InputError, "at least 1; got 0", lambda: go(max_new_tokens=0))
    refuses(InputError, "at least 1; got -3", lambda: go(max_new_tokens=-3))
    refuses(TokensError, "nothing to continue: the prompt is ''", lambda: go(""))
    refuses(TokensError, "nothing to continue", lambda: go([]))
    long = {"input_ids": torch.ones(1, 70, dtype=torch.long)}
    refuses(TokensError, "70 tokens and LlamaForCausalLM takes at most 64", lambda: go(long))
    refuses(TokensError, "are 68.*at most 56", lambda: go(max_new_tokens=60))
    refuses(InputError, "beam search.*generate", lambda: go(num_beams=3))
    refuses(
        InputError,
        "several sequences",
        lambda: go(num_return_sequences=2, seed=1),
    )
    refuses(InputError, "refused its options.*nonsense", lambda: go(nonsense=3))
    refuses(InputError, "'prompt', 'all' .*got 'some'", lambda: go(sources="some"))
    right = {"input_ids": PROMPT, "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0]])}
    refuses(TokensError, "padding stands on the left", lambda: go(right))
    refuses(TokensError, "needs 'input_ids'", lambda: go({"ids": PROMPT}))
    refuses(TokensError, r"\(batch, length\).*got \(8,\)", lambda: go({"input_ids": PROMPT[0]}))
    refuses(TokensError, "completion is ''", lambda: go(TEXT, completion=""))
    refuses(TokensError, "tokenizer=", lambda: generate(model, TEXT))
    refuses(InputError, r"attnflow\.load", lambda: go(tokenizer=tokenizer))
    refuses(MethodError, "There is no head 9", lambda: go(method=Rollout(heads=9)))


def test_an_encoder_cannot_generate() -> None:
    config = transformers.BertConfig(**{k: v for k, v in SIZES.items() if "key" not in k})
    refuses(
        ModelError,
        "BertForMaskedLM cannot generate.*Use explain",
        lambda: generate(transformers.BertForMaskedLM(config), {"input_ids": PROMPT}),
    )
    refuses(
        ModelError,
        "Linear writes no text",
        lambda: generate(torch.nn.Linear(2, 2), {"input_ids": PROMPT}),
    )


def test_an_end_at_once_is_named(speaker: tuple[Any, Any]) -> None:
    model, tokenizer = speaker
    always_end = {"forced_eos_token_id": 1}
    refuses(
        InputError,
        "ended at once.*'</s>'",
        lambda: generate((model, tokenizer), TEXT, max_new_tokens=1, **always_end),
    )


def test_an_end_later_is_left_out(speaker: tuple[Any, Any]) -> None:
    model, tokenizer = speaker
    result = generate((model, tokenizer), TEXT, max_new_tokens=4, forced_eos_token_id=1)
    assert len(result.targets) == 3


def test_attention_that_looks_ahead_is_refused() -> None:
    rows = RolloutCache(Rollout(), prompt=3, padding=[0], dropped=[[]], layers=1, room=3)
    weights: Tensor = torch.full((1, 1, 3, 3), 1 / 3)
    layer = RecordedLayer(torch.nn.Identity(), weights, 3)
    with pytest.raises(CaptureError, match="not causal"):
        rows.see_rows(layer, weights[:, :, :2], slice(0, 2))


def test_padding_that_comes_out_as_nan_spoils_nothing() -> None:
    rows = RolloutCache(Rollout(), prompt=3, padding=[1], dropped=[[]], layers=2, room=3)
    weights = torch.tensor([[[[torch.nan] * 3, [0.0, 1.0, 0.0], [0.0, 0.25, 0.75]]]])
    for number in (1, 2):
        layer = RecordedLayer(torch.nn.Identity(), weights, 3, number=number)
        rows.see_rows(layer, weights, slice(0, 3))
        rows.end_layer(layer)
    rows.check(3)
    np.testing.assert_allclose(rows.rows(0, 1)[0][0, 0], [0.125, 0.875])


def test_what_was_not_seen_whole_is_refused() -> None:
    rows = RolloutCache(Rollout(), prompt=2, padding=[0], dropped=[[]], layers=2, room=2)
    weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.2]]]])
    layer = RecordedLayer(torch.nn.Identity(), weights, 2, number=1)
    rows.see_rows(layer, weights, slice(0, 2))
    rows.end_layer(layer)
    with pytest.raises(CaptureError, match="1 of 2 layers"):
        rows.check(2)
    upper = RecordedLayer(torch.nn.Identity(), weights, 2, number=2)
    rows.see_rows(upper, weights, slice(0, 2))
    rows.end_layer(upper)
    with pytest.raises(CaptureError, match=r"off from 1 by 0\.3"):
        rows.check(2)
    with pytest.raises(MethodError, match="cannot be streamed"):
        RolloutCache(Rollout(discard=0.1), prompt=2, padding=[0], dropped=[[]], layers=1, room=2)
