"""Where a model's answer is read, against what the model itself does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import attnflow
from attnflow.errors import InputError, TokensError
from attnflow.hosts.model import adapter_for
from attnflow.testing import tiny_encoder
from families import FAMILIES, GROUPED, SIZES

# DeBERTa's file compiles functions with torch.jit when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
TEXT = "the author talked to sara about his book"
# Types that no list of names would hold for long.
CAUSAL = {
    "Phi3": GROUPED,
    "Gemma": {**GROUPED, "head_dim": 8},
    "Mixtral": {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1},
    "Qwen2Moe": {
        **GROUPED,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "SmolLM3": GROUPED,
    "Phi": SIZES,
    "Llama": GROUPED,
    "Mistral": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 8},
}
IDS = [1, 5, 6, 7, 8, 9]


def build(name: str, head: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}For{head}")(config).eval()


def read_position(model: Any, inputs: dict[str, Tensor]) -> list[int]:
    """For each example the position of the last hidden state that the class depends on."""
    states: list[Tensor] = []
    hook = model.score.register_forward_pre_hook(lambda _, x: states.append(x[0]))
    try:
        total = model(**inputs).logits.sum()
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(total, states)
    return [int(row.abs().sum(-1).argmax()) for row in gradient]


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("masked", [True, False])
def test_a_causal_classifier_reads_its_last_token(name: str, masked: bool) -> None:
    model = build(name, "SequenceClassification", **CAUSAL[name], num_labels=3)
    ids = torch.tensor([IDS])
    inputs = {"input_ids": ids} | ({"attention_mask": torch.ones_like(ids)} if masked else {})
    prediction = attnflow.capture(model, inputs).prediction
    assert prediction is not None
    assert [prediction.position] == read_position(model, inputs) == [5]
    facts = adapter_for(model).facts(model)
    assert (facts.causal, facts.answer, facts.padding_side) == (True, "last", "left")


def test_gpt2_has_no_padding_token() -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}
    model = build("GPT2", "SequenceClassification", **sizes)
    prediction = attnflow.capture(model, {"input_ids": torch.tensor([IDS])}).prediction
    assert prediction is not None
    assert prediction.position == 5


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_no_last_token(side: str) -> None:
    model = build("Llama", "SequenceClassification", **GROUPED)
    rows = [IDS, [*IDS[:4], 0, 0] if side == "right" else [0, 0, *IDS[:4]]]
    ids = torch.tensor(rows)
    traces = attnflow.capture(model, [{"input_ids": ids, "attention_mask": (ids > 0).long()}])
    assert [t.prediction.position for t in traces if t.prediction] == [5, 3]


def test_a_class_read_from_padding_is_refused() -> None:
    model = build("Llama", "SequenceClassification", **GROUPED)
    ids = torch.tensor([[1, 5, 6, 9]])
    with pytest.raises(TokensError, match="reads its class from position 3"):
        attnflow.capture(model, {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 0]])})


def test_an_encoder_reads_its_first() -> None:
    model, tokenizer = tiny_encoder(head="SequenceClassification")
    trace = attnflow.capture((model, tokenizer), TEXT)
    assert trace.prediction is not None
    assert trace.prediction.position == 0


def test_a_masked_word_needs_no_mask_of_padding() -> None:
    model, tokenizer = tiny_encoder()
    text = "the author talked to [MASK]"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    trace = attnflow.capture((model, tokenizer), {"input_ids": ids})
    assert trace.prediction == attnflow.capture((model, tokenizer), text).prediction
    assert trace.prediction is not None


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_facts_agree_with_what_is_seen(family: Any) -> None:
    model = family.build()
    facts = adapter_for(model).facts(model)
    assert facts.encoder_decoder == (family.kind == "encoder–decoder")
    if "CLIP" not in family.name:  # whose text tower is told by a flag of the call
        assert facts.causal == (family.kind in ("decoder", "hybrid"))


# -- token classifiers --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tagger() -> tuple[Any, Any]:
    model, tokenizer = tiny_encoder(head="TokenClassification", seed=3)
    model.config.id2label = {0: "O", 1: "PER"}
    return model, tokenizer


def test_a_token_classifier_answers_for_each_token(tagger: tuple[Any, Any]) -> None:
    model, tokenizer = tagger
    trace = attnflow.capture((model, tokenizer), TEXT)
    with torch.no_grad():
        labels = model(**tokenizer(TEXT, return_tensors="pt")).logits[0].argmax(-1).tolist()
    names = [model.config.id2label[k] for k in labels]
    assert list(trace.provenance["predictions"]) == names
    assert trace.prediction is not None
    assert trace.prediction.label == names[trace.prediction.position]
    usual = max(set(names), key=names.count)
    assert trace.prediction.label != usual or set(names) == {usual}
    third = attnflow.capture((model, tokenizer), TEXT, position=3).prediction
    assert third is not None
    assert (third.position, third.label) == (3, names[3])


def test_each_target_has_a_gradient_of_its_own(tagger: tuple[Any, Any]) -> None:
    model, tokenizer = tagger
    method = attnflow.GradientRollout()
    result = attnflow.explain((model, tokenizer), TEXT, method)
    assert result.values.shape[1:] == (len(result.sources),) * 2
    for position in (2, 5):
        trace = attnflow.capture((model, tokenizer), TEXT, record=["gradients"], position=position)
        alone = method(trace, targets=[position])
        np.testing.assert_array_equal(alone.values[:, 0], result.values[:, position])
    one = attnflow.explain((model, tokenizer), TEXT, method, targets="sara", answer="PER")
    assert list(one.targets) == ["sara"]
    assert one.provenance["gradients_of"] == ["PER"]


def test_a_position_that_has_no_answer_is_refused(tagger: tuple[Any, Any]) -> None:
    model, tokenizer = tagger
    with pytest.raises(InputError, match="no position 99"):
        attnflow.capture((model, tokenizer), TEXT, position=99)
    with pytest.raises(InputError, match="one answer, read from position 0"):
        attnflow.capture(None, "the keys", position=2)


def test_gradient_attention_of_a_token_is_that_of_its_own_answer(tagger: tuple[Any, Any]) -> None:
    """Rows of other targets were those of the surest token's answer."""
    model, tokenizer = tagger
    method, rows = attnflow.GradientAttention(), np.array([2, 5])
    result = attnflow.explain((model, tokenizer), TEXT, method, targets=rows)
    for row, position in enumerate(rows.tolist()):
        trace = attnflow.capture((model, tokenizer), TEXT, record=["gradients"], position=position)
        product = np.maximum(trace.weights * trace.gradients, 0).mean(axis=1).cumsum(axis=0)
        np.testing.assert_allclose(result.values[:, row], product[:, position], rtol=1e-5)
    one = attnflow.explain((model, tokenizer), TEXT, method, targets=np.int64(2))
    np.testing.assert_array_equal(one.values[:, 0], result.values[:, 0])


