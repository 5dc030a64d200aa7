"""Make the small vision-language model that ships with the package, for drawn scenes.

    python training/scenes.py --output src/attnflow/models/scenes

The architecture is transformers' own LlavaForConditionalGeneration with a CLIP vision tower and a
Llama of three layers each. It is trained in two stages, as models of its kind are. First the vision
tower and the connector: each image token must say what its patch shows. Then the connector and the
language model, on questions and answers, while the tower stays as it is. Several questions about
one scene share a sequence for speed, and a mask keeps them from seeing one another. Attention
dropout makes the language model rely on all patches of an object. `--device cuda` takes two
minutes, a processor takes long.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoint import Run, parameter_groups
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from attnflow_experiments.scenes.drawn_scenes import (
    COLOURS,
    DEVELOPMENT_SEED,
    SHAPES,
    SIZE,
    TEST_SEED,
    TRAIN_SEED,
    Question,
    Scene,
    scenes,
)

SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>", "<image>")
WORDS = ("what", "is", "the", "colour", "shape", "left", "right", "of", "above", "below", "?")
PATCH = 8
PATCHES = (SIZE // PATCH) ** 2
WIDTH = 64
SLOT = 10  # tokens of the longest question with its answer and <eos>
IGNORED = -100
# what the numbers of an image token say after the first stage
COLOUR, SHAPE = slice(0, 6), slice(6, 12)
PLACE = slice(32, 34)  # x and y, from -1 to 1
OBJECT = 34  # 1 where the patch shows an object
BULK = 56  # 2 everywhere, so that all tokens are about equally long


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result; kept with a checkpoint."""

    seed: int = 0
    scenes: int = 12_000
    aligning_steps: int = 1_200
    steps: int = 2_000
    batch: int = 64
    aligning_batch: int = 12
    questions: int = 8
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    warmup: int = 200
    attention_dropout: float = 0.2


