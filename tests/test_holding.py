"""Every way to hold a model gives what the model without its holder gives, at every door."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from typer.testing import CliRunner

import attnflow
import holding
from attnflow.cli.app import app
from attnflow.errors import InputError, ModelError, UnsupportedModelError
from attnflow.hosts.check import model_state
from attnflow.hosts.fingerprint import digest_weights
from attnflow.hosts.load import as_model
from attnflow.hosts.wrappers import unwrapped
from attnflow.methods import make_method
from holding import DOORS, QUANTISED, WAYS, Way
from sweep import autograd_rows, last_row

# What PEFT, accelerate and the quantisers themselves warn of.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
RUN = CliRunner()
SAME = 1e-5


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@cache
def held(way: Way) -> Any:
    """Loaded once for all doors, which give it back as it was."""
    return way.hold()


@cache
def expected(way: Way, door: str) -> Any:
    """The same door of the model that the way must be equal to, by plain code of its host."""
    assert way.equal is not None
    return DOORS[door](reference(way.equal))


@cache
def reference(build: Any) -> Any:
    return build()


def ways(which: list[Way] = WAYS) -> list[Any]:
    def missing(way: Way) -> Any:
        found = importlib.util.find_spec(way.needs) is not None
        return pytest.mark.skipif(not found, reason=f"{way.needs} is not installed")

    return [pytest.param(way, id=way.name, marks=missing(way)) for way in which]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("way", ways())
def test_a_held_model_is_explained_like_the_model_in_it(way: Way, door: str) -> None:
    assert way.equal is not None
    if door == "capture":  # the host's own weights: not one number of ours on both sides
        with torch.no_grad():
            model = reference(way.equal)
            model.set_attn_implementation("eager")
            ids = holding.tokenizer()(holding.PROMPT, return_tensors="pt")
            theirs = [layer[0].numpy() for layer in model(**ids, output_attentions=True).attentions]
            model.set_attn_implementation("sdpa")
        assert np.allclose(holding.capture(held(way)), theirs, rtol=0, atol=SAME)
        return
    values = DOORS[door](held(way))
    assert values.shape == expected(way, door).shape
    assert np.abs(values).max() > 100 * SAME
    assert np.allclose(values, expected(way, door), rtol=0, atol=SAME)


# --- the command line -----------------------------------------------------------------------------


@cache
def bitsandbytes_folder() -> str:
    path = tempfile.mkdtemp()
    holding.by_bitsandbytes(4).save_pretrained(path)
    holding.tokenizer().save_pretrained(path)
    return path


FOLDERS = [
    Way("PEFT: an adapter", holding.adapter_folder, needs="peft"),
    Way("bitsandbytes, 4 bit, quantised", bitsandbytes_folder, needs="bitsandbytes"),
    *(
        Way(f"{kind}, quantised", partial(holding.quantised_folder, kind), needs=package)
        for kind, package in holding.PACKAGES.items()
    ),
]


@pytest.mark.parametrize("command", ["explain", "generate", "ask", "evaluate", "check"])
@pytest.mark.parametrize("way", ways(FOLDERS))
def test_a_folder_on_the_command_line(way: Way, command: str, tmp_path: Path) -> None:
    folder, output = way.hold(), tmp_path / "result.json"
    (tmp_path / "a.txt").write_text(holding.DOCUMENTS["a.txt"])
    (tmp_path / "prompts.jsonl").write_text(
        json.dumps({"prompt": holding.PROMPT, "completion": " sara"}) + "\n"
    )
    words = {
        "explain": [holding.PROMPT, "--output", str(output)],
        "generate": [holding.PROMPT, "--completion", " sara is", "--output", str(output)],
        "ask": ["the key is of", str(tmp_path / "a.txt"), "--max-new-tokens", "4"],
        "evaluate": [str(tmp_path / "prompts.jsonl"), "--methods", "balanced"],
        "check": [folder],
    }[command]
    options = [] if command == "check" else ["--model", folder]
    outcome = RUN.invoke(app, [command, *words, *options])
    assert outcome.exit_code == 0, outcome.output
    if command in ("explain", "generate"):
        values = np.array(attnflow.Attribution.load(output).values)
        settings: dict[str, Any] = {"completion": " sara is"} if command == "generate" else {}
        expected = getattr(attnflow, command)(folder, holding.PROMPT, **settings).values
        assert np.allclose(values, expected, rtol=0, atol=SAME)


def test_an_adapters_folder_on_the_command_line_is_the_merged_model(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    output = tmp_path / "result.json"
    command = ["explain", holding.PROMPT, "--model", holding.adapter_folder()]
    outcome = RUN.invoke(app, [*command, "--output", str(output)])
    assert outcome.exit_code == 0, outcome.output
    values = np.array(attnflow.Attribution.load(output).values)
    merged = holding.explain(holding.merged(holding.peft_model()))
    assert np.allclose(values, merged, rtol=0, atol=SAME)


# --- PEFT -----------------------------------------------------------------------------------------


def test_an_adapter_changes_the_answer_so_that_the_test_above_can_fail() -> None:
    pytest.importorskip("peft")
    plain, adapted = (holding.capture(model) for model in (holding.plain(), holding.peft_model()))
    assert np.abs(plain - adapted).max() > 0.1


def test_an_adapter_in_the_projection_counts_where_blocks_are_taken_apart() -> None:
    """Its weights stand beside those of the layer that it adapts."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["o_proj"], init_lora_weights=False)
    model = peft.get_peft_model(holding.plain(), config).eval()
    values = holding.explain(model, "alti")
    assert np.abs(values - holding.explain(holding.plain(), "alti")).max() > 0.01
    expected = holding.explain(model.merge_and_unload(), "alti")
    assert np.allclose(values, expected, rtol=0, atol=SAME)


