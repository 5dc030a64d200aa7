"""Table 3's experiment on a tiny random classifier, held against plain loops."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from attnflow import AttentionTrace, Flow
from attnflow.cli.app import _run
from attnflow.errors import InputError, MethodError, ModelError, TokensError
from attnflow.evaluation.subjects.examples import LabelledText, read_texts
from attnflow.hosts.model import Model
from attnflow.testing import random_attention, tiny_encoder
from attnflow_experiments.report import Report
from attnflow_experiments.sst2.experiment import Sst2, _fits
from attnflow_experiments.sst2.observe import _most_taken_in, check_labels, gradient_sums, labels_of
from attnflow_experiments.sst2.tables import table_3

TEXTS = (
    ("the author talked to sara about his book", 1),
    ("unlocked keys of the cabinets are books", 0),
    ("sara unlocks the key and the author talked", 1),
    ("her book is about the authors", 0),
    ("the cabinets and the key of his book are unlocked", 1),
)
METHODS = ("raw", "rollout", "flow")
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def classifier() -> Model:
    return tiny_encoder(head="SequenceClassification")


@pytest.fixture(scope="module")
def examples() -> tuple[LabelledText, ...]:
    return tuple(LabelledText(text, str(label)) for text, label in TEXTS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "dev.tsv"
    lines = ["sentence\tlabel", *(f"{text} \t{label}" for text, label in TEXTS)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(classifier: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("classifier")
    classifier.module.save_pretrained(path)  # type: ignore[operator]
    classifier.tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def sound(classifier: Model, examples: tuple[LabelledText, ...]) -> Report:
    return Sst2()(examples, classifier.module, classifier.tokenizer, source="here")


@pytest.fixture(scope="module")
def paper(classifier: Model, examples: tuple[LabelledText, ...]) -> Report:
    return Sst2(protocol="paper")(examples, classifier.module, classifier.tokenizer, source="here")


def means(report: Report, table: str, row: str) -> list[float]:
    return [cell.value for cell in report.table(table).rows[row]]


# -- plain references: eager attention, loops, scipy, autograd by hand -------------------------


def eager(model: Any, **inputs: torch.Tensor) -> Floats:
    """Mean over heads of the library's own attention, layer × query × key."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        seen = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation(before)
    return np.stack([layer[0].double().mean(dim=0).numpy() for layer in seen])


def rolled(weights: Floats) -> Floats:
    n = weights.shape[-1]
    below, found = np.eye(n), []
    for layer in weights:
        below = (0.5 * layer + 0.5 * np.eye(n)) @ below
        found.append(below)
    return np.stack(found)


def flows(weights: Floats) -> Floats:
    """One maximum flow of scipy for each pair; its capacities are whole numbers below 2³¹."""
    depth, n = weights.shape[:2]
    whole = np.zeros(((depth + 1) * n,) * 2, dtype=np.int32)
    for m, layer in enumerate(0.5 * weights + 0.5 * np.eye(n), start=1):
        whole[m * n : (m + 1) * n, (m - 1) * n : m * n] = np.round(layer * 2**30)
    graph = csr_array(whole)
    found = np.zeros((depth, n, n))
    for m, i, j in np.ndindex(depth, n, n):
        found[m, i, j] = maximum_flow(graph, (m + 1) * n + i, j).flow_value / 2**30
    return found.round(7)  # rounded capacities would break ties


def words_of(encoded: Any) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for position, word in enumerate(encoded.word_ids(0)):
        if word is not None:
            found.setdefault(word, []).append(position)
    return list(found.values())


def summed(values: Floats, words: list[list[int]]) -> Floats:
    return np.array([sum(values[k] for k in word) for word in words])


def dense(one: Floats, other: Floats) -> float:
    a, b = (stats.rankdata(x, method="dense") for x in (one, other))
    return float(1 - 6 * ((a - b) ** 2).sum() / (len(a) * (len(a) ** 2 - 1)))


