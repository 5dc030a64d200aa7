"""The pronoun experiment, against plain loops over the host's own eager attention."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from attnflow.cli.app import _run
from attnflow.errors import FileError, InputError, ModelError, TargetError, TokensError
from attnflow.hosts.load import as_model
from attnflow.models.smollm2 import prepared_folder
from attnflow.testing import tiny_encoder
from attnflow_experiments.known_answer.experiment import LESS_NEUTRAL
from attnflow_experiments.pronouns import winogender_tables
from attnflow_experiments.pronouns.data import (
    OURS,
    PAPERS,
    PronounSentence,
    Schema,
    crossed,
    occurrences,
    parse_sentence,
    read_winogender,
)
from attnflow_experiments.pronouns.experiment import Pronouns
from attnflow_experiments.pronouns.observe import PronounReader, Reading, lean
from attnflow_experiments.pronouns.tables import (
    FIRST,
    LAST,
    Frame,
    Question,
    layer_table,
    layers_to_print,
    standing,
)

Floats = NDArray[np.float64]

TABLE = """sentid\tsentence
baker.guest.0.male.txt\tThe baker told the guest that he was late.
baker.guest.0.female.txt\tThe baker told the guest that she was late.
baker.guest.0.neutral.txt\tThe baker told the guest that they were late.
baker.guest.1.male.txt\tThe baker told the guest that he was lost.
baker.guest.1.female.txt\tThe baker told the guest that she was lost.
baker.guest.1.neutral.txt\tThe baker told the guest that they were lost.
baker.someone.0.male.txt\tThe baker told someone that he was late.
baker.someone.0.female.txt\tThe baker told someone that she was late.
baker.someone.0.neutral.txt\tThe baker told someone that they were late.
cook.child.0.male.txt\tThe child asked the cook for his recipe.
cook.child.0.female.txt\tThe child asked the cook for her recipe.
cook.child.0.neutral.txt\tThe child asked the cook for their recipe.
cook.child.1.male.txt\tThe child asked the cook to cut his bread.
cook.child.1.female.txt\tThe child asked the cook to cut her bread.
cook.child.1.neutral.txt\tThe child asked the cook to cut their bread.
"""


# -- tiny models ------------------------------------------------------------------------------


def _vocabulary(texts: list[str]) -> dict[str, int]:
    """Every word of these texts, at the start of a line and after a space."""
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text)})
    names = ["<s>", "</s>", "<unk>", "Ċ", "Ġthing", *words, *(f"Ġ{word}" for word in words)]
    return {name: k for k, name in enumerate(dict.fromkeys(names))}


def tiny_decoder(layers: int = 2, *, begins: bool = False) -> tuple[Any, Any]:
    """A random Llama with sharp attention, and a byte-level tokenizer that knows our words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    texts = [s.text.replace("[MASK]", "") + " ".join(s.pronouns) for s in OURS]
    vocabulary = _vocabulary([*texts, TABLE, "they them their man woman boy girl he she him"])
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if begins:
        raw.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, vocab_size=len(vocabulary), max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6)
    return model.eval(), tokenizer


@pytest.fixture(scope="module")
def decoder() -> tuple[Any, Any]:
    return tiny_decoder()


