"""Sources, measured methods, metrics and the evaluation on completions."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy import optimize

import attnflow
from attnflow.errors import FileError, InputError, MethodError, TokensError
from attnflow.errors.progress import Progress, listening
from attnflow.evaluation import CompletionPrompt, Evaluation, Prompts
from attnflow.evaluation.metrics import (
    curve_steps,
    group_sums,
    linear_datamodeling_score,
    rank_of,
)
from attnflow.evaluation.subjects.examples import read_prompts
from attnflow.evaluation.subjects.prompts import LEAVE_ONE_DOCUMENT_OUT
from attnflow.evaluation.subjects.rankings import is_answered, named_rankings
from attnflow.explainers.ablation import CompletionAblation
from attnflow.explainers.blanks import blank_token
from attnflow.explainers.leave_out import lasso, random_ablations
from attnflow.explainers.reruns import measure
from attnflow.explainers.sources import Sources, strongest
from attnflow.methods import AblationRegression, LeaveOneOut, Rollout
from attnflow.testing import tiny_encoder

TEXT = "the author talked to sara . the key is of the author . sara talked to the"


def tokenizer() -> Any:
    """Words with a start token, and spaces as a decoder's tokenizer marks them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    words = ["the", "author", "talked", "to", "sara", "key", "is", "of", ".", "book", "no", "?"]
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    table = {token: k for k, token in enumerate([*special, *(f"▁{word}" for word in words), "▁"])}
    raw = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    raw.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>",
    )  # fmt: skip


def language_model(seed: int = 0, **others: Any) -> Any:
    """Build a tiny Llama over these words; others: what its config has otherwise."""
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer()), "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "initializer_range": 0.4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(**{**settings, **others})
    return transformers.LlamaForCausalLM(config).eval()


# --- sources -------------------------------------------------------------------------------------

TOKENS = ["<s>", "▁Anna", "▁lives", "▁in", "▁Ro", "me", ".", "▁Where", "?"]


def test_what_is_no_source_is_left_out() -> None:
    words = Sources.of_tokens(TOKENS, level="word")
    assert words.names == ("Anna", "lives", "in", "Rome.", "Where?")
    assert words.positions == ((1,), (2,), (3,), (4, 5, 6), (7, 8))
    assert words.groups == {"sentence": (0, 0, 0, 0, 1), "document": (0,) * 5}
    assert Sources.of_tokens(TOKENS, exclude_last_word=True).names[-1] == "Rome."
    assert Sources.of_tokens(TOKENS, level="token").positions == tuple((k,) for k in range(1, 9))


def test_a_word_with_an_excluded_token_goes_and_a_sentence_stays() -> None:
    plain = ["An", "na", "▁left", ".", "▁He", "▁too", "."]
    assert Sources.of_tokens(plain, level="word").positions[0] == (2, 3)
    assert Sources.of_tokens(plain, level="sentence").positions == ((1, 2, 3), (4, 5, 6))
    both = Sources.of_tokens(plain, level="sentence", exclude_first=False)
    assert both.positions[0] == (0, 1, 2, 3)


def test_documents_may_be_told() -> None:
    text = "".join(token.replace("▁", " ") for token in TOKENS)
    spans = [(text.index("Anna"), text.index("in") + 2), (text.index("Where"), len(text))]
    documents = Sources.of_tokens(TOKENS, level="document", documents=spans)
    assert documents.positions == ((1, 2, 3), (7, 8))
    words = Sources.of_tokens(TOKENS, level="word", documents=spans)
    assert words.groups["document"] == (0, 0, 0, -1, 1)


def test_chat_templates_are_no_sources() -> None:
    tokens = ["<|im_start|>", "user", "Ċ", "Hi", "Ġyou", "<|im_end|>", "assistant"]
    inside = [(len("<|im_start|>user\n"), len("<|im_start|>user\nHi you"))]
    assert Sources.of_tokens(tokens, inside=inside, special=[0, 5]).positions == ((3,), (4,))