def test_the_sound_table_is_what_plain_loops_give(classifier: Model, sound: Report) -> None:
    model: Any = classifier.module
    found: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    for text, _ in TEXTS:
        encoded = classifier.tokenizer(text, return_tensors="pt")
        vectors = model.get_input_embeddings()(encoded["input_ids"]).detach().requires_grad_()
        model(inputs_embeds=vectors).logits[0, 1].backward()
        words = words_of(encoded)
        importance = summed(vectors.grad[0].norm(dim=-1).double().numpy(), words)
        weights = eager(model, input_ids=encoded["input_ids"])
        for name, values in zip(METHODS, (weights, rolled(weights), flows(weights)), strict=True):
            rows = [summed(layer[0], words) for layer in values]
            found[name].append([stats.spearmanr(row, importance).statistic for row in rows])
    for name in METHODS:
        assert means(sound, "table-3", name) == pytest.approx(
            np.mean(found[name], axis=0).tolist(), abs=1e-9
        )


def test_the_paper_table_is_what_plain_loops_give(classifier: Model, paper: Report) -> None:
    """Of the sums only the norms can be held against a reference: the sums are rounding."""
    model: Any = classifier.module
    found: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    for text, _ in TEXTS:
        encoded = classifier.tokenizer(text, return_tensors="pt")
        twice = model.bert.embeddings(encoded["input_ids"]).detach().requires_grad_()
        model(inputs_embeds=twice).logits[0, 1].backward()
        importance = twice.grad[0].double().norm(dim=-1).numpy()
        weights = eager(model, inputs_embeds=twice.detach())
        flow = flows(weights)
        flow = flow / flow.sum(axis=-1, keepdims=True)
        for name, values in zip(METHODS, (weights, rolled(weights), flow), strict=True):
            found[name].append([dense(layer.max(axis=0), importance) for layer in values])
    for name in METHODS:
        assert means(paper, "norms", name) == pytest.approx(
            np.mean(found[name], axis=0).tolist(), abs=1e-9
        )


def test_sums_of_gradients_are_rounding_where_a_norm_reads_the_vectors(
    classifier: Model, paper: Report
) -> None:
    sums = paper.table("sums").rows
    assert sums["the norms in single and in double precision"][0].value > 0.99
    assert sums["the sums in single and in double precision"][0].value < 0.9
    assert "The importance is rounding" in paper.findings[0]
    text = TEXTS[0][0]
    single = gradient_sums(classifier.module, classifier.tokenizer, text, 1)
    assert single.largest_share < 1e-5
    assert single.dimensions == 32


def test_sums_of_gradients_are_numbers_where_no_norm_comes_first(classifier: Model) -> None:
    loaded = tiny_encoder(head="SequenceClassification")
    model: Any = loaded.module
    model.bert.embeddings.LayerNorm = torch.nn.Identity()
    found = gradient_sums(model, loaded.tokenizer, TEXTS[0][0], 1)
    encoded = loaded.tokenizer(TEXTS[0][0], return_tensors="pt")
    twice = model.bert.embeddings(encoded["input_ids"]).detach().requires_grad_()
    model(inputs_embeds=twice).logits[0, 1].backward()
    assert found.sums == pytest.approx(twice.grad[0].sum(dim=-1).abs().numpy(), rel=1e-3)
    assert found.largest_share > 1e-3
    report = Sst2(protocol="paper", samples=2)(
        [LabelledText(text, None) for text, _ in TEXTS], model, loaded.tokenizer, source="here"
    )
    assert "a number" in report.findings[0]
    assert "2 texts from here (without labels)." in report.protocol[0]


def test_distilbert_as_in_the_paper() -> None:
    loaded = tiny_encoder("distilbert", head="SequenceClassification")
    found = gradient_sums(loaded.module, loaded.tokenizer, TEXTS[0][0], 1)
    assert found.largest_share < 1e-5


# -- where flow is held back ----------------------------------------------------------------------


