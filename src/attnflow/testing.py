"""Checks and small models for anyone who tests a method, a solver or an adapter.

The built-in methods, solvers and adapters are held to these same functions by attnflow's own
tests. A check raises AssertionError with a sentence that says what does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.graph import LayeredGraph
from attnflow.methods import METHODS, Method, method_from_dict, quiet_about_limits
from attnflow.trace import AttentionTrace, FactoredTrace
from attnflow.trace.extras import (
    BALANCED,
    BALANCED_INPUTS,
    BALANCED_SCORES,
    GRADIENTS,
    LENS,
    checked_record,
)

if TYPE_CHECKING:
    from attnflow.hosts.load import ModelLike
    from attnflow.hosts.model import Model

__all__ = [
    "check_adapter",
    "check_flow",
    "check_method",
    "random_attention",
    "random_factors",
    "random_trace",
    "tiny_decoder",
    "tiny_encoder",
    "tiny_vision_model",
]

Shape = Literal["dense", "causal", "window", "peaked", "uniform", "identity"]


def random_attention(
    layers: int, heads: int, length: int, *, seed: int, shape: Shape = "dense"
) -> NDArray[np.float64]:
    """Return attention of a given shape, `(layers, heads, n, n)`, rows summing to 1.

    >>> random_attention(2, 3, 4, seed=0, shape="causal").shape
    (2, 3, 4, 4)
    """
    rng = np.random.default_rng(seed)
    size = (layers, heads, length, length)
    if shape == "identity":
        return np.broadcast_to(np.eye(length), size).copy()
    scores = rng.normal(scale={"peaked": 6.0, "uniform": 0.0}.get(shape, 1.0), size=size)
    position = np.arange(length)
    distance = position[:, None] - position[None, :]
    if shape == "causal":
        scores = np.where(distance >= 0, scores, -np.inf)
    if shape == "window":
        scores = np.where(np.abs(distance) <= 2, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def random_trace(
    layers: int = 3,
    heads: int = 2,
    length: int = 5,
    *,
    seed: int = 0,
    shape: Shape = "dense",
    record: Sequence[str] = (),
) -> AttentionTrace:
    """Return a trace of random attention over tokens t0, t1, ...; `record` as `capture` takes it.

    >>> random_trace(layers=2, heads=1, length=3)
    <AttentionTrace 2 layers × 1 heads × 3 tokens, 't0 t1 t2'>
    """
    tokens = [f"t{position}" for position in range(length)]
    weights = random_attention(layers, heads, length, seed=seed, shape=shape)
    rng = np.random.default_rng(seed + 1)
    visible = weights.max(axis=1) > 0  # nothing is measured where nothing is seen
    measured = {
        name: rng.uniform(size=(layers, length))
        if name in ("residual-share", LENS)
        else rng.uniform(size=visible.shape) * visible
        for name in checked_record(record)
        if name != GRADIENTS
    }
    if BALANCED in measured:
        measured[BALANCED_INPUTS] = rng.normal(size=(layers, length))
        measured[BALANCED_SCORES] = rng.uniform(size=visible.shape) * visible
    gradients = rng.normal(size=weights.shape) if GRADIENTS in record else None
    return AttentionTrace.from_arrays(weights, tokens, gradients=gradients, measured=measured)


def random_factors(
    layers: int = 3,
    heads: int = 2,
    length: int = 5,
    *,
    seed: int = 0,
    gradient_kind: str | None = None,
) -> FactoredTrace:
    """Return a trace of random causal attention in factors; needs torch.

    >>> random_factors(layers=2, length=3)
    <FactoredTrace 2 layers × 2 heads × 3 tokens, 't0 t1 t2', in factors>
    """
    import torch

    from attnflow.kernels.blocks import Factors
    from attnflow.kernels.layer import FactoredLayer

    noise = torch.Generator().manual_seed(seed)

    def layer() -> FactoredLayer:
        query, gradient = torch.randn(2, heads, length, 8, generator=noise)
        key, value = torch.randn(2, 1, length, 8, generator=noise)
        extra = {"value": value, "gradient": gradient} if gradient_kind else {}
        return FactoredLayer(Factors(query, key, scale=1.0, **extra))

    tokens = [f"t{position}" for position in range(length)]
    return FactoredTrace([layer() for _ in range(layers)], tokens, gradient_kind=gradient_kind)


def check_flow(
    graph: LayeredGraph,
    flow: NDArray[np.float64],
    side: NDArray[np.bool_],
    *,
    layer: int,
    target: int,
    source: int,
    lower: float,
    upper: float,
    tolerance: float = 1e-6,
) -> None:
    """Check the certificate of one maximum flow: a flow and a cut of equal value prove each other.

    flow: `(layer, n, n)` on the edges of layers 1 to `layer`. side: `(layer + 1, n)`, True on the
    target's side of the cut.

    >>> from attnflow import Flow
    >>> from attnflow.maxflow import minimum_cut
    >>> graph = Flow().graph(random_trace(layers=2))
    >>> place = {"layer": 2, "target": 0, "source": 1}
    >>> cut = minimum_cut(graph.capacities, **place)
    >>> check_flow(graph, cut.flow, cut.side, **place, lower=cut.lower, upper=cut.value)
    """
    capacities = graph.capacities[:layer]
    assert flow.shape == capacities.shape, f"flow has shape {flow.shape}"
    assert (flow >= 0).all(), "an edge carries a negative flow"
    assert (flow <= capacities + 1e-12).all(), "an edge carries more than its capacity"
    _check_conservation(flow, target, source)
    value = float(flow[layer - 1, target].sum())
    assert abs(value - lower) <= 1e-9, f"the flow's value is {value}, lower says {lower}"
    assert side[layer, target], "the target is not on its own side of the cut"
    assert not side[0, source], "the source is on the target's side of the cut"
    cut = float(capacities[side[1:, :, None] & ~side[:-1, None, :]].sum())
    assert cut <= upper + 1e-12, f"the cut's value is {cut}, upper says {upper}"
    assert lower <= upper + 1e-12, f"lower {lower} is above upper {upper}"
    assert upper - lower <= tolerance, f"the bounds are {upper - lower} apart"


def _check_conservation(flow: NDArray[np.float64], target: int, source: int) -> None:
    """Check that what flows in flows out; only the target gives and only the source takes."""
    top = flow[-1].sum(axis=1)
    top[target] = 0
    assert (top <= 1e-12).all(), "flow leaves a node of the top layer that is not the target"
    bottom = flow[0].sum(axis=0)
    bottom[source] = 0
    assert (bottom <= 1e-12).all(), "flow reaches an input that is not the source"
    inward, outward = flow[1:].sum(axis=1), flow[:-1].sum(axis=2)
    assert np.allclose(inward, outward, rtol=0, atol=1e-9), "a node does not conserve flow"


def check_method(method: Method) -> None:
    """Check what every method promises, on random traces of several shapes.

    A method of your own need not be registered; if it is, files with it must be readable.

    >>> from attnflow import Rollout
    >>> check_method(Rollout(residual=0.3))
    """
    _check_value(method)
    with quiet_about_limits():
        for shape in ("dense", "causal", "peaked", "identity"):
            _check_on_trace(method, shape)


def _check_on_trace(method: Method, shape: Shape) -> None:
    trace = random_trace(
        layers=3, heads=2, length=5, seed=7, shape=shape, record=method.requires.record
    )
    before = trace.weights.copy()
    result = method(trace)
    assert np.array_equal(trace.weights, before), "the method changed the trace"
    _check_axes(result, trace)
    part = method(trace, targets=[4, "t1"], layers=result.layers[-1:])
    assert part.values.shape == (1, 2, 5), f"one layer, two targets: {part.values.shape}"
    assert np.allclose(part.values[0], result.values[-1][[4, 1]], rtol=0, atol=1e-6), (
        "asking for some targets and layers gives other values than asking for all"
    )


def _check_value(method: Method) -> None:
    """It is frozen, and name and options say all: the method can be made again from them."""
    name = next((option.name for option in fields(method)), "name")
    try:
        setattr(method, name, getattr(method, name))
    except FrozenInstanceError:
        pass
    else:
        raise AssertionError(f"{method!r} can be changed after it is made")
    record, known = method.to_dict(), METHODS.get(method.name) is type(method)
    again = method_from_dict(record) if known else type(method)(**record["options"])
    assert again == method, "to_dict does not give the method back"


def _check_axes(result: Attribution, trace: AttentionTrace) -> None:
    n = trace.length
    assert result.values.shape == (len(result.layers), n, n), f"axes are {result.values.shape}"
    assert np.isfinite(result.values).all(), "a value is not finite"
    assert (result.values >= 0).all(), "a value is negative"
    if result.lower is not None and result.upper is not None:
        assert (result.lower <= result.values).all(), "a value is below its lower bound"
        assert (result.values <= result.upper).all(), "a value is above its upper bound"


def check_adapter(model: ModelLike, inputs: Any) -> None:
    """Check what every adapter promises on a model and an example: its attention is the model's.

    >>> check_adapter(tiny_encoder(), "the key")
    """
    from attnflow.hosts.check import check_model

    failed = [c for c in check_model(model, inputs) if c.passed is False]
    assert not failed, "; ".join(f"not so: {check.name} ({check.detail})" for check in failed)


_SIZES: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
_WORDS = (
    *("the", "author", "talked", "to", "sara", "about", "his", "her", "book"),
    *("key", "cabinets", "is", "are", "of", "and"),
)
_PLURALS = ("keys", "thing")
_PIECES = ("##s", "##ing", "##ed", "un", "##lock")


def tiny_encoder(family: str = "bert", *, head: str = "MaskedLM", seed: int = 0) -> Model:
    """Build a tiny random Hugging Face encoder with a tokenizer from its config: no download.

    family: "bert", "distilbert" or "roberta"; head: "MaskedLM", "SequenceClassification",
    "TokenClassification" or "".

    >>> model, tokenizer = tiny_encoder("roberta")
    >>> type(model).__name__
    'RobertaForMaskedLM'
    """
    import torch
    import transformers

    from attnflow.hosts.model import Model

    tokenizer = _tiny_tokenizer()
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if family == "distilbert":
        sizes |= {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}
    else:
        sizes |= {**_SIZES, "num_hidden_layers": 3, "max_position_embeddings": 64}
    prefix = {"bert": "Bert", "distilbert": "DistilBert", "roberta": "Roberta"}[family]
    config = getattr(transformers, f"{prefix}Config")(**sizes)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{prefix}For{head}" if head else f"{prefix}Model")(config)
    # Attention of a freshly initialised model is nearly uniform; scale it up so that a wrong
    # mask, a wrong layer or a wrong head cannot hide behind equal numbers.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
    return Model(model.eval(), tokenizer)


def tiny_decoder(*, seed: int = 0) -> Model:
    """Build a tiny random language model, a Llama of two layers, with a tokenizer of whole words.

    >>> model, tokenizer = tiny_decoder()
    >>> tokenizer.tokenize("the keys to")
    ['the', 'keys', 'to']
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from attnflow.hosts.model import Model

    words = ["<pad>", "</s>", "<unk>", *_WORDS, *_PLURALS]
    vocabulary = {token: i for i, token in enumerate(words)}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        **_SIZES,
        vocab_size=len(vocabulary),
        num_hidden_layers=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return Model(LlamaForCausalLM(config).eval(), tokenizer)


def tiny_vision_model(*, seed: int = 0) -> Model:
    """Build a tiny random ViT that looks at 4 × 4 patches of 8 pixels, and its image processor.

    >>> model, processor = tiny_vision_model()
    >>> model.config.id2label[2]
    'coin'
    """
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    from attnflow.hosts.model import Model

    torch.manual_seed(seed)
    config = ViTConfig(
        **_SIZES,
        num_hidden_layers=3,
        image_size=32,
        patch_size=8,
        initializer_range=0.4,  # attention that differs visibly from patch to patch
        id2label={0: "cat", 1: "cup", 2: "coin"},
        label2id={"cat": 0, "cup": 1, "coin": 2},
    )
    processor = ViTImageProcessorPil(size={"height": 32, "width": 32})
    return Model(ViTForImageClassification(config).eval(), processor)


def _tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {token: i for i, token in enumerate([*special, *_WORDS, *_PIECES])}
    raw = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    raw.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
    names = ("pad", "unk", "cls", "sep", "mask")
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        **{f"{name}_token": token for name, token in zip(names, special, strict=True)},
    )
