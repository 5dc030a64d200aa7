"""Inputs as they are handed in: texts that are checked, padding, patches, and refused models.

A refusal is better than a picture of the wrong thing: in the models that are refused by name "the
attention of layer 3 from this token to that one" does not exist, or is not what they compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attnflow.errors import CaptureError, TokensError, UnsupportedModelError, shorten
from attnflow.tokens import Tokens
from attnflow.tokens.patches import Grid, patch_names


def checked_text(text: object, purpose: str = "explain", name: str = "text") -> str:
    """Return the text, or raise an error that says why nothing can be done with it."""
    if not isinstance(text, str):
        raise TokensError(
            f"A text or a mapping of prepared inputs is needed; got {type(text).__name__}."
        )
    if not text.strip():
        raise TokensError(f"There is nothing to {purpose}: the {name} is {shorten(text)}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokensError(
            f"The text has half a character at place {error.start} ({text[error.start]!r}, a lone "
            "surrogate), which no tokenizer takes. Read the file with the encoding it was written "
            "in, or replace what cannot be read: text.encode('utf-8', 'replace').decode()."
        ) from error
    return text


def kept_positions(mask: Tensor | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the positions of each example that are not padding; None if there is no mask."""
    if mask is None or mask.ndim != 2:
        return None
    positions = tuple(tuple(torch.nonzero(row)[:, 0].tolist()) for row in mask)
    if not all(positions):
        raise TokensError("An example consists of padding only; nothing is left to explain.")
    return positions


def padding_to_the_right(
    inputs: Mapping[str, Tensor], mask_name: str, prefix: str = ""
) -> dict[str, Tensor]:
    """Roll every (batch, length) input of an example so that its padding comes last.

    A model without explicit positions counts them from the first token, padding included, so a
    left-padded example would not be the example alone. Rolled, it is.
    """
    mask = inputs.get(mask_name)
    aligned = dict(inputs)
    if mask is None or mask.ndim != 2 or bool(mask[:, 0].all()):
        return aligned
    shifts = mask.long().argmax(dim=1)
    for name, value in inputs.items():
        if value.shape == mask.shape and name.startswith("decoder_") == (prefix == "decoder_"):
            rows = [row.roll(-int(k)) for row, k in zip(value, shifts, strict=True)]
            aligned[name] = torch.stack(rows)
    return aligned


def name_patches(
    pixels: Tensor,
    patch_size: int | Sequence[int],
    length: int,
    special: Sequence[str] = ("[CLS]",),
) -> Tokens:
    """Return names of `length` positions over pixels (batch, channels, height, width).

    The grid follows the image, which need not be square. special: what stands before the patches.
    """
    down, across = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    height, width = pixels.shape[-2:]
    rows, columns = height // down, width // across
    prefix = length - rows * columns
    if prefix < 0:
        raise CaptureError(f"{length} positions for {rows} × {columns} patches.")
    grid = Grid(rows, columns, prefix, height, width)
    return Tokens(patch_names(grid, prefix_names(prefix, special)), grid=grid)


def prefix_names(count: int, special: Sequence[str] = ("[CLS]",)) -> tuple[str, ...]:
    """Return names of the positions before the patches: these tokens first, then registers."""
    return (*special[:count], *(f"[REG{k}]" for k in range(1, count - len(special) + 1)))


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


def join_tokens(encoder: Tokens, decoder: Tokens) -> Tokens:
    """Join both sides in one row; words keep apart."""
    words = None
    if encoder.words is not None and decoder.words is not None:
        shift = max((w for w in encoder.words if w is not None), default=-1) + 1
        words = (*encoder.words, *(None if w is None else w + shift for w in decoder.words))
    return Tokens((*encoder.texts, *decoder.texts), words=words)
