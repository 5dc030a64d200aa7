"""Every causal model type of transformers, tiny and random: `python tests/sweep.py [TYPE ...]`.

Weights are held against the model's own eager attention, gradient attention against autograd
through the eager graph, balanced gradients kept as weights against those kept as factors. A type
agrees, or is refused in a sentence; a wrong number and an error without a sentence are faults.
"""

from __future__ import annotations

import copy
import inspect
import sys
import traceback
import warnings
from collections import Counter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.gpt_oss import modeling_gpt_oss

import attnflow
from attnflow.errors import AttnflowError
from attnflow.hosts.load import as_model
from attnflow.methods import BalancedGradient, GradientAttention

Array = NDArray[Any]
Outcome = Literal["agrees", "refused", "wrong", "bare", "not built"]
IDS = torch.tensor([[1, 5, 6, 7, 8, 9, 10, 11, 12, 4]])
SAME = 2e-5
# Names of sizes over all families; each config takes those it has.
SIZES: dict[str, Any] = {
    **dict.fromkeys(["hidden_size", "n_embd", "d_model", "dim", "attention_hidden_size"], 32),
    **dict.fromkeys(["embedding_size", "emb_dim", "word_embed_proj_dim"], 32),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "num_layers"], 2),
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
    "pad_token_id": 0, "index_n_heads": 2,
    "index_topk": 8, "moe_layer_freq": 1, "bos_token_id": 1, "eos_token_id": 2,
    "is_decoder": True, "sliding_window": 4, "hidden_size_per_layer_input": 8,
    "mamba_dt_rank": 4, "mamba_expand": 2, "use_mamba_kernels": False, "rotary_dim": 4,
    "mamba_n_groups": 1, "n_groups": 1, "mamba_chunk_size": 8, "chunk_size": 8,
}  # fmt: skip
# What some families need beside, tried in turn: sizes that depend on each other, mixed layers.
CHANGES: list[dict[str, Any]] = [
    {},
    {"num_key_value_heads": 4},
    {"layer_types": ["linear_attention", "full_attention"]},
    {"layer_types": ["conv", "full_attention"]},
    {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8},
    {"attn_layer_period": 2, "attn_layer_offset": 1, "num_key_value_heads": 4},
    {"mamba_n_heads": 8, "mamba_d_ssm": 64},
    {"attention_types": [[["global", "local"], 1]]},
    {"num_experts_per_tok": 1},
]


class Line(NamedTuple):
    """What became of one model type."""

    kind: str
    outcome: Outcome
    detail: str


def build(kind: str) -> Any:
    """A tiny random model of a type that runs, by the first of the changes with which it does."""
    errors = []
    for change in CHANGES:
        try:
            model = _build(kind, change)
            with torch.no_grad():
                model(input_ids=IDS, attention_mask=torch.ones_like(IDS))
        except Exception as error:
            errors.append(error)
        else:
            return model
    raise errors[0]


