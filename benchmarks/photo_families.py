"""Other families on the scenes of photographs: a DINOv2 with registers and a CLIP, small ones.

    python benchmarks/photo_scenes.py --output out/scenes       # first: the ViT both begin as
    python benchmarks/photo_families.py --scenes out/scenes     # a few minutes of one core

Both take over the weights of the ViT that `photo_scenes.py` trains and go on from there. The CLIP
learns to tell the eight captions "a photo of a cat" and so on apart; then it looks at a picture of
two things, with each caption in turn: docs/figures/photo-clip.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photo_scenes import PATCH, SIDE, THINGS, read_photographs, train
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPProcessor,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    PreTrainedTokenizerFast,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

import attnflow
from attnflow.show import plots

CAPTIONS = tuple(f"a photo of a {thing}" for thing in THINGS)
SPECIAL = (
    "<pad>",
    "<bos>",
    "<unk>",
    "<eos>",
)  # CLIP takes an end that is number 2 for an old model


def grow_to_dinov2(vit: ViTForImageClassification) -> Dinov2WithRegistersForImageClassification:
    """A DINOv2 with four registers and LayerScale that begins as this ViT."""
    own = vit.config
    config = Dinov2WithRegistersConfig(
        image_size=SIDE, patch_size=PATCH, hidden_size=own.hidden_size, num_register_tokens=4,
        num_hidden_layers=own.num_hidden_layers, num_attention_heads=own.num_attention_heads,
        mlp_ratio=own.intermediate_size // own.hidden_size, id2label=own.id2label,
        label2id=own.label2id,
    )  # fmt: skip
    model = Dinov2WithRegistersForImageClassification(config)
    changes = {
        "vit.layers.": "vit.encoder.layer.", "layernorm_before": "norm1",
        "layernorm_after": "norm2", "vit.": "dinov2_with_registers.",
    }  # fmt: skip
    weights = {_renamed(name, changes): w for name, w in vit.state_dict().items()}
    head = weights["classifier.weight"]
    weights["classifier.weight"] = torch.cat([head, torch.zeros_like(head)], dim=1)  # the mean
    model.load_state_dict({**model.state_dict(), **weights})
    return model


def grow_to_clip(vit: ViTForImageClassification, tokenizer: PreTrainedTokenizerFast) -> CLIPModel:
    """A CLIP whose vision tower begins as this ViT; its text tower is new."""
    own = vit.config
    sizes = {"hidden_size": own.hidden_size, "intermediate_size": own.intermediate_size}
    config = CLIPConfig(
        vision_config={
            **sizes, "image_size": SIDE, "patch_size": PATCH, "hidden_act": "gelu",
            "num_hidden_layers": own.num_hidden_layers,
            "num_attention_heads": own.num_attention_heads,
        },
        text_config={
            **sizes, "vocab_size": len(tokenizer), "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 16,
            "pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        projection_dim=32,
    )  # fmt: skip
    model = CLIPModel(config)
    changes = {
        "vit.layers.": "vision_model.encoder.layers.", "attention.": "self_attn.",
        "o_proj": "out_proj", "layernorm_before": "layer_norm1", "layernorm_after": "layer_norm2",
        "vit.layernorm": "vision_model.post_layernorm",
    }  # fmt: skip
    given = vit.state_dict()
    weights = {_renamed(name, changes): w for name, w in given.items() if ".layer" in name}
    places = given["vit.embeddings.position_embeddings"][0].clone()
    places[1:] += given["vit.embeddings.patch_embeddings.projection.bias"]  # CLIP's has no bias
    inside = "vision_model.embeddings"
    weights[f"{inside}.position_embedding.weight"] = places
    weights[f"{inside}.class_embedding"] = given["vit.embeddings.cls_token"].flatten()
    patches = given["vit.embeddings.patch_embeddings.projection.weight"]
    weights[f"{inside}.patch_embedding.weight"] = patches
    model.load_state_dict({**model.state_dict(), **weights})
    return model


def _renamed(name: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        name = name.replace(old, new)
    return name


def caption_tokenizer() -> PreTrainedTokenizerFast:
    """A word is a token."""
    words = sorted({word for caption in CAPTIONS for word in caption.split()})
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<bos>", vocabulary["<bos>"]), ("<eos>", vocabulary["<eos>"])]
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A <eos>", special_tokens=ends)
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


class _Captioned(torch.nn.Module):
    """A CLIP as what `train` takes: its similarity to each caption is the answer."""

    def __init__(self, clip: CLIPModel, words: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.clip = clip
        self.words = dict(words)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Any:
        """The model's own output, with the loss and the answers of a classifier."""
        output = self.clip(**self.words, pixel_values=pixel_values)
        output.loss = torch.nn.functional.cross_entropy(output.logits_per_image, labels)
        output.logits = output.logits_per_image
        return output


def two_things(photographs: Mapping[str, Image.Image], left: str, right: str) -> Image.Image:
    """One thing at the left, another at the right, on bricks: no scene that was trained on."""
    ground = photographs["brick.png"].crop((100, 100, 260, 260)).resize((SIDE, SIDE))
    mask = Image.new("L", (46, 46), 0)
    ImageDraw.Draw(mask).ellipse((1, 1, 44, 44), fill=255)
    for thing, place in ((left, (1, 4)), (right, (49, 46))):
        ground.paste(photographs[thing].resize((46, 46)), place, mask)
    return ground


def draw_clip(model: CLIPModel, processor: CLIPProcessor, image: Image.Image, path: Path) -> None:
    """The same picture held against each of two captions."""
    inputs = dict(processor(text=list(CAPTIONS), images=image, return_tensors="pt", padding=True))
    figure, axes = plots.canvas.pyplot().subplots(1, 2, figsize=(9.2, 4.4), layout="constrained")
    for ax, thing in zip(axes, ("cat", "cup"), strict=True):
        result = attnflow.explain(
            model, inputs, "gradient-rollout", answer=list(THINGS).index(thing)
        )
        caption = f'like "a photo of a {thing}"'
        plots.image_overlay(result, np.asarray(image), title=caption, ax=ax)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Grow, train, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=Path, default=Path("out/scenes"))
    parser.add_argument("--figure", type=Path, default=Path("photo-clip.png"))
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    photographs = read_photographs()
    vit = ViTForImageClassification.from_pretrained(arguments.scenes / "vit")
    prepare = ViTImageProcessorPil.from_pretrained(arguments.scenes / "vit")
    dino = grow_to_dinov2(vit)
    train(dino, photographs, steps=arguments.steps, rate=5e-4, seed=2)
    dino.save_pretrained(arguments.scenes / "dinov2")
    prepare.save_pretrained(arguments.scenes / "dinov2")
    tokenizer = caption_tokenizer()
    clip, processor = grow_to_clip(vit, tokenizer), CLIPProcessor(prepare, tokenizer)
    words = dict(tokenizer(list(CAPTIONS), return_tensors="pt", padding=True))
    words.pop("token_type_ids", None)
    train(_Captioned(clip, words), photographs, steps=2 * arguments.steps, rate=1e-3, seed=3)
    clip.save_pretrained(arguments.scenes / "clip")
    processor.save_pretrained(arguments.scenes / "clip")
    draw_clip(clip.eval(), processor, two_things(photographs, "cat", "cup"), arguments.figure)


if __name__ == "__main__":
    main()
