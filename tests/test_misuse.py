"""Wrong or unusual things handed in: a sentence that helps, or the right thing done."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow.errors import InputError, ModelError, TokensError
from attnflow.errors.progress import Progress, listening
from attnflow.explainers.defaults import DEFAULTS, drop_sink
from attnflow.explainers.prompts import encode_prompts, neutral_ids
from attnflow.hosts import model as registry
from attnflow.hosts.load import load
from attnflow.hosts.model import Model
from attnflow.methods.gradients import attention_sink
from attnflow.testing import tiny_encoder
from families import FAMILIES, words
from test_answers import tokenizer_with

TEXT = "the author talked to sara about his book"
LONG = "x" * 100_000


def build(name: str) -> Any:
    return next(family for family in FAMILIES if family.name == name).build()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, tokenizer = tiny_encoder()
    path = tmp_path_factory.mktemp("home") / "m"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


# -- capture ------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", ["avg", "Mean", 1.5, -1, "minimum"])
def test_unknown_heads_are_refused(heads: Any) -> None:
    with pytest.raises(InputError, match="heads"):
        attnflow.capture(None, "the keys", heads=heads)


def test_names_and_paths_work_in_capture_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load(folder)
    expected = attnflow.capture((model, tokenizer), TEXT).weights
    monkeypatch.setenv("HOME", str(folder.parent))
    for name in (folder, str(folder), "~/m"):
        np.testing.assert_array_equal(attnflow.capture(name, TEXT).weights, expected)
    assert len(attnflow.capture(str(folder), [TEXT, "the key"])) == 2


def test_half_a_character_is_named() -> None:
    for run in (
        lambda: attnflow.capture(None, "the \ud800 keys"),
        lambda: attnflow.capture(None, ["the keys", "the \ud800"]),
        lambda: attnflow.generate((build("Llama"), tokenizer_with([], [])), "a \udfff"),
    ):
        with pytest.raises(TokensError, match="lone surrogate"):
            run()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "Prepared inputs are tensors by the names"),
        ({"text": "the keys"}, "A text is passed as it is, not in a mapping"),
        ({"src": None}, "src"),
    ],
)
def test_mappings_that_are_no_inputs(inputs: Any, message: str) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    for model in (torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), None):
        with pytest.raises(TokensError, match=message):
            attnflow.capture(model, inputs)


def test_an_image_is_told_what_it_needs() -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (32, 32))
    for run in (attnflow.capture, attnflow.explain):
        with pytest.raises(ModelError, match=r"no image processor beside it; pass one: processor="):
            run(build("ViT"), image)  # type: ignore[operator]


def test_long_inputs_are_not_echoed() -> None:
    model, tokenizer = tiny_encoder()
    runs = (
        lambda: attnflow.capture("./" + LONG, "the keys"),
        lambda: attnflow.capture(None, [LONG, 7]),
        lambda: attnflow.capture(None, "the keys", record=["gradients"], answer=LONG),
        lambda: attnflow.capture((model, tokenizer), {LONG: "x"}),
        lambda: attnflow.generate(build("Llama"), [LONG], max_new_tokens=LONG),  # type: ignore
    )
    for run in runs:
        with pytest.raises(attnflow.AttnflowError) as error:
            run()
        assert len(str(error.value)) < 2000


def test_value_zeroing_tells_how_far_it_is() -> None:
    model, tokenizer = tiny_encoder()
    steps: list[Progress] = []
    with listening(steps.append):
        attnflow.capture((model, tokenizer), TEXT, record=["value-zeroing"])
    assert {step.stage for step in steps} == {"value-zeroing"}
    assert all(0 <= step.done < step.total == 3 * 10 for step in steps)
    assert [step.done for step in steps] == sorted(step.done for step in steps)


# -- models -------------------------------------------------------------------------------------


def test_files_that_are_no_folder(tmp_path: Path) -> None:
    wrong = tmp_path / "model.bin"
    wrong.write_bytes(b"x")
    with pytest.raises(ModelError, match=r"is a file\. A model is a folder"):
        load(wrong)
    broken = tmp_path / "x.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"x\.gguf' holds no model"):
        load(broken)
    with pytest.raises(ModelError, match=r"There is no folder 'y\.gguf'"):
        load("y.gguf")


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def fail(*_: Any, **__: Any) -> Any:
        raise ImportError("LlamaTokenizer requires the SentencePiece library; install it")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(ModelError, match="'sentencepiece', which is not installed"):
        load(folder)


def test_a_broken_plug_in_is_named_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("gone", "no_such_package:Adapter", registry.ENTRY_POINTS),
        EntryPoint("odd", "builtins:dict", registry.ENTRY_POINTS),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda **_: points)
    registry.adapters.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert attnflow.capture(tuple(load()), "the keys").length == 4  # type: ignore
        assert ["left out" in str(one.message) for one in told] == [True, True]
        assert "'gone' (no_such_package:Adapter)" in str(told[0].message)
        assert "'odd'" in str(told[1].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            attnflow.capture(None, "the keys")  # once is enough
    finally:
        registry.adapters.cache_clear()


def test_without_torch_everything_says_what_to_install() -> None:
    script = """