def test_a_token_is_judged_at_its_own_place(tagger: tuple[Any, Any]) -> None:
    """Where a blank made another token the surest, that one's answer was read."""
    from attnflow.evaluation.importance import BlankOut, InputGradient, IntegratedGradients

    model, tokenizer = tagger
    importance = BlankOut(signed=True)((model, tokenizer), [TEXT])[0]
    encoded = tokenizer(TEXT, return_tensors="pt")

    def share(ids: Tensor) -> float:
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=encoded["attention_mask"]).logits[0]
        return float(logits[importance.position].softmax(-1)[importance.choice])

    for position in np.flatnonzero(np.isfinite(importance.values)).tolist():
        ids = encoded["input_ids"].clone()
        ids[0, position] = tokenizer.unk_token_id
        effect = share(encoded["input_ids"]) - share(ids)
        assert importance.values[position] == pytest.approx(effect, abs=1e-6)
    blank = encoded["input_ids"].clone()
    blank[0, 1:-1] = tokenizer.unk_token_id
    path = IntegratedGradients(steps=64, signed=True)((model, tokenizer), [TEXT])[0]
    assert path.values.sum() == pytest.approx(share(encoded["input_ids"]) - share(blank), abs=2e-2)
    assert InputGradient()((model, tokenizer), [TEXT])[0].position == importance.position
    with pytest.raises(attnflow.errors.MethodError, match="by='delete' moves tokens away"):
        BlankOut(by="delete")((model, tokenizer), [TEXT])


