"""Every way people hold a model, on one tiny random language model; what each must be equal to.

The tests run over `WAYS` and docs/models.md has a line for each (`families.ways_table`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

import attnflow
from attnflow.evaluation import CompletionPrompt, Prompts
from test_ablation import language_model, tokenizer

PROMPT = "the author talked to sara . the key is of"
DOCUMENTS = {"a.txt": "the key is of sara .", "b.txt": "the book is of the author ."}


def plain() -> Any:
    """A language model whose attention is far from uniform."""
    return language_model()


@cache
def folder(build: Callable[[], Any] = plain) -> str:
    """A model, saved."""
    path = tempfile.mkdtemp()
    build().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def loaded(build: Callable[[], Any] = plain, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder(build), **options)


@dataclass(frozen=True)
class Way:
    """One way to hold a model.

    hold: returns the model as people have it. equal: returns one without the holder whose results
    are the same; None where the model is one of its own. gradients: False where none flow, so that
    gradient methods are refused in a sentence. needs: the package without which it cannot be tried.
    """

    name: str
    hold: Callable[[], Any]
    equal: Callable[[], Any] | None = plain
    gradients: bool = True
    needs: str = "torch"
    note: str = ""


# --- PEFT -----------------------------------------------------------------------------------------


def peft_model(kind: str = "lora") -> Any:
    import peft

    torch.manual_seed(1)
    targets = ["q_proj", "v_proj", "up_proj", "embed_tokens"]
    options = {"r": 4, "target_modules": targets, "init_lora_weights": False}
    config: Any = peft.LoraConfig(**options, use_dora=kind == "dora")
    if kind == "ia3":
        config = peft.IA3Config(
            target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
        )
    model: Any = peft.get_peft_model(plain(), config)
    if kind == "ia3":
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "ia3" in name:
                    parameter.uniform_(0.5, 1.5)
    return model.eval()


def two_adapters(active: str) -> Any:
    import peft

    model = peft_model()
    second = peft.LoraConfig(r=2, target_modules=["k_proj"], init_lora_weights=False)
    model.add_adapter("second", second)
    model.set_adapter(active)
    return model


def disabled() -> Any:
    model = peft_model()
    model.base_model.disable_adapter_layers()
    return model


def merged_in_place() -> Any:
    model = peft_model()
    model.merge_adapter()
    return model


@cache
def adapter_folder() -> str:
    path = tempfile.mkdtemp()
    model = peft_model()
    model.peft_config["default"].base_model_name_or_path = folder()
    model.save_pretrained(path)
    return path


def merged(model: Any) -> Any:
    return model.merge_and_unload()


# --- holders --------------------------------------------------------------------------------------


class Holder(nn.Module):
    """A trainer's module: the model under a name, nothing beside it."""

    def __init__(self, name: str = "model") -> None:
        super().__init__()
        self.add_module(name, plain())


def compiled_in_place() -> Any:
    model = plain()
    model.compile(backend="eager")
    return model


def compiled_forward() -> Any:
    model = plain()
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compiled_layers() -> Any:
    model = plain()
    for number, layer in enumerate(model.model.layers):
        model.model.layers[number] = torch.compile(layer, backend="eager")
    return model


def pipeline() -> Any:
    return transformers.pipeline("text-generation", model=plain(), tokenizer=tokenizer())


def batched(model: Any, prompts: list[Any], count: int = 3) -> list[Any]:
    """What continuous batching writes after each prompt."""
    options: dict[str, Any] = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    settings = transformers.GenerationConfig(**options, eos_token_id=-1)
    outputs = model.generate_batch(prompts, generation_config=settings, progress_bar=False)
    return [outputs[f"req_{number}"].generated_tokens for number in range(len(prompts))]


def after_batches() -> Any:
    """A model that has written by continuous batching."""
    model = plain()
    batched(model, [tokenizer()(PROMPT)["input_ids"]])
    return model


# --- split and offloaded --------------------------------------------------------------------------


def offloaded(place: str, build: Callable[[], Any] = plain) -> Any:
    """By accelerate, its parameters in the memory ("cpu") or on the disk."""
    import accelerate

    model, device = build(), torch.device("cpu")
    if place == "cpu":
        return accelerate.cpu_offload(model, execution_device=device)
    accelerate.disk_offload(model, tempfile.mkdtemp(), execution_device=device)
    return model


