"""Every family of vision-language models attnflow is tested on, as a tiny random model.

Beside the model and its inputs each family says, by hand, what its connector does: which patches
of which image feed each image token, and at which position of the vision tower a patch stands. The
code under test finds that by itself, so the two are held against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

IMAGE, VIDEO, WORDS, SIDE = 39, 38, 40, 4
TEXT = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WORDS,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = {**TEXT, "head_dim": 6}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE * 4,
    "patch_size": 4,
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1]}

Patch = tuple[int, int, int]  # image, row, column


@dataclass(frozen=True)
class VisionFamily:
    """A family: `build()` gives model and inputs; the rest says what joins its towers.

    tokens: for each image token the patches that feed it, none for a token such as the end of a
    row. position: where a patch stands in the vision tower's attention. grids: rows, columns and
    class tokens of each image. layers: how many layers of the vision tower are read. token: the id
    that stands for a part of an image in the prompt.
    """

    name: str
    build: Callable[[], tuple[Any, dict[str, Tensor]]]
    tokens: list[list[Patch]]
    position: Callable[[Patch], int]
    grids: list[tuple[int, int, int]]
    layers: int = 3
    token: int = IMAGE


def prompt(runs: list[int], token: int = IMAGE) -> dict[str, Tensor]:
    """Words, then each image's tokens with a word after it, then more words."""
    ids = [1, 10, 11]
    for number, count in enumerate(runs):
        ids += [token] * count + [12 + number]
    row = torch.tensor([[*ids, 20, 21, 22]])
    return {"input_ids": row, "attention_mask": torch.ones_like(row)}