def _build(kind: str, change: dict[str, Any]) -> Any:
    """Its attention is far from uniform."""
    config_class: Any = transformers.AutoConfig.for_model(kind).__class__
    model_class: Any = getattr(transformers, CAUSAL[kind])
    wanted = getattr(model_class, "config_class", None) or config_class
    config_class = wanted if isinstance(wanted, type) else config_class
    names = _names(config_class)
    sizes = {name: size for name, size in SIZES.items() if name in names}
    options = {**sizes, **{name: value for name, value in change.items() if name in names}}
    config = config_class(**options)
    torch.manual_seed(0)
    with torch.device("meta"):
        size = model_class(config).num_parameters()
    if size > 3_000_000:
        raise ValueError(f"{size:,} parameters: its sizes are not known here")
    model = model_class(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            elif "sink" in name or name.endswith("bias"):
                parameter.normal_()
    return model.float().eval()


def _names(config_class: Any) -> set[str]:
    names = {name for base in config_class.__mro__ for name in inspect.get_annotations(base)}
    return names | set(inspect.signature(config_class.__init__).parameters)


def autograd_rows(model: Any, ids: Tensor) -> tuple[list[Array], Array] | None:
    """The weights of every layer, and the last row of gradient attention, by the eager graph.

    model: with eager attention. None where it shows no weights that its answer depends on.
    """
    with torch.enable_grad():
        outputs = model(input_ids=ids, output_attentions=True, use_cache=False)
        layers = [layer for layer in outputs.attentions or () if layer is not None]
        if not layers or any(layer.ndim != 4 for layer in layers):
            return None
        scores = outputs.logits[0, -1].log_softmax(dim=-1)
        gradients = torch.autograd.grad(scores.max(), layers, allow_unused=True)
    if any(gradient is None for gradient in gradients):
        return None
    rows = [
        (a[0, :, -1] * g[0, :, -1]).clamp(min=0).mean(dim=0)
        for a, g in zip(layers, gradients, strict=True)
    ]
    return [a[0].detach().numpy() for a in layers], torch.stack(rows).detach().numpy()


def eager_reference(model: Any) -> tuple[list[Array], Array] | None:
    """The same of a copy of a model that is eager from the start.

    Files that scale the output by what a sink leaves return weights without it; in the function of
    gpt-oss, which they say to be equivalent, it is in the softmax.
    """
    eager = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="eager")
    eager.load_state_dict(model.state_dict())
    file: Any = sys.modules[type(model).__module__]
    own = getattr(file, "eager_attention_forward", None)
    try:
        if model.config.model_type in ("granite_swa", "granitemoe_swa"):
            file.eager_attention_forward = modeling_gpt_oss.eager_attention_forward
        return autograd_rows(eager.eval(), IDS)
    finally:
        if own is not None:
            file.eager_attention_forward = own


def last_row(model: Any, inputs: Any) -> Array:
    """The last row of gradient attention as attnflow has it, layer by layer."""
    method = GradientAttention(drop_sink=False)
    values = method(attnflow.capture(model, inputs, methods=[method]), targets=[-1]).values
    return np.diff(values[:, 0], axis=0, prepend=0)


def distance(ours: Array, theirs: Array) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    return float(np.abs(ours - theirs).max() / max(1e-12, np.abs(theirs).max()))


def examine(kind: str) -> Line:
    """Try one type."""
    try:
        model = build(kind)
        inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    except Exception as error:
        return Line(kind, "not built", f"{type(error).__name__}: {str(error)[:200]}")
    notes, wrong = [], False
    try:
        reference = eager_reference(model)
    except Exception as error:
        reference, notes = None, [f"no eager reference ({type(error).__name__}: {str(error)[:80]})"]
    try:
        trace = attnflow.capture(model, inputs)
        if reference is None:
            notes.append("weights unchecked")
        else:
            off = max(distance(a, b) for a, b in zip(trace.weights, reference[0], strict=True))
            wrong |= off > SAME
            notes.append(f"weights {off:.0e}")
        rows = last_row(model, inputs)
        if reference is not None:
            off = distance(rows, reference[1])
            wrong |= off > SAME
            notes.append(f"gradients {off:.0e}")
        attnflow.explain(model, inputs)  # by whatever is the default
        fair = BalancedGradient()
        if as_model(model).adapter.supports_factors(model, inputs):
            ways = [
                fair(
                    attnflow.capture(model, inputs, methods=[fair], form=form), targets=[-1]
                ).values
                for form in ("weights", "factors")
            ]
            off = distance(*ways)
            wrong |= off > SAME
            notes.append(f"balanced {off:.0e}")
        attnflow.generate(model, inputs, max_new_tokens=2, min_new_tokens=2)
    except AttnflowError as error:
        notes.append(f"{type(error).__name__}: {error}")
        return Line(kind, "wrong" if wrong else "refused", "; ".join(notes))
    except Exception as error:
        place = [f"{f.name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)][-3:]
        return Line(
            kind, "bare", f"{'; '.join(notes)}; {type(error).__name__}: {str(error)[:200]} {place}"
        )
    return Line(kind, "wrong" if wrong else "agrees", "; ".join(notes))


def main(*kinds: str) -> int:
    """Examine these types, or all; a line for each, then the counts."""
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    counts: Counter[str] = Counter()
    for kind in kinds or CAUSAL:
        line = examine(kind)
        counts[line.outcome] += 1
        print(f"{line.outcome:9} {line.kind:24} {line.detail[:400]}", flush=True)
    print(dict(counts))
    return int(counts["wrong"] + counts["bare"] > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
