"""Importance against plain loops of single forward passes, autograd by hand, and differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from attnflow import capture
from attnflow.errors import InputError, MethodError, ModelError, TokensError, UnsupportedModelError
from attnflow.errors.progress import Progress, listening
from attnflow.evaluation import metrics
from attnflow.evaluation.faithfulness import Faithfulness
from attnflow.evaluation.importance import (
    MEASURES,
    BlankOut,
    InputGradient,
    IntegratedGradients,
    ValueZeroing,
)
from attnflow.hosts.model import Model
from attnflow.models.verb_number import VerbNumberModel, load_verb_number
from attnflow.testing import tiny_encoder

WORDS = ["the key to the cabinets", "some people in the old city", "dogs"]
MASKED = ["the author talked to sara about [MASK] book", "the [MASK] is her"]
CAUSAL = ["the author talked to", "her book about the key of sara", "the"]


@pytest.fixture(scope="module")
def embedded() -> Model:
    return Model(*load_verb_number())


@pytest.fixture(scope="module")
def masked() -> Model:
    return tiny_encoder("bert", head="MaskedLM")


@pytest.fixture(scope="module")
def classifier() -> Model:
    return tiny_encoder("distilbert", head="SequenceClassification")


@pytest.fixture(scope="module")
def causal(masked: Model) -> Model:
    config = transformers.LlamaConfig(
        vocab_size=len(masked.tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return Model(model, masked.tokenizer)


def probability(model: Any, ids: list[int], choice: int, at: int | None = None) -> float:
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    return float((logits if at is None else logits[at]).double().softmax(-1)[choice])


# -- blank-out ----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["unk", "pad", "delete"])
def test_blank_out_is_a_loop_of_single_passes(embedded: Model, by: Any) -> None:
    model, vocabulary = embedded
    found = BlankOut(by=by, keep=())((model, vocabulary), WORDS, answer=[0, 1, 1])
    for text, label, result in zip(WORDS, [0, 1, 1], found, strict=True):
        ids, tokens = vocabulary.encode(text)
        whole = probability(model, ids, label)
        expected = []
        for i in range(len(ids)):
            blank = {"unk": [vocabulary.unk_id], "pad": [vocabulary.pad_id], "delete": []}[by]
            changed = probability(model, ids[:i] + blank + ids[i + 1 :], label)
            expected.append(abs(changed - whole))
        assert list(result.tokens) == tokens
        assert result.values == pytest.approx(expected, abs=1e-5)
        assert result.probability == pytest.approx(whole, abs=1e-6)
        assert result.answer == model.labels[label]


def test_blank_out_of_a_masked_language_model(masked: Model) -> None:
    model, tokenizer = masked
    found = BlankOut(by="mask", signed=True)((model, tokenizer), MASKED)
    for text, result in zip(MASKED, found, strict=True):
        ids = tokenizer(text)["input_ids"]
        at = ids.index(tokenizer.mask_token_id)
        assert result.position == at
        whole = probability(model, ids, result.choice, at)
        assert result.probability == pytest.approx(whole, abs=1e-5)
        for i in range(len(ids)):
            if ids[i] in tokenizer.all_special_ids:  # the frame, and the mask that is asked about
                assert np.isnan(result.values[i])
                continue
            hidden = [*ids[:i], tokenizer.mask_token_id, *ids[i + 1 :]]
            expected = whole - probability(model, hidden, result.choice, at)
            assert result.values[i] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("by", ["unk", "delete"])
def test_blank_out_of_a_causal_language_model(causal: Model, by: Any) -> None:
    """The next word is read at the last position, also when that is the one blanked."""
    model, tokenizer = causal
    found = BlankOut(by=by, keep=())((model, tokenizer), CAUSAL)
    for text, result in zip(CAUSAL, found, strict=True):
        ids = tokenizer(text)["input_ids"]
        whole = probability(model, ids, result.choice, -1)
        for i in range(len(ids)):
            blank = [] if by == "delete" else [tokenizer.unk_token_id]
            hidden = ids[:i] + blank + ids[i + 1 :]
            expected = abs(whole - probability(model, hidden, result.choice, -1))
            assert result.values[i] == pytest.approx(expected, abs=1e-5)


def test_what_is_kept_is_not_measured(embedded: Model) -> None:
    model, vocabulary = embedded
    words = BlankOut()((model, vocabulary), WORDS[:1])[0]
    assert np.isnan(words.values).tolist() == [True, *[False] * 5, True]
    assert words.is_word.tolist() == [False, *[True] * 5, False]
    paper = BlankOut(keep=("[EOS]", "the"))((model, vocabulary), WORDS[:1])[0]
    assert [paper.tokens[i] for i in np.flatnonzero(np.isnan(paper.values))] == [
        "the", "the", "[EOS]",
    ]  # fmt: skip
    assert [c.token for c in words.top(2)] == ["to", "key"]


def test_a_logit_instead_of_a_probability(classifier: Model) -> None:
    model, tokenizer = classifier
    text = "the author talked"
    found = BlankOut(score="logit", signed=True)((model, tokenizer), [text], answer=1)[0]
    ids = tokenizer(text)["input_ids"]
    hidden = [*ids[:2], tokenizer.unk_token_id, *ids[3:]]
    with torch.no_grad():
        whole, other = (float(model(torch.tensor([x])).logits[0, 1]) for x in (ids, hidden))
    assert found.values[2] == pytest.approx(whole - other, abs=1e-5)


# -- gradients ----------------------------------------------------------------------------------


def by_hand(model: VerbNumberModel, ids: list[int], choice: int) -> tuple[Any, Any]:
    """The model's forward pass written out, from vectors; the gradient of p by them."""
    vectors = model.word_embedding(torch.tensor([ids])).detach().requires_grad_()
    hidden = vectors + model.position_embedding(torch.arange(len(ids)))
    for block in model.blocks:
        hidden, _ = block(hidden, None)
    share = model.classifier(model.final_norm(hidden[:, 0])).softmax(-1)[0, choice]
    return torch.autograd.grad(share, vectors)[0][0], vectors.detach()[0]