def test_an_adapter_in_the_norms_counts_where_blocks_are_taken_apart() -> None:
    peft = pytest.importorskip("peft")
    encoder, tokens = attnflow.testing.tiny_encoder(head="SequenceClassification")
    config = peft.LNTuningConfig(target_modules=["LayerNorm"])
    model = peft.get_peft_model(encoder, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln_tuning_layers" in name:
                parameter.add_(0.5)
    values = attnflow.explain((model, tokens), "the key to the cabinets", "alti").values
    merged = model.merge_and_unload()
    expected = attnflow.explain((merged, tokens), "the key to the cabinets", "alti").values
    assert np.allclose(values, expected, rtol=0, atol=SAME)


@pytest.mark.parametrize("kind", ["PrefixTuningConfig", "PromptTuningConfig"])
def test_learned_prompts_are_refused(kind: str) -> None:
    peft = pytest.importorskip("peft")
    config = getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(UnsupportedModelError, match="learned vectors before the text"):
        holding.explain(peft.get_peft_model(holding.plain(), config))


def test_an_adapter_whose_base_is_gone_names_it(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = holding.peft_model()
    model.peft_config["default"].base_model_name_or_path = "/nowhere/base"
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"There is no folder '/nowhere/base'"):
        attnflow.load(str(tmp_path))
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({**settings, "base_model_name_or_path": None})
    )
    with pytest.raises(ModelError, match="names no base model"):
        attnflow.load(str(tmp_path))


# --- split and offloaded --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gradient-rollout", "alti", "value-zeroing", "careful"])
def test_other_methods_on_an_offloaded_model(method: str) -> None:
    pytest.importorskip("accelerate")
    plain, offloaded = holding.plain(), holding.offloaded("disk")
    expected = holding.explain(plain, method)
    assert np.allclose(holding.explain(offloaded, method), expected, rtol=0, atol=SAME)