def test_scores_come_from_tokens_or_from_sources() -> None:
    words = Sources.of_tokens(TOKENS, level="word")
    np.testing.assert_allclose(words.scores(np.arange(9.0)), [1, 2, 3, 15, 15])
    np.testing.assert_allclose(words.scores(np.arange(5.0)), np.arange(5.0))
    with pytest.raises(InputError, match="one value for each token or for each source"):
        words.scores(np.arange(4.0))
    spans = Sources(("name", "city"), ((1,), (4, 5)), len(TOKENS))
    assert spans.hidden(np.array([[True, True], [False, True]])) == [(1, 4, 5), (4, 5)]


# --- measured methods ----------------------------------------------------------------------------


def test_leave_one_out_is_what_each_source_is_worth() -> None:
    model, words = language_model(), tokenizer()
    result = attnflow.generate(
        (model, words), TEXT, LeaveOneOut(level="word"), completion=" sara is"
    )
    assert isinstance(result, attnflow.Attribution)
    assert result.layers == (0,)
    assert result.values.shape == (1, 2, 17)
    prompt, completion = words(TEXT)["input_ids"], words(" sara is")["input_ids"][1:]
    one = CompletionAblation(model=model, prompt_ids=prompt, completion_ids=completion)
    rows = one.token_log_probs([(), (5,)])
    place = list(result.sources.positions).index(5)
    np.testing.assert_allclose(result.values[0, :, place], rows[0] - rows[1], atol=1e-5)
    joint = attnflow.generate((model, words), TEXT, LeaveOneOut(joint=True), completion=" sara is")
    assert list(joint.targets) == ["sara is"]
    np.testing.assert_allclose(joint.values[0, 0], result.values[0].sum(axis=0), atol=1e-5)
    some = attnflow.generate((model, words), TEXT, LeaveOneOut(), completion=" sara is", targets=1)
    np.testing.assert_allclose(some.values[0, 0], result.values[0, 1], atol=1e-6)
    either = attnflow.generate(
        (model, words), TEXT, LeaveOneOut(alone=True), completion=" sara is"
    ).values[0]
    every = list(result.sources.positions)
    for column, position in enumerate(every):
        others = [each for each in every if each != position]
        base, without, alone, prior = one.token_log_probs([(), (position,), others, every])
        expected = np.maximum(base - without, np.minimum(alone, base) - prior)
        np.testing.assert_allclose(either[:, column], expected, atol=1e-5)


@pytest.mark.parametrize("by", ["hide", "replace", "delete"])
def test_measured_results_have_every_level(by: Any) -> None:
    model, words = language_model(), tokenizer()
    counts = {"token": 17, "word": 17, "sentence": 3}
    for level, count in counts.items():
        method = LeaveOneOut(level=level, by=by)  # type: ignore[arg-type]
        result = attnflow.generate((model, words), TEXT, method, completion=[5])
        assert result.values.shape == (1, 1, count)
        assert np.abs(result.values).max() > 1e-3


def test_regression_finds_the_effects_of_a_model_that_is_linear() -> None:
    class Linear:
        """Stands for an ablation whose response is a sum over what is visible."""

        model = language_model()
        completion_ids = (5,)
        effects = np.array([2.0, 0, 0, -1.0, 0, 0, 0, 0.5, 0, 0])

        def token_log_probs(self, sets: Any) -> Any:
            gone = [[k in hidden for k in range(10)] for hidden in sets]
            return (~np.array(gone) @ self.effects)[:, None]

    sources = Sources(tuple("abcdefghij"), tuple((k,) for k in range(10)), 10)
    method = AblationRegression(samples=64, alpha=0.001)
    result = measure(method, Linear(), sources)  # type: ignore[arg-type]
    np.testing.assert_allclose(result.values[0, 0], Linear.effects, atol=0.02)
    alone = measure(LeaveOneOut(), Linear(), sources)  # type: ignore[arg-type]
    np.testing.assert_allclose(alone.values[0, 0], Linear.effects, atol=1e-12)


