"""Train the verb-number classifier that ships with the package.

    python training/verb_number.py --data DATA/agreement --mined mined.tsv --seed 0 \\
        --output src/attnflow/models

DATA/agreement holds ``numpred.val`` and ``numpred.test.1`` ... ``numpred.test.5`` of Linzen,
Dupoux and Goldberg (2016); ``mined.tsv`` comes from ``mine_agreement.py``.  An interrupted run
goes on from its last epoch when the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from agreement_grammar import generate_examples, nouns_of
from checkpoint import Run, pad_ids, parameter_groups
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from attnflow.models.verb_number import (
    POS_TAGS,
    SPECIAL_TOKENS,
    VerbNumberConfig,
    VerbNumberModel,
    WordVocabulary,
    model_from_weights,
)
from attnflow_experiments.verb_number.data import (
    DEV,
    TEST,
    Example,
    Split,
    Words,
    distinct,
    read_examples,
    split,
)

ATTRACTOR_COUNTS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result besides the data; kept with a checkpoint."""

    seed: int
    epochs: int
    vocabulary_size: int
    tokens_per_batch: int
    learning_rate: float
    weight_decay: float
    warmup_steps: int
    word_dropout: float
    attractor_share: float
    natural_repeats: int
    generated: int
    limit: int


# --- data ---------------------------------------------------------------------------------------


class Corpus(NamedTuple):
    """All data of a run; ``attractors`` is indexed by the number of attractors."""

    natural: Split
    attractors: dict[int, Split]
    mined: list[Example]

    def held_out(self) -> set[Words]:
        """Word sequences that training must not see."""
        parts = (self.natural, *self.attractors.values())
        return {example.words for part in parts for example in (*part.dev, *part.test)}


def _split_attractors(folder: Path, excluded: set[Words], seed: int) -> dict[int, Split]:
    """Hold out half of every file but the first, which is large enough for a fifth."""
    parts = {}
    for count in ATTRACTOR_COUNTS:
        examples = distinct(read_examples(folder / f"numpred.test.{count}"), excluded)
        excluded.update(example.words for example in examples)
        test = len(examples) // (5 if count == 1 else 2)
        dev = 1000 if count == 1 else 0
        parts[count] = split(examples, dev=min(dev, test), test=test, seed=seed)
    return parts


def read_corpus(folder: Path, mined: Path | None, seed: int, limit: int) -> Corpus:
    """Read, deduplicate on the word sequence, and only then split."""
    natural = distinct(read_examples(folder / "numpred.val"))
    attractors = _split_attractors(folder, {example.words for example in natural}, seed)
    parts = split(natural, dev=DEV, test=TEST, seed=seed)
    mined_examples = read_examples(mined) if mined is not None else []
    if limit:  # a trial run; held-out parts stay as they are
        parts = parts._replace(train=parts.train[:limit])
        mined_examples = mined_examples[:limit]
    return Corpus(parts, attractors, mined_examples)


def training_attractors(corpus: Corpus, share: float) -> list[Example]:
    """As many attractor examples as make ``share`` of all training data, no more.

    In each of them the last noun has the wrong number; many of them would teach just that.
    """
    pool = [example for part in corpus.attractors.values() for example in part.train]
    others = len(corpus.natural.train) + len(corpus.mined)
    return pool[:: max(1, math.ceil(len(pool) / (others * share / (1 - share))))]


# --- vocabulary ---------------------------------------------------------------------------------

_RARE = 5


def build_vocabulary(examples: Iterable[Example], size: int, positions: int) -> WordVocabulary:
    """The most frequent training words; the tags that replace the others always belong."""
    counts = Counter(word for example in examples for word in example.words)
    tags = sorted(POS_TAGS)
    frequent = [word for word, count in counts.most_common() if count >= _RARE]
    words = [word for word in frequent if word not in POS_TAGS]
    known = words[: size - len(tags) - len(SPECIAL_TOKENS)]
    return WordVocabulary((*SPECIAL_TOKENS, *tags, *known), positions)


def replace_rare_words(example: Example, vocabulary: WordVocabulary) -> Example:
    """Write a mined example as the agreement data are written: rare words become their tags."""
    if example.tags is None:
        return example
    words = tuple(
        word if word in vocabulary.ids or tag not in POS_TAGS else tag
        for word, tag in zip(example.words, example.tags, strict=True)
    )
    return Example(words, example.label)


class EncodedExample(NamedTuple):
    """An example as ids."""

    ids: list[int]
    label: int


def encode(examples: Iterable[Example], vocabulary: WordVocabulary) -> list[EncodedExample]:
    """Ids between [CLS] and [EOS]."""
    return [
        EncodedExample(
            [vocabulary.cls_id, *vocabulary.word_ids(example.words), vocabulary.eos_id],
            example.label,
        )
        for example in examples
    ]


# --- training -----------------------------------------------------------------------------------

Batch = list[EncodedExample]