# -- answers by name ----------------------------------------------------------------------------


def test_a_class_may_be_named() -> None:
    by_name = attnflow.capture(None, "the keys", record=["gradients"], answer="singular")
    by_number = attnflow.capture(None, "the keys", record=["gradients"], answer=0)
    assert by_name.provenance["gradients_of"] == "singular"
    np.testing.assert_array_equal(by_name.gradients, by_number.gradients)
    with pytest.raises(InputError, match=r"no such choice. Did you mean 'plural'.*'singular'"):
        attnflow.explain(None, "the keys", "gradient-rollout", answer="plurral")
    both = attnflow.capture(None, ["the key", "keys"], record=["gradients"], answer="plural")
    assert [t.provenance["gradients_of"] for t in both] == ["plural", "plural"]


def test_a_word_may_be_named() -> None:
    model, tokenizer = tiny_encoder()
    text = "the author talked to [MASK]"
    trace = attnflow.capture((model, tokenizer), text, record=["gradients"], answer="sara")
    assert trace.provenance["gradients_of"] == "sara"


# -- encoder–decoders ---------------------------------------------------------------------------


def tokenizer_with(before: list[str], after: list[str], shift: int = 0) -> Any:
    """A word tokenizer that frames a text with these special tokens; w5 is number 5 + shift."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = [f"w{k}" for k in range(4, 64)]
    names = ["<pad>", "<s>", "</s>", "<unk>", *words[60 - shift :], *words[: 60 - shift]]
    raw = Tokenizer(models.WordLevel({name: k for k, name in enumerate(names)}, "<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    frame = " ".join([*before, "$A", *after])
    special = [(name, names.index(name)) for name in {*before, *after}]
    raw.post_processor = processors.TemplateProcessing(frame, None, special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


BOTH_SIDES = {
    "T5": ("T5", [], ["</s>"]),
    "BART": ("BART", ["<s>"], ["</s>"]),
    "Marian": ("Marian", [], ["</s>"]),
}


@pytest.mark.parametrize("name", BOTH_SIDES)
def test_the_prediction_is_the_models_own_next_token(name: str) -> None:
    """Many prefixes: what attnflow names is what the model writes next."""
    family, before, after = BOTH_SIDES[name]
    model = next(f for f in FAMILIES if f.name == family).build()
    tokenizer = tokenizer_with(before, after)
    start = model.config.decoder_start_token_id
    rng = np.random.default_rng(0)
    for _ in range(25):
        source = " ".join(f"w{k}" for k in rng.integers(4, 64, rng.integers(1, 7)))
        written = [int(k) for k in rng.integers(4, 64, rng.integers(1, 6))]
        prefix = " ".join(f"w{k}" for k in written)
        trace = attnflow.capture((model, tokenizer), source, decoder_text=prefix, heads="mean")
        frame = [k for k in (tokenizer.convert_tokens_to_ids(before)) if k != start]
        with torch.no_grad():
            logits = model(
                **tokenizer(source, return_tensors="pt"),
                decoder_input_ids=torch.tensor([[start, *frame, *written]]),
            ).logits[0, -1]
        assert trace.prediction is not None
        assert trace.prediction.label == tokenizer.convert_ids_to_tokens(int(logits.argmax()))
        assert trace.tokens[-1] == f"w{written[-1]}"
        assert trace.prediction.position == trace.length - 1


def test_whisper_names_its_own_next_token() -> None:
    family = next(f for f in FAMILIES if f.name == "Whisper")
    model, tokenizer = family.build(), tokenizer_with([], [])
    rng = np.random.default_rng(1)
    for k in range(25):
        noise = torch.Generator().manual_seed(k)
        ids = torch.tensor([[1, *rng.integers(4, 64, rng.integers(0, 6)).tolist()]])
        inputs = {
            "input_features": torch.randn(1, 8, 20, generator=noise),
            "decoder_input_ids": ids,
        }
        trace = attnflow.capture((model, tokenizer), inputs, heads="mean")
        with torch.no_grad():
            best = int(model(**inputs).logits[0, -1].argmax())
        assert trace.prediction is not None
        assert trace.prediction.label == tokenizer.convert_ids_to_tokens(best)


def test_a_batch_of_decoder_texts_is_each_alone() -> None:
    model = next(f for f in FAMILIES if f.name == "Marian").build()
    tokenizer = tokenizer_with([], ["</s>"])
    sources, prefixes = ["w5 w6 w7", "w8"], ["w9", "w10 w11 w12"]
    both = attnflow.capture((model, tokenizer), sources, decoder_text=prefixes)
    for trace, source, prefix in zip(both, sources, prefixes, strict=True):
        alone = attnflow.capture((model, tokenizer), source, decoder_text=prefix)
        assert list(trace.tokens) == list(alone.tokens)
        np.testing.assert_allclose(trace.weights, alone.weights, atol=1e-5)
    with pytest.raises(TokensError, match="1 decoder texts were given for 2"):
        attnflow.capture((model, tokenizer), sources, decoder_text=["w9"])


class TwoSided:
    """A tokenizer whose sides differ, as Marian's do: a target's words have other numbers."""

    def __init__(self, source: Any, target: Any) -> None:
        self._source, self._target = source, target

    def __call__(self, *texts: Any, text_target: Any = None, **options: Any) -> Any:
        if text_target is None:
            return self._source(*texts, **options)
        return self._target(text_target, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def test_a_completion_is_read_with_the_targets_tokenizer() -> None:
    model = next(f for f in FAMILIES if f.name == "Marian").build()
    source = tokenizer_with([], ["</s>"])
    target = tokenizer_with([], ["</s>"], shift=7)
    both = TwoSided(source, target)
    result = attnflow.generate(
        (model, both), "w5 w6", completion="w9 w10", method=attnflow.Rollout()
    )
    assert result.provenance["completion_ids"] == [16, 17]  # the target's numbers
    assert list(result.sources) == ["w5", "w6", "</s>"]
    ids = attnflow.generate((model, both), "w5 w6", completion=[16, 17], method=attnflow.Rollout())
    np.testing.assert_array_equal(result.values, ids.values)


def test_a_batch_to_an_encoder_decoder_is_padded_on_the_right() -> None:
    model = next(f for f in FAMILIES if f.name == "Marian").build()
    tokenizer = tokenizer_with([], ["</s>"])
    sources = ["w5 w6 w7 w8 w9", "w10"]
    options: dict[str, Any] = {
        "max_new_tokens": 4,
        "method": attnflow.Rollout(),
        "min_new_tokens": 4,
    }
    both = attnflow.generate((model, tokenizer), sources, **options)
    for result, source in zip(both, sources, strict=True):
        alone = attnflow.generate((model, tokenizer), source, **options)
        assert list(result.targets) == list(alone.targets)
        np.testing.assert_allclose(result.values, alone.values, atol=1e-5)
    prepared = tokenizer(sources, return_tensors="pt", padding=True, padding_side="left")
    for inputs in (prepared, tokenizer(sources, return_tensors="pt", padding=True)):
        again = attnflow.generate((model, tokenizer), dict(inputs), **options)
        assert isinstance(again, list)
        assert [list(r.targets) for r in again] == [list(r.targets) for r in both]


@pytest.mark.parametrize("name", ["BART", "T5"])
def test_a_classifier_with_a_decoder_reads_its_end_token(name: str) -> None:
    """It was said to read the decoder's first position, and a text could not be explained."""
    config = next(f for f in FAMILIES if f.name == name).build().config
    config.num_labels, config.eos_token_id = 3, 2
    torch.manual_seed(0)
    model: Any = getattr(transformers, f"{name.capitalize()}ForSequenceClassification")
    model = model(config).eval()
    tokenizer = tokenizer_with(["<s>"], ["</s>"])
    texts = ["w5 w6 w7", "w8"]
    long, short = attnflow.capture((model, tokenizer), texts)
    for trace, text in ((long, texts[0]), (short, texts[1])):
        inputs = dict(tokenizer(text, return_tensors="pt"))
        ids, length = inputs["input_ids"], inputs["input_ids"].shape[1]
        logits = model(**inputs).logits[0].detach()
        assert trace.prediction is not None
        assert trace.prediction.probability == pytest.approx(float(logits.softmax(-1).max()), 1e-4)
        assert trace.encoder_length == length
        assert trace.prediction.position == trace.length - 1 == 2 * length - 1
        assert list(trace.tokens[length + 1 :]) == list(trace.tokens[: length - 1])
        alone = attnflow.capture((model, tokenizer), text)
        np.testing.assert_allclose(trace.weights, alone.weights, atol=1e-5)
        assert ids[0, -1] == 2
    with pytest.raises(TokensError, match=r"end token of its input \(2\).*got \[0\]"):
        attnflow.capture(model, {"input_ids": torch.tensor([[5, 6]])})
    with pytest.raises(TokensError, match="no decoder that writes a text of its own"):
        attnflow.capture((model, tokenizer), "w5", decoder_text="w6")