def test_encoder_decoders_are_measured() -> None:
    config = transformers.T5Config(
        vocab_size=len(tokenizer()), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0, initializer_factor=3.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    result = attnflow.generate((model, tokenizer()), TEXT, LeaveOneOut(), completion=[5, 6])
    assert result.values.shape == (1, 2, 17)
    assert np.abs(result.values).min(axis=2).max() > 0


def test_measured_methods_are_frozen_and_checked() -> None:
    method = LeaveOneOut()
    with pytest.raises(FrozenInstanceError):
        method.level = "token"  # type: ignore[misc]
    assert method.to_dict()["name"] == "leave-one-out"
    assert replace(method, by="delete") != method
    with pytest.raises(MethodError, match="Did you mean 'hide'"):
        LeaveOneOut(by="hid")  # type: ignore[arg-type]
    with pytest.raises(MethodError, match="a whole number from 2 to"):
        AblationRegression(samples=1)
    with pytest.raises(TokensError, match="nothing to explain"):
        attnflow.generate((language_model(), tokenizer()), TEXT, LeaveOneOut(), completion=[])


def test_blanks_are_no_tokens_that_frame_a_text() -> None:
    words = tokenizer()
    assert blank_token(words) == words.unk_token_id
    words.unk_token = "</s>"
    assert blank_token(words) == words.convert_tokens_to_ids("▁")


# --- regression and metrics ----------------------------------------------------------------------


def test_lasso_of_an_orthogonal_design_is_soft_thresholding() -> None:
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=float)
    y = signs @ [2.0, 0.05] + 7
    scale = y.std()
    plain = np.array([2.0, 0.05]) / scale
    expected = np.sign(plain) * np.maximum(np.abs(plain) - 0.1, 0) * scale
    np.testing.assert_allclose(lasso(signs, y, alpha=0.1), expected, atol=1e-9)


def test_lasso_is_the_optimum() -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((40, 12)) > 0.3).astype(float)
    y = x @ rng.normal(size=12) + rng.normal(size=40)
    weights = lasso(x, y, alpha=0.05)
    centred, target = x - x.mean(0), (y - y.mean()) / y.std()

    def loss(parts: Any) -> float:
        w = parts[:12] - parts[12:]  # smooth once the sign is divided off
        return float(((target - centred @ w) ** 2).mean() / 2 + 0.05 * parts.sum())

    best = optimize.minimize(loss, np.zeros(24), bounds=[(0, None)] * 24, method="L-BFGS-B")
    scaled = weights / y.std()
    own = np.concatenate([np.maximum(scaled, 0), np.maximum(-scaled, 0)])
    assert loss(own) <= best.fun + 1e-7
    assert (weights == 0).any()
    assert not lasso(x, np.ones(40)).any()


def test_random_ablations_take_away_the_same_share_each_time() -> None:
    choice = random_ablations(50, 20, hidden=0.3, seed=3)
    assert (choice.sum(axis=1) == 6).all()
    assert choice.any(axis=0).all()
    assert np.array_equal(choice, random_ablations(50, 20, hidden=0.3, seed=3))
    assert random_ablations(3, 1).sum() == 3
    assert random_ablations(3, 2, hidden=0.9).sum() == 3  # never everything


def test_the_truth_has_the_highest_score_there_is() -> None:
    choice = random_ablations(64, 10, seed=1)
    effects = np.random.default_rng(0).normal(size=10)
    response = (~choice) @ effects
    assert linear_datamodeling_score(effects, choice, response) == pytest.approx(1)
    assert linear_datamodeling_score(-effects, choice, response) == pytest.approx(-1)
    assert np.isnan(linear_datamodeling_score(np.zeros(10), choice, response))


def test_ties_count_against_a_method() -> None:
    assert rank_of([1, 1, 1], [2]) == 3
    assert rank_of([0, 3, 2], [0, 2]) == 2
    assert strongest([1, 3, 3, 2], 3) == (1, 2, 3)
    assert group_sums([1, 2, 3], [1, -1, 0]).tolist() == [3, 1]


def test_curves_go_from_nothing_to_everything() -> None:
    steps = curve_steps(strongest([5.0, 1.0, 3.0, 2.0], 4), steps=4)
    assert [len(hidden) for hidden, _ in steps] == [0, 1, 2, 3, 4]
    assert steps[1] == ((0,), (1, 2, 3))