import sys
sys.modules["torch"] = None
import attnflow
def star():
    exec("from attnflow import *", {})
for call in (star, lambda: attnflow.capture(None, "x"),
             lambda: attnflow.evaluate(None, ["x"]), lambda: attnflow.explain(None, "x"),
             lambda: attnflow.generate(None, "x"),
             lambda: attnflow.generate(None, "x", "y")):
    try:
        call()
    except attnflow.errors.MissingDependencyError as error:
        assert "pip install 'attnflow[models]'" in str(error), error
    else:
        raise AssertionError("nothing was raised")
trace = attnflow.AttentionTrace.from_arrays([[[1.0, 0.0], [0.5, 0.5]]], ["a", "b"])
print(attnflow.Rollout()(trace).values.shape)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "(1, 2, 2)", run.stderr


# -- generate -----------------------------------------------------------------------------------


def test_end_tokens_of_the_options_end_a_text() -> None:
    model = build("Llama")

    def write(**options: Any) -> list[list[str]]:
        results = attnflow.generate(
            model,
            {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 10]])},
            max_new_tokens=8,
            method="rollout",
            seed=1,
            **{"temperature": 9.0, "pad_token_id": 0, **options},
        )
        return [list(result.targets) for result in results]

    first, second = write()
    end = next(token for token in first[2:] if token not in (*first[:2], second[0]))
    settings = model.generation_config.__class__(eos_token_id=int(end), pad_token_id=0)
    for options in (
        {"eos_token_id": int(end)},
        {"eos_token_id": [int(end)]},
        {"generation_config": settings},
    ):
        rows = write(**options)
        assert rows[0] == first[: first.index(end)]
        assert rows[1] == second[: second.index(end) if end in second else None]


def test_an_error_of_the_users_own_callback_is_his() -> None:
    def hear(_: Progress) -> None:
        raise ValueError("my own")

    with pytest.raises(ValueError, match=r"^my own$") as error, listening(hear):
        attnflow.generate(
            (build("Llama"), tokenizer_with([], [])), "w5 w6", seed=0, temperature=5.0
        )
    assert not isinstance(error.value, InputError)


def test_rows_are_taken_in_full_precision_under_autocast() -> None:
    model = build("Llama")
    prompt = {"input_ids": torch.tensor([[5, 6, 7]])}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = attnflow.generate(model, prompt, max_new_tokens=3, method="rollout")
    np.testing.assert_allclose(result.values.sum(-1) + result.elsewhere, 1, atol=2e-2)