def test_no_flow_exceeds_what_its_target_takes_in_and_some_reach_it() -> None:
    weights = random_attention(4, 1, 6, seed=3)[:, 0]
    weights[1:, 0] = [0.95, *[0.01] * 5]  # from layer 2 on the target looks at itself
    trace = AttentionTrace.from_arrays(weights, list("abcdef"))
    capacities = 0.5 * weights + 0.5 * np.eye(6)
    expected = np.full((4, 6), np.inf)
    for layer in range(4):
        for source in range(1, 6):
            leaving = sum(capacities[m, 0, k] for m in range(1, layer + 1) for k in range(1, 6))
            expected[layer, source] = capacities[0, 0, source] + leaving
    bound = _most_taken_in(Flow().layer_matrices(trace), 0)
    assert np.array_equal(np.isinf(bound), np.isinf(expected))
    assert bound[:, 1:] == pytest.approx(expected[:, 1:], abs=1e-12)
    flow = flows(weights)[:, 0]
    assert (flow <= bound + 1e-6).all()
    assert flow[:, 1:] == pytest.approx(bound[:, 1:], abs=1e-6)


# -- the report -----------------------------------------------------------------------------------


def test_it_says_how_it_was_made(sound: Report, classifier: Model) -> None:
    model: Any = classifier.module
    right = []
    for text, label in TEXTS:
        with torch.no_grad():
            logits = model(**classifier.tokenizer(text, return_tensors="pt")).logits
        right.append(int(logits.argmax()) == label)
    assert (
        f"right in {100 * np.mean(right):.1f} %. There are no more; 100 were" in sound.protocol[0]
    )
    assert "'LABEL_1'" in sound.protocol[0]
    assert sound.table("table-3").note.startswith("The paper's model has 6 layers and this one 3")
    assert all(
        cell.paper is None for cells in sound.table("table-3").rows.values() for cell in cells
    )
    assert list(sound.table("measures").rows) == [
        *("gradient", "gradient × input", "gradient sum, first block", "blank-out")
    ]


def test_the_papers_numbers_stand_beside_six_layers() -> None:
    found = table_3("title", {name: np.zeros((2, 6)) for name in METHODS}, range(1, 7))
    assert [cell.paper for cell in found.rows["flow"]] == [0.11, None, 0.11, None, 0.12, 0.14]
    assert [cell.difference for cell in found.rows["raw"]][-1] == pytest.approx(-0.09)


def test_another_label_has_other_gradients_of_the_same_attention(
    classifier: Model, examples: tuple[LabelledText, ...], sound: Report
) -> None:
    def run(label: str | int) -> Report:
        chosen = Sst2(label=label, samples=2, seed=1)
        return chosen(examples, classifier.module, classifier.tokenizer, source="here")

    by_name, by_number = run("LABEL_0"), run(0)
    assert "'LABEL_0'" in by_name.protocol[0]
    assert by_name.to_csv() == by_number.to_csv()
    assert by_name.to_csv() != run("LABEL_1").to_csv()


def test_texts_are_drawn_by_seed_and_long_ones_left_out(classifier: Model) -> None:
    long = LabelledText("the book " * 40, "0")
    some = [LabelledText(text, str(label)) for text, label in TEXTS]

    def draw(examples: list[LabelledText], seed: int) -> tuple[list[LabelledText], str]:
        return Sst2(samples=3, seed=seed).sample(
            examples, lambda e: _fits(e, classifier.module, classifier.tokenizer), "text"
        )

    chosen, remarks = draw([long, *some], 5)
    again, _ = draw(some, 5)
    other, _ = draw(some, 6)
    assert chosen == again
    assert chosen != other
    assert len(set(chosen)) == 3
    assert remarks == " 1 longer than the model's positions left out."