# --- prompts -------------------------------------------------------------------------------------


def test_prompts_are_read_from_tables_and_lines(tmp_path: Path) -> None:
    lines = tmp_path / "p.jsonl"
    rows = [
        {"prompt": "Anna lives in Rome. Anna lives in", "answer": "Rome", "expected": "Rome"},
        {"prompt": "One two", "completion": " three", "start": 4, "end": 7},
    ]
    lines.write_text("\n".join(map(json.dumps, [*rows, "Only a text"])), encoding="utf-8")
    first, second, third = read_prompts(lines)
    assert first.answer == (14, 18)
    assert second == CompletionPrompt("One two", completion=" three", answer=(4, 7))
    assert third == CompletionPrompt("Only a text")
    table = tmp_path / "p.csv"
    table.write_text('prompt,completion\n"a, b", c\n', encoding="utf-8")
    assert read_prompts(table) == [CompletionPrompt("a, b", completion=" c")]
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"prompt": ["x y"]}), tmp_path / "p.parquet")
    assert read_prompts(tmp_path / "p.parquet") == [CompletionPrompt("x y")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"words": "a"}', "Line 1 of .* has no text in a column 'prompt'; .* 'words'"),
        ("{", "Line 1 of .* is not JSON"),
        ('{"prompt": "a b a", "answer": "a"}', "occurs 2 times"),
        ('{"prompt": "ab", "start": 1, "end": 9}', "not a part of a prompt of 2 characters"),
        ("", "holds no prompt"),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_line(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_prompts(path)
    with pytest.raises(FileError, match="no file"):
        read_prompts(tmp_path / "none.jsonl")


def test_answers_are_compared_as_people_would() -> None:
    assert (
        is_answered("Computational complexity theory", " It is complexity", cut_off=False) is False
    )
    assert is_answered("July 4, 1776", " on July 4 1776.", cut_off=False)
    assert not is_answered("art", " party", cut_off=False)
    assert not is_answered("Rome", " ", cut_off=True)


# --- the evaluation ------------------------------------------------------------------------------

KNOWN = [
    CompletionPrompt(TEXT, answer=(11, 17), stated=(0, TEXT.index("sara talked"))),
    CompletionPrompt("the key is of sara . the author is no book . the key is", " sara .",
                     answer=(14, 18)),
    CompletionPrompt("is the book of the author ? no . the book is of the key . the book"),
]  # fmt: skip


def evaluate(
    methods: Any = None,
    prompts: Any = KNOWN,
    words: Any = None,
    samples: Any = None,
    journal: Path | None = None,
    **settings: Any,
) -> Evaluation:
    usual = ["gradient-attention", "raw-mean", "leave-one-out", "ablation-regression:samples=16"]
    subject = Prompts(**{"ablations": 12, "max_new_tokens": 2, **settings})
    return attnflow.evaluate(
        (language_model(), words or tokenizer()), prompts, methods or usual, subject=subject,
        samples=samples, journal=journal,
    )  # fmt: skip


def test_every_method_is_held_against_the_same_ablations() -> None:
    result = evaluate(curves=True)
    assert len(result.used) == 3
    assert result.rows[-1] == "random"
    for row in result.rows:
        assert np.isfinite(result.values(row, "lds")).all()
        assert np.isfinite(result.values(row, "drop")).all()
        assert (result.values(row, "deletion") > 0).all()
        assert np.isfinite(result.values(row, "first")).tolist() == [True, True, False]
    assert result.summary("leave-one-out", "lds").mean > result.summary("random", "lds").mean
    assert "any sentence" in {metric.name for metric in result.metrics}
    assert any("too few" in s or "wide" in s for s in result.verdict())
    assert "| leave-one-out |" in result.to_markdown()
    assert result.to_csv().count("\n") == 1 + 3 * 5
    assert json.dumps(result.to_dict())


def test_a_default_is_what_explains_an_answer() -> None:
    model, words = language_model(), tokenizer()

    def watched(case: Any) -> Any:
        return attnflow.generate(
            (model, words), TEXT, "balanced", completion=case.completion_ids, targets="answer"
        )

    result = evaluate({"mine": watched, "theirs": "default", "flat": Rollout()}, [TEXT])
    assert result.rows == ("mine", "theirs", "flat", "random")
    assert result.values("mine", "lds") == pytest.approx(result.values("theirs", "lds"))
    assert result.values("mine", "drop") == pytest.approx(result.values("theirs", "drop"))


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    whole = evaluate(journal=path)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(lines[:2]) + "\n" + lines[2][:30], encoding="utf-8")
    steps: list[Progress] = []
    with listening(steps.append):
        again = evaluate(journal=path)
    assert [step.done for step in steps if step.stage == "prompts"] == [2, 3]
    for row in whole.methods:
        np.testing.assert_array_equal(whole.values(row, "lds"), again.values(row, "lds"))
    with pytest.raises(InputError, match=r"holds another run: .*ablations was 12 and is 13"):
        evaluate(journal=path, ablations=13)