@pytest.mark.parametrize("method", ["balanced", "gradient-attention"])
def test_an_offloaded_model_is_given_back_offloaded(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where blocks are computed a second time, as for long texts."""
    pytest.importorskip("accelerate")
    expected = attnflow.capture(
        (holding.plain(), holding.tokenizer()), holding.PROMPT, methods=[make_method(method)]
    )
    monkeypatch.setattr("attnflow.hosts.factored._exceeds", lambda *_: True)
    model = holding.offloaded("disk")
    before = model_state(model), [vars(module).get("forward") for module in model.modules()]
    trace = attnflow.capture(
        (model, holding.tokenizer()), holding.PROMPT, methods=[make_method(method)], form="factors"
    )
    values = make_method(method)(trace).values
    assert np.allclose(values, make_method(method)(expected).values, rtol=0, atol=SAME)
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    after = model_state(model), [vars(module).get("forward") for module in model.modules()]
    assert before == after


# --- quantised ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ways(QUANTISED))
def test_a_quantised_model_is_explained_as_it_runs(way: Way) -> None:
    """Against autograd through the same model in eager attention, where it has gradients."""
    model = held(way)
    inputs = holding.tokenizer()(holding.PROMPT, return_tensors="pt")
    if way.gradients:
        values = last_row(model, dict(inputs))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = [one[0].numpy() for one in model(**inputs, output_attentions=True).attentions]
    rows = autograd_rows(model, inputs["input_ids"]) if way.gradients else None
    model.set_attn_implementation("sdpa")
    # Rounding to 8 bits turns a last digit of attention into a step.
    assert np.allclose(holding.capture(model), weights, rtol=0, atol=1e-3)
    if rows is not None:
        assert np.allclose(values, rows[1], rtol=0, atol=1e-2 * rows[1].max())


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("way", ways(QUANTISED))
def test_every_door_takes_a_quantised_model(way: Way, door: str) -> None:
    """Without gradients the default is a rollout, as the result says."""
    assert np.isfinite(DOORS[door](held(way))).all()
    if way.gradients:
        return
    result = attnflow.explain(holding.as_held(held(way)), holding.PROMPT)
    assert isinstance(result.method, attnflow.Rollout)
    for method in ("balanced", "gradient-attention", "gradient-rollout"):
        with pytest.raises(UnsupportedModelError, match="No gradient runs through the quantised"):
            holding.explain(held(way), method)
    for method in ("leave-one-out", "alti", "value-zeroing", "flow"):
        assert np.isfinite(holding.explain(held(way), method)).all()


def test_quantised_weights_are_part_of_a_models_fingerprint() -> None:
    """Else a journal of one model would be carried on with another."""
    models = [holding.plain(), holding.plain()]
    with torch.no_grad():
        models[1].lm_head.weight[3, 4] += 1
    options: dict[str, Any] = {"qconfig_spec": {nn.Linear}, "dtype": torch.qint8}
    first, second = (torch.ao.quantization.quantize_dynamic(m, **options) for m in models)
    assert digest_weights(first) == digest_weights(held(QUANTISED[0]))
    assert digest_weights(first) != digest_weights(second)


def test_a_quantised_classifier_without_gradients_is_explained_by_rollout() -> None:
    encoder, tokens = attnflow.testing.tiny_encoder(head="SequenceClassification")
    model = torch.ao.quantization.quantize_dynamic(encoder, {nn.Linear}, dtype=torch.qint8)
    result = attnflow.explain((model, tokens), "the key to the cabinets")
    assert isinstance(result.method, attnflow.Rollout)


# --- holders --------------------------------------------------------------------------------------


def test_holders_are_seen_through_in_any_order() -> None:
    model = holding.plain()
    assert as_model(nn.DataParallel(torch.compile(model, backend="eager"))).module is model
    assert as_model(torch.compile(nn.DataParallel(model), backend="eager")).module is model


def test_a_compiled_model_is_given_back_compiled() -> None:
    calls: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    model = holding.plain()
    mlp = model.model.layers[0].mlp
    mlp.compile(backend=backend)
    model.model.norm = torch.compile(model.model.norm, backend=backend)
    before = mlp._compiled_call_impl, model.model.norm.forward
    holding.explain(model)
    assert not calls, "the pass was compiled under the watcher"
    assert (mlp._compiled_call_impl, model.model.norm.forward) == before
    with torch.no_grad():
        model(torch.tensor([[1, 5, 6]]))
    assert len(calls) == 2, "the model is compiled no more"


def test_a_holder_with_parameters_of_its_own_is_refused() -> None:
    class Trainer(holding.Holder):
        def __init__(self) -> None:
            super().__init__()
            self.value_head = nn.Linear(32, 1)

    with pytest.raises(UnsupportedModelError, match=r"value_head\.weight.*Pass the \.model"):
        holding.explain(Trainer())
    with pytest.raises(UnsupportedModelError, match="No adapter recognises"):
        holding.explain(nn.Linear(2, 2))


def test_shards_of_the_old_kind_are_refused() -> None:
    class FullyShardedDataParallel(nn.Module):
        """By its name, as the real one needs a process group."""

    with pytest.raises(UnsupportedModelError, match="fully_shard"):
        unwrapped(FullyShardedDataParallel())


@pytest.mark.skipif(os.environ.get("ATTNFLOW_SLOW") != "1", reason="twenty seconds")
def test_what_continuous_batching_wrote_is_explained_afterwards() -> None:
    model, ids = holding.plain(), holding.tokenizer()(holding.PROMPT)["input_ids"]
    written, _ = holding.batched(model, [ids, ids[:6]])
    assert model.config._attn_implementation == "sdpa"
    loaded = (model, holding.tokenizer())
    values = attnflow.generate(loaded, holding.PROMPT, completion=written).values
    expected = attnflow.generate(loaded, holding.PROMPT, max_new_tokens=3, eos_token_id=-1)
    assert expected.provenance["completion_ids"] == written
    assert np.allclose(values, expected.values, rtol=0, atol=SAME)


def test_a_pipeline_of_images_brings_its_processor() -> None:
    model, processor = attnflow.testing.tiny_vision_model()
    pipeline = transformers.pipeline("image-classification", model=model, image_processor=processor)
    photo = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    values = attnflow.explain(pipeline, photo).values
    assert np.allclose(values, attnflow.explain((model, processor), photo).values, atol=SAME)


# --- options of generate() ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_model_writes_the_same_without_a_cache(seed: int) -> None:
    model, options = holding.language_model(seed), {"max_new_tokens": 6, "min_new_tokens": 6}
    inputs = holding.tokenizer()(holding.PROMPT, return_tensors="pt")
    output = model.generate(**inputs, **options, do_sample=False, use_cache=False, pad_token_id=0)
    result = attnflow.generate(holding.as_held(model), holding.PROMPT, use_cache=False, **options)
    written = output[0, inputs["input_ids"].shape[1] :].tolist()
    assert result.provenance["completion_ids"] == written


def test_a_dictionary_of_outputs_may_be_asked_for() -> None:
    values = [
        attnflow.generate(holding.as_held(holding.plain()), holding.PROMPT, **options).values
        for options in ({}, {"return_dict_in_generate": True})
    ]
    assert np.array_equal(*values)


def test_spans_of_documents_that_are_none_get_a_sentence() -> None:
    result = attnflow.ask(
        holding.as_held(holding.plain()), "the key is of", holding.DOCUMENTS, max_new_tokens=4
    ).result
    notes = {**result.provenance, "documents": [["a.txt", 5, 2]]}
    with pytest.raises(InputError, match="is no span of them"):
        replace(result, provenance=notes).to_html()