@pytest.mark.parametrize("kind", ["text", "image"])
def test_two_models_joined_as_encoder_and_decoder(kind: str) -> None:
    """Their configs count layers on each side: an AttributeError before."""
    sizes = {**SIZES, "num_hidden_layers": 2}
    written = transformers.BertConfig(**sizes, is_decoder=True, add_cross_attention=True)
    torch.manual_seed(0)
    inputs = {"decoder_input_ids": torch.tensor([[1, 5, 6]])}
    if kind == "text":
        both = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
            transformers.BertConfig(**sizes), written
        )
        model: Any = transformers.EncoderDecoderModel(both).eval()
        inputs["input_ids"] = torch.tensor([IDS])
    else:
        seen = transformers.ViTConfig(
            **{k: v for k, v in sizes.items() if k != "vocab_size"}, image_size=32, patch_size=16
        )
        both = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(seen, written)
        model = transformers.VisionEncoderDecoderModel(both).eval()
        inputs["pixel_values"] = torch.randn(1, 3, 32, 32)
    trace = attnflow.capture(model, inputs)
    assert trace.stages == ("encoder", "encoder", *("decoder", "cross") * 2)
    with torch.no_grad():
        best = int(model(**inputs).logits[0, -1].argmax())
    assert trace.prediction is not None
    assert (trace.prediction.label, trace.prediction.position) == (str(best), trace.length - 1)


