"""Vision-language models: both towers as one graph, held against plain loops for every family."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

import attnflow
from attnflow import GradientAttention, GradientRollout, Rollout
from attnflow.errors import InputError, MethodError, UnsupportedModelError
from attnflow.hosts.capture import capture
from attnflow.hosts.vision_language.composition import pictures_of, with_pictures
from attnflow.hosts.vision_language.towers import fed_by, feeding_matrix
from attnflow.methods.products import image_sources
from vision_families import (
    TEXT,
    VIDEO_FAMILIES,
    VISION,
    VISION_FAMILIES,
    VisionFamily,
    in_blocks,
    pixels,
    prompt,
)

Matrix = NDArray[np.float64]
FAMILIES = pytest.mark.parametrize(
    "family",
    [
        *(pytest.param(family, id=family.name) for family in VISION_FAMILIES),
        *(pytest.param(family, id=f"{family.name} video") for family in VIDEO_FAMILIES),
    ],
)


# --- the reference: every attention of the model as its own file computes it ----------------------


@contextmanager
def recorded_attention(model: Any) -> Iterator[list[tuple[Any, Tensor]]]:
    """(module, weights) of every call of the model files' own eager functions."""
    calls: list[tuple[Any, Tensor]] = []
    files = {type(part).__module__ for part in model.modules()}
    changed = []
    for name in files:
        file = sys.modules[name]
        own = getattr(file, "eager_attention_forward", None)
        if own is None:
            continue

        def eager(module: Any, *args: Any, own: Any = own, **kwargs: Any) -> Any:
            output, weights = own(module, *args, **kwargs)
            weights.retain_grad()
            calls.append((module, weights))
            return output, weights

        changed.append((file, own))
        file.eager_attention_forward = eager  # type: ignore[attr-defined]
    model.set_attn_implementation("eager")
    try:
        yield calls
    finally:
        for file, own in changed:
            file.eager_attention_forward = own  # type: ignore[attr-defined]
        model.set_attn_implementation("sdpa")


class Reference:
    """One eager pass with a backward pass, and loops over what it left."""

    def __init__(self, family: VisionFamily) -> None:
        self.family = family
        model, inputs = family.build()
        with recorded_attention(model) as calls:
            logits = model(**inputs).logits[0, -1].float()
            logits.log_softmax(dim=-1).max().backward()
        vision = {id(part) for part in model.get_encoder(modality="image").modules()}
        self.vision = self._layers([c for c in calls if id(c[0]) in vision])[: family.layers]
        self.language = self._layers([c for c in calls if id(c[0]) not in vision])
        places = (inputs["input_ids"][0] == family.token).nonzero()[:, 0].tolist()
        self.places = dict(zip(places, family.tokens, strict=True))

    @staticmethod
    def _layers(calls: list[tuple[Any, Tensor]]) -> list[tuple[Matrix, Matrix]]:
        """For each layer the mean weights and the mean of relu(A * dA), parts on the diagonal."""
        by_module: dict[int, list[Tensor]] = {}
        for module, weights in calls:
            by_module.setdefault(id(module), []).append(weights)
        layers = []
        for several in by_module.values():
            parts = []
            for weights in several:
                gradient = torch.zeros_like(weights) if weights.grad is None else weights.grad
                for a, g in zip(weights.detach().double(), gradient.double(), strict=True):
                    parts.append((a.mean(0).numpy(), (a * g).clamp_min(0).mean(0).numpy()))
            n = sum(len(part[0]) for part in parts)
            pair = (np.zeros((n, n)), np.zeros((n, n)))
            start = 0
            for part in parts:
                end = start + len(part[0])
                for square, values in zip(pair, part, strict=True):
                    square[start:end, start:end] = values
                start = end
            layers.append(pair)
        return layers

    def columns(self) -> list[int]:
        """The vision positions image by image, class tokens first, patches in reading order."""
        order = []
        for image, (rows, columns, prefix) in enumerate(self.family.grids):
            first = self.family.position((image, 0, 0))
            order += [first - prefix + k for k in range(prefix)]
            order += [
                self.family.position((image, r, c)) for r in range(rows) for c in range(columns)
            ]
        return order

    def row(self, towers: tuple[Matrix, Matrix]) -> list[float]:
        """The last row of the language model, its image tokens handed on, then the words."""
        seen, read = towers
        last = read[-1]
        patches = [0.0] * len(seen)
        words = []
        for position, value in enumerate(last.tolist()):
            feeding = self.places.get(position, [])
            if not feeding:
                words.append(value)
            for patch in feeding:
                for source, share in enumerate(seen[self.family.position(patch)].tolist()):
                    patches[source] += value / len(feeding) * share
        return [patches[k] for k in self.columns()] + words

    def rollout(self) -> list[float]:
        return self.row(
            (rolled([a for a, _ in self.vision]), rolled([a for a, _ in self.language]))
        )

    def gradient_rollout(self) -> list[float]:
        return self.row((grown([g for _, g in self.vision]), grown([g for _, g in self.language])))


