"""Every model family attnflow is tested on, as a tiny random model built from its config.

`python tests/families.py` writes the tables of docs/models.md: what works and what is refused is
made from the same list the tests run over, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
import transformers
from torch import Tensor

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
PATCHES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def words() -> dict[str, Tensor]:
    ids = torch.tensor([[1, 5, 6, 7, 8, 9, 10, 2]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def words_both_sides() -> dict[str, Tensor]:
    return {**words(), "decoder_input_ids": torch.tensor([[1, 11, 12, 13]])}


def pixels(height: int = 32, width: int = 32) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(0)
    return {"pixel_values": torch.randn(1, 3, height, width, generator=noise)}


def sound() -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(0)
    features = torch.randn(1, 8, 20, generator=noise)
    return {"input_features": features, "decoder_input_ids": torch.tensor([[1, 11, 12, 13]])}


@dataclass(frozen=True)
class Family:
    """One line of the table."""

    name: str
    kind: str
    model: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[[], dict[str, Tensor]] = words
    note: str = ""

    def build(self, **changed: Any) -> Any:
        """A random model whose attention is far from uniform, so that mistakes show."""
        config = getattr(transformers, self.config)(**{**self.options, **changed})
        torch.manual_seed(0)
        model = getattr(transformers, self.model)(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(4)
        return model.eval()


def _deep(**options: Any) -> dict[str, Any]:
    return {**GROUPED, "num_hidden_layers": 4, **options}


FAMILIES = [
    Family("BERT", "encoder", "BertForMaskedLM", "BertConfig", SIZES),
    Family(
        "DistilBERT",
        "encoder",
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 64},
    ),
    Family("RoBERTa", "encoder", "RobertaModel", "RobertaConfig", SIZES),
    Family(
        "ALBERT",
        "encoder",
        "AlbertForMaskedLM",
        "AlbertConfig",
        {**SIZES, "embedding_size": 16},
        note="one shared layer, seen once for each time it runs",
    ),
    Family("ELECTRA", "encoder", "ElectraModel", "ElectraConfig", {**SIZES, "embedding_size": 16}),
    Family(
        "ModernBERT",
        "encoder",
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**SIZES, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2},
        note="local and global layers",
    ),
    Family(
        "DeBERTa-v2/v3",
        "encoder",
        "DebertaV2Model",
        "DebertaV2Config",
        {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        note="outside the attention interface: run eagerly, all layers kept until the end",
    ),
    Family(
        "GPT-2",
        "decoder",
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "vocab_size": 64,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    Family("GPT-NeoX", "decoder", "GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES),
    Family(
        "OPT",
        "decoder",
        "OPTForCausalLM",
        "OPTConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "vocab_size": 64,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    Family("Llama", "decoder", "LlamaForCausalLM", "LlamaConfig", GROUPED, note="grouped queries"),
    Family(
        "Mistral",
        "decoder",
        "MistralForCausalLM",
        "MistralConfig",
        {**GROUPED, "sliding_window": 3},
        note="sliding window: zero outside the band",
    ),
    Family("Qwen2", "decoder", "Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    Family("Qwen3", "decoder", "Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    Family(
        "Gemma 2",
        "decoder",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**GROUPED, "head_dim": 8, "sliding_window": 4},
        note="soft-capped scores",
    ),
    Family(
        "Gemma 3",
        "decoder",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**GROUPED, "head_dim": 8, "sliding_window": 4},
    ),
    Family("Phi-3", "decoder", "Phi3ForCausalLM", "Phi3Config", GROUPED),
    Family(
        "gpt-oss",
        "decoder",
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **GROUPED,
            "head_dim": 8,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "sliding_window": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        note="learned sink: its share is kept beside the rows",
    ),
    Family(
        "Qwen3-Next",
        "hybrid",
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        _deep(
            head_dim=8,
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        ),
        note="only the layers with attention weights, under their own numbers",
    ),
    Family(
        "LFM2",
        "hybrid",
        "Lfm2ForCausalLM",
        "Lfm2Config",
        _deep(
            layer_types=["conv", "full_attention", "conv", "full_attention"],
            block_multiple_of=8,
        ),
        note="only the layers with attention weights, under their own numbers",
    ),
    Family(
        "T5",
        "encoder–decoder",
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 64,
            "decoder_start_token_id": 0,
        },
        words_both_sides,
        note="relative position bias",
    ),
    Family(
        "BART",
        "encoder–decoder",
        "BartForConditionalGeneration",
        "BartConfig",
        {**SEQ2SEQ, "max_position_embeddings": 64},
        words_both_sides,
    ),
    Family(
        "Marian",
        "encoder–decoder",
        "MarianMTModel",
        "MarianConfig",
        {**SEQ2SEQ, "max_position_embeddings": 64},
        words_both_sides,
    ),
    Family(
        "Whisper",
        "encoder–decoder",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 20},
        sound,
        note="sources are moments of sound",
    ),
    Family("ViT", "vision", "ViTForImageClassification", "ViTConfig", PATCHES, pixels),
    Family("DeiT", "vision", "DeiTModel", "DeiTConfig", PATCHES, pixels, "distillation token"),
    Family("DINOv2", "vision", "Dinov2Model", "Dinov2Config", PATCHES, pixels),
    Family(
        "DINOv2 with registers",
        "vision",
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersConfig",
        {**PATCHES, "num_register_tokens": 4},
        pixels,
        note="registers are prefix tokens",
    ),
    Family(
        "CLIP, image tower",
        "vision",
        "CLIPModel",
        "CLIPConfig",
        {"text_config": SIZES, "vision_config": PATCHES},
        pixels,
    ),
    Family(
        "CLIP, text tower",
        "decoder",
        "CLIPModel",
        "CLIPConfig",
        {"text_config": SIZES, "vision_config": PATCHES},
    ),
]

OTHER_HOSTS = [
    ("timm ViT", "vision", "non-square images, no-CLS pooling"),
    ("timm DeiT", "vision", "distillation token"),
    ("timm ViT with registers", "vision", "registers are prefix tokens"),
    ("torch nn.TransformerEncoder", "encoder", "any module built from nn.MultiheadAttention"),
]


# Ways to hold a model that are tested apart from `holding.WAYS`, and those that were only read.
MORE_WAYS = [
    ('`tp_plan="auto"`, tensor parallel', "yes", "every rank sees all heads (`make holding`)"),
    ("`fully_shard` (FSDP2)", "yes", "on every rank (`make holding`)"),
    ("`generate_batch`, continuous batching", "yes", "pass `completion=` (`make holding`)"),
    ("PEFT: prefix and prompt tuning", "refused", "learned vectors are no tokens of the text"),
    ("`FullyShardedDataParallel` (FSDP1)", "refused, by its name", "use `fully_shard`"),
    ("a learned sink with `tp_plan`", "refused, only read", "load it without `tp_plan`"),
]


def ways_table() -> list[str]:
    """The ways in which a model may be held."""
    from holding import QUANTISED, WAYS

    rows = []
    for way in (*WAYS, *QUANTISED):
        extra = "" if way.needs in ("torch", "peft", "accelerate") else "(`make holding`)"
        extra = "tried once, see above" if way.needs == "gptqmodel" else extra
        flow = "yes" if way.gradients else "none: rollout, reruns"
        rows.append((way.name, flow, " ".join(filter(None, (way.note, extra)))))
    return ["| way | gradients | remarks |", "|---|---|---|", *_joined([*rows, *MORE_WAYS])]


def _joined(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the rows of a table, those after one another that say the same as one."""
    return [
        f"| {'; '.join(name for name, *_ in each)} | {kind} | {note} |"
        for (kind, note), each in groupby(rows, key=lambda row: row[1:])
    ]