def test_input_gradients_are_autograds(embedded: Model) -> None:
    model, vocabulary = embedded
    norms = InputGradient()((model, vocabulary), WORDS, answer="plural")
    products = InputGradient(reduce="times-input")((model, vocabulary), WORDS, answer=1)
    for k, text in enumerate(WORDS):
        gradient, vectors = by_hand(model, vocabulary.encode(text)[0], 1)
        assert norms[k].values == pytest.approx(gradient.norm(dim=-1).numpy(), rel=1e-4)
        expected = (gradient * vectors).sum(-1).abs().numpy()
        assert products[k].values == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_input_gradients_are_finite_differences(masked: Model) -> None:
    """Through the public result only: a step along a token's vector moves the probability."""
    model, step = masked.module.double(), 1e-5
    try:
        measure = InputGradient(reduce="times-input")
        found = measure((model, masked.tokenizer), MASKED[:1])[0]
        ids = torch.tensor(masked.tokenizer(MASKED[0])["input_ids"])
        vectors = model.get_input_embeddings()(ids).detach()
        for i in range(len(ids)):
            moved = []
            for sign in (1, -1):
                changed = vectors.clone()
                changed[i] *= 1 + sign * step
                with torch.no_grad():
                    logits = model(inputs_embeds=changed[None]).logits[0, found.position]
                moved.append(float(logits.softmax(-1)[found.choice]))
            expected = abs(moved[0] - moved[1]) / (2 * step)
            assert found.values[i] == pytest.approx(expected, rel=1e-4, abs=1e-9)
    finally:
        masked.module.float()


def test_the_sum_over_dimensions_is_rounding_where_layernorm_reads(
    embedded: Model, classifier: Model
) -> None:
    """LayerNorm ignores a constant added to every dimension; so the sum of the gradient is 0."""
    model, vocabulary = embedded
    with pytest.raises(ModelError, match=r"sums to zero over the dimensions .* reduce='norm'"):
        InputGradient(reduce="abs-sum")((model, vocabulary), WORDS)
    noise = InputGradient(reduce="abs-sum", allow_noise=True)((model, vocabulary), WORDS)
    norms = InputGradient()((model, vocabulary), WORDS)
    for small, large in zip(noise, norms, strict=True):
        assert (small.values < 1e-5 * large.values).all()
    ids = torch.tensor([vocabulary.encode(WORDS[0])[0]])
    with torch.no_grad():
        before = model(ids).logits
        model.word_embedding.weight += 3.0
        after = model(ids).logits
        model.word_embedding.weight -= 3.0
    assert torch.allclose(before, after, atol=1e-4)
    with pytest.raises(ModelError, match="at='stream'"):
        InputGradient(reduce="abs-sum")((classifier.module, classifier.tokenizer), CAUSAL)