@pytest.fixture(scope="module")
def folder(decoder: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("decoder")
    for part in decoder:
        part.save_pretrained(path)
    return str(path)


def heads_averaged(model: Any, ids: list[int]) -> list[Floats]:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(input_ids=torch.tensor([ids]), output_attentions=True)
    model.set_attn_implementation(before)
    return [layer[0].double().numpy().mean(axis=0) for layer in outputs.attentions]


def rolled(matrices: list[Floats], residual: float) -> list[Floats]:
    below = np.eye(len(matrices[0]))
    found = []
    for weights in matrices:
        below = (residual * np.eye(len(weights)) + (1 - residual) * weights) @ below
        found.append(below)
    return found


def closed_form_flow(matrices: list[Floats], row: int, column: int) -> float:
    """Two layers: the sum over the nodes between of the narrower of two pipes."""
    lower, upper = (0.5 * np.eye(len(w)) + 0.5 * w for w in matrices)
    return sum(min(upper[row, k], lower[k, column]) for k in range(len(lower)))


def read(pair: tuple[Any, Any], sentence: PronounSentence, protocol: Any = "sound") -> Reading:
    reader = PronounReader(model=pair[0], tokenizer=pair[1], protocol=protocol)
    return reader([sentence])[0]


# -- readings ---------------------------------------------------------------------------------


def test_a_causal_model_is_read_before_the_pronoun(decoder: tuple[Any, Any]) -> None:
    model, tokenizer = decoder
    found = read(decoder, PAPERS[0])
    names = ["Ċ", "The", "Ġauthor", "Ġtalked", "Ġto", "ĠSara", "Ġabout"]
    ids = tokenizer.convert_tokens_to_ids(names)
    with torch.no_grad():
        shares = model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
    expected = [float(shares[tokenizer.convert_tokens_to_ids(w)]) for w in ("Ġhis", "Ġher")]
    assert found.probabilities == pytest.approx(expected, rel=1e-4)
    matrices = heads_averaged(model, ids)
    for layer in range(2):
        row = found.attributions["raw"][layer]
        np.testing.assert_allclose(row, matrices[layer][-1, [2, 5]], atol=1e-6)
        row = found.attributions["rollout"][layer]
        np.testing.assert_allclose(row, rolled(matrices, 0.5)[layer][-1, [2, 5]], atol=1e-6)
    flows = [closed_form_flow(matrices, 6, column) for column in (2, 5)]
    np.testing.assert_allclose(found.attributions["flow"][1], flows, atol=3e-6)


def test_one_step_is_less_the_neutral_prompt(decoder: tuple[Any, Any]) -> None:
    model, tokenizer = decoder
    found = read(decoder, PAPERS[0]).attributions[LESS_NEUTRAL]
    names = ["Ċ", "The", "Ġauthor", "Ġtalked", "Ġto", "ĠSara", "Ġabout"]
    neutral = ["Ċ", "The", "Ġthing", "Ġthing", "Ġto", "Ġthing", "Ġabout"]
    rows = []
    for words in (names, neutral):
        matrices = heads_averaged(model, tokenizer.convert_tokens_to_ids(words))
        for weights in matrices:  # nobody but the first itself draws on the first token
            weights[1:, 0] = 0
            weights[1:] /= weights[1:].sum(axis=1, keepdims=True)
        rows.append([x[-1, [2, 5]] for x in rolled(matrices, 0.5)])  # one step of two layers
    np.testing.assert_allclose(found, np.array(rows[0]) - np.array(rows[1]), atol=1e-5)


def test_the_papers_protocol_takes_the_text_as_it_is(decoder: tuple[Any, Any]) -> None:
    model, tokenizer = decoder
    found = read(decoder, PAPERS[1], "paper")
    assert list(found.leans) == ["raw", "rollout", "flow"]
    ids = tokenizer.convert_tokens_to_ids(["Mary", "Ġconvinced", "ĠJohn", "Ġof"])
    matrices = heads_averaged(model, ids)
    np.testing.assert_allclose(found.attributions["raw"][1], matrices[1][-1, [0, 2]], atol=1e-6)
    flows = [closed_form_flow(matrices, 3, column) for column in range(4)]
    shares = np.array(flows)[[0, 2]] / sum(flows)  # rows of flow divided by their sum
    np.testing.assert_allclose(found.attributions["flow"][1], shares, atol=1e-5)


def test_no_line_end_where_the_tokenizer_begins_with_its_own_token() -> None:
    pair = tiny_decoder(begins=True)
    model, tokenizer = pair
    found = read(pair, PAPERS[1])
    ids = tokenizer.convert_tokens_to_ids(["<s>", "Mary", "Ġconvinced", "ĠJohn", "Ġof"])
    raw = heads_averaged(model, ids)[1][-1, [1, 3]]
    np.testing.assert_allclose(found.attributions["raw"][1], raw, atol=1e-6)


def test_a_masked_model_fills_the_mask_and_pieces_add_up() -> None:
    loaded = tiny_encoder()
    text = "the unlocked talked to sara about [MASK] book"
    sentence = PronounSentence(text, ("unlocked", "sara"), ("his", "her"))
    found = read((loaded.module, loaded.tokenizer), sentence)
    assert list(found.leans) == ["raw", "rollout", "flow"]  # the default is for causal models
    pieces = ("un", "##lock", "##ed")
    tokens = ["[CLS]", "the", *pieces, "talked", "to", "sara", "about", "[MASK]", "book", "[SEP]"]
    ids = loaded.tokenizer.convert_tokens_to_ids(tokens)
    row = tokens.index("[MASK]")
    with torch.no_grad():
        shares = loaded.module(torch.tensor([ids])).logits[0, row].double().softmax(-1)
    expected = [float(shares[loaded.tokenizer.convert_tokens_to_ids(w)]) for w in ("his", "her")]
    assert found.probabilities == pytest.approx(expected, rel=1e-4)
    for layer, matrix in enumerate(rolled(heads_averaged(loaded.module, ids), 0.5)):
        both = [matrix[row, 2:5].sum(), matrix[row, 7]]
        np.testing.assert_allclose(found.attributions["rollout"][layer], both, atol=1e-5)


def test_many_sentences_in_a_batch_are_each_read_as_alone(decoder: tuple[Any, Any]) -> None:
    reader = PronounReader(model=decoder[0], tokenizer=decoder[1])
    together = reader([*OURS[:6], OURS[0]])
    assert together[0] is together[6]  # equal ones are read once
    for sentence, reading in zip(OURS[:6], together, strict=False):
        alone = read(decoder, sentence)
        assert reading.sentence == sentence
        assert reading.probabilities == pytest.approx(alone.probabilities, rel=1e-3)
        for name, values in alone.attributions.items():
            np.testing.assert_allclose(reading.attributions[name], values, atol=1e-5)


def test_what_stands_after_the_pronoun_is_not_visible(decoder: tuple[Any, Any]) -> None:
    text = "John convinced [MASK] teacher of Mary."
    report = Pronouns().of_sentences(
        *decoder, [PronounSentence(text, ("John", "Mary"), ("his", "her"))]
    )
    row = next(iter(report.table("sentences").rows.values()))
    assert row[0].value > 0
    assert all(np.isnan(cell.value) for cell in row[4:])
    assert any("Not visible: Mary stands after" in sentence for sentence in report.findings)
    layers = report.table("layers-1").rows
    assert np.isfinite(layers["raw: John"][0].value)
    assert np.isnan(layers["raw: Mary"][0].value)


def test_a_lean_is_a_contrast_and_knows_ties() -> None:
    one, other = np.array([3.0, 1.0, 0.0, -1.0, 1e-12]), np.array([1.0, 1.0, 0.0, 1.0, 3e-12])
    np.testing.assert_allclose(lean(one, other), [0.5, 0, 0, -1, -0.5])
    assert lean(np.array([0.5]), np.array([0.4999999])) == 0  # within rounding
    assert lean(np.array([0.5]), np.array([0.4]), tie=0.2) == 0
    assert np.isnan(lean(np.array([np.nan]), np.array([1.0]))).all()


def test_whole_words_are_found_in_any_case() -> None:
    assert occurrences("The man told the woman; MAN overboard", "man") == [(4, 7), (24, 27)]
    assert occurrences("Someone left", "someone") == [(0, 7)]


# -- agreement --------------------------------------------------------------------------------


def made(
    p: tuple[float, float], leans: list[float], words: tuple[str, str] = ("man", "woman")
) -> Reading:
    """A reading with these numbers."""
    sentence = PronounSentence("The man met the woman before [MASK] left.", words, ("he", "she"))
    array = np.array(leans)
    values = np.stack([1 + array, 1 - array], axis=1)
    layers = tuple(range(1, len(leans) + 1))
    return Reading(sentence, layers, p, {"m": values}, {"m": array}, np.zeros(len(leans), bool))


def test_agreement_and_binding_by_hand() -> None:
    """One pronoun is preferred throughout: the pronoun misleads, the binding does not."""
    both_ways = Frame([made((0.6, 0.2), [0.5, -0.5, 0.0]), made((0.2, 0.3), [0.5, -0.5, 0.0])], "a")
    # log odds: log 3 and −log 1.5, so bound to the first although the second reading prefers hers
    assert both_ways.binding == pytest.approx((np.log(3) - np.log(1.5)) / 2)
    np.testing.assert_allclose(both_ways.follows_pronoun("m"), [0.5, 0.5, 0.5])
    np.testing.assert_allclose(both_ways.follows_binding("m"), [1, 0, 0.5])
    swapped = made((0.9, 0.1), [-1.0, -1.0, 1.0], ("woman", "man"))  # the first is the later word
    other = Frame([swapped], "b")
    np.testing.assert_allclose(other.follows_binding("m"), [0, 0, 1])
    np.testing.assert_allclose(other.follows_pronoun(FIRST), [0, 0, 0])
    np.testing.assert_allclose(other.follows_pronoun(LAST), [1, 1, 1])
    tied = Frame([made((0.5, 0.5), [1.0, 1.0, 1.0])], "c")
    assert np.isnan(tied.follows_pronoun("m")).all()  # no pronoun is preferred


def test_a_cluster_counts_once() -> None:
    frames = [
        Frame([made((0.9, 0.1), [1.0])], "a"),
        Frame([made((0.9, 0.1), [-1.0])], "a"),
        Frame([made((0.9, 0.1), [1.0])], "b"),
        Frame([made((0.5, 0.5), [1.0])], "c"),
    ]
    asked = Question("agreement", "agrees", frames, Frame.follows_pronoun)
    cell = layer_table(asked, ["m"]).rows["m"][0]
    assert cell.value == pytest.approx((0.5 + 1) / 2)
    assert (cell.n, cell.undefined) == (2, 1)


def test_a_standing_is_held_against_the_better_fixed_choice() -> None:
    """Of 20 clusters half lean each way, and the method always follows."""
    frames = [
        Frame([made((0.9, 0.1) if k % 2 else (0.1, 0.9), [1.0 if k % 2 else -1.0])], str(k))
        for k in range(20)
    ]
    said = standing(Question("agreement", "agrees", frames, Frame.follows_pronoun), ["m"])
    assert "m 100 % (100 % to 100 %)" in said
    assert re.search(r"always the \w+ named 50 %", said)
    assert re.search(r"pair by pair: m \(p = 0\.00\d\)", said)
    same = [Frame([made((0.9, 0.1), [1.0])], str(k)) for k in range(20)]
    said = standing(Question("agreement", "agrees", same, Frame.follows_pronoun), ["m"])
    assert said.endswith("pair by pair: none.")  # the first is always right: nothing is shown


def test_a_deep_models_tables_show_some_layers() -> None:
    assert layers_to_print(6) == (0, 1, 2, 3, 4, 5)
    assert layers_to_print(30) == (0, 4, 9, 14, 19, 24, 29)


# -- Winogender -------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "schemas.tsv"
    path.write_text(TABLE, encoding="utf-8")
    return path


def test_variants_become_one_schema(table: Path) -> None:
    schemas = read_winogender(table)
    assert len(schemas) == 5
    first, last = schemas[0], schemas[-1]
    assert first.text == "The baker told the guest that [MASK] was late."
    assert first.pronouns == ("he", "she", "they")
    assert last.pronouns == ("his", "her", "their")
    assert (last.occupation, last.participant, last.referent) == ("cook", "child", 1)
    made = crossed(last)
    assert [s.text for s in made[:2]] == [
        "The woman asked the man to cut [MASK] bread.",
        "The man asked the woman to cut [MASK] bread.",
    ]  # the occupation is the second in the text, and its man comes first
    assert made[0].antecedents == ("man", "woman")
    assert made[0].pronouns == ("his", "her")
    assert (made[1].antecedents, made[1].pronouns) == (("woman", "man"), ("her", "his"))
    assert made[2].text == "The girl asked the boy to cut [MASK] bread."


def test_punctuation_after_the_pronoun_stays(tmp_path: Path) -> None:
    path = tmp_path / "one.tsv"
    lines = ["sentid\tsentence"]
    for gender, word in (("male", "him"), ("female", "her")):
        lines.append(f"cook.child.0.{gender}.txt\tThe child met the cook and liked {word}.")
    path.write_text("\n".join(lines), encoding="utf-8")
    (schema,) = read_winogender(path)
    assert schema.text == "The child met the cook and liked [MASK]."
    assert schema.pronouns == ("him", "her")


def test_a_causal_model_is_shown_the_same_text_for_two_referents(
    decoder: tuple[Any, Any], table: Path
) -> None:
    reader = PronounReader(model=decoder[0], tokenizer=decoder[1])
    found = winogender_tables.read_schemas(reader, read_winogender(table))
    assert len(found.items) == 5
    assert len(found.distinct) == 4  # late and lost stand after the pronoun
    assert len(found.framed) == 3
    assert len(found.pairs) == 2
    ((cook, child),) = found.telling_pairs
    assert (cook.schema.referent, child.schema.referent) == (0, 1)
    referents = next(t for t in winogender_tables.tables(found) if t.name == "referents")
    for name in found.methods:
        for layer in range(2):
            more = cook.plain.leans[name][layer] > child.plain.leans[name][layer]
            assert referents.rows[name][layer].value == float(more)
    binding = next(t for t in winogender_tables.tables(found) if t.name == "binding")
    item = found.framed[0]
    assert item.frame is not None
    odds = [np.log(r.probabilities[0] / r.probabilities[1]) for r in item.frame.readings]
    assert item.frame.binding == pytest.approx(sum(odds) / 4)
    assert {r.sentence.antecedents for r in item.frame.readings} == {
        ("man", "woman"), ("woman", "man"), ("boy", "girl"), ("girl", "boy"),
    }  # fmt: skip
    assert set(binding.rows) == {*found.methods, FIRST, LAST}


def test_a_masked_model_sees_what_tells_the_referents_apart() -> None:
    loaded = tiny_encoder()
    reader = PronounReader(model=loaded.module, tokenizer=loaded.tokenizer)
    texts = [f"the author talked to the key about [MASK] {word}" for word in ("book", "cabinets")]
    schemas = [
        Schema("author", "key", referent, text, ("his", "her"))
        for referent, text in enumerate(texts)
    ]
    found = winogender_tables.read_schemas(reader, schemas)
    assert [item.plain.sentence.text for item in found.distinct] == texts
    assert len(found.telling_pairs) == 1
    assert "no causal model" not in " ".join(winogender_tables.findings(found))
    tables = {table.name: table for table in winogender_tables.tables(found)}
    assert list(tables["binding"].rows) == ["raw", "rollout", "flow", FIRST, LAST]


# -- the command ------------------------------------------------------------------------------


def numbers(path: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return {(r["table"], r["row"], r["column"]): r for r in csv.DictReader(file)}


def test_the_command_shows_the_paper_beside_ours(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert _run(["experiment", "pronouns", "--model", folder, "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"paper +\.36 +\.12 +\.74 +\.49", shown)
    assert "20 sentences in 10 frames" in shown
    found = numbers(output / "pronouns.csv")
    label = "The author talked to Sara about his/her"
    ours = found["sentences", label, "p(first)"]
    assert ours["paper"] == "0.356"
    assert float(ours["difference"]) == pytest.approx(float(ours["value"]) - 0.356, abs=1e-5)
    assert found["paper", f"{label}: author", "raw"]["paper"] == "0"
    assert found["paper", "Mary convinced John of her/his: Mary", "flow"]["paper"] == "1"
    assert found["paper", "Mary convinced John of her/his: Mary", "rollout"]["paper"] == "0"
    assert (output / "pronouns.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "pronouns.md").read_text(encoding="utf-8")
    assert "`attnflow experiment pronouns --model" in page
    assert str(tmp_path) not in page


def test_no_row_is_called_a_default_that_it_is_not(decoder: tuple[Any, Any]) -> None:
    """The default of generate() is gradient attention; one-step rollout is named as what it is."""
    report = Pronouns().of_sentences(*decoder, PAPERS)
    page = report.to_markdown() + report.to_csv()
    assert LESS_NEUTRAL in page
    assert "default" not in page


def test_the_papers_protocol_reads_the_papers_sentences(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["experiment", "pronouns", "--model", folder, "--protocol", "paper"]) == 0
    shown = capsys.readouterr().out
    assert "John convinced Mary" not in shown
    assert LESS_NEUTRAL not in shown
    assert "Mary convinced John of her/his: Mary" in shown
    assert "How often" not in shown  # over two sentences a share says nothing


def test_one_sentence_of_ones_own(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--sentence", "The doctor asked Anna about", "--antecedents", "doctor,Anna"]
    run = ["experiment", "pronouns", "--model", folder, *options, "--pronouns", "his,her"]
    assert _run(run) == 0
    shown = capsys.readouterr().out
    assert "raw: doctor" in shown
    assert "How often" not in shown


def test_winogender_on_the_command_line(
    folder: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    run = ["experiment", "pronouns", "--model", folder, "--data", str(table)]
    assert _run([*run, "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "5 sentences about 2 occupations; 4 different texts" in shown
    assert "1 of 2 pairs with different referents are the same text" in shown
    found = numbers(output / "pronouns.csv")
    whole = sum(
        float(found["pronouns", "all (4)", name]["value"])
        for name in ("prefers male", "female", "neutral")
    )
    assert whole == pytest.approx(1, abs=1e-5)
    assert (output / "pronouns.png").read_bytes().startswith(b"\x89PNG")


# -- bad input --------------------------------------------------------------------------------


def refuses(kind: type[Exception], message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_bad_sentences_are_named() -> None:
    text = "The author talked to Sara about [MASK] book."
    ask = PronounSentence
    refuses(TargetError, "'Tom' occurs 0 times", lambda: ask(text, ("author", "Tom"), ("a", "b")))
    twice = "Sara met Sara and the author"
    refuses(TargetError, "occurs 2 times", lambda: ask(twice, ("Sara", "author"), ("a", "b")))
    refuses(
        InputError, "Two different antecedents", lambda: ask(text, ("Sara", "sara"), ("a", "b"))
    )
    refuses(InputError, "Two different pronouns", lambda: ask(text, ("author", "Sara"), ("a",)))
    refuses(InputError, "2 places", lambda: ask(text + text, ("author", "Sara"), ("a", "b")))
    refuses(InputError, "--antecedents author,Sara", lambda: parse_sentence(text, None, "his,her"))
    refuses(InputError, "Two different antecedents.*'author'", lambda: parse_sentence(
        text, "author", "his,her"))  # fmt: skip


def test_bad_texts_for_a_model_are_named(decoder: tuple[Any, Any]) -> None:
    loaded = tiny_encoder()
    encoder = (loaded.module, loaded.tokenizer)
    bare = PronounSentence("the author talked to sara about", ("author", "sara"), ("his", "her"))
    refuses(TokensError, r"fills a mask.*has none; write \[MASK\]", lambda: read(encoder, bare))
    masked = PronounSentence(f"{bare.text} [MASK] book", ("author", "sara"), ("his", "hers"))
    refuses(TokensError, "'hers' is not one token", lambda: read(encoder, masked))
    odd = PronounSentence(PAPERS[0].text, ("author", "Sara"), ("his", "zir"))
    refuses(TokensError, "'zir' is not one token", lambda: read(decoder, odd))
    early = PronounSentence("[MASK] met Mary and John", ("Mary", "John"), ("her", "his"))
    refuses(TokensError, "Nothing stands before the pronoun", lambda: read(decoder, early))


def test_bad_models_and_options_are_named(decoder: tuple[Any, Any]) -> None:
    loaded = tiny_encoder(head="SequenceClassification")
    refuses(
        ModelError,
        "BertForSequenceClassification fills in no word",
        lambda: PronounReader(model=loaded.module, tokenizer=loaded.tokenizer),
    )
    refuses(
        TokensError,
        "fast tokenizer",
        lambda: PronounReader(model=decoder[0], tokenizer=object()),
    )
    refuses(InputError, "protocol='papr'.*'paper'", lambda: Pronouns(protocol="papr"))  # type: ignore[arg-type]


def test_bad_tables_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"

    def reading(text: str) -> Callable[[], Any]:
        def call() -> Any:
            path.write_text(text, encoding="utf-8")
            return read_winogender(path)

        return call

    refuses(FileError, "no file.*header sentid", lambda: read_winogender(tmp_path / "none.tsv"))
    refuses(InputError, "begins with.*'id'.*header sentid", reading("id\tsentence\na\tb\n"))
    refuses(InputError, "begins with 'nothing'", reading(""))
    refuses(InputError, "header and no rows", reading("sentid\tsentence\n"))
    head = "sentid\tsentence\n"
    refuses(InputError, "Line 2.*'baker.male'", reading(f"{head}baker.male\tThe baker\n"))
    one = "a.b.0.male.txt\tThe a told the b that he left.\n"
    refuses(InputError, "no female variant of a.b.0", reading(head + one))
    other = "a.b.0.female.txt\tThe a told a b that she left.\n"
    refuses(InputError, "must differ in one word", reading(head + one + other))


def test_bad_calls_are_refused(
    folder: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["experiment", "pronouns", "--model", folder]
    for options, message in (
        (["--data", str(table), "--sentence", "a"], "two experiments"),
        (["--antecedents", "a,b"], "belong to a --sentence"),
        (["--sentence", "The author met Sara and"], "--antecedents author,Sara"),
        (["--protocol", "loud"], "protocol='loud'"),
        (["--sentence", "The author met Sara", "--antecedents", "author,Tom", "--pronouns",
          "his,her"], "'Tom' occurs 0 times"),
    ):  # fmt: skip
        assert _run([*base, *options]) != 0
        assert message in " ".join(capsys.readouterr().err.split())


# -- a real model -----------------------------------------------------------------------------


def test_smollm2_reads_the_papers_sentences() -> None:
    if not prepared_folder().is_dir():
        pytest.skip("SmolLM2 is not prepared here; attnflow generate does it")
    loaded = as_model(None, default="smollm2")
    report = Pronouns().of_sentences(*loaded, PAPERS)
    author, love = report.table("sentences").rows.values()
    assert author[0].value < author[1].value  # her: Sara's book
    assert love[0].value == pytest.approx(0.008, abs=0.003)
    assert [cell.value for cell in report.table("paper").rows[
        "The author talked to Sara about his/her: author"]] == [0, 1, 1]  # fmt: skip
    assert len(report.table("layers-1").columns) == 30