def test_inference_mode_is_left_where_gradients_are_taken() -> None:
    """`with torch.inference_mode()` around generate() was a RuntimeError of torch's own."""
    from attnflow.evaluation.importance import InputGradient
    from attnflow.methods import Careful

    model = build("Llama")
    encoder, tokenizer = tiny_encoder(head="SequenceClassification")

    def results() -> list[Any]:
        prompt = {"input_ids": torch.tensor([[5, 6, 7]])}
        gradients = attnflow.capture((encoder, tokenizer), TEXT, record=["gradients"])
        return [
            attnflow.generate(model, prompt, max_new_tokens=3).values,
            attnflow.explain(model, prompt).values,
            attnflow.generate(model, prompt, Careful(level="token"), completion=[8, 9]).values,
            gradients.gradients,
            InputGradient()((encoder, tokenizer), [TEXT])[0].values,
        ]

    expected = results()
    with torch.inference_mode():
        inside = results()
        assert torch.is_inference_mode_enabled()
    for one, other in zip(expected, inside, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_messages_need_a_chat_template() -> None:
    messages = [{"role": "user", "content": "w5"}]
    with pytest.raises(TokensError, match="no chat template; pass the prompt as one text"):
        attnflow.generate((build("Llama"), tokenizer_with([], [])), messages)


def test_the_form_of_a_chat_stays_in_the_neutral_prompt() -> None:
    tokenizer = tokenizer_with([], [])
    tokenizer.add_tokens(["<|turn|>", "user", "assistant", "Ada", "Ġthing", "thing"])
    tokenizer.chat_template = (
        "{% for m in messages %}<|turn|> {{ m.role }} {{ m.content }} {% endfor %}"
        "<|turn|> assistant"
    )
    messages = [{"role": "user", "content": "w5 w6"}]
    model = build("Llama")
    model.resize_token_embeddings(70)
    prompt = encode_prompts(Model(model, tokenizer), messages).prompts[0]
    tokens = tokenizer.convert_ids_to_tokens(prompt.ids)
    assert tokens == ["<|turn|>", "user", "w5", "w6", "<|turn|>", "assistant"]
    assert prompt.form == (True, True, False, False, True, True)
    neutral = tokenizer.convert_ids_to_tokens(neutral_ids(tokenizer, prompt.ids, prompt.form))
    assert [neutral[k] for k in (0, 1, 4, 5)] == ["<|turn|>", "user", "<|turn|>", "assistant"]
    assert "w5" not in neutral
    tokenizer.chat_template = "{% for m in messages %}w20 {{ m.content }} {% endfor %}w21"
    plain = encode_prompts(Model(model, tokenizer), messages).prompts[0]  # ordinary words
    neutral = tokenizer.convert_ids_to_tokens(neutral_ids(tokenizer, plain.ids, plain.form))
    assert (neutral[0], neutral[-1]) == ("w20", "w21")
    assert not {"w5", "w6"} & set(neutral)
    sign, word = tokenizer.convert_tokens_to_ids(["<|turn|>", "w5"])  # a chat written as a text
    assert neutral_ids(tokenizer, [sign, word])[0] == sign
    assert sign not in tokenizer.all_special_ids


CHAT = "{% for m in messages %}<|turn|> {{ m.role }} {{ m.content }} {% endfor %}<|turn|> assistant"


def test_a_tokenizer_of_another_model_is_named() -> None:
    """An index outside the embedding was torch's own IndexError."""
    from attnflow.methods import LeaveOneOut

    model, tokenizer = build("Llama"), tokenizer_with([], [])
    tokenizer.add_tokens(["haus"])
    ids = {"input_ids": torch.tensor([[5, 64]])}
    for run in (
        lambda: attnflow.capture((model, tokenizer), "w5 haus"),
        lambda: attnflow.capture(model, ids),
        lambda: attnflow.generate((model, tokenizer), "w5 haus"),
        lambda: attnflow.generate(model, ids),
        lambda: attnflow.generate((model, tokenizer), "w5", completion="haus"),
        lambda: attnflow.generate((model, tokenizer), "w5 w6", LeaveOneOut(), completion="haus"),
    ):
        with pytest.raises(TokensError, match="number 64 is none of the 64 that LlamaForCausalLM"):
            run()


def test_a_message_may_hold_a_word_of_the_template() -> None:
    """The role word was taken for the message, and the message for the template."""
    tokenizer = tokenizer_with([], [])
    tokenizer.add_tokens(["<|turn|>", "user", "assistant"])
    tokenizer.chat_template = CHAT
    model = build("Llama")
    model.resize_token_embeddings(70)

    def form(*contents: str) -> tuple[bool, ...] | None:
        roles = ("user", "assistant", "user")
        messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
        return encode_prompts(Model(model, tokenizer), messages).prompts[0].form

    own, turn = False, (True, True)
    assert form("user") == (*turn, own, *turn)
    assert form(" user w5 ") == (*turn, own, own, *turn)
    assert form("user", "assistant", "user user") == (
        *turn,
        own,
        *turn,
        own,
        *turn,
        own,
        own,
        *turn,
    )
    tokenizer.chat_template = CHAT.replace("m.content", "m.content | upper")
    assert form("w5") is None  # changed by the template: nothing says where it is
    tokenizer.chat_template = CHAT.replace("{{ m.content }}", "{{ m.content }} {{ m.content }}")
    assert form("w5") == (*turn, own, own, *turn)


def test_the_sources_of_a_chat_are_its_messages() -> None:
    from attnflow.evaluation import Prompts
    from attnflow.methods import LeaveOneOut

    tokenizer = tokenizer_with([], [])
    tokenizer.add_tokens(["<|turn|>", "user", "assistant"])
    tokenizer.chat_template = CHAT
    model = build("Llama")
    model.resize_token_embeddings(70)
    result = attnflow.generate(
        (model, tokenizer), [{"role": "user", "content": "user w5"}], LeaveOneOut(), completion="w9"
    )
    assert (result.sources.texts, result.sources.positions) == (("user", "w5"), (2, 3))
    names: list[Any] = []
    attnflow.evaluate(
        (model, tokenizer),
        ["user w5"],
        {"mine": lambda case: names.append(case.sources.positions) or [1.0, 2.0]},
        subject=Prompts(ablations=2, chat=True, max_new_tokens=2),
    )
    assert names == [((2,), (3,))]


def test_signs_of_a_chat_are_no_sources_in_a_plain_text() -> None:
    """They need not be among the tokenizer's special tokens."""
    from attnflow.methods import LeaveOneOut

    tokenizer = tokenizer_with([], [])
    tokenizer.add_tokens(["<|turn|>", "haus"])
    prompt = "<|turn|> w5 haus <|turn|> w6"
    model = build("Llama")
    model.resize_token_embeddings(70)
    result = attnflow.generate((model, tokenizer), prompt, LeaveOneOut(), completion="w9")
    assert result.sources.texts == ("w5", "haus", "w6")


def test_tokens_without_a_name_of_their_own_are_read_again() -> None:
    """A model may have more tokens than its tokenizer names; they were looked up by name."""
    from attnflow.explainers.comparison import compare_completions
    from attnflow.hosts.model import Model

    model, tokenizer = build("Llama"), tokenizer_with([], [])
    unnamed = [k for k in range(70) if tokenizer.convert_ids_to_tokens(k) is None]
    model.resize_token_embeddings(70)
    with torch.no_grad():
        model.lm_head.weight[:] = 0.0
        model.lm_head.weight[unnamed] = torch.randn(len(unnamed), model.config.hidden_size)
    methods = [attnflow.Rollout(), attnflow.Raw()]
    both = compare_completions(Model(model, tokenizer), "w5 w6 w7", methods, max_new_tokens=3)
    ids = both.results[0].provenance["completion_ids"]
    assert set(ids) <= set(unnamed)
    prompt = {"input_ids": torch.tensor([[5, 6, 7]])}
    expected = attnflow.generate(model, prompt, completion=ids, method=attnflow.Raw())
    np.testing.assert_allclose(both.results[1].values, expected.values, rtol=1e-6)


def test_the_sink_is_found_where_it_is() -> None:
    weights = np.full((2, 1, 4, 4), 0.1)
    weights[..., 3] = 0.7
    tokens = ["Houses", "are", "expensive", "</s>"]
    assert attention_sink(attnflow.AttentionTrace.from_arrays(weights, tokens)) == 3
    even = np.full((1, 1, 4, 4), 0.25)
    assert attention_sink(attnflow.AttentionTrace.from_arrays(even, tokens)) is None
    causal = np.tril(np.ones((1, 1, 5, 5)))
    causal /= causal.sum(-1, keepdims=True)  # uniform: the first gets most, and is no sink
    assert attention_sink(attnflow.AttentionTrace.from_arrays(causal, list("abcde"))) is None


def dropped(model: Any, tokenizer: Any, inputs: Any, first_token: int) -> Any:
    """What the default of a model without row gradients drops of a prompt."""
    default: Any = DEFAULTS["language model without row gradients"]
    method: Any = drop_sink(default, Model(model, tokenizer), inputs, first_token)
    return method.drop


def test_the_sink_of_an_encoder_decoder_is_measured() -> None:
    """Nothing says that its first token is one: there it is a content word."""
    model = build("Marian")
    source = torch.tensor([[5, 6, 7, 2]])
    inputs = {"input_ids": source, "decoder_input_ids": torch.tensor([[1]])}
    tokenizer = tokenizer_with([], ["</s>"])
    sink = attention_sink(attnflow.capture(model, inputs, heads="mean"))
    assert dropped(model, tokenizer, inputs, 5) == (() if sink is None else (sink,))


def test_a_start_token_is_known_from_the_tokenizer() -> None:
    tokenizer = tokenizer_with(["<s>"], [])
    tokenizer.bos_token = "<s>"
    model = build("Llama")
    inputs = {"input_ids": torch.tensor([[1, 5, 6]])}
    assert dropped(model, tokenizer, inputs, 1) == (0,)


def test_results_of_prepared_words_are_plain() -> None:
    trace = attnflow.capture(build("Llama"), words())
    json.dumps(dict(trace.provenance))