def test_the_sum_over_dimensions_where_a_block_reads_its_input_as_it_is(
    classifier: Model,
) -> None:
    """DistilBERT's blocks read the stream without a norm before it: a real number there."""
    model: Any = classifier.module
    measure = InputGradient(reduce="abs-sum", at="stream", score="logit")
    found = measure((model, classifier.tokenizer), CAUSAL[:1], answer=1)[0]
    encoded = classifier.tokenizer(CAUSAL[0], return_tensors="pt")
    stream = model.distilbert.embeddings(encoded["input_ids"]).detach().requires_grad_()
    mask = encoded["attention_mask"]
    handle = model.distilbert.embeddings.register_forward_hook(lambda *_: stream)
    logit = model(input_ids=encoded["input_ids"], attention_mask=mask).logits[0, 1]
    handle.remove()
    expected = torch.autograd.grad(logit, stream)[0][0].sum(-1).abs().numpy()
    assert found.values == pytest.approx(expected, rel=1e-3, abs=1e-7)
    assert found.values.max() > 1e-4


def test_integrated_gradients_add_up_to_the_whole_difference(embedded: Model) -> None:
    pytest.importorskip("captum")
    model, vocabulary = embedded
    found = IntegratedGradients(steps=64, signed=True)((model, vocabulary), WORDS, answer=0)
    for text, result in zip(WORDS, found, strict=True):
        ids = vocabulary.encode(text)[0]
        blank = [ids[0], *[vocabulary.unk_id] * (len(ids) - 2), ids[-1]]
        expected = probability(model, ids, 0) - probability(model, blank, 0)
        assert result.values.sum() == pytest.approx(expected, abs=5e-3)
        assert result.values[[0, -1]].tolist() == [0, 0]  # they stay, so they change nothing
    sizes = IntegratedGradients(steps=64)((model, vocabulary), WORDS, answer=0)
    assert sizes[0].values == pytest.approx(np.abs(found[0].values), abs=1e-9)


def test_integrated_gradients_of_a_masked_language_model(masked: Model) -> None:
    pytest.importorskip("captum")
    model, tokenizer = masked
    found = IntegratedGradients(steps=50, blank="pad", score="logit", signed=True)(
        (model, tokenizer), MASKED, batch_size=7
    )
    for text, result in zip(MASKED, found, strict=True):
        ids = torch.tensor(tokenizer(text)["input_ids"])
        framed = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
        with torch.no_grad():
            whole, blank = (
                float(model(x[None]).logits[0, result.position, result.choice])
                for x in (ids, torch.where(framed, ids, tokenizer.pad_token_id))
            )
        assert result.values.sum() == pytest.approx(whole - blank, abs=0.02)


# -- value zeroing ------------------------------------------------------------------------------


def test_value_zeroing_of_the_embedded_model_by_hand(embedded: Model) -> None:
    """The attention of every layer written out, with one position's value left out of the sum."""
    model, vocabulary = embedded
    found = ValueZeroing()((model, vocabulary), WORDS, answer=0)
    for text, result in zip(WORDS, found, strict=True):
        ids = vocabulary.encode(text)[0]
        whole = probability(model, ids, 0)
        expected = [abs(whole - _silent_by_hand(model, ids, j)) for j in range(len(ids))]
        assert result.values == pytest.approx(expected, abs=1e-5)