# --- what the model is --------------------------------------------------------------------------


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Words and signs, one token each; <bos> begins a text."""
    words = (*SPECIAL, *WORDS, *COLOURS, *SHAPES)
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(Regex(r"\bcolor\b"), "colour")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=["<image>"],
    )


def make_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """Images of any size become 48 x 48; <image> stands for all patches of one."""
    images = CLIPImageProcessorPil(
        size={"height": SIZE, "width": SIZE},
        do_center_crop=False,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast, settings: Settings
) -> LlavaForConditionalGeneration:
    """LLaVA in small: CLIP's tower without its class token, a projection, a Llama."""
    vision = CLIPVisionConfig(
        hidden_size=48, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        image_size=SIZE, patch_size=PATCH, hidden_act="gelu", projection_dim=48,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, head_dim=16, max_position_embeddings=512,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False,
        attention_dropout=settings.attention_dropout,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.get_vocab()["<image>"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=PATCHES,
        tie_word_embeddings=False,
    )
    model = LlavaForConditionalGeneration(config)
    with torch.no_grad():  # words begin about as long as image tokens
        nn.init.normal_(model.model.language_model.embed_tokens.weight, std=0.3)
        nn.init.uniform_(model.lm_head.weight, -(WIDTH**-0.5), WIDTH**-0.5)
    return model


# --- data ---------------------------------------------------------------------------------------


def normalised(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What the processor makes of a drawing."""
    scaled = (image.astype(np.float32) / 255 - 0.5).transpose(2, 0, 1) / 0.5
    return scaled.astype(np.float32)


def patch_targets(scene: Scene) -> NDArray[np.float32]:
    """(patches, width): what each image token must say of its patch."""
    count = SIZE // PATCH
    targets = np.zeros((count, count, WIDTH), dtype=np.float32)
    steps = np.linspace(-1, 1, count)
    targets[..., PLACE.start], targets[..., PLACE.start + 1] = steps[None, :], steps[:, None]
    targets[..., BULK] = 2.0
    for item in scene.objects:
        left, top, right, bottom = (edge // PATCH for edge in item.box)
        shown = targets[top:bottom, left:right]
        shown[..., COLOUR.start + list(COLOURS).index(item.colour)] = 1.0
        shown[..., SHAPE.start + SHAPES.index(item.shape)] = 1.0
        shown[..., OBJECT] = 1.0
    return targets.reshape(-1, WIDTH)


def _by_kind(questions: Sequence[Question]) -> list[list[Question]]:
    kinds: dict[str, list[Question]] = {}
    for question in questions:
        kinds.setdefault(question.kind, []).append(question)
    return list(kinds.values())


class Data:
    """Scenes drawn once, with all their questions as ids."""

    def __init__(self, count: int, seed: int, tokenizer: PreTrainedTokenizerFast) -> None:
        drawn = list(scenes(count, seed=seed))
        self.images = np.stack([scene.image() for scene in drawn])
        self.targets = np.stack([patch_targets(scene) for scene in drawn])
        self.questions = [scene.questions for scene in drawn]
        self.by_kind = [_by_kind(questions) for questions in self.questions]
        self.tokenizer = tokenizer
        self._ids: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def slot(self, question: Question) -> tuple[list[int], list[int]]:
        """The ids of a question with its answer, and what each position must say next."""
        key = (question.text, question.answer)
        if key not in self._ids:
            asking = self.tokenizer.encode(question.text, add_special_tokens=False)
            answer = self.tokenizer.encode(question.answer, add_special_tokens=False)
            ids = [*asking, *answer, self.tokenizer.eos_token_id]
            said = [*[IGNORED] * (len(asking) - 1), *answer, self.tokenizer.eos_token_id, IGNORED]
            room = SLOT - len(ids)
            self._ids[key] = (
                ids + [self.tokenizer.pad_token_id] * room,
                said + [IGNORED] * room,
            )
        return self._ids[key]

    def batch(
        self, numbers: Sequence[int], questions: int, random: np.random.Generator
    ) -> dict[str, Tensor]:
        """Some scenes, each with some of its questions, of all kinds in turn."""
        rows = []
        for number in numbers:
            kinds = self.by_kind[number]
            turns = [kinds[k % len(kinds)] for k in range(questions)]
            rows.append([self.slot(turn[random.integers(len(turn))]) for turn in turns])
        opening = [self.tokenizer.bos_token_id] + [SPECIAL.index("<image>")] * PATCHES
        ids = [opening + [i for slot, _ in row for i in slot] for row in rows]
        targets = [[IGNORED] * len(opening) + [i for _, slot in row for i in slot] for row in rows]
        pixels = np.stack([normalised(self.images[number]) for number in numbers])
        return {
            "input_ids": torch.tensor(ids),
            "targets": torch.tensor(targets),
            "pixel_values": torch.from_numpy(pixels),
            "patches": torch.from_numpy(self.targets[list(numbers)]),
        }


def separating_mask(questions: int) -> tuple[Tensor, Tensor]:
    """Each question sees the image and itself; its positions go on from the image's."""
    opening = 1 + PATCHES
    length = opening + questions * SLOT
    slot = torch.cat([torch.zeros(opening), 1 + torch.arange(questions).repeat_interleave(SLOT)])
    causal = torch.ones(length, length).tril().bool()
    mask = causal & ((slot[None, :] == 0) | (slot[None, :] == slot[:, None]))
    positions = torch.cat([torch.arange(opening), (opening + torch.arange(SLOT)).repeat(questions)])
    return mask[None, None], positions[None]


# --- training -----------------------------------------------------------------------------------


class Trained(nn.Module):
    """The model with what it is trained by."""

    def __init__(self, model: LlavaForConditionalGeneration) -> None:
        super().__init__()
        self.model = model

    def image_tokens(self, pixels: Tensor) -> Tensor:
        """(batch, patches, width): what the language model reads of the images."""
        inner = self.model.model
        hidden = inner.vision_tower(pixels).last_hidden_state[:, 1:]
        return inner.multi_modal_projector(hidden)

    def alignment(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """How far the image tokens are from what they must say; objects count for more."""
        weight = 1 + 3 * targets[..., OBJECT : OBJECT + 1]
        return (weight * (tokens - targets) ** 2).sum(dim=-1).mean()

    def of_patches(self, batch: dict[str, Tensor]) -> Tensor:
        """The loss of the first stage."""
        return self.alignment(self.image_tokens(batch["pixel_values"]), batch["patches"])

    def of_answers(self, batch: dict[str, Tensor], questions: int) -> Tensor:
        """The loss of the second stage; nothing reaches the vision tower."""
        inner = self.model.model
        with torch.no_grad():
            hidden = inner.vision_tower(batch["pixel_values"]).last_hidden_state[:, 1:]
        tokens = inner.multi_modal_projector(hidden)
        embeddings = inner.get_input_embeddings()(batch["input_ids"])
        stream = torch.cat([embeddings[:, :1], tokens, embeddings[:, 1 + PATCHES :]], dim=1)
        mask, positions = (part.to(stream.device) for part in separating_mask(questions))
        size = len(stream)
        states = inner.language_model(
            inputs_embeds=stream,
            attention_mask=mask.expand(size, -1, -1, -1),
            position_ids=positions.expand(size, -1),
            use_cache=False,
        ).last_hidden_state
        right = batch["targets"] != IGNORED
        logits = self.model.lm_head(states[right])
        return functional.cross_entropy(logits, batch["targets"][right])


def learning_rate_factor(step: int, settings: Settings) -> float:
    """Linear warm-up, then a cosine to zero, in each stage."""
    total = settings.aligning_steps
    if step >= settings.aligning_steps:
        step, total = step - settings.aligning_steps, settings.steps
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, total - settings.warmup)
    return 0.5 * (1 + math.cos(math.pi * done))


def train(trained: Trained, data: Data, settings: Settings, checkpoint: Path) -> None:
    """Run the steps that are left; an interrupted run goes on from its last 200 steps."""
    optimiser = torch.optim.AdamW(
        parameter_groups(trained),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: learning_rate_factor(step, settings)
    )
    run = Run(checkpoint, asdict(settings), trained, optimiser, schedule, "step")
    run.resume()
    trained.train()
    device = next(trained.parameters()).device
    began, mean = time.monotonic(), 0.0
    while run.done < settings.aligning_steps + settings.steps:
        aligning = run.done < settings.aligning_steps
        random = np.random.default_rng([settings.seed, run.done])
        size = settings.aligning_batch if aligning else settings.batch
        numbers = random.integers(len(data.images), size=size)
        drawn = data.batch(numbers.tolist(), settings.questions, random)
        batch = {name: tensor.to(device) for name, tensor in drawn.items()}
        loss = (
            trained.of_patches(batch) if aligning else trained.of_answers(batch, settings.questions)
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        run.done += 1
        mean += loss.item() / 50
        if run.done % 50 == 0:
            stage, seconds = "patches" if aligning else "answers", time.monotonic() - began
            print(f"step {run.done} {stage} {mean:.4f} {seconds:.0f}s", flush=True)
            mean = 0.0
        if run.done % 200 == 0:
            run.save()


# --- how good it is -----------------------------------------------------------------------------


def answers_of(model: LlavaForConditionalGeneration, data: Data) -> Iterator[tuple[Question, bool]]:
    """Every question with whether the model answers it, word for word, by its greedy choice."""
    trained = Trained(model).eval()
    with torch.no_grad():
        for number, questions in enumerate(data.questions):
            slots = [data.slot(question) for question in questions]
            opening = [data.tokenizer.bos_token_id] + [SPECIAL.index("<image>")] * PATCHES
            ids = torch.tensor([opening + ids for ids, _ in slots])
            pixels = torch.from_numpy(normalised(data.images[number]))[None]
            inner = trained.model.model
            projected = trained.image_tokens(pixels).expand(len(ids), -1, -1)
            words = inner.get_input_embeddings()(ids)
            stream = torch.cat([words[:, :1], projected, words[:, 1 + PATCHES :]], dim=1)
            states = inner.language_model(inputs_embeds=stream, use_cache=False).last_hidden_state
            guesses = trained.model.lm_head(states[:, 1 + PATCHES :]).argmax(dim=-1)
            for question, guess, (_, target) in zip(questions, guesses, slots, strict=True):
                expected = torch.tensor(target)
                right = expected != IGNORED
                yield question, bool((guess[right] == expected[right]).all())


def accuracy(model: LlavaForConditionalGeneration, data: Data) -> dict[str, Any]:
    """The share of questions answered without a mistake, by kind."""
    results: dict[str, list[bool]] = {}
    for question, right in answers_of(model, data):
        for name in ("all", question.kind):
            results.setdefault(name, []).append(right)
    return {name: round(sum(r) / len(r), 4) for name, r in results.items()} | {
        "questions": len(results["all"])
    }


def main() -> None:
    """Train, measure, write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, default=Path("scenes.state"))
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--aligning-steps", type=int, default=Settings.aligning_steps)
    parser.add_argument("--scenes", type=int, default=Settings.scenes)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--threads", type=int, default=1, help="more may change the last digits")
    parser.add_argument("--device", default="cpu", help="cuda is faster; its last digits differ")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    settings = Settings(
        seed=arguments.seed,
        scenes=arguments.scenes,
        aligning_steps=arguments.aligning_steps,
        steps=arguments.steps,
    )
    torch.manual_seed(settings.seed)
    tokenizer = make_tokenizer()
    trained = Trained(make_model(tokenizer, settings).to(arguments.device))
    print(f"{sum(p.numel() for p in trained.model.parameters())} parameters", flush=True)
    train(trained, Data(settings.scenes, TRAIN_SEED, tokenizer), settings, arguments.checkpoint)
    model = trained.model.cpu().half().float().eval()  # measured as it ships
    report = {
        "settings": asdict(settings),
        "development": accuracy(model, Data(100, DEVELOPMENT_SEED, tokenizer)),
        "held out": accuracy(model, Data(400, TEST_SEED, tokenizer)),
    }
    print(json.dumps(report, indent=1), flush=True)
    model.half().save_pretrained(arguments.output)
    make_processor(tokenizer).save_pretrained(arguments.output)
    (arguments.output / "training.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
