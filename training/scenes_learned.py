"""Train the language part of the scenes model from random weights, instead of writing it down.

    python training/scenes_learned.py --output out/scenes-learned      # some 15 minutes of one core
    attnflow experiment scenes --model out/scenes-learned

The model that ships has a language part that is written down (`scenes_wiring.py`), so that it is
known what its answers are made of. This is the same architecture with nothing written down: the
vision tower and the connector that `scenes.py` trained are taken over, the tower rests, and a Llama
of three layers and the last matrix of the connector learn from questions and answers alone.
docs/images.md says what the methods find in it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoint import Run, parameter_groups
from scenes import (
    IGNORED,
    PATCHES,
    Data,
    make_processor,
    make_tokenizer,
    normalised,
    separating_mask,
)
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from attnflow.models.drawn_scenes import DEVELOPMENT_SEED, TEST_SEED, TRAIN_SEED, Question
from attnflow.models.scenes import load_scenes


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result; kept with a checkpoint."""

    seed: int = 0
    scenes: int = 4_000
    layers: int = 3
    steps: int = 3_000
    batch: int = 24
    questions: int = 8
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    warmup: int = 200


def make_model(
    tokenizer: PreTrainedTokenizerFast, settings: Settings
) -> LlavaForConditionalGeneration:
    """The vision tower and the connector that ship, and a new language model."""
    shipped, _ = load_scenes()
    config = shipped.config
    config.text_config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128,
        num_hidden_layers=settings.layers, num_attention_heads=4, num_key_value_heads=4,
        head_dim=16, max_position_embeddings=512, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = LlavaForConditionalGeneration(config)
    inner, given = model.model, shipped.model
    inner.vision_tower.load_state_dict(given.vision_tower.state_dict())
    inner.multi_modal_projector.load_state_dict(given.multi_modal_projector.state_dict())
    last = inner.multi_modal_projector.linear_2
    with torch.no_grad():
        turn = nn.init.orthogonal_(torch.empty(64, 64))  # no direction is a word's from the start
        last.weight.copy_(turn @ last.weight)
        last.bias.copy_(turn @ last.bias)
        words: Any = model.get_input_embeddings()
        words.weight.normal_(0, 0.3)  # words as long as image tokens
    return model


def ask(
    data: Data, numbers: Sequence[int], questions: int, random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Ids and targets of some questions about each scene, as many of every kind."""
    ids, targets = [], []
    for number in numbers:
        kinds: dict[str, list[Question]] = {}
        for question in data.questions[number]:
            kinds.setdefault(question.kind, []).append(question)
        groups = [list(kinds.values())[k % len(kinds)] for k in range(questions)]
        slots = [data.slot(group[random.integers(len(group))]) for group in groups]
        ids.append([token for slot, _ in slots for token in slot])
        targets.append([token for _, slot in slots for token in slot])
    return torch.tensor(ids), torch.tensor(targets)


def before_last_matrix(model: LlavaForConditionalGeneration, pixels: Tensor) -> Tensor:
    """(batch, patches, width): the images up to the last matrix of the connector."""
    inner = model.model
    hidden = inner.vision_tower(pixels).last_hidden_state[:, 1:]
    connector = inner.multi_modal_projector
    return connector.act(connector.linear_1(hidden))


def states_of(
    model: LlavaForConditionalGeneration, images: Tensor, ids: Tensor, **positions: Tensor
) -> Tensor:
    """The language model's states over the words of the questions, after <bos> and an image."""
    inner = model.model
    embed = inner.get_input_embeddings()
    config: Any = model.config.text_config
    start = torch.full((len(ids), 1), config.bos_token_id)
    stream = torch.cat([embed(start), images, embed(ids)], dim=1)
    output = inner.language_model(inputs_embeds=stream, use_cache=False, **positions)
    return output.last_hidden_state[:, 1 + PATCHES :]


def rate_at(step: int, warmup: int, total: int) -> float:
    """Of the learning rate: linear warm-up, level, and down to zero in the last fifth."""
    return min(1.0, (step + 1) / warmup, (total - step) / (0.2 * total))


def run_steps(
    module: nn.Module, loss_of: Callable[[int], Tensor], settings: Settings, checkpoint: Path
) -> None:
    """Run the steps that are left; an interrupted run goes on from its last 200 steps."""
    optimiser = torch.optim.AdamW(
        parameter_groups(module),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: rate_at(step, settings.warmup, settings.steps)
    )
    run = Run(checkpoint, asdict(settings), module, optimiser, schedule, "step")
    run.resume()
    began, mean = time.monotonic(), 0.0
    while run.done < settings.steps:
        loss = loss_of(run.done)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        run.done += 1
        mean += loss.item() / 50
        if run.done % 50 == 0:
            print(f"step {run.done} loss {mean:.4f} {time.monotonic() - began:.0f}s", flush=True)
            mean = 0.0
        if run.done % 200 == 0:
            run.save()


def learn_answers(
    model: LlavaForConditionalGeneration, data: Data, settings: Settings, checkpoint: Path
) -> None:
    """The language model and the connector's last matrix learn to answer."""
    last = model.model.multi_modal_projector.linear_2
    images = image_features(model, data)
    mask, positions = separating_mask(settings.questions)

    def loss_of(step: int) -> Tensor:
        random = np.random.default_rng([settings.seed, 7, step])
        numbers = random.integers(len(data.images), size=settings.batch)
        ids, targets = ask(data, numbers.tolist(), settings.questions, random)
        states = states_of(
            model,
            last(images[numbers]),
            ids,
            attention_mask=mask.expand(len(ids), -1, -1, -1),
            position_ids=positions.expand(len(ids), -1),
        )
        asked = targets != IGNORED
        return functional.cross_entropy(model.lm_head(states[asked]), targets[asked])

    parts = nn.ModuleList([model.model.language_model, model.lm_head, last])
    run_steps(parts, loss_of, settings, checkpoint)


@torch.no_grad()
def image_features(model: LlavaForConditionalGeneration, data: Data) -> Tensor:
    """(scenes, patches, width): every image once, because the vision tower rests."""
    features = []
    for start in range(0, len(data.images), 100):
        pixels = np.stack([normalised(image) for image in data.images[start : start + 100]])
        features.append(before_last_matrix(model, torch.from_numpy(pixels)))
    return torch.cat(features)


@torch.no_grad()
def answers_of(model: LlavaForConditionalGeneration, data: Data) -> Iterator[tuple[Question, bool]]:
    """Every question with whether the model answers it, word for word, by its greedy choice."""
    tokens = model.model.multi_modal_projector.linear_2(image_features(model, data))
    for questions, image in zip(data.questions, tokens, strict=True):
        slots = [data.slot(question) for question in questions]
        ids, targets = (torch.tensor(column) for column in zip(*slots, strict=True))
        guesses = model.lm_head(states_of(model, image.expand(len(ids), -1, -1), ids)).argmax(-1)
        right = ((guesses == targets) | (targets == IGNORED)).all(dim=1)
        yield from zip(questions, right.tolist(), strict=True)


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
    parser.add_argument("--checkpoint", type=Path, default=Path("scenes-learned.state"))
    parser.add_argument("--steps", type=int, default=Settings.steps)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings(steps=arguments.steps)
    torch.manual_seed(settings.seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, settings)
    data = Data(settings.scenes, TRAIN_SEED, tokenizer)
    learn_answers(model, data, settings, arguments.checkpoint)
    model = model.half().float().eval()  # measured as it is kept
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