MADE = "<!-- made by python tests/families.py: {} -->"


def families_table() -> list[str]:
    """The families of models that the tests run over."""
    rows = [*((f.name, f.kind, f.note) for f in FAMILIES), *OTHER_HOSTS]
    kinds = list(dict.fromkeys(row[1:] for row in rows))
    rows.sort(key=lambda row: kinds.index(row[1:]))
    return ["| family | kind | remarks |", "|---|---|---|", *_joined(rows)]


def refused_table() -> list[str]:
    """The models that are refused, by the reason."""
    from attnflow.hosts.inputs import REFUSED

    reasons: dict[str, list[str]] = {}
    for name, reason in REFUSED.items():
        reasons.setdefault(reason, []).append(name)
    lines = ["| models | because |", "|---|---|"]
    lines += [f"| {', '.join(names)} | it {reason} |" for reason, names in reasons.items()]
    no_weights = "quantised or fused attention that returns no weights"
    return [*lines, f"| {no_weights} | there is nothing to see; load the model without it |"]


def with_tables(page: str) -> str:
    """Return docs/models.md with its three tables as they are now."""
    tables = {"families": families_table, "ways": ways_table, "refused": refused_table}
    for name, lines in tables.items():
        mark = MADE.format(name)
        before, _, after = page.partition(f"{mark}\n")
        after = after[after.index("\n\n") :]  # a table ends where a blank line follows
        page = before + f"{mark}\n" + "\n".join(lines()) + after
    return page


if __name__ == "__main__":
    from pathlib import Path

    models = Path(__file__).parent.parent / "docs" / "models.md"
    models.write_text(with_tables(models.read_text(encoding="utf-8")), encoding="utf-8")