# -- batches ------------------------------------------------------------------------------------


def test_texts_of_a_tokenizer_without_padding_are_each_alone() -> None:
    model = build("Llama", "CausalLM", **GROUPED)
    tokenizer = tokenizer_with([], [])
    tokenizer.pad_token = None
    texts = ["w5 w6 w7", "w8"]
    traces = attnflow.capture((model, tokenizer), texts)
    for trace, text in zip(traces, texts, strict=True):
        alone = attnflow.capture((model, tokenizer), text)
        assert list(trace.tokens) == list(alone.tokens)
        assert trace.tokens.words == alone.tokens.words
        np.testing.assert_allclose(trace.weights, alone.weights, atol=1e-5)


def test_a_classifier_that_cannot_tell_padding_takes_one_text() -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}
    model = build("GPT2", "SequenceClassification", **sizes)
    with pytest.raises(TokensError, match=r"names no padding token.*one text at a time"):
        attnflow.capture(model, [{"input_ids": torch.tensor([IDS, IDS])}])


# -- other hosts --------------------------------------------------------------------------------


def test_cross_attention_of_equal_length_is_no_self_attention() -> None:
    model = nn.Transformer(32, 4, 1, 1, 48, batch_first=True).eval()
    inputs = {"src": torch.randn(1, 5, 32), "tgt": torch.randn(1, 5, 32)}
    with pytest.raises(attnflow.errors.UnsupportedModelError, match="not the same positions"):
        attnflow.capture(model, inputs)