def make_batches(
    sequences: Sequence[EncodedExample], tokens: int, generator: random.Random
) -> list[Batch]:
    """Batches of about equal numbers of tokens, each of sequences of about equal length."""
    by_length = sorted(sequences, key=lambda item: (len(item.ids), generator.random()))
    batches: list[Batch] = [[]]
    for sequence in by_length:
        if len(batches[-1]) * len(sequence.ids) >= tokens:
            batches.append([])
        batches[-1].append(sequence)
    generator.shuffle(batches)
    return batches


def pad_batch(
    sequences: Iterable[Sequence[int]], vocabulary: WordVocabulary
) -> tuple[Tensor, Tensor]:
    """Put sequences of different lengths in one tensor, with the mask that hides the padding."""
    return pad_ids([list(sequence) for sequence in sequences], vocabulary.pad_id)


def hide_words(ids: Tensor, vocabulary: WordVocabulary, share: float) -> Tensor:
    """Replace some words by [UNK], so that the model can do without any one of them."""
    words = (ids != vocabulary.pad_id) & (ids != vocabulary.cls_id) & (ids != vocabulary.eos_id)
    hidden = words & (torch.rand(ids.shape) < share)
    return ids.masked_fill(hidden, vocabulary.unk_id)


def label_weights(sequences: Sequence[EncodedExample], natural: Sequence[Example]) -> Tensor:
    """Weights that give mixed training data the label frequencies of natural sentences."""
    target = Counter(example.label for example in natural)
    present = Counter(sequence.label for sequence in sequences)
    shares = [
        (target[label] / len(natural)) / (present[label] / len(sequences)) for label in (0, 1)
    ]
    return torch.tensor(shares)


