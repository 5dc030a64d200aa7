"""The model inside whatever holds it: an adapter of PEFT, torch.compile, a trainer's module.

What is explained is the model itself. A holder that only passes its inputs on is seen through; one
that does more on the way, so that the model alone would give other numbers, is refused.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from attnflow.errors import UnsupportedModelError
from attnflow.hosts.model import adapters

_HOLDERS = ("DataParallel", "DistributedDataParallel")
_NAMES = ("model", "module", "pretrained_model")  # under which other libraries keep it
# Kinds of PEFT that change what reaches the model, beside or in place of its layers.
_OUTSIDE = ("XLORA", "POLY", "SHADOW")


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the model that a module holds, through any number of holders; else the module."""
    while (inside := _inside(module)) is not None:
        module = inside
    return module


def _inside(module: nn.Module) -> nn.Module | None:
    """Return what a module holds, one step; None where it is a model itself, or nothing known."""
    bases = {kind.__name__ for kind in type(module).__mro__}
    if "_orig_mod" in module._modules:  # torch.compile keeps the original under this name
        return module._modules["_orig_mod"]
    if bases & set(_HOLDERS):
        return module._modules["module"]
    if "FullyShardedDataParallel" in bases:
        raise UnsupportedModelError(
            "FullyShardedDataParallel gathers the model's parameters around its own forward pass, "
            "which an explanation goes past. Shard it with torch.distributed.fsdp.fully_shard "
            "(FSDP2), or explain it inside FullyShardedDataParallel.summon_full_params(model)."
        )
    peft: Any = sys.modules.get("peft")
    if peft is not None and isinstance(module, (peft.PeftModel, peft.PeftMixedModel)):
        return _inside_peft(module)
    if any(adapter.recognises(module) for adapter in adapters()):
        return None
    parts = ((name, module._modules.get(name)) for name in _NAMES)
    name, inside = next(((n, m) for n, m in parts if m is not None), ("", None))
    if inside is not None and name != "pretrained_model":  # TRL's holds a head for training beside
        _refuse_parts_beside(module, name, inside)
    return inside


def _inside_peft(module: Any) -> nn.Module:
    """Return the model whose layers the adapters of PEFT stand in."""
    active = module.active_adapter
    active = [active] if isinstance(active, str) else list(active)
    for name in active:
        config = module.peft_config[name]
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        if config.is_prompt_learning:
            what = "puts learned vectors before the text, which are no tokens of it"
        elif kind in _OUTSIDE or getattr(config, "alora_invocation_tokens", None) is not None:
            what = "decides anew for every input what its layers do"
        else:
            continue
        raise UnsupportedModelError(
            f"The adapter {name!r} ({kind}) {what}, so the model inside would be explained without "
            "it. LoRA and other adapters that change layers are explained as they are."
        )
    inside: nn.Module = module.base_model.model
    return inside


def _refuse_parts_beside(module: nn.Module, name: str, inside: nn.Module) -> None:
    """Raise where a holder computes with parameters of its own."""
    known = {id(parameter) for parameter in inside.parameters()}
    others = [path for path, each in module.named_parameters() if id(each) not in known]
    if others:
        raise UnsupportedModelError(
            f"{type(module).__name__} holds a {type(inside).__name__} under .{name} and parameters "
            f"of its own beside it ({', '.join(others[:3])}), so the two do not compute the same. "
            f"Pass the .{name} to explain that one alone."
        )