@pytest.mark.parametrize("shape", [(2, 5), (5, 2), (5, 1)])
def test_torchs_own_order_of_axes(shape: tuple[int, int]) -> None:
    """(positions, batch, width) is torch's default; two of five examples came back before."""
    layer = nn.TransformerEncoderLayer(16, 2, 24)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    states = torch.randn(*shape, 16)
    traces = attnflow.capture(model, [{"src": states}])
    assert [trace.length for trace in traces] == [shape[0]] * shape[1]
    for k, trace in enumerate(traces):
        for alone in (states[:, k : k + 1], states[:, k]):  # a batch of one, and none at all
            expected = attnflow.capture(model, {"src": alone}).weights
            np.testing.assert_allclose(trace.weights, expected, atol=1e-5)


def test_a_batch_that_is_not_seen_is_refused() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 16)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, ids: Tensor) -> Tensor:
            states = self.words(ids.T)  # positions first, as they are handed in
            return self.attention(states, states, states)[0]

    with pytest.raises(attnflow.errors.CaptureError, match=r"given 5 examples.*attends over 2"):
        attnflow.capture(Turned(), [{"ids": torch.ones(5, 2, dtype=torch.long)}])


def test_torch_padding_is_trimmed() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    states = torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    inputs = {"src": states, "src_key_padding_mask": padding}
    long, short = attnflow.capture(model, [inputs])
    assert (long.length, short.length) == (5, 3)
    alone = attnflow.capture(model, {"src": states[1:, :3]})
    np.testing.assert_allclose(short.weights, alone.weights, atol=1e-5)


def test_roberta_at_its_limit() -> None:
    model = build("Roberta", "SequenceClassification", **{**SIZES, "pad_token_id": 1})
    most = adapter_for(model).facts(model).max_length
    assert most == 62
    ids = torch.full((1, most), 7)
    assert attnflow.capture(model, {"input_ids": ids}, heads="mean").length == most
    with pytest.raises(TokensError, match=r"63 tokens and .* takes at most 62"):
        attnflow.capture(model, {"input_ids": torch.full((1, 63), 7)})


def test_words_are_told_apart_where_the_tokenizer_ignores_spaces() -> None:
    from tokenizers import Tokenizer, models, normalizers

    names = ["<pad>", "<unk>", "▁the", "▁key", "s", "▁are"]
    raw = Tokenizer(models.Unigram([(name, -1.0) for name in names], 1))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")
    model = next(f for f in FAMILIES if f.name == "Llama").build()
    result = attnflow.explain((model, tokenizer), "the keys are", level="word")
    assert [token.strip("▁ ") for token in result.sources] == ["the", "keys", "are"]


def test_spaces_divide_words_where_pieces_carry_no_marks() -> None:
    """All word numbers are 0 there: the whole sentence was one word."""
    from tokenizers import Tokenizer, models, normalizers

    names = ["<unk>", "the", "key", "s", "are"]
    raw = Tokenizer(models.Unigram([(name, -1.0) for name in names], 0))
    raw.normalizer = normalizers.Replace(" ", "")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")
    model = next(f for f in FAMILIES if f.name == "Llama").build()
    result = attnflow.explain((model, tokenizer), "the keys are", level="word")
    assert len(result.sources) == 3