def learning_rate_factor(step: int, warmup: int, total: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def evaluate(
    model: VerbNumberModel, sequences: Sequence[EncodedExample], vocabulary: WordVocabulary
) -> float:
    """Accuracy in eval mode."""
    model.eval()
    right = 0
    ordered = sorted(sequences, key=lambda item: len(item.ids))
    with torch.no_grad():
        for start in range(0, len(ordered), 256):
            batch = ordered[start : start + 256]
            ids, mask = pad_batch([item.ids for item in batch], vocabulary)
            guesses = model(ids, mask).logits.argmax(dim=-1)
            right += int((guesses == torch.tensor([item.label for item in batch])).sum())
    return right / max(1, len(ordered))


def make_optimiser(model: VerbNumberModel, settings: Settings) -> torch.optim.AdamW:
    """AdamW with weight decay."""
    return torch.optim.AdamW(
        parameter_groups(model),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        betas=(0.9, 0.98),
    )


@dataclass
class Trainer:
    """Model, optimiser and progress of a run."""

    settings: Settings
    vocabulary: WordVocabulary
    sequences: list[EncodedExample]
    weights: Tensor
    checkpoint: Path

    def __post_init__(self) -> None:
        torch.manual_seed(self.settings.seed)
        config = VerbNumberConfig(len(self.vocabulary), self.vocabulary.max_length)
        self.model = VerbNumberModel(config)
        optimiser = make_optimiser(self.model, self.settings)
        batches = len(self._batches(0))
        total = batches * self.settings.epochs
        warmup = min(self.settings.warmup_steps, total // 10 + 1)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: learning_rate_factor(step, warmup, total)
        )
        identity = {"settings": self.settings.__dict__, "tokens": self.vocabulary.tokens}
        self.run = Run(self.checkpoint, identity, self.model, optimiser, schedule, "epoch")

    def _batches(self, epoch: int) -> list[Batch]:
        # The order depends on the epoch alone: a resumed run sees what the whole run would.
        generator = random.Random(self.settings.seed * 1000 + epoch)
        return make_batches(self.sequences, self.settings.tokens_per_batch, generator)

    def run_epoch(self) -> float:
        """One pass over the training data; returns the mean loss."""
        self.model.train()
        losses = []
        batches = self._batches(self.run.done)
        for number, batch in enumerate(batches, start=1):
            losses.append(self._step(batch))
            if number % 250 == 0:
                mean = sum(losses[-250:]) / 250
                print(f"  step {number}/{len(batches)} loss {mean:.4f}", flush=True)
        self.run.done += 1
        return sum(losses) / len(losses)

    def _step(self, batch: Batch) -> float:
        ids, mask = pad_batch([item.ids for item in batch], self.vocabulary)
        ids = hide_words(ids, self.vocabulary, self.settings.word_dropout)
        labels = torch.tensor([item.label for item in batch])
        loss = functional.cross_entropy(self.model(ids, mask).logits, labels, self.weights)
        self.run.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.run.optimiser.step()
        self.run.schedule.step()
        return loss.item()


def train(
    trainer: Trainer, natural_dev: list[EncodedExample], attractor_dev: list[EncodedExample]
) -> None:
    """Run the epochs that are left; the better of two epochs has the better mean dev accuracy."""
    run = trainer.run
    run.resume()
    while run.done < trainer.settings.epochs:
        loss = trainer.run_epoch()
        natural = evaluate(trainer.model, natural_dev, trainer.vocabulary)
        attractor = evaluate(trainer.model, attractor_dev, trainer.vocabulary)
        run.keep_if_best((natural + attractor) / 2)
        run.save()
        print(
            f"epoch {run.done}/{trainer.settings.epochs} loss {loss:.4f} "
            f"dev natural {natural:.4f} attractor {attractor:.4f}",
            flush=True,
        )


# --- results ------------------------------------------------------------------------------------


def store(weights: dict[str, Tensor], vocabulary: WordVocabulary, folder: Path) -> VerbNumberModel:
    """Write weights (half precision) and vocabulary; return the model as users will load it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "verb_number.safetensors"
    save_file({name: tensor.half().contiguous() for name, tensor in weights.items()}, path)
    path.chmod(0o644)  # safetensors lets only the owner read; the file goes into a package
    text = "".join(f"{token}\n" for token in vocabulary.tokens)
    (folder / "verb_number.vocab.txt").write_text(text, encoding="utf-8")
    return model_from_weights(load_file(path))


def report(model: VerbNumberModel, corpus: Corpus, vocabulary: WordVocabulary) -> dict[str, Any]:
    """Accuracy and size of each held-out test part."""
    parts = {"natural": corpus.natural.test}
    parts |= {f"attractors_{count}": part.test for count, part in corpus.attractors.items()}
    results: dict[str, Any] = {}
    for name, examples in parts.items():
        accuracy = evaluate(model, encode(examples, vocabulary), vocabulary)
        results[name] = {"accuracy": round(accuracy, 4), "n": len(examples)}
    counts = [results[f"attractors_{count}"]["accuracy"] for count in ATTRACTOR_COUNTS]
    results["attractors_macro"] = round(sum(counts) / len(counts), 4)
    return results


def prepare(corpus: Corpus, settings: Settings, checkpoint: Path) -> tuple[Trainer, Counter[str]]:
    """Build the vocabulary and the training sequences, none of which is held out."""
    attractors = training_attractors(corpus, settings.attractor_share)
    known = (*corpus.natural.train, *attractors, *corpus.mined)
    vocabulary = build_vocabulary(known, settings.vocabulary_size, VerbNumberConfig(0).positions)
    excluded = corpus.held_out() | {example.words for example in corpus.natural.train}
    mined = distinct((replace_rare_words(item, vocabulary) for item in corpus.mined), excluded)
    natural = corpus.natural.train * settings.natural_repeats
    drawn = generate_examples(nouns_of(corpus.mined), settings.generated, seed=settings.seed)
    generated = distinct(drawn, excluded)
    sequences = encode([*natural, *attractors, *mined, *generated], vocabulary)
    sizes = Counter(natural=len(corpus.natural.train), attractors=len(attractors))
    sizes.update(mined=len(mined), generated=len(generated))
    weights = label_weights(sequences, corpus.natural.train)
    return Trainer(settings, vocabulary, sequences, weights, checkpoint), sizes


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with numpred.*")
    parser.add_argument("--mined", type=Path, help="output of mine_agreement.py")
    parser.add_argument("--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--checkpoint", type=Path, default=Path("verb_number.checkpoint.pt"))
    parser.add_argument("--threads", type=int, default=1, help="more may change the last digits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--vocabulary-size", type=int, default=10_000)
    parser.add_argument("--tokens-per-batch", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--warmup-steps", type=int, default=500)
    parser.add_argument("--word-dropout", type=float, default=0.06)
    parser.add_argument("--attractor-share", type=float, default=0.06)
    parser.add_argument("--natural-repeats", type=int, default=3)
    parser.add_argument("--generated", type=int, default=20_000, help="of agreement_grammar.py")
    parser.add_argument("--limit", type=int, default=0, help="examples to use in a trial run")
    return parser.parse_args()


def main() -> None:
    """Train, store, and report the accuracies of what was stored."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    settings = Settings(**{name: getattr(arguments, name) for name in Settings.__annotations__})
    corpus = read_corpus(arguments.data, arguments.mined, settings.seed, settings.limit)
    trainer, sizes = prepare(corpus, settings, arguments.checkpoint)
    print(f"training examples {dict(sizes)}, vocabulary {len(trainer.vocabulary)}", flush=True)
    natural_dev = encode(corpus.natural.dev, trainer.vocabulary)
    attractor_dev = encode(corpus.attractors[1].dev, trainer.vocabulary)
    train(trainer, natural_dev, attractor_dev)
    model = store(trainer.run.best_weights, trainer.vocabulary, arguments.output)
    print(f"best epoch {trainer.run.best[1]}")
    print(json.dumps(report(model, corpus, trainer.vocabulary), indent=2))


if __name__ == "__main__":
    main()
