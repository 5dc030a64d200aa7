"""OpenAI's whisper checkpoints as the model of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

__all__ = ["openai_whisper"]

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
