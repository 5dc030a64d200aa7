"""The script that fine-tunes the SST-2 classifier: it learns, and an interrupted run goes on."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attnflow.testing import tiny_encoder

SCRIPT = Path(__file__).parent.parent / "training" / "sst2.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("training_sst2", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)  # its neighbours, as when it is run
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts that are positive when they speak of a book, and a tiny encoder to learn it."""
    folder = tmp_path_factory.mktemp("sst2")
    rng = random.Random(0)
    others = ["the", "author", "talked", "to", "sara", "about", "his", "key"]
    for name, count in (("train", 160), ("dev", 40)):
        lines = ["text\tlabel"]
        for number in range(count):
            words = rng.choices(others, k=rng.randint(2, 9))
            words[rng.randrange(len(words))] = "book" if number % 2 else "cabinets"
            lines.append(f"{' '.join(words)} \t{number % 2}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    loaded = tiny_encoder(head="")
    loaded.module.save_pretrained(folder / "encoder")
    loaded.tokenizer.save_pretrained(folder / "encoder")
    return folder


def command(data: Path, work: Path) -> list[str]:
    return [
        *("sst2.py", "--data", str(data), "--encoder", str(data / "encoder")),
        *("--output", str(work / "classifier"), "--checkpoint", str(work / "sst2.checkpoint.pt")),
        *("--epochs", "4", "--batch-size", "16", "--learning-rate", "3e-3", "--enough", "2"),
    ]


@pytest.fixture
def repeatable() -> Iterator[None]:
    """The script chooses one thread and deterministic kernels; other tests keep theirs."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForSequenceClassification.from_pretrained(folder).state_dict())


@pytest.mark.usefixtures("repeatable")
def test_it_learns_and_an_interrupted_run_ends_in_the_same_weights(
    script: ModuleType,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    monkeypatch.setattr(sys, "argv", command(data, whole))
    script.main()
    said = capsys.readouterr().out
    assert float(said.split()[-1]) >= 0.9

    save, calls = script.Run.save, []

    def save_and_stop(trainer: object) -> None:
        save(trainer)
        calls.append(trainer)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", command(data, broken))
    monkeypatch.setattr(script.Run, "save", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        script.main()
    assert not (broken / "classifier").exists()
    script.main()
    assert "resumed after step 6" in capsys.readouterr().out
    expected, found = weights_of(whole / "classifier"), weights_of(broken / "classifier")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name

    model = AutoModelForSequenceClassification.from_pretrained(whole / "classifier")
    tokenizer = AutoTokenizer.from_pretrained(whole / "classifier")
    assert model.config.id2label == {0: "negative", 1: "positive"}
    with torch.no_grad():
        scores = model(**tokenizer("the author talked about his book", return_tensors="pt")).logits
    assert int(scores.argmax()) == 1


@pytest.mark.usefixtures("repeatable")
def test_a_checkpoint_of_another_run_is_refused(
    script: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"settings": {"seed": 9}, "examples": 1}, tmp_path / "sst2.checkpoint.pt")
    monkeypatch.setattr(sys, "argv", command(data, tmp_path))
    with pytest.raises(SystemExit, match="belongs to other settings or data; remove it"):
        script.main()


def test_the_learning_rate_rises_then_falls_to_zero(script: ModuleType) -> None:
    factors = [script.learning_rate_factor(step, 2, 10) for step in range(11)]
    assert factors == pytest.approx([0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0])


def test_batches_hold_every_text_once_and_lengths_stay_together(script: ModuleType) -> None:
    examples = [script.Example(list(range(k % 7 + 1)), k) for k in range(23)]
    batches = script.make_batches(examples, 5, random.Random(1))
    assert sorted(item.label for batch in batches for item in batch) == list(range(23))
    assert all(max(len(x.ids) for x in b) - min(len(x.ids) for x in b) <= 2 for b in batches)


def test_padding_is_masked(script: ModuleType) -> None:
    inputs, labels = script.as_tensors([script.Example([5, 6], 1), script.Example([7], 0)], 9)
    assert inputs["input_ids"].tolist() == [[5, 6], [7, 9]]
    assert inputs["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert labels.tolist() == [1, 0]


def test_a_dev_text_is_not_trained_on(script: ModuleType, data: Path, tmp_path: Path) -> None:
    for name, rows in (("train", ["the book\t1", "the key\t0"]), ("dev", ["the book \t1"])):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
    settings = script.Settings(0, 1, 8, 1e-3, 0.0, 0.1, 16, 1, 1.0, 0)
    tokenizer = AutoTokenizer.from_pretrained(data / "encoder")
    corpus = script.read_corpus(tmp_path, tokenizer, settings)
    assert (len(corpus.train), len(corpus.dev)) == (1, 1)
    assert corpus.train[0].label == 0