def split() -> Any:
    """Embedding, one layer and head in memory, the other layers on the disk."""
    parts = ("embed_tokens", "norm", "rotary_emb")
    layers = {f"model.layers.{k}": "disk" if k else "cpu" for k in range(3)}
    places = {**{f"model.{part}": "cpu" for part in parts}, **layers, "lm_head": "cpu"}
    return loaded(device_map=places, offload_folder=tempfile.mkdtemp())


# --- quantised ------------------------------------------------------------------------------------


def dynamic_int8(build: Callable[[], Any] = plain) -> Any:
    return torch.ao.quantization.quantize_dynamic(build(), {nn.Linear}, dtype=torch.qint8)


def by_torchao(config: str, build: Callable[[], Any] = plain) -> Any:
    from torchao import quantization

    model = build()
    quantization.quantize_(model, getattr(quantization, config)())
    return model


def by_bitsandbytes(bits: int, build: Callable[[], Any] = plain) -> Any:
    options: dict[str, Any] = {f"load_in_{bits}bit": True}
    return loaded(build, quantization_config=transformers.BitsAndBytesConfig(**options))


# What publishes models by these names, and the package that runs them.
PACKAGES = {"compressed-tensors": "compressed_tensors", "gptq": "gptqmodel", "awq": "gptqmodel"}
_GROUP = 32  # numbers that share a scale
_FORMATS: dict[str, dict[str, Any]] = {
    "gptq": {"bits": 4, "group_size": _GROUP, "desc_act": False, "sym": True},
    "awq": {"bits": 4, "group_size": _GROUP, "zero_point": True, "version": "gemm"},
    "compressed-tensors": {
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "all": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "group_size": _GROUP, "strategy": "group"},
            }
        },
    },
}


def wide() -> Any:
    """A language model whose layers fill the blocks that packages quantise by."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    return language_model(**sizes, num_key_value_heads=4, initializer_range=0.3)


@cache
def quantised_folder(kind: str, build: Callable[[], Any] = wide) -> str:
    """A model as others publish theirs: the layers' weights rounded and packed."""
    path, model = tempfile.mkdtemp(), build()
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        for part, tensor in _packed(tensors.pop(name), kind).items():
            tensors[f"{name.removesuffix('weight')}{part}"] = tensor.contiguous()
    model.config.quantization_config = {"quant_method": kind, **_FORMATS[kind]}
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(path)
    tokenizer().save_pretrained(path)
    save_file(tensors, Path(path) / "model.safetensors", {"format": "pt"})
    return path


def _packed(weight: torch.Tensor, kind: str) -> dict[str, torch.Tensor]:
    groups = weight.T.unflatten(0, (-1, _GROUP))  # group × source × target
    scale = groups.abs().amax(dim=1, keepdim=True) / 7
    numbers = ((groups / scale).round() + 8).flatten(0, 1).to(torch.int64)
    if kind == "compressed-tensors":
        return {
            "weight_packed": _in_words(numbers.T, range(8)),
            "weight_scale": scale[:, 0].T,
            "weight_shape": torch.tensor(weight.shape),
        }
    parts = {"scales": scale[:, 0].half()}
    zeros = torch.full(parts["scales"].shape, 8)
    if kind == "awq":
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        return {**parts, "qweight": _in_words(numbers, order), "qzeros": _in_words(zeros, order)}
    places = torch.arange(len(numbers), dtype=torch.int32) // _GROUP
    return {
        **parts,
        "qweight": _in_words(numbers.T, range(8)).T,
        "qzeros": _in_words(zeros - 1, range(8)),
        "g_idx": places,
    }