def times(a: Matrix, b: Matrix) -> Matrix:
    n = len(a)
    product = np.zeros((n, n))
    for i in range(n):
        for k in range(n):
            if a[i, k]:
                product[i] += a[i, k] * b[k]
    return product


def rolled(layers: list[Matrix]) -> Matrix:
    product = np.eye(len(layers[0]))
    for layer in layers:
        product = times(0.5 * layer + 0.5 * np.eye(len(layer)), product)
    return product


def grown(layers: list[Matrix]) -> Matrix:
    relevance = np.eye(len(layers[0]))
    for layer in layers:
        relevance = relevance + times(layer, relevance)
    return relevance


@FAMILIES
def test_rollout_through_both_towers_equals_loops(family: VisionFamily) -> None:
    model, inputs = family.build()
    trace = capture(model, inputs, methods=[Rollout()])
    result = Rollout()(trace, targets=-1, layers=-1, sources=image_sources(trace))
    expected = Reference(family).rollout()
    assert result.values.shape[-1] == len(expected)
    np.testing.assert_allclose(result.values[0, 0], expected, atol=1e-5)
    assert math.isclose(float(result.values.sum()), 1.0, abs_tol=1e-4)


@FAMILIES
def test_gradient_rollout_through_both_towers_equals_loops(family: VisionFamily) -> None:
    model, inputs = family.build()
    trace = capture(model, inputs, methods=[GradientRollout()])
    result = GradientRollout()(trace, targets=-1, layers=-1, sources=image_sources(trace))
    expected = np.array(Reference(family).gradient_rollout())
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(result.values[0, 0] / scale, expected / scale, atol=1e-5)
    assert expected[: -len(expected) // 2].any()


# --- what else a trace of two towers must be ------------------------------------------------------


def named(name: str) -> VisionFamily:
    return next(family for family in VISION_FAMILIES if family.name == name)


@pytest.fixture(scope="module")
def llava() -> tuple[Any, dict[str, Tensor]]:
    return named("LLaVA").build()


def test_every_image_has_its_grid_and_its_place_among_the_sources(llava: Any) -> None:
    result = attnflow.explain(*llava, "rollout")
    first, second = result.sources.images
    assert (first.name, second.name) == ("image 1", "image 2")
    assert (first.grid.rows, first.grid.columns, first.grid.prefix) == (4, 4, 1)
    assert result.sources[second.start] == "image 2 [CLS]"
    assert result.sources[second.patches.start] == "image 2 patch 0,0"
    part = result.of_image(1).layer(-1)
    assert part.sources.grid == second.grid
    assert part.image().shape == (16, 16)
    top = result.layer(-1)
    assert np.isclose(part.values.sum() + part.elsewhere.sum(), top.values.sum())
    with pytest.raises(InputError, match="There is no image 2 among the sources"):
        result.of_image(2)


@pytest.mark.parametrize("family", VIDEO_FAMILIES, ids=lambda family: family.name)
def test_every_frame_of_a_video_has_its_map(family: VisionFamily) -> None:
    result = attnflow.explain(*family.build(), "rollout")
    assert [image.name for image in result.sources.images] == ["video 1 frame 1", "video 1 frame 2"]
    assert result.of_image(1).layer(-1).image().shape == (16, 16)
    assert result.sources[16] == "video 1 frame 2 patch 0,0"


class Scaling:
    """A processor that makes shares from 0 to 1 of pixels, then -1 to 1."""

    image_mean = image_std = (0.5, 0.5, 0.5)

    @property
    def image_processor(self) -> Scaling:
        return self


def as_pixels(picture: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(picture).permute(2, 0, 1).float() / 127.5 - 1


def test_patches_that_were_cut_are_put_together_again() -> None:
    """The picture under a map is what the model saw, of Qwen's rows of patches too."""
    model, inputs = named("Qwen2-VL").build()
    random = np.random.default_rng(0)
    sizes = ((16, 16), (16, 24))
    pictures = [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    rows = torch.zeros(40, 3, 2, 4, 4)
    for number, picture in enumerate(pictures):
        for row in range(4):
            for column in range(picture.shape[1] // 4):
                place = np.s_[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
                patch = as_pixels(picture)[place]
                rows[in_blocks((number, row, column))] = patch[:, None]
    inputs = {**inputs, "pixel_values": rows.reshape(40, -1)}
    result = with_pictures(attnflow.explain(model, inputs, "raw"), model, inputs, Scaling())
    assert len(result.provenance["images"]) == 2
    for picture, again in zip(pictures, pictures_of(model, inputs, Scaling()), strict=True):
        np.testing.assert_array_equal(again, picture)


def test_tiles_are_pictures_of_their_own_and_what_fills_up_is_none() -> None:
    model, inputs = named("LLaVA-OneVision").build()
    tiles = inputs["pixel_values"].clamp(-1, 1)
    filled = torch.cat([tiles, torch.zeros(1, 1, 3, 16, 16)], dim=1)
    pictures = pictures_of(model, {**inputs, "pixel_values": filled}, Scaling())
    assert [picture.shape for picture in pictures] == [(16, 16, 3)] * 3
    assert float((as_pixels(pictures[1]) - tiles[0, 1]).abs().max()) < 0.005
    result = attnflow.explain(model, inputs, "raw")
    without = with_pictures(result, model, {**inputs, "pixel_values": tiles[:, :2]}, Scaling())
    assert "images" not in without.provenance  # two pictures for three grids: none is right


def test_images_stay_with_the_sources_in_files_and_when_words_are_merged(
    llava: Any, tmp_path: Path
) -> None:
    result = attnflow.explain(*llava, "rollout")
    result.save(tmp_path / "result.json")
    assert attnflow.Attribution.load(tmp_path / "result.json").sources == result.sources
    assert result.merge_words().sources.images == result.sources.images
    assert result.sources.select(range(3, 20)).images == ()


def test_raw_attention_of_an_image_token_ends_on_the_patches_that_feed_it() -> None:
    family = named("Idefics3")
    reference = Reference(family)
    model, inputs = family.build()
    result = attnflow.explain(model, inputs, "raw").layer(-1)
    no_tower = np.eye(len(reference.vision[0][0]))
    expected = reference.row((no_tower, reference.language[-1][0]))
    np.testing.assert_allclose(result.values[0, 0], expected, atol=1e-5)


@pytest.mark.parametrize("tower", ["connector", "rollout"])
def test_gradient_attention_is_carried_on_to_patches(tower: Any) -> None:
    family = named("Qwen2.5-VL")
    reference = Reference(family)
    model, inputs = family.build()
    method = GradientAttention(tower=tower, drop_sink=False)
    result = attnflow.explain(model, inputs, method).layer(-1)
    read = np.sum([gradient for _, gradient in reference.language], axis=0)
    layers = [weights for weights, _ in reference.vision]
    seen = rolled(layers) if tower == "rollout" else np.eye(len(layers[0]))
    expected = np.array(reference.row((seen, read)))
    np.testing.assert_allclose(result.values[0, 0], expected, atol=1e-5 * expected.max())


def test_the_vision_tower_may_end_before_its_last_layer(llava: Any) -> None:
    trace = capture(*llava, heads="mean")
    assert trace.stages == ("vision",) * 2 + ("connector",) + ("language",) * 2
    assert trace.stage("vision").length == 34
    assert trace.stage("language").length == trace.length - 34


def test_a_model_is_as_it_was_after_a_capture(llava: Any) -> None:
    model, inputs = llava
    before = model(**inputs).logits
    hooks = [(*part._forward_hooks, *part._forward_pre_hooks) for part in model.modules()]
    capture(model, inputs, methods=[GradientRollout()])
    assert model.config._attn_implementation == "sdpa"
    after = [(*part._forward_hooks, *part._forward_pre_hooks) for part in model.modules()]
    assert after == hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(model(**inputs).logits, before)


def test_overlapping_positions_are_told_by_the_lengths_of_gradients() -> None:
    leaf = torch.randn(3, 4, requires_grad=True)
    mixed = torch.stack([leaf[0], 0.5 * leaf[0] + 0.5 * leaf[1], 0 * leaf[2]])
    np.testing.assert_allclose(
        feeding_matrix(mixed, [leaf], "model"), [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 0]], atol=1e-6
    )
    assert fed_by(mixed, [leaf]) is None
    assert fed_by(leaf[[2, 0]] * 3, [leaf]).tolist() == [1, -1, 0]  # type: ignore[union-attr]


def idefics2() -> tuple[Any, dict[str, Tensor]]:
    config = transformers.Idefics2Config(
        vision_config=VISION,
        perceiver_config={"resampler_n_latents": 4, "resampler_depth": 1, "hidden_size": 24},
        text_config=transformers.MistralConfig(**TEXT),
        image_token_id=39,
    )
    model = transformers.Idefics2ForConditionalGeneration(config).eval()
    return model, {**prompt([4]), "pixel_values": pixels(1, 1, 3, 16, 16)}


def blip2() -> tuple[Any, dict[str, Tensor]]:
    bridge = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2}
    config = transformers.Blip2Config(
        vision_config=VISION,
        qformer_config={**bridge, "num_attention_heads": 2, "encoder_hidden_size": 16},
        text_config=transformers.OPTConfig(
            vocab_size=40, hidden_size=24, ffn_dim=32, num_hidden_layers=2, num_attention_heads=4,
            word_embed_proj_dim=24, max_position_embeddings=64,
        ),
        num_query_tokens=4,
        image_token_index=39,
    )  # fmt: skip
    model = transformers.Blip2ForConditionalGeneration(config).eval()
    return model, {**prompt([4]), "pixel_values": pixels(1, 3, 16, 16)}


def mllama() -> tuple[Any, dict[str, Tensor]]:
    config = transformers.MllamaConfig(
        vision_config={
            "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "image_size": 16,
            "num_global_layers": 1, "attention_heads": 2, "patch_size": 4, "max_num_tiles": 1,
            "supported_aspect_ratios": [[1, 1]], "vision_output_dim": 32,
            "intermediate_layers_indices": [0],
        },
        text_config={**TEXT, "cross_attention_layers": [1]},
        image_token_index=39,
    )  # fmt: skip
    model = transformers.MllamaForConditionalGeneration(config).eval()
    return model, {
        **prompt([1]),
        "pixel_values": pixels(1, 1, 1, 3, 16, 16),
        "aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(1, 1, 1, dtype=torch.long),
        "cross_attention_mask": torch.ones(1, 8, 1, 1, dtype=torch.long),
    }


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (idefics2, r"Idefics2Perceiver.* mixes all patches by attention of its own"),
        (blip2, r"Blip2QFormer.* mixes all patches by attention of its own"),
        (mllama, r"Mllama"),
    ],
    ids=["perceiver", "Q-Former", "cross attention"],
)
def test_what_cannot_be_followed_is_refused_by_name(build: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        capture(*build(), heads="mean")


def test_towers_are_not_measured_inside(llava: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="two towers"):
        attnflow.explain(*llava, "alti")


@pytest.mark.parametrize("method", ["careful", "leave-one-out"])
def test_methods_that_leave_words_out_take_no_images(llava: Any, method: str) -> None:
    model, inputs = llava
    with pytest.raises(MethodError, match=f"'{method}'.* images= is for methods that read"):
        attnflow.generate(model, inputs, method, completion=[5])


def test_an_image_without_a_place_in_the_prompt_is_refused(llava: Any) -> None:
    model, inputs = llava
    words = {name: inputs[name][:, :3] for name in ("input_ids", "attention_mask")}
    with pytest.raises(Exception, match="image"):
        capture(model, {**words, "pixel_values": inputs["pixel_values"]}, heads="mean")


# --- images compared with texts -------------------------------------------------------------------


def comparing(kind: str) -> Any:
    text = {**TEXT, "num_key_value_heads": None, "eos_token_id": 22}
    text.pop("num_key_value_heads")
    if kind == "Siglip":
        text["projection_size"] = VISION["hidden_size"]
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=VISION, projection_dim=12
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}Model")(config).eval()


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_an_image_is_explained_by_its_similarity_to_one_of_several_texts(kind: str) -> None:
    model = comparing(kind)
    words = prompt([])["input_ids"]
    texts = torch.cat([words, words.flip(1)])
    inputs = {"input_ids": texts, "pixel_values": pixels(1, 3, 16, 16)}
    trace = capture(model, inputs, methods=[GradientRollout()], answer=1)
    assert trace.tokens.grid is not None
    assert trace.provenance["gradients_of"] == "text 1"
    with recorded_attention(model) as calls:
        similar = model(**inputs).logits_per_image[0]
        own = similar.log_softmax(-1) if kind == "CLIP" else torch.nn.functional.logsigmoid(similar)
        own[1].backward()
    vision = {id(part) for part in model.vision_model.modules()}
    layers = Reference._layers([call for call in calls if id(call[0]) in vision])
    expected = grown([gradient for _, gradient in layers])
    values = GradientRollout()(trace, layers=-1).values[0]
    np.testing.assert_allclose(values, expected, atol=1e-5)
    plain = Rollout()(capture(model, inputs, methods=[Rollout()]), layers=-1).values[0]
    np.testing.assert_allclose(plain, rolled([weights for weights, _ in layers]), atol=1e-5)


def test_the_words_are_explained_by_the_similarity_to_one_of_several_images() -> None:
    model = comparing("CLIP")
    inputs = {**prompt([]), "pixel_values": pixels(3, 3, 16, 16)}
    result = attnflow.explain(model, inputs, "gradient-rollout", answer=2)
    assert len(result.sources) == 6
    assert result.prediction is not None
    assert result.prediction.label.startswith("image ")
    assert result.prediction.position == 5  # where the end token stands
