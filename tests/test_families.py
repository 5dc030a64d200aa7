"""Every family on a tiny random model: the weights, the composition, the images, the refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
import transformers

import attnflow
from attnflow.errors import CaptureError, InputError, TokensError, UnsupportedModelError
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.transformers.attention import watch_attention
from attnflow.testing import check_adapter, tiny_encoder
from attnflow.tokens.patches import enlarge
from families import FAMILIES, SIZES, Family, pixels, with_tables, words

# DeBERTa's file compiles functions with torch.jit when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.set_verbosity_error()


def of_kind(*kinds: str) -> list[Any]:
    return [pytest.param(f, id=f.name) for f in FAMILIES if f.kind in kinds]


def named(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


def eager_outputs(family: Family, model: Any) -> Any:
    """The host's own weights: the same model, eager, asked for attentions."""
    other = type(model)._from_config(model.config, attn_implementation="eager")
    other.load_state_dict(model.state_dict())
    inputs = family.inputs()
    if "CLIP" in family.name:
        other = other.vision_model if "pixel_values" in inputs else other.text_model
    with torch.no_grad():
        return other.eval()(**inputs, output_attentions=True)


# -- all of them --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", of_kind("encoder", "decoder", "hybrid", "vision"))
def test_weights_equal_the_hosts_eager_attention(family: Family) -> None:
    model = family.build()
    trace = attnflow.capture(model, family.inputs())
    theirs = [a for a in eager_outputs(family, model).attentions if a is not None]
    assert len(theirs) == len(trace.layers)
    assert trace.weights.std() * trace.length > 0.1, (
        "attention is too uniform for this test to tell anything"
    )
    for ours, layer in zip(trace.weights, theirs, strict=True):
        assert np.allclose(ours, layer[0].numpy(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("family", of_kind("encoder–decoder"))
def test_the_three_attentions_of_an_encoder_decoder(family: Family) -> None:
    model = family.build()
    trace = attnflow.capture(model, family.inputs())
    theirs = eager_outputs(family, model)
    assert trace.stages == ("encoder", "encoder", "decoder", "cross", "decoder", "cross")
    n = trace.encoder_length
    assert n is not None
    for stage, layers in (
        ("encoder", theirs.encoder_attentions),
        ("decoder", theirs.decoder_attentions),
    ):
        expected = np.stack([layer[0].numpy() for layer in layers])
        assert np.allclose(trace.stage(stage).weights, expected, rtol=0, atol=2e-6)
    cross = trace.stage("cross").weights
    expected = np.stack([layer[0].numpy() for layer in theirs.cross_attentions])
    assert np.allclose(cross[:, :, n:, :n], expected, rtol=0, atol=2e-6)
    assert (cross[:, :, n:, n:] == 0).all()
    assert np.array_equal(cross[0, 0, :n, :n], np.eye(n))


@pytest.mark.parametrize("family", of_kind("encoder–decoder"))
def test_composition_equals_a_plain_reference(family: Family) -> None:
    """Both streams by hand: the encoder's rollout, then self and cross in turn."""
    trace = attnflow.capture(family.build(), family.inputs())
    n = trace.encoder_length
    assert n is not None
    mean = {
        stage: trace.stage(stage).weights.mean(axis=1) for stage in ("encoder", "decoder", "cross")
    }
    encoder = np.eye(n)
    for weights in mean["encoder"]:
        encoder = 0.5 * weights @ encoder + 0.5 * encoder
    m = trace.length - n
    from_input, from_decoder = np.zeros((m, n)), np.eye(m)
    for own, cross in zip(mean["decoder"], mean["cross"], strict=True):
        from_input = 0.5 * own @ from_input + 0.5 * from_input
        from_decoder = 0.5 * own @ from_decoder + 0.5 * from_decoder
        from_input = 0.5 * cross[n:, :n] @ encoder + 0.5 * from_input
        from_decoder = 0.5 * from_decoder
    rollout = attnflow.Rollout()(trace, layers=-1).values[0]
    assert np.allclose(rollout[n:, :n], from_input, rtol=0, atol=1e-6)
    assert np.allclose(rollout[n:, n:], from_decoder, rtol=0, atol=1e-6)
    assert np.allclose(rollout.sum(axis=1), 1, atol=1e-5)


@pytest.mark.filterwarnings("ignore::attnflow.errors.AttributionWarning")
@pytest.mark.parametrize("family", [pytest.param(f, id=f.name) for f in FAMILIES])
def test_flow_equals_networkx(family: Family) -> None:
    trace = attnflow.capture(family.build(), family.inputs(), heads="mean")
    graph = attnflow.Flow().graph(trace)
    target, source = trace.length - 1, 1
    expected = nx.maximum_flow_value(
        graph.to_networkx(), graph.node(graph.layers, target), graph.node(0, source)
    )
    found = attnflow.Flow()(trace, targets=[target], layers=-1).values[0, 0, source]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("family", [pytest.param(f, id=f.name) for f in FAMILIES])
def test_every_check_passes(family: Family) -> None:
    check_adapter(family.build(), family.inputs())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["BERT", "Llama", "Gemma 2", "T5", "ViT"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    family = named(name)
    model = family.build().to(dtype)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in family.inputs().items()}
    trace = attnflow.capture(model, inputs)
    assert trace.weights.dtype == np.float32
    assert trace.provenance["dtype"] in (str(dtype).removeprefix("torch."), "float32")
    assert next(model.parameters()).dtype == dtype


# -- what is special to some --------------------------------------------------------------------


@pytest.mark.parametrize("family", of_kind("decoder"))
def test_decoders_are_causal(family: Family) -> None:
    assert attnflow.capture(family.build(), family.inputs()).kind == "causal"


def test_a_sliding_window_is_zero_outside_the_band() -> None:
    weights = attnflow.capture(named("Mistral").build(), words()).weights
    positions = np.arange(8)
    outside = positions[:, None] - positions[None, :] >= 3
    assert (weights[..., outside] == 0).all()
    assert (weights[..., np.eye(8, dtype=bool)] > 0).all()


def test_a_learned_sink_is_kept_beside_the_rows() -> None:
    trace = attnflow.capture(named("gpt-oss").build(), words())
    assert trace.sinks is not None
    assert trace.sinks.min() > 0
    assert np.allclose(trace.weights.sum(axis=-1) + trace.sinks, 1, atol=1e-6)
    assert (attnflow.Rollout()(trace).values.sum(axis=-1) < 1).all()


def test_layers_without_attention_keep_their_numbers() -> None:
    assert attnflow.capture(named("Qwen3-Next").build(), words()).layers == (4,)
    assert attnflow.capture(named("LFM2").build(), words()).layers == (2, 4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "OPT", "Gemma 3", "ModernBERT", "BART", "T5"])
def test_a_padded_example_equals_the_example_alone(name: str, side: str) -> None:
    family = named(name)
    model = family.build()
    rows = [[1, 5, 6, 2], [1, 5, 6, 7, 8, 9, 10, 2]]
    other = {k: v.repeat(2, 1) for k, v in family.inputs().items() if k.startswith("decoder")}
    padded, mask = zip(*[pad(row, 10, side) for row in rows], strict=True)
    inputs = {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(mask), **other}
    together = attnflow.capture(model, [inputs])
    for row, trace in zip(rows, together, strict=True):
        ids = torch.tensor([row])
        alone = attnflow.capture(
            model,
            {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                **{k: v[:1] for k, v in other.items()},
            },
        )
        assert trace.tokens == alone.tokens
        assert np.allclose(trace.weights, alone.weights, rtol=0, atol=5e-6)
        assert (trace.prediction is None) == (alone.prediction is None)
        if trace.prediction and alone.prediction:
            assert trace.prediction.position == alone.prediction.position
            assert trace.prediction.probability == pytest.approx(
                alone.prediction.probability, abs=1e-4
            )


def pad(row: list[int], length: int, side: str) -> tuple[list[int], list[int]]:
    empty = [0] * (length - len(row))
    ones = [1] * len(row)
    return (empty + row, empty + ones) if side == "left" else (row + empty, ones + empty)


def test_encoder_decoder_from_texts() -> None:
    tokenizer = tiny_encoder().tokenizer
    model = named("BART").build()
    trace = attnflow.capture((model, tokenizer), "the author talked", decoder_text="his book")
    assert trace.encoder_length == 5
    assert trace.tokens.texts[:5] == ("[CLS]", "the", "author", "talked", "[SEP]")
    assert trace.tokens.texts[6:] == ("[CLS]", "his", "book")  # a beginning has no end
    assert trace.prediction is not None
    assert trace.prediction.position == trace.length - 1
    start = attnflow.capture((model, tokenizer), "the author talked")
    assert start.length == 6
    with pytest.raises(TokensError, match="has no decoder beside its encoder"):
        attnflow.capture((named("BERT").build(), tokenizer), "the", decoder_text="x")


def test_a_trace_of_one_stack_has_no_stages() -> None:
    trace = attnflow.capture(named("BERT").build(), words())
    with pytest.raises(InputError, match="no stage 'cross'; its stages are none: it is one stack"):
        trace.stage("cross")


def test_composed_traces_are_saved_whole(tmp_path: Path) -> None:
    family = named("T5")
    trace = attnflow.capture(family.build(), family.inputs())
    trace.save(tmp_path / "trace.safetensors")
    back = attnflow.AttentionTrace.load(tmp_path / "trace.safetensors")
    assert (back.stages, back.encoder_length) == (trace.stages, trace.encoder_length)


# -- images -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("ViT", ("[CLS]",)),
        ("DeiT", ("[CLS]", "[DIST]")),
        ("DINOv2 with registers", ("[CLS]", "[REG1]", "[REG2]", "[REG3]", "[REG4]")),
        ("CLIP, image tower", ("[CLS]",)),
    ],
)
def test_patches_know_their_grid(name: str, prefix: tuple[str, ...], tmp_path: Path) -> None:
    family = named(name)
    trace = attnflow.capture(family.build(), family.inputs())
    grid = trace.tokens.grid
    assert grid is not None
    assert (grid.rows, grid.columns, grid.prefix) == (4, 4, len(prefix))
    assert trace.tokens.texts[: len(prefix)] == prefix
    assert trace.tokens[-1] == "patch 3,3"
    result = attnflow.Rollout()(trace, targets="[CLS]")
    image = result.image()
    assert image.shape == (32, 32)
    patches = result.values[-1, 0, len(prefix) :].reshape(4, 4)
    assert image.min() >= patches.min() - 1e-12
    assert image.max() <= patches.max() + 1e-12
    result.save(tmp_path / "x.json")
    assert attnflow.Attribution.load(tmp_path / "x.json").sources.grid == grid


