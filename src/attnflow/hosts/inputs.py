"""Inputs as they are handed in: texts and tokens, padding, patches, and refused models.

A refusal is better than a picture of the wrong thing: in the models that are refused by name "the
attention of layer 3 from this token to that one" does not exist, or is not what they compute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnflow.errors import CaptureError, ModelError, TokensError, UnsupportedModelError, shorten
from attnflow.hosts.adapter import ModelFacts
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
    """Roll (batch, length) inputs so that padding comes last: positions then count as alone."""
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
    """Name the `length` positions over pixels; `special` stand before the patches of the grid."""
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
_KINDS = {
    _WINDOWED: "swin swinv2 swin2sr donut-swin maskformer-swin hiera mvit mvitv2 pvt pvt_v2 cvt "
    "nat segformer glpn levit efficientformer dinat swintransformer multiscalevit maxxvit twins "
    "pyramidvisiontransformer",
    _SPARSE: "longformer led big_bird bigbird_pegasus reformer longt5 pegasus_x nystromformer yoso "
    "mra",
    _NO_WEIGHTS: "mamba mamba2 falcon_mamba rwkv xlstm fnet",
}
REFUSED = {kind: reason for reason, kinds in _KINDS.items() for kind in kinds.split()}


def refuse_by_name(kind: str, model_name: str) -> None:
    """Raise for a model that is known to have no fixed attention graph."""
    reason = REFUSED.get(kind)
    if reason is not None:
        raise UnsupportedModelError(
            f"{model_name} cannot be explained by its attention: it {reason}. Use a model with "
            "global attention, such as BERT, ViT or a Llama."
        )


def join_tokens(encoder: Tokens, decoder: Tokens) -> Tokens:
    """Join both sides in one row; words keep apart."""
    words = None
    if encoder.words is not None and decoder.words is not None:
        shift = max((w for w in encoder.words if w is not None), default=-1) + 1
        words = (*encoder.words, *(None if w is None else w + shift for w in decoder.words))
    return Tokens((*encoder.texts, *decoder.texts), words=words)


_NO_TOKENIZER = (
    "A text needs the model's tokenizer: pass attnflow.load(model, tokenizer=AutoTokenizer."
    "from_pretrained(...)), or pass the model's name instead of the loaded model."
)


def checked_tokenizer(tokenizer: Any) -> Any:
    """Return the tokenizer, or an error that says where one comes from."""
    if tokenizer is None:
        raise TokensError(_NO_TOKENIZER)
    if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise TokensError(f"A {type(tokenizer).__name__} is not a tokenizer. {_NO_TOKENIZER}")
    return tokenizer


def tokenize(tokenizer: Any, texts: Sequence[str]) -> Any:
    """With the tokenizer's special tokens; padded on the right, as left would shift positions."""
    checked_tokenizer(tokenizer)
    if len(texts) > 1 and getattr(tokenizer, "pad_token_id", None) is None:
        return tokenizer(list(texts))  # `padded` fills it up
    options = {"padding": True, "padding_side": "right"} if len(texts) > 1 else {}
    return tokenizer(list(texts), return_tensors="pt", **options)


def padded(encoded: Any, facts: ModelFacts) -> Mapping[str, Tensor]:
    """Texts of a tokenizer that has no padding token, filled up on the right, with their mask."""
    rows = encoded["input_ids"]
    if isinstance(rows, Tensor):
        return encoded
    longest = max(map(len, rows))
    fill = {"input_ids": facts.pad_token or 0}
    masks = {"attention_mask": [[1] * len(row) for row in rows]}
    return {
        name: torch.tensor([[*row, *[fill.get(name, 0)] * (longest - len(row))] for row in lines])
        for name, lines in {**encoded, **masks}.items()
    }