def _silent_by_hand(model: VerbNumberModel, ids: list[int], silent: int) -> float:
    hidden = model.word_embedding(torch.tensor(ids)) + model.position_embedding.weight[: len(ids)]
    with torch.no_grad():
        for block in model.blocks:
            normed = block.attention_norm(hidden)  # type: ignore[operator]
            parts = block.attention.query_key_value(normed)  # type: ignore[operator,union-attr]
            query, key, value = (x.view(len(ids), 8, 16) for x in parts.split(128, dim=-1))
            mixed = torch.zeros(len(ids), 8, 16)
            for head in range(8):
                weights = (query[:, head] @ key[:, head].T / 4).softmax(-1)
                for j in range(len(ids)):
                    if j != silent:
                        mixed[:, head] += weights[:, j : j + 1] * value[j, head]
            hidden = hidden + block.attention.projection(mixed.reshape(len(ids), 128))  # type: ignore[operator,union-attr]
            hidden = hidden + block.mlp(block.mlp_norm(hidden))  # type: ignore[operator]
        return float(model.classifier(model.final_norm(hidden[0])).softmax(-1)[0])


def test_value_zeroing_of_transformers_models(masked: Model, causal: Model) -> None:
    """Zero what each value projection gives at one position: BERT, and Llama's grouped heads."""
    for (model, tokenizer), texts, name in (
        (masked, MASKED, "value"),
        (causal, CAUSAL, "v_proj"),
    ):
        found = ValueZeroing()((model, tokenizer), texts)
        for text, result in zip(texts, found, strict=True):
            ids = tokenizer(text)["input_ids"]
            whole = probability(model, ids, result.choice, result.position)
            for j in range(len(ids)):
                with _zeroed(model, name, j):
                    other = probability(model, ids, result.choice, result.position)
                assert result.values[j] == pytest.approx(abs(whole - other), abs=1e-5)