def test_a_map_is_exact_at_the_patches_centres_and_linear_between() -> None:
    patches = np.random.default_rng(0).random((3, 4))
    assert np.allclose(enlarge(patches, 3, 4), patches)
    larger = enlarge(patches, 9, 12)
    assert np.allclose(larger[1::3, 1::3], patches)
    assert np.allclose(larger[1, 2], (2 * patches[0, 0] + patches[0, 1]) / 3)


def test_images_need_not_be_square() -> None:
    model = named("DINOv2").build()
    trace = attnflow.capture(model, pixels(24, 40))
    assert trace.tokens.grid is not None
    assert (trace.tokens.grid.rows, trace.tokens.grid.columns) == (3, 5)
    assert attnflow.Rollout()(trace).image(target=0).shape == (24, 40)


def test_image_needs_patches_and_one_target() -> None:
    with pytest.raises(InputError, match="the patches of an image"):
        attnflow.Raw()(attnflow.capture(named("BERT").build(), words())).image(target=0)
    with pytest.raises(InputError, match="A map shows one target and this result has 17"):
        attnflow.Raw()(attnflow.capture(named("ViT").build(), pixels())).image()


# -- refusals -----------------------------------------------------------------------------------


def test_windowed_models_are_refused_by_name() -> None:
    config = transformers.SwinConfig(image_size=32, embed_dim=16, depths=[1, 1], num_heads=[2, 2])
    with pytest.raises(UnsupportedModelError, match=r"SwinModel cannot be explained.*windows"):
        attnflow.capture(transformers.SwinModel(config), pixels())