def test_only_right_answers_count_and_samples_are_those_that_do() -> None:
    wrong = CompletionPrompt("the key is of", expected="nothing of the kind")
    result = evaluate(["raw"], [wrong, *KNOWN], samples=2, ablations=4, max_new_tokens=1)
    assert [bool(record.left_out) for record in result.records] == [True, False, False]
    assert "and not 'nothing of the kind'" in result.records[0].left_out


def test_documents_are_sums_and_are_left_out_whole() -> None:
    text = "the author is sara . no . is the key ?"
    middle = text.index("is the key")
    prompt = CompletionPrompt(
        text, " the", answer=(14, 18), documents=((0, middle), (middle, len(text)))
    )
    result = evaluate(["leave-one-out"], [prompt], level="sentence", ablations=0)
    scores = result.records[0].scores
    assert set(scores[LEAVE_ONE_DOCUMENT_OUT]) == {"document"}
    assert set(scores["leave-one-out"]) == {"first", "top", "sentence", "document"}


def test_a_chat_template_is_no_source() -> None:
    words = tokenizer()
    words.chat_template = "{% for m in messages %}no {{ m['content'] }} ? is{% endfor %}"
    lengths = []

    def watched(case: Any) -> Any:
        lengths.append((len(case.prompt_ids), case.sources.names))
        return np.arange(len(case.sources))

    prompt = CompletionPrompt("the key of sara", " no", answer=(4, 7))
    evaluate({"mine": watched}, [prompt], words, ablations=4, chat=True)
    assert lengths[0][1] == ("the", "key", "of", "sara")
    assert lengths[0][0] >= 7


def test_encoder_decoders_are_evaluated() -> None:
    config = transformers.T5Config(
        vocab_size=len(tokenizer()), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0, eos_token_id=2, pad_token_id=0, initializer_factor=3.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    prompts = [CompletionPrompt(TEXT, " sara is")]
    result = attnflow.evaluate(
        (model, tokenizer()), prompts, ["leave-one-out"], subject=Prompts(ablations=12)
    )
    assert np.isfinite(result.values("leave-one-out", "lds")).all()


def test_names_are_checked_before_anything_runs() -> None:
    with pytest.raises(MethodError, match="Did you mean 'leave-one-out'"):
        evaluate(methods=["leave-one-ou"])
    with pytest.raises(MethodError, match=r"no option 'sample'. Did you mean 'samples'"):
        named_rankings(["ablation-regression:sample=3"])
    with pytest.raises(InputError, match="each once"):
        named_rankings(["raw", "raw"])
    with pytest.raises(InputError, match="top is a whole number from 1 to"):
        evaluate(top=0)
    result = evaluate()
    with pytest.raises(InputError, match="Did you mean 'raw-mean'"):
        result.values("raw-men", "lds")


def test_an_encoder_has_no_completion() -> None:
    loaded = tiny_encoder()
    with pytest.raises(attnflow.AttnflowError, match="cannot generate"):
        attnflow.evaluate(loaded, ["the key"], ["raw"], subject=Prompts())
