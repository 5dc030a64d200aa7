"""Models that have no fixed token-to-token attention graph, by name, with the reason.

A refusal is better than a picture of the wrong thing: in these models "the attention of layer 3
from this token to that one" does not exist, or is not what the model computes.
"""

from __future__ import annotations

from attnflow.errors import UnsupportedModelError

__all__ = ["REFUSED", "refuse_by_name"]

_WINDOWED = (
    "attends inside windows that move and merge from stage to stage, so its layers do not share "
    "one set of tokens"
)
_SPARSE = (
    "computes sparse attention in blocks and never forms a row over all tokens, so its weights are "
    "no layer-by-layer graph"
)
_NO_WEIGHTS = "mixes tokens without attention weights, so there is nothing to roll out"

# By the model type of its config, or by how the class name of a timm model begins.
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ["swin", "swinv2", "swin2sr", "donut-swin", "maskformer-swin", "hiera", "mvit", "mvitv2"],
        _WINDOWED,
    ),
    **dict.fromkeys(
        ["pvt", "pvt_v2", "segformer", "glpn", "cvt", "levit", "efficientformer", "nat", "dinat"],
        _WINDOWED,
    ),
    **dict.fromkeys(
        ["swintransformer", "multiscalevit", "pyramidvisiontransformer", "maxxvit", "twins"],
        _WINDOWED,
    ),
    **dict.fromkeys(["longformer", "led", "big_bird", "bigbird_pegasus", "reformer"], _SPARSE),
    **dict.fromkeys(["longt5", "nystromformer", "yoso", "mra", "fnet"], _SPARSE),
    **dict.fromkeys(["mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"], _NO_WEIGHTS),
}


def refuse_by_name(kind: str, model_name: str) -> None:
    """Raise for a model that is known to have no fixed attention graph."""
    reason = REFUSED.get(kind)
    if reason is not None:
        raise UnsupportedModelError(
            f"{model_name} cannot be explained by rollout or flow: it {reason}. Use a model with "
            "global attention, such as BERT, ViT or a Llama; gradient-based methods work on this "
            "one."
        )
