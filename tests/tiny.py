"""A tiny random model of any type of transformers: `build(kind, class_name, inputs)`.

Sizes go by the names that configs have for them, in a model's parts too. What only one type needs
stands under its name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

_LARGEST = 30_000_000  # parameters
_HYBRID = ["linear_attention", "full_attention"]
# Names of sizes over all families; each config takes those it has.
SIZES: dict[str, Any] = {
    **dict.fromkeys(["hidden_size", "n_embd", "d_model", "dim", "attention_hidden_size"], 32),
    **dict.fromkeys(["embedding_size", "emb_dim", "word_embed_proj_dim"], 32),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"], 2),
    **dict.fromkeys(["decoder_layers", "encoder_layers", "decoder_num_hidden_layers"], 2),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads"], 4),
    **dict.fromkeys(["decoder_attention_heads", "encoder_attention_heads"], 4),
    **dict.fromkeys(["num_key_value_heads", "num_kv_heads", "multi_query_group_num"], 2),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size"], 48),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], 16),
    **dict.fromkeys(["decoder_ffn_dim", "encoder_ffn_dim", "mlp_hidden_size", "dff"], 48),
    **dict.fromkeys(["head_dim", "kv_channels", "v_head_dim", "qk_nope_head_dim", "d_kv"], 8),
    **dict.fromkeys(["qk_rope_head_dim", "attention_head_dim", "global_head_dim"], 8),
    **dict.fromkeys(["kv_lora_rank", "q_lora_rank", "o_lora_rank", "index_head_dim"], 16),
    **dict.fromkeys(["n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"], 4),
    **dict.fromkeys(["num_experts_per_tok", "moe_k", "top_k", "moe_top_k"], 2),
    **dict.fromkeys(["n_group", "topk_group", "n_shared_experts", "num_shared_experts"], 1),
    **dict.fromkeys(["first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"], 1),
    **dict.fromkeys(["vocab_size", "vocab_size_per_layer_input"], 64),
    **dict.fromkeys(["max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"], 64),
    **dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim", "mamba_d_head"], 8),
    **dict.fromkeys(["linear_num_key_heads", "linear_num_value_heads", "mamba_n_heads"], 4),
    **dict.fromkeys(["mamba_d_state", "ssm_state_size", "state_size", "mamba_head_dim"], 8),
    **dict.fromkeys(["mamba_num_heads", "num_mamba_heads"], 8),
    **dict.fromkeys(["linear_head_dim", "image_size", "lru_width", "max_source_positions"], 32),
    "pad_token_id": 0, "index_n_heads": 2, "patch_size": 8,
    "index_topk": 8, "moe_layer_freq": 1, "bos_token_id": 1, "eos_token_id": 2,
    "sliding_window": 4, "hidden_size_per_layer_input": 8,
    "mamba_dt_rank": 4, "mamba_expand": 2, "use_mamba_kernels": False, "rotary_dim": 4,
    "mamba_n_groups": 1, "n_groups": 1, "mamba_chunk_size": 8, "chunk_size": 8,
}  # fmt: skip
# What some families need beside, tried in turn: sizes that depend on each other, mixed layers.
CHANGES: list[dict[str, Any]] = [
    {},
    {"num_key_value_heads": 4},
    {"layer_types": _HYBRID},
    {"layer_types": ["conv", "full_attention"]},
    {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8},
    {"attn_layer_period": 2, "attn_layer_offset": 1, "num_key_value_heads": 4},
    {"mamba_n_heads": 8, "mamba_d_ssm": 64},
    {"attention_types": [[["global", "local"], 1]]},
    {"num_experts_per_tok": 1},
]
# What one type needs, by its name; a part's own under the part's.
_QWEN4 = {
    "layer_types": _HYBRID,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "hc_lowrank": 8,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
ONLY: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8},
    "bailing_hybrid": {"layer_types": _HYBRID, "num_key_value_heads": 4, "num_mtp_layers": 0},
    "blt": {
        "encoder_hash_byte_group_vocab": 100,
        "vocab_size": 260,
        "patch_size": 4,
        "num_hidden_layers": 2,
        "encoder_config": {"hidden_size_global": 32, "vocab_size": 260},
        "decoder_config": {"hidden_size_global": 32, "vocab_size": 260},
        "patcher_config": {"vocab_size": 260},
    },
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {**_ROPE, "mrope_section": [2, 1, 1]}}
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma4_unified": {
        "vision_config": {"mm_embed_dim": 32, "output_proj_dims": 32, "mm_posemb_size": 8}
    },
    "kimi_linear": {"layer_types": _HYBRID, "num_key_value_heads": 4},
    "longcat_flash": {"moe_topk": 2, "zero_expert_num": 2, "expert_ffn_hidden_size": 16},
    "mamba2": {"num_heads": 8},
    "musicgen": {"num_codebooks": 1},
    "musicgen_melody": {"num_codebooks": 1},
    "phi4_multimodal": {
        "audio_config": {
            "num_blocks": 1,
            "ext_pw_out_channel": 32,
            "nemo_conv_channels": 32,
            "depthwise_separable_out_channel": 32,
        }
    },
    "qwen4_exp": _QWEN4,
    "qwen4_exp_text": _QWEN4,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {
        "axial_pos_embds_dim": (16, 16),
        "axial_pos_shape": (8, 8),
        "attention_head_size": 8,
    },
    "roc_bert": dict.fromkeys(
        [
            "pronunciation_embed_dim",
            "pronunciation_vocab_size",
            "shape_embed_dim",
            "shape_vocab_size",
        ],
        64,
    ),
    "encoder-decoder": {"decoder": {"is_decoder": True, "add_cross_attention": True}},
    "speech-encoder-decoder": {"decoder": {"is_decoder": True, "add_cross_attention": True}},
    "xlstm": {"hidden_size": 256},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"]},
}


def build(
    kind: str, class_name: str, inputs: Callable[[Any], Mapping[str, Tensor]], *, decoder: bool
) -> Any:
    """Return a model of a type that runs, by the first of the changes with which it does.

    inputs: those that it is tried on, by its config. decoder: whether encoders shall be decoders.
    """
    errors = []
    for change in CHANGES:
        try:
            model = _build(kind, class_name, {"is_decoder": decoder, **change})
            with torch.no_grad():
                model(**inputs(model.config))
        except Exception as error:
            errors.append(error)
        else:
            return model
    raise errors[0]


def _build(kind: str, class_name: str, change: dict[str, Any]) -> Any:
    """Its attention is far from uniform."""
    model_class: Any = getattr(transformers, class_name)
    wanted = getattr(model_class, "config_class", None)
    config_class = wanted if isinstance(wanted, type) else CONFIG_MAPPING[kind]
    config = config_class(**_options(config_class, change, ONLY.get(kind, {})))
    torch.manual_seed(0)
    with torch.device("meta"):
        size = model_class(config).num_parameters()
    if size > _LARGEST:
        raise ValueError(f"{size:,} parameters: its sizes are not known here")
    model = model_class(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            elif "sink" in name or name.endswith("bias"):
                parameter.normal_()
    return model.float().eval()


def _options(config_class: Any, change: dict[str, Any], only: dict[str, Any]) -> dict[str, Any]:
    """The sizes that a config has names for, and those of its parts."""
    names = _names(config_class)
    sizes = {name: size for name, size in {**SIZES, **change}.items() if name in names}
    options = {name: size for name, size in sizes.items() if _fits(size, names[name])}
    for part, part_class in config_class.sub_configs.items():
        if part_class is transformers.AutoConfig:
            part_class = type(getattr(config_class(), part))
        kind = {"model_type": part_class.model_type} if part_class.model_type else {}
        options[part] = {**kind, **_options(part_class, change, only.get(part, {}))}
    parts = set(config_class.sub_configs)
    return {**options, **{name: size for name, size in only.items() if name not in parts}}


def _names(config_class: Any) -> dict[str, str]:
    """The options of a config, with their annotations."""
    names = dict.fromkeys(inspect.signature(config_class.__init__).parameters, "")
    for base in reversed(config_class.__mro__):
        names |= {name: str(kind) for name, kind in inspect.get_annotations(base).items()}
    return names


def _fits(size: Any, annotation: str) -> bool:
    """Whether an option takes one number, where it is given one; stages take lists of them."""
    listed = re.match(r"(list|tuple)\[", annotation) is not None
    return not (isinstance(size, int) and listed and "| int" not in annotation)