def pixels(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def ready(kind: str, config: Any) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():  # sharper than a fresh model: rows that differ
        if parameter.ndim > 1:
            parameter.data.mul_(4.0)
        if not parameter.any():  # Gemma 3 begins with a projection of zeros
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def sub(kind: str, **sizes: Any) -> Any:
    return getattr(transformers, kind)(**sizes)


def single(images: int, side: int = SIDE) -> list[list[Patch]]:
    """A projection: each patch is a token."""
    return [[(k, r, c)] for k in range(images) for r in range(side) for c in range(side)]


def squares(images: int, side: int = SIDE, merge: int = 2) -> list[list[Patch]]:
    """Merged neighbours: each square of patches is a token, in reading order."""
    inner = range(merge)
    return [
        [(k, merge * r + a, merge * c + b) for a in inner for b in inner]
        for k in range(images)
        for r in range(side // merge)
        for c in range(side // merge)
    ]


def row_major(prefix: int, side: int = SIDE) -> Callable[[Patch], int]:
    length = prefix + side * side
    return lambda patch: patch[0] * length + prefix + patch[1] * side + patch[2]


# --- LLaVA, LLaVA-OneVision, PaliGemma, Gemma 3 --------------------------------------------------


def llava() -> tuple[Any, dict[str, Tensor]]:
    config = transformers.LlavaConfig(
        vision_config=sub("CLIPVisionConfig", **VISION),
        text_config=sub("LlamaConfig", **TEXT),
        image_token_index=IMAGE,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    model = ready("LlavaForConditionalGeneration", config)
    return model, {**prompt([16, 16]), "pixel_values": pixels(2, 3, 16, 16)}


def llava_onevision() -> tuple[Any, dict[str, Tensor]]:
    """An image in two tiles beside the whole of it; a token ends every row of the joined tiles."""
    config = transformers.LlavaOnevisionConfig(
        vision_config=sub("SiglipVisionConfig", **VISION, vision_use_head=False),
        text_config=sub("Qwen2Config", **TEXT),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=[[16, 32]],
        vision_aspect_ratio="anyres_max_9",
    )
    model = ready("LlavaOnevisionForConditionalGeneration", config)
    return model, {
        **prompt([16 + 4 * 9]),
        "pixel_values": pixels(1, 3, 3, 16, 16),
        "image_sizes": torch.tensor([[16, 32]]),
    }


def onevision_tokens() -> list[list[Patch]]:
    tokens = single(1)
    for row in range(SIDE):
        tokens += [[(1 + c // SIDE, row, c % SIDE)] for c in range(2 * SIDE)]
        tokens.append([])
    return tokens


def paligemma() -> tuple[Any, dict[str, Tensor]]:
    vision = {**VISION, "projection_dim": 24, "vision_use_head": False}
    config = transformers.PaliGemmaConfig(
        vision_config=sub("SiglipVisionConfig", **vision),
        text_config=sub("GemmaConfig", **GEMMA),
        image_token_index=IMAGE,
        projection_dim=24,
        hidden_size=24,
    )
    model = ready("PaliGemmaForConditionalGeneration", config)
    words = prompt([16])
    kinds = torch.zeros_like(words["input_ids"])
    return model, {**words, "token_type_ids": kinds, "pixel_values": pixels(1, 3, 16, 16)}


def gemma3() -> tuple[Any, dict[str, Tensor]]:
    config = transformers.Gemma3Config(
        vision_config=sub("SiglipVisionConfig", **VISION, vision_use_head=False),
        text_config=sub(
            "Gemma3TextConfig",
            **GEMMA,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
        ),
        image_token_index=IMAGE,
        boi_token_index=37,
        eoi_token_index=36,
        mm_tokens_per_image=4,
    )
    model = ready("Gemma3ForConditionalGeneration", config)
    words = prompt([4, 4])
    kinds = (words["input_ids"] == IMAGE).long()
    return model, {**words, "token_type_ids": kinds, "pixel_values": pixels(2, 3, 16, 16)}


# --- Qwen ----------------------------------------------------------------------------------------


def qwen_inputs() -> dict[str, Tensor]:
    """Two images of 4 × 4 and 4 × 6 patches, which become 4 and 6 tokens."""
    words = prompt([4, 6])
    return {
        **words,
        "mm_token_type_ids": (words["input_ids"] == IMAGE).int(),
        "pixel_values": pixels(16 + 24, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 4], [1, 4, 6]]),
    }


def qwen_tokens() -> list[list[Patch]]:
    second = [
        [(1, r, c) for r in (a, a + 1) for c in (b, b + 1)] for a in (0, 2) for b in (0, 2, 4)
    ]
    return [*squares(1), *second]


def in_blocks(patch: Patch) -> int:
    """The processor writes patches block by block of the four that are merged."""
    image, row, column = patch
    columns, start = (4, 0) if image == 0 else (6, 16)
    block = (row // 2) * (columns // 2) + column // 2
    return start + 4 * block + 2 * (row % 2) + column % 2


def in_windows(patch: Patch) -> int:
    """Windows of 2 × 2 tokens: the second image has a window of 2 × 2 and one of 2 × 1."""
    image, row, column = patch
    inner = 2 * (row % 2) + column % 2
    token_row, token_column = row // 2, column // 2
    if image == 0:
        return 4 * (2 * token_row + token_column) + inner
    window, left = (0, token_column) if token_column < 2 else (16, 0)
    width = 2 if window == 0 else 1
    return 16 + window + 4 * (width * token_row + left) + inner


def qwen_text(**more: Any) -> dict[str, Any]:
    return {**TEXT, "rope_parameters": MROPE, **more}


def qwen2_vl() -> tuple[Any, dict[str, Tensor]]:
    config = transformers.Qwen2VLConfig(
        vision_config={
            "depth": 3, "embed_dim": 16, "hidden_size": 24, "num_heads": 2, "patch_size": 4,
        },
        text_config=qwen_text(),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=37,
    )  # fmt: skip
    return ready("Qwen2VLForConditionalGeneration", config), qwen_inputs()


def qwen2_5_vl() -> tuple[Any, dict[str, Tensor]]:
    config = transformers.Qwen2_5_VLConfig(
        vision_config={
            "depth": 3, "hidden_size": 16, "out_hidden_size": 24, "num_heads": 2, "patch_size": 4,
            "intermediate_size": 24, "window_size": 16, "fullatt_block_indexes": [1],
        },
        text_config=qwen_text(),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=37,
    )  # fmt: skip
    return ready("Qwen2_5_VLForConditionalGeneration", config), qwen_inputs()


def qwen3_vl() -> tuple[Any, dict[str, Tensor]]:
    config = transformers.Qwen3VLConfig(
        vision_config={
            "depth": 3, "hidden_size": 16, "out_hidden_size": 24, "num_heads": 2, "patch_size": 4,
            "intermediate_size": 24, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
        text_config=qwen_text(head_dim=6, rope_parameters={**MROPE, "mrope_interleaved": True}),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=37,
    )  # fmt: skip
    return ready("Qwen3VLForConditionalGeneration", config), qwen_inputs()


# --- pixel shuffle -------------------------------------------------------------------------------


def idefics(kind: str) -> Callable[[], tuple[Any, dict[str, Tensor]]]:
    def build() -> tuple[Any, dict[str, Tensor]]:
        config = getattr(transformers, f"{kind}Config")(
            vision_config=VISION,
            text_config=sub("LlamaConfig", **TEXT),
            image_token_id=IMAGE,
            scale_factor=2,
        )
        model = ready(f"{kind}ForConditionalGeneration", config)
        return model, {**prompt([4, 4]), "pixel_values": pixels(1, 2, 3, 16, 16)}

    return build


def internvl() -> tuple[Any, dict[str, Tensor]]:
    vision = {**VISION, "image_size": [16, 16], "patch_size": [4, 4]}
    config = transformers.InternVLConfig(
        vision_config=vision,
        text_config=sub("Qwen2Config", **TEXT),
        image_token_id=IMAGE,
        image_seq_length=4,
    )
    model = ready("InternVLForConditionalGeneration", config)
    return model, {**prompt([4, 4]), "pixel_values": pixels(2, 3, 16, 16)}


PLAIN, CLASS = (SIDE, SIDE, 0), (SIDE, SIDE, 1)
QWEN_GRIDS = [(4, 4, 0), (4, 6, 0)]

VISION_FAMILIES = [
    VisionFamily("LLaVA", llava, single(2), row_major(1), [CLASS] * 2, layers=2),
    VisionFamily("LLaVA-OneVision", llava_onevision, onevision_tokens(), row_major(0), [PLAIN] * 3),
    VisionFamily("Qwen2-VL", qwen2_vl, qwen_tokens(), in_blocks, QWEN_GRIDS),
    VisionFamily("Qwen2.5-VL", qwen2_5_vl, qwen_tokens(), in_windows, QWEN_GRIDS),
    VisionFamily("Qwen3-VL", qwen3_vl, qwen_tokens(), in_blocks, QWEN_GRIDS),
    VisionFamily("PaliGemma", paligemma, single(1), row_major(0), [PLAIN]),
    VisionFamily("Idefics3", idefics("Idefics3"), squares(2), row_major(0), [PLAIN] * 2),
    VisionFamily("SmolVLM", idefics("SmolVLM"), squares(2), row_major(0), [PLAIN] * 2),
    VisionFamily("InternVL", internvl, squares(2), row_major(1), [CLASS] * 2),
    VisionFamily("Gemma 3", gemma3, squares(2), row_major(0), [PLAIN] * 2),
]


# --- videos: two frames of 4 × 4 patches, which become 4 tokens each ------------------------------


def with_video(
    build: Callable[[], tuple[Any, dict[str, Tensor]]], runs: list[int], **more: Tensor
) -> Callable[[], tuple[Any, dict[str, Tensor]]]:
    """A family's model with a video for Qwen's towers in place of its images."""

    def build_with_video() -> tuple[Any, dict[str, Tensor]]:
        words = prompt(runs, VIDEO)
        return build()[0], {
            **words,
            "mm_token_type_ids": 2 * (words["input_ids"] == VIDEO).int(),
            "pixel_values_videos": pixels(32, 3 * 2 * 4 * 4),
            "video_grid_thw": torch.tensor([[2, 4, 4]]),
            **more,
        }

    return build_with_video


def onevision_video() -> tuple[Any, dict[str, Tensor]]:
    """Each frame is pooled by two; a token ends the video."""
    words = prompt([2 * 4 + 1], VIDEO)
    return llava_onevision()[0], {**words, "pixel_values_videos": pixels(1, 2, 3, 16, 16)}


def frames_in_blocks(patch: Patch) -> int:
    """Frame by frame, block by block; a frame is one window of Qwen2.5-VL, so its order is that."""
    frame, row, column = patch
    return 16 * frame + in_blocks((0, row, column))


SECONDS = {"second_per_grid_ts": torch.tensor([1.0])}
FRAMES = [PLAIN] * 2
VIDEO_FAMILIES = [
    VisionFamily(name, build, tokens, position, FRAMES, token=VIDEO)
    for name, build, tokens, position in (
        ("Qwen2-VL", with_video(qwen2_vl, [8]), squares(2), frames_in_blocks),
        ("Qwen2.5-VL", with_video(qwen2_5_vl, [8], **SECONDS), squares(2), frames_in_blocks),
        ("Qwen3-VL", with_video(qwen3_vl, [4, 4]), squares(2), frames_in_blocks),
        ("LLaVA-OneVision", onevision_video, [*squares(2), []], row_major(0)),
    )
]