# -- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["sound", "paper"])
def test_the_command_prints_and_writes(
    protocol: str,
    folder: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--model", str(folder), "--data", str(data), "--protocol", protocol]
    output = tmp_path / "new"
    assert _run(["experiment", "sst2", *arguments, "--samples", "4", "--output", str(output)]) == 0
    shown = capsys.readouterr()
    assert "Table 3: correlation with" in shown.out
    assert "4 texts from dev.tsv" in shown.out
    assert f"wrote {output / 'sst2.csv'}" in shown.err
    assert "Loading" not in shown.err
    with (output / "sst2.csv").open(encoding="utf-8", newline="") as file:
        rows = [line for line in csv.DictReader(file) if line["table"] == "table-3"]
    assert {(line["row"], line["column"]) for line in rows} == {
        (name, f"L{k}") for name in METHODS for k in (1, 2, 3)
    }
    assert (output / "sst2.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "sst2.md").read_text(encoding="utf-8")
    assert f"`attnflow experiment sst2 --model {folder.name} --data dev.tsv --samples 4" in page


def test_the_list_of_experiments_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["experiment"]) == 0
    assert "sst2  Table 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--samples", "0"], "samples is a number of at least 1; got 0"),
        (["--protocol", "papre"], "Did you mean 'paper'"),
        (["--label", "happy"], "The model's labels are 0 (LABEL_0), 1 (LABEL_1)"),
        (["--label", "2"], "The model's labels are 0 (LABEL_0), 1 (LABEL_1)"),
    ],
)
def test_bad_options_are_named(
    arguments: list[str],
    says: str,
    folder: Path,
    data: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["experiment", "sst2", "--model", str(folder), "--data", str(data)]
    assert _run([*command, *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_model_that_classifies_nothing_is_refused() -> None:
    with pytest.raises(ModelError, match=r"BertForMaskedLM .* is not a sequence classifier"):
        labels_of(tiny_encoder().module)


def test_wrong_protocol_and_texts_are_refused(classifier: Model) -> None:
    with pytest.raises(MethodError, match="protocol='honest'"):
        Sst2(protocol="honest")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="No text is short enough"):
        Sst2()([LabelledText("book " * 90, "0")], *classifier, source="here")
    with pytest.raises(TokensError, match=r"'\[SEP\]' has no words for this model"):
        Sst2()([LabelledText("[SEP]", "0")], *classifier, source="here")


# -- labels ---------------------------------------------------------------------------------------


def test_labels_are_classes_by_name_or_number(classifier: Model) -> None:
    check_labels([LabelledText("a", "Label_1"), LabelledText("b", "0")], ["LABEL_0", "LABEL_1"])
    wrong = LabelledText("0", "good film", line=2)
    with pytest.raises(
        InputError, match=r"Line 2 has the label 'good film'; .* 0 \(no\), 1 \(yes\)"
    ):
        check_labels([wrong], ["no", "yes"])
    with pytest.raises(InputError, match=r"'a' has the label '2'"):
        Sst2()([LabelledText("a", "2")], *classifier, source="here")


def test_evaluate_and_the_experiment_read_the_same_texts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quotation marks were part of the text for one and csv quotes for the other."""
    path = tmp_path / "dev.tsv"
    path.write_text('Sentence\tLabel\n"the key\t1\n"her book"\t0\n\t1\n', encoding="utf-8")
    texts = [LabelledText('"the key', "1"), LabelledText('"her book"', "0")]
    assert read_texts(path) == texts
    model = ["--model", str(folder), "--data", str(path)]
    assert _run(["experiment", "sst2", *model, "--samples", "9"]) == 0
    assert "2 texts from dev.tsv" in capsys.readouterr().out
    assert _run(["evaluate", *model, "--methods", "raw"]) == 0
    assert "2 texts from dev.tsv" in capsys.readouterr().out


def test_a_missing_file_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["experiment", "sst2", "--model", str(folder), "--data", "nowhere.tsv"]
    assert _run(command) == 1
    assert "There is no file or folder 'nowhere.tsv'" in capsys.readouterr().err