def pad_rows(
    rows: Sequence[Sequence[int]], fill: int, side: Literal["left", "right"] = "right"
) -> tuple[Tensor, Tensor]:
    """Return rows of token ids filled up to one length, and their mask."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), fill)
    mask = torch.zeros_like(ids)
    for k, row in enumerate(rows):
        words = slice(longest - len(row), None) if side == "left" else slice(len(row))
        ids[k, words], mask[k, words] = torch.tensor(row), 1
    return ids, mask


def words_of(encoded: Any, texts: Sequence[str]) -> tuple[tuple[int | None, ...], ...] | None:
    """Return the word of each position, where the tokenizer tells; spaces decide if more."""
    if not encoded.is_fast:
        return None
    return tuple(_words(encoded, example, text) for example, text in enumerate(texts))


def _words(encoded: Any, example: int, text: str) -> tuple[int | None, ...]:
    words: list[int | None] = list(encoded.word_ids(example))
    if len({word for word in words if word is not None}) >= len(text.split()):
        return tuple(words)
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    spans = [encoded.token_to_chars(example, k) for k in range(len(words))]
    return tuple(
        None if word is None or span is None else _word_at(starts, text, span.start, span.end)
        for word, span in zip(words, spans, strict=True)
    )


def _word_at(starts: Sequence[int], text: str, start: int, end: int) -> int | None:
    """The word that the characters from start to end belong to; a token may begin with a space."""
    first = next((k for k in range(start, end) if not text[k].isspace()), None)
    return None if first is None else sum(begin <= first for begin in starts) - 1


def prefix_ids(tokenizer: Any, text: str) -> list[int]:
    """Return a decoder's text as a beginning: what the tokenizer puts before it, no end."""
    if tokenizer is None:
        raise TokensError(_NO_TOKENIZER)
    framed = list(tokenizer(text_target=text)["input_ids"])
    plain = list(tokenizer(text_target=text, add_special_tokens=False)["input_ids"])
    for start in range(len(framed) - len(plain) + 1):
        if framed[start : start + len(plain)] == plain:
            return framed[: start + len(plain)]
    return plain


def decoder_inputs(
    tokenizer: Any, texts: Sequence[str] | None, count: int, facts: ModelFacts
) -> dict[str, Tensor]:
    """Return the decoder's start token, then the text that it has written so far, if any."""
    if facts.start_token is None:
        raise TokensError("The model names no token to start its decoder with.")
    if texts is None:
        return {"decoder_input_ids": torch.full((count, 1), facts.start_token)}
    if len(texts) != count:
        raise TokensError(f"{len(texts)} decoder texts were given for {count} texts.")
    rows = [after_start(prefix_ids(tokenizer, text), facts) for text in texts]
    ids, mask = pad_rows([[facts.start_token, *row] for row in rows], facts.pad_token or 0)
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask}


def check_vocabulary(model: Any, ids: Tensor) -> None:
    """Check that the model has a vector for every one of these tokens of its input."""
    try:
        words = model.get_input_embeddings()
    except NotImplementedError:  # characters are hashed, there is no table of them
        return
    count = getattr(words, "num_embeddings", None)
    if count is None or ids.is_floating_point() or not ids.numel():
        return
    outside = ids[(ids < 0) | (ids >= count)]
    if outside.numel():
        raise TokensError(
            f"The token with the number {int(outside[0])} is none of the {count} that "
            f"{type(model).__name__} knows. The tokenizer is another model's, or tokens were added "
            "to it and not to the model (model.resize_token_embeddings)."
        )


def shifted_input(ids: Tensor, facts: ModelFacts) -> Tensor:
    """Return what such a decoder reads: the start token, then the input but its last token."""
    if facts.start_token is None:
        raise TokensError("The model names no token to start its decoder with.")
    return torch.cat([torch.full_like(ids[:, :1], facts.start_token), ids[:, :-1]], dim=1)


def after_start(ids: list[int], facts: ModelFacts) -> list[int]:
    """Without the start token, if the tokenizer has put it there already."""
    return ids[1:] if ids[:1] == [facts.start_token] else ids


def tokens_of(tokenizer: Any, ids: Sequence[int]) -> Tokens:
    """Return the tokens of these ids by name; by number where there is no tokenizer."""
    names = list(ids) if tokenizer is None else tokenizer.convert_ids_to_tokens(list(ids))
    return Tokens(tuple(map(str, names)))


_PROCESSORS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def own_processor(model: nn.Module) -> Any:
    """Return the image processor that was saved beside the model's weights; loaded once."""
    if model not in _PROCESSORS:
        # Pillow's: the same pixels whether or not torchvision is installed.
        processor = saved_processor(model, "AutoImageProcessor", "Images", backend="pil")
        _PROCESSORS[model] = processor
    return _PROCESSORS[model]


def saved_processor(model: nn.Module, kind: str, purpose: str, **options: Any) -> Any:
    """Return the processor that was saved beside the model's weights, by its class."""
    import transformers

    name = str(getattr(getattr(model, "config", None), "name_or_path", ""))
    hint = f"pass one: processor=..., for example {kind}.from_pretrained(...)."
    if not name:
        raise ModelError(
            f"{purpose} need the model's processor. This {type(model).__name__} was not loaded "
            f"from a folder or a name, so there is no image processor beside it; {hint}"
        )
    try:
        return getattr(transformers, kind).from_pretrained(name, **options)
    # The library raises many unrelated types where a processor is missing; all mean the same here.
    except Exception as error:
        raise ModelError(
            f"The model {shorten(name)} has no processor that can be loaded "
            f"({type(error).__name__}: {str(error)[:200]}). {purpose} need one beside the weights "
            f"(preprocessor_config.json); or {hint}"
        ) from error