def test_sparse_models_are_refused_by_name() -> None:
    config = transformers.LongformerConfig(**{**SIZES, "attention_window": 4})
    with pytest.raises(UnsupportedModelError, match=r"LongformerModel.*sparse attention in blocks"):
        attnflow.capture(transformers.LongformerModel(config), words())


def test_models_without_attention_are_refused_by_name() -> None:
    config = transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64)
    with pytest.raises(UnsupportedModelError, match=r"MambaModel.*without attention weights"):
        attnflow.capture(transformers.MambaModel(config), words())


def test_attention_that_returns_no_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As quantised or fused kernels do: an output and nothing to see."""
    from transformers.models.llama import modeling_llama

    attend = modeling_llama.eager_attention_forward
    monkeypatch.setattr(
        modeling_llama, "eager_attention_forward", lambda *a, **k: (attend(*a, **k)[0], None)
    )
    model = named("Llama").build()
    with pytest.raises(CaptureError, match="LlamaAttention returned no attention weights"):
        attnflow.capture(model, words())
    assert model.config._attn_implementation == "sdpa"


def test_one_model_is_captured_by_one_thread_at_a_time() -> None:
    model = named("Llama").build()
    recorder = Recorder("mean")
    with watch_attention(model, observer=recorder), pytest.raises(CaptureError, match="already"):
        attnflow.capture(model, words())
    assert attnflow.capture(model, words()).layers == (1, 2)


def test_several_images_with_several_texts_are_refused() -> None:
    model = named("CLIP, text tower").build()
    several = {name: tensor.repeat(2, *[1] * (tensor.ndim - 1)) for name, tensor in words().items()}
    images = pixels()["pixel_values"].repeat(2, 1, 1, 1)
    with pytest.raises(TokensError, match=r"one image with several texts.* got 2 images and 2"):
        attnflow.capture(model, {**several, "pixel_values": images})


def test_the_table_in_the_docs_is_the_list_of_the_tests() -> None:
    page = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    assert page == with_tables(page), "run: python tests/families.py"