def _in_words(numbers: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Eight numbers of four bits along the last axis as one of 32."""
    shifts = torch.arange(0, 32, 4)
    words = (numbers.unflatten(-1, (-1, 8))[..., list(order)] << shifts).sum(dim=-1)
    return words.to(torch.uint32).view(torch.int32)


def from_folder(kind: str, build: Callable[[], Any] = wide) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(quantised_folder(kind, build))


QUANTISED = [
    Way("dynamic int8 of torch", dynamic_int8, None, gradients=False),
    Way(
        "torchao, int8 weights",
        lambda: by_torchao("Int8WeightOnlyConfig"),
        None,
        needs="torchao",
    ),
    Way(
        "torchao, int8 weights and activations",
        lambda: by_torchao("Int8DynamicActivationInt8WeightConfig"),
        None,
        gradients=False,
        needs="torchao",
    ),
    Way("bitsandbytes, 8 bit", lambda: by_bitsandbytes(8), None, needs="bitsandbytes"),
    Way(
        "bitsandbytes, 4 bit",
        lambda: by_bitsandbytes(4),
        None,
        needs="bitsandbytes",
    ),
    *(
        Way(f"{name}, 4 bit", partial(from_folder, kind), None, needs=PACKAGES[kind], note=note)
        for name, kind, note in (
            ("compressed-tensors", "compressed-tensors", "its first pass unpacks it for good"),
            ("GPTQ", "gptq", "by gptqmodel"),
            ("AWQ", "awq", "by gptqmodel"),
        )
    ),
]
WAYS = [
    Way("PEFT: LoRA", peft_model, lambda: merged(peft_model()), needs="peft"),
    Way("PEFT: DoRA", lambda: peft_model("dora"), lambda: merged(peft_model("dora")), needs="peft"),
    Way("PEFT: IA³", lambda: peft_model("ia3"), lambda: merged(peft_model("ia3")), needs="peft"),
    Way(
        "PEFT: one active adapter of two",
        lambda: two_adapters("second"),
        lambda: merged(two_adapters("second")),
        needs="peft",
    ),
    Way("PEFT: adapter disabled", disabled, needs="peft"),
    Way("PEFT: merged in place", merged_in_place, lambda: merged(peft_model()), needs="peft"),
    Way(
        "PEFT: a folder or name with an adapter only",
        adapter_folder,
        lambda: merged(peft_model()),
        needs="peft",
        note="its base model is loaded",
    ),
    Way("`torch.compile(model)`", lambda: torch.compile(plain(), backend="eager")),
    Way("`model.compile()`", compiled_in_place),
    Way("`model.forward = torch.compile(model.forward)`", compiled_forward),
    Way("layers compiled one by one", compiled_layers),
    Way("`DataParallel`", lambda: nn.DataParallel(plain()), note="on the model's own device"),
    Way("a pipeline of transformers", pipeline),
    Way("a module that holds it as `.model`", Holder, note="refused where it has other parameters"),
    Way('`device_map="auto"`', lambda: loaded(device_map="auto"), needs="accelerate"),
    Way("`device_map` with parts on the disk", split, needs="accelerate"),
    Way("accelerate's `cpu_offload`", lambda: offloaded("cpu"), needs="accelerate"),
    Way("accelerate's `disk_offload`", lambda: offloaded("disk"), needs="accelerate"),
]


# --- doors ----------------------------------------------------------------------------------------


def as_held(model: Any) -> Any:
    """With its tokenizer, where it has none of its own."""
    return (model, tokenizer()) if isinstance(model, nn.Module) else model


def capture(model: Any) -> Any:
    return attnflow.capture(as_held(model), PROMPT).weights


def explain(model: Any, method: str | None = None) -> Any:
    return attnflow.explain(as_held(model), PROMPT, method).values


def generate(model: Any, method: str | None = None) -> Any:
    options: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4}
    return attnflow.generate(as_held(model), PROMPT, method, **options).values


def ask(model: Any, method: str | None = None) -> Any:
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 4}
    answer = attnflow.ask(as_held(model), "the key is of", DOCUMENTS, method, **options)
    return answer.result.values


def evaluate(model: Any, method: str | None = None) -> Any:
    prompts = [CompletionPrompt(PROMPT, " sara")]
    subject = Prompts(ablations=8)
    methods = ["leave-one-out", method or "balanced"]
    result = attnflow.evaluate(as_held(model), prompts, methods, subject=subject)
    return np.array([list(scores.values()) for scores in result.records[0].scores.values()])


DOORS: dict[str, Callable[..., Any]] = {
    "capture": capture,
    "explain": explain,
    "generate": generate,
    "ask": ask,
    "evaluate": evaluate,
}