class _zeroed:  # noqa: N801
    def __init__(self, model: Any, name: str, position: int) -> None:
        def zero(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            changed = output.clone()
            changed[:, position] = 0
            return changed

        parts = [part for path, part in model.named_modules() if path.split(".")[-1] == name]
        assert parts
        self.handles = [part.register_forward_hook(zero) for part in parts]

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()


# -- what holds for all -------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(MEASURES))
@pytest.mark.parametrize("host", ["embedded", "masked", "causal", "classifier"])
def test_a_batch_equals_its_texts_alone(
    name: str, host: str, request: pytest.FixtureRequest
) -> None:
    if name == "integrated-gradients":
        pytest.importorskip("captum")
    model, tokenizer = request.getfixturevalue(host)
    texts = {"embedded": WORDS, "masked": MASKED}.get(host, CAUSAL)
    measure = MEASURES[name]()
    steps: list[Progress] = []
    with listening(steps.append):
        together = measure((model, tokenizer), texts, batch_size=64)
    assert (steps[-1].stage, steps[-1].done) == (measure.name, steps[-1].total)
    for text, result in zip(texts, together, strict=True):
        alone = measure((model, tokenizer), [text], batch_size=1)[0]
        assert result.values == pytest.approx(alone.values, abs=1e-5, nan_ok=True)
        assert result.tokens.texts == capture((model, tokenizer), text).tokens.texts
        assert (result.choice, result.answer) == (alone.choice, alone.answer)


def test_the_model_is_given_back(masked: Model) -> None:
    model, tokenizer = masked
    model.train()
    before = model.config._attn_implementation
    for name in ("blank-out", "input-gradient", "value-zeroing"):
        MEASURES[name]()((model, tokenizer), MASKED)
    assert model.training
    assert model.config._attn_implementation == before
    assert not any(part._forward_hooks for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()


def test_bad_input_is_refused(embedded: Model, masked: Model, causal: Model) -> None:
    model, vocabulary = embedded
    with pytest.raises(InputError, match="texts is a list of texts; got 'the key'"):
        BlankOut()((model, vocabulary), "the key")
    with pytest.raises(TokensError, match="the text is ' '"):
        BlankOut()((model, vocabulary), [" "])
    with pytest.raises(TokensError, match="tokenizer"):
        BlankOut()(model, WORDS)
    with pytest.raises(InputError, match="one of 2 choices, 0 to 1"):
        BlankOut()((model, vocabulary), WORDS, answer=2)
    with pytest.raises(InputError, match=r"no such choice\. Did you mean 'plural'"):
        BlankOut()((model, vocabulary), WORDS, answer="plurals")
    with pytest.raises(InputError, match="2 choices for 3 examples"):
        BlankOut()((model, vocabulary), WORDS, answer=[0, 1])
    with pytest.raises(InputError, match="batch_size is a whole number of at least 1; got 0"):
        BlankOut()((model, vocabulary), WORDS, batch_size=0)
    with pytest.raises(MethodError, match=r"no such token. There are 'unk', 'pad', 'delete'"):
        BlankOut(by="mask")((model, vocabulary), WORDS)
    with pytest.raises(ModelError, match="with a mask in the text"):
        BlankOut()((masked.module, masked.tokenizer), ["the author"])
    bare = tiny_encoder("bert", head="")
    with pytest.raises(ModelError, match="gives no answer to measure"):
        BlankOut()(bare, MASKED)
    with pytest.raises(MethodError, match=r"by='delet': Did you mean 'delete'\?"):
        BlankOut(by="delet")  # type: ignore[arg-type]
    with pytest.raises(MethodError, match=r"keep=\('\[EOS\]',\)"):
        BlankOut(keep="[EOS]")  # type: ignore[arg-type]
    with pytest.raises(MethodError, match="steps is a whole number of at least 1"):
        IntegratedGradients(steps=0)
    with pytest.raises(MethodError, match="reduce='sum'"):
        InputGradient(reduce="sum")  # type: ignore[arg-type]


def test_encoder_decoders_are_refused_by_name(masked: Model) -> None:
    config = transformers.T5Config(
        vocab_size=len(masked.tokenizer), d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    with pytest.raises(UnsupportedModelError, match="models that read one sequence"):
        BlankOut()((model, masked.tokenizer), ["the book"])


# -- faithfulness -------------------------------------------------------------------------------


def test_faithfulness_is_a_loop_of_single_passes(embedded: Model) -> None:
    model, vocabulary = embedded
    text = WORDS[0]
    ids, _ = vocabulary.encode(text)
    values = np.array([9.0, 0.1, 0.5, 0.3, 0.2, 0.4, 9.0])  # the frame's do not count
    found = Faithfulness()((model, vocabulary), [text], {"mine": [values]}, answer=0)["mine"]
    order = [2, 5, 3, 4, 1]
    whole = probability(model, ids, 0)
    for step in range(11):
        count = -(-step * 5 // 10)
        without = [vocabulary.unk_id if i in order[:count] else x for i, x in enumerate(ids)]
        only = [vocabulary.unk_id if i in order[count:] else x for i, x in enumerate(ids)]
        assert found.deletion[0, step] == pytest.approx(probability(model, without, 0), abs=1e-5)
        assert found.insertion[0, step] == pytest.approx(probability(model, only, 0), abs=1e-5)
    kept = [1, 2, 3, 4, 5]
    assert found.comprehensiveness[0] == pytest.approx(whole - found.deletion[0, kept].mean())
    assert found.sufficiency[0] == pytest.approx(whole - found.insertion[0, kept].mean())
    assert found.deletion_area[0] == pytest.approx(metrics.area(found.deletion[0]))
    assert found.insertion_area[0] == pytest.approx(metrics.area(found.insertion[0]))


def test_the_score_itself_is_more_faithful_than_chance(embedded: Model) -> None:
    model, vocabulary = embedded
    texts = ["the key to the cabinets by the door", "the pilots in front of the officer"]
    best = [np.nan_to_num(x.values) for x in BlankOut()((model, vocabulary), texts)]
    found = Faithfulness()((model, vocabulary), texts, {"best": best})
    assert found["best"].comprehensiveness.mean() > found["random"].comprehensiveness.mean()
    assert found["best"].sufficiency.mean() < found["random"].sufficiency.mean()
    again = Faithfulness()((model, vocabulary), texts, {"best": best})["random"]
    assert np.array_equal(again.deletion, found["random"].deletion)
    with pytest.raises(InputError, match=r"shape \(3,\) for the 10 tokens of text 0"):
        Faithfulness()((model, vocabulary), texts, {"x": [np.ones(3)] * 2})
    with pytest.raises(InputError, match="'random' is taken"):
        Faithfulness()((model, vocabulary), texts, {"random": best})
    with pytest.raises(MethodError, match="random_orders is a whole number from 1 to"):
        Faithfulness(random_orders=0)
