"""One attention block as a sum, and how a block is watched while it runs.

The output of attention at position i is `Σ_j Σ_h A^h_ij v^h_j W^h_O + b_O`, so source j adds the
vector `F_i(j) = Σ_h A^h_ij v^h_j W^h_O`, where `v^h_j = x_j W^h_V + b^h_V` is its value. The
residual adds x_i to what i has from itself. A LayerNorm that follows is, once the spread of its
input is known, a linear map apart from its bias: it takes the mean off each vector, divides it by
that spread and multiplies it by gamma. So all these vectors, and the biases, sum to the output.

In a pre-norm block the LayerNorm stands before attention and acts on each position alone: it is
inside the values already, exactly, and nothing that follows would have to be folded in.

Values and weights are seen where attention is computed; the projection and the norms are declared
here by the paths of their modules. Nothing is patched: hooks read what passes.

Value zeroing takes no block apart: it replays a layer with the value of one position zeroed, for
every position, on the very arguments the layer was called with. So everything but that value is as
it was; the weights too, since queries and keys do not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnflow.errors import CaptureError, UnsupportedModelError
from attnflow.errors.progress import tell
from attnflow.hosts.recorder import Intervention, Recorder, Session
from attnflow.hosts.restore import undone
from attnflow.hosts.transformers_classes import is_cache

_NUMBERS_AT_ONCE = 2**22  # of the vectors of some targets: targets × sources × width


@dataclass(frozen=True, eq=False)
class FixedNorm:
    """A LayerNorm with the spread (n,) that its input had: a linear map but for its bias."""

    spread: Tensor
    scale: Tensor
    output: Tensor

    @classmethod
    def of(cls, norm: nn.LayerNorm, inputs: Tensor, output: Tensor) -> FixedNorm:
        """From what the module was given and gave, (n, width) each."""
        plain = next(m for m in norm.modules() if isinstance(m, nn.LayerNorm))  # in an adapter
        spread = (inputs.float().var(dim=-1, unbiased=False) + plain.eps).sqrt()
        return cls(spread, _norm_scale(norm, plain.eps, inputs).float(), output.float())

    def __call__(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """The linear part, on (targets, sources, width)."""
        centred = vectors - vectors.mean(dim=-1, keepdim=True)
        return centred / self.spread[rows, None, None] * self.scale


def _norm_scale(norm: nn.LayerNorm, eps: float, inputs: Tensor) -> Tensor:
    """Return (width,): what a LayerNorm multiplies by.

    Where it is no plain one, or its weights are elsewhere, that is seen in what it makes of a
    vector of mean 0 and of one of zeros.
    """
    if type(norm) is nn.LayerNorm and norm.weight.device.type != "meta":
        return norm.weight
    vector = torch.arange(inputs.shape[-1], device=inputs.device).to(inputs)
    vector = vector - vector.mean()
    unit = vector / (vector.var(unbiased=False) + eps).sqrt()
    outputs = norm.forward(torch.stack([vector, torch.zeros_like(vector)]))
    return (outputs[0] - outputs[1]) / unit


@dataclass(frozen=True, eq=False)
class BlockState:
    """The work of one block on one example; `norms` are the two LayerNorms of a post-norm block."""

    inputs: Tensor  # (n, width): the block's input, which the residual carries on
    weights: Tensor  # (heads, n, n)
    projected: Tensor  # (heads, n, width): each head's values through its part of W_O
    bias: Tensor  # (width,): b_O
    norms: tuple[FixedNorm, ...] = ()

    def attended(self, rows: Tensor) -> Tensor:
        """F: (targets, sources, width)."""
        return torch.einsum("hqk,hkd->qkd", self.weights[:, rows], self.projected)

    def add_residual(self, vectors: Tensor, rows: Tensor) -> Tensor:
        """Add the target's own input in place to what it has from itself."""
        vectors[torch.arange(len(rows), device=rows.device), rows] += self.inputs[rows]
        return vectors


def measure_block(inside: BlockState, names: Collection[str]) -> dict[str, Tensor]:
    """Return the measurements of these names: (n, n) each, "residual-share" (n,).

    The vectors are those with the residual, "norms" excepted, which has neither residual nor norm.
    The last LayerNorm is folded in as GlobEnc (Modarressi et al. 2022) does: the feed-forward part
    is left out as a path, since it acts on each position alone, but it is in the spread of that
    LayerNorm's input. `residual-share` is measured on the vectors that leave the block.
    """
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    length, width = inside.inputs.shape
    everyone = torch.arange(length, device=inside.inputs.device)
    for rows in everyone.split(max(1, _NUMBERS_AT_ONCE // (length * width))):
        for name, values in _measured_rows(inside, rows).items():
            if name in parts:
                parts[name].append(values)
    return {name: torch.cat(values) for name, values in parts.items()}


def _measured_rows(inside: BlockState, rows: Tensor) -> dict[str, Tensor]:
    vectors = inside.attended(rows)
    measurements = {"norms": vectors.norm(dim=-1)}
    vectors = inside.add_residual(vectors, rows)
    measurements["norms-residual"] = vectors.norm(dim=-1)
    if inside.norms:
        first, last = inside.norms
        vectors = first(vectors, rows)
        measurements["norms-layernorm"] = vectors.norm(dim=-1)
        measurements["alti"] = _nearer(vectors, first.output[rows])
        vectors = last(vectors, rows)
        measurements["norms-encoder"] = vectors.norm(dim=-1)
    else:
        measurements["alti"] = _nearer(vectors, vectors.sum(dim=1) + inside.bias)
    measurements["residual-share"] = _own_share(vectors, rows)
    return measurements


def _nearer(vectors: Tensor, output: Tensor) -> Tensor:
    """Return how much less the output lacks, in the L1 norm, once a source's vector is there."""
    missing = (output[:, None] - vectors).abs().sum(dim=-1)
    return (output.abs().sum(dim=-1, keepdim=True) - missing).clamp(min=0)


def _own_share(vectors: Tensor, rows: Tensor) -> Tensor:
    """‖own‖ / (‖own‖ + ‖sum of all others‖); a position without any vector is its own."""
    own = vectors[torch.arange(len(rows), device=rows.device), rows]
    others = (vectors.sum(dim=1) - own).norm(dim=-1)
    own_norm = own.norm(dim=-1)
    total = own_norm + others
    return torch.where(total > 0, own_norm / total.clamp(min=torch.finfo(total.dtype).tiny), 1.0)


BLOCK_MEASURES = (
    *("norms", "norms-residual", "norms-layernorm", "norms-encoder"),
    *("residual-share", "alti"),
)
_CONV1D = "transformers.pytorch_utils"
_AFTER_A_NORM = ("norms-layernorm", "norms-encoder")  # these exist only in post-norm blocks


@dataclass(frozen=True)
class BlockPlan:
    """Paths of the list of blocks, and from a block of its projection, norms and LayerScale."""

    blocks: str
    projection: str
    norms: tuple[str, ...] = ()
    scale: str = ""


_BERT = BlockPlan(
    "encoder.layer", "attention.output.dense", ("attention.output.LayerNorm", "output.LayerNorm")
)
_DISTILBERT = BlockPlan(
    "transformer.layer", "attention.out_lin", ("sa_layer_norm", "output_layer_norm")
)
_LLAMA = BlockPlan("layers", "self_attn.o_proj")
_VIT = (
    BlockPlan("layers", "attention.o_proj"),
    BlockPlan("encoder.layer", "attention.output.dense"),
)
_DINO = (
    BlockPlan("encoder.layer", "attention.o_proj", scale="layer_scale1.lambda1"),
    BlockPlan("encoder.layer", "attention.output.dense", scale="layer_scale1.lambda1"),
)
# By the model type of the config. Several plans: the layout differs between versions of the host.
DECLARED: dict[str, tuple[BlockPlan, ...]] = {
    **dict.fromkeys(["bert", "roberta", "electra"], (_BERT,)),
    "distilbert": (_DISTILBERT,),
    "gpt2": (BlockPlan("h", "attn.c_proj"),),
    **dict.fromkeys(["llama", "mistral", "qwen2", "qwen3"], (_LLAMA,)),
    **dict.fromkeys(["vit", "deit"], _VIT),
    **dict.fromkeys(["dinov2", "dinov2_with_registers"], _DINO),
}


@dataclass(frozen=True)
class Parts:
    """The modules of one block that must be known to take it apart."""

    block: nn.Module
    projection: nn.Module
    norms: tuple[nn.LayerNorm, ...] = ()
    scale: Tensor | None = None

    def output_map(self, like: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return W_O (inputs, outputs) and b_O, times what attention's output is multiplied by.

        like: a tensor of the kind that the block computes with. width: the number of inputs.
        """
        kind, weight = type(self.projection), cast(Tensor, getattr(self.projection, "weight", None))
        is_plain = kind is nn.Linear or kind.__module__ == _CONV1D
        if is_plain and type(weight) is nn.Parameter and weight.device.type != "meta":
            matrix = weight.T if kind is nn.Linear else weight  # which keeps it turned over
            own = cast("Tensor | None", self.projection.bias)
            bias = torch.zeros_like(matrix[0]) if own is None else own
        else:  # what the layer makes of each input alone: with adapters and quantised weights
            bias = self.projection.forward(like.new_zeros(1, width))[0]
            basis = torch.eye(width, dtype=like.dtype, device=like.device)
            matrix = self.projection.forward(basis) - bias
        return (matrix, bias) if self.scale is None else (matrix * self.scale, bias * self.scale)


def declared_parts(base: nn.Module, model_type: str, model_name: str) -> list[Parts]:
    """Return the parts of every block of a declared family; other models are refused by name."""
    for plan in DECLARED.get(model_type, ()):
        try:
            return [
                Parts(
                    block,
                    block.get_submodule(plan.projection),
                    tuple(cast(nn.LayerNorm, block.get_submodule(path)) for path in plan.norms),
                    block.get_parameter(plan.scale) if plan.scale else None,
                )
                for block in cast(nn.ModuleList, base.get_submodule(plan.blocks))
            ]
        except AttributeError:
            continue
    raise UnsupportedModelError(
        f"{model_name} (model type {model_type!r}) cannot be taken apart: where its blocks keep "
        f"their projection and norms is not declared. Declared are {', '.join(DECLARED)}. "
        "Gradients (record=('gradients',)) and value zeroing (record=('value-zeroing',)) need no "
        "declaration."
    )


@contextmanager
def watched_blocks(blocks: Sequence[Parts], recorder: Recorder, model_name: str) -> Iterator[None]:
    """Measure what the recorder was asked for on every block, as it ends."""
    names = [name for name in recorder.record if name in BLOCK_MEASURES]
    if not names:
        yield
        return
    after_norm = [name for name in names if name in _AFTER_A_NORM]
    if after_norm and not all(parts.norms for parts in blocks):
        raise UnsupportedModelError(
            f"{model_name} normalises before attention, not after it, so there is no LayerNorm to "
            f"fold into {' and '.join(map(repr, after_norm))}: its own is inside the values "
            "already. Use 'norms-residual' (Rollout(matrices='norms')) or 'alti'."
        )
    watch = _Watch(recorder, names)
    with undone() as changes:
        for parts in blocks:
            changes.hook(parts.block.register_forward_pre_hook, watch.begin, with_kwargs=True)
            for norm in parts.norms:
                changes.hook(norm.register_forward_hook, watch.normed)
            changes.hook(parts.block.register_forward_hook, partial(watch.end, parts))
        changes.set(recorder, "watch", watch.attended)
        yield


class _Watch:
    """The running block as far as it was seen; measured when it ends."""

    def __init__(self, recorder: Recorder, names: Sequence[str]) -> None:
        self.recorder = recorder
        self.names = names
        self.stream = torch.empty(0)
        self.attention: list[tuple[Tensor, Tensor]] = []  # weights and values
        self.norms: list[tuple[nn.LayerNorm, Tensor, Tensor]] = []

    def begin(self, block: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.stream = arguments[0] if arguments else options["hidden_states"]
        self.attention, self.norms = [], []

    def attended(self, weights: Tensor, values: Tensor) -> None:
        self.attention.append((weights, values))

    def normed(self, norm: nn.LayerNorm, arguments: tuple[Any, ...], output: Tensor) -> None:
        self.norms.append((norm, arguments[0], output))

    def end(self, parts: Parts, block: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if len(self.attention) != 1 or len(self.norms) != len(parts.norms):
            raise CaptureError(
                f"A {type(block).__name__} attended {len(self.attention)} times and normalised "
                f"{len(self.norms)} times where 1 and {len(parts.norms)} were expected, so it "
                "cannot be taken apart. Gradient methods work on this model."
            )
        with torch.no_grad():
            states = [self._state(parts, example) for example in range(len(self.stream))]
            measured = [measure_block(state, self.names) for state in states]
            for name in self.names:
                self.recorder.measure(name, torch.stack([one[name] for one in measured]))

    def _state(self, parts: Parts, example: int) -> BlockState:
        """Return one example's; heads that share a value get a copy of it each."""
        weights, values = (part[example].float() for part in self.attention[0])
        values = values.repeat_interleave(len(weights) // len(values), dim=0)
        width = len(weights) * values.shape[-1]
        projection, bias = parts.output_map(self.stream, width)
        by_head = projection.float().reshape(len(weights), values.shape[-1], -1)
        norms = tuple(
            FixedNorm.of(norm, stream[example], output[example])
            for norm, stream, output in self.norms
        )
        stream = self.stream[example].float()
        return BlockState(stream, weights, values @ by_head, bias.float(), norms)


VALUE_ZEROING = "value-zeroing"
_WEIGHTS_AT_ONCE = 2**21  # queries × keys of all the copies of an example that are replayed at once
# Two correct ways to compute an output differ by rounding, as a share of its spread.
ROUNDING = {"float64": 1e-6, "float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}


def outermost_layers(model: nn.Module) -> list[nn.Module]:
    """Return the members of module lists that lie in no other list: the layers, among them."""
    layers: list[nn.Module] = []
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not name.startswith(inside):
            layers.extend(module)
            inside = (*inside, f"{name}.")
    return layers


@contextmanager
def measured(
    recorder: Recorder,
    session: Session,
    model_name: str,
    parts: Sequence[Parts],
    layers: Sequence[nn.Module],
) -> Iterator[None]:
    """Measure what the recorder was asked for: blocks taken apart, attending layers replayed."""
    replay = _Replay(recorder, session)
    with watched_blocks(parts, recorder, model_name), undone() as changes:
        for layer in layers if VALUE_ZEROING in recorder.record else ():
            changes.hook(layer.register_forward_pre_hook, replay.begin, with_kwargs=True)
            changes.hook(layer.register_forward_hook, replay.end)
        yield


class _Replay:
    """The call of the layer that is running, and what is done when it ends."""

    def __init__(self, recorder: Recorder, session: Session) -> None:
        self.recorder = recorder
        self.session = session
        self.arguments: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}
        self.recorded_before = 0

    def begin(self, layer: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.arguments, self.options = arguments, options
        self.recorded_before = len(self.recorder.layers)

    def end(self, layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        attended = len(self.recorder.layers) - self.recorded_before
        if attended > 1:
            raise UnsupportedModelError(
                f"A {type(layer).__name__} attends {attended} times, so zeroing a value in it is "
                f"not one thing and {VALUE_ZEROING!r} cannot be measured."
            )
        if attended == 1:
            with torch.no_grad():
                self.recorder.measure(VALUE_ZEROING, self._distances(layer, _states(output)))

    def _distances(self, layer: nn.Module, output: Tensor) -> Tensor:
        """(batch, n, n): the cosine distance of each position's output, for each zeroed source."""
        batch, length = output.shape[:2]
        distances = torch.zeros(batch, length, length, dtype=torch.float64)
        step = max(1, _WEIGHTS_AT_ONCE // length**2)
        for example in range(batch):
            again = self._run(layer, example, batch, [[]])
            _check_replay(layer, again[0], output[example])
            for start in range(0, length, step):
                # how many positions of all layers are done, if their number is known
                done = (len(self.recorder.layers) - 1) * batch * length + example * length + start
                tell(VALUE_ZEROING, done, self.recorder.expected * batch * length)
                positions = range(start, min(start + step, length))
                turned = self._run(layer, example, batch, [[k] for k in positions])
                near = torch.cosine_similarity(turned.double(), again.double(), dim=-1)
                distances[example][:, list(positions)] = (1 - near).clamp(min=0).T.cpu()
        return distances

    def _run(self, layer: nn.Module, example: int, batch: int, silent: list[list[int]]) -> Tensor:
        """Run the layer on copies of one example, values at `silent` positions zeroed."""
        copies = len(silent)
        with self.session.replay(Intervention(zero_values=silent)):
            arguments = [_copies(x, example, batch, copies) for x in self.arguments]
            options = {name: _copies(x, example, batch, copies) for name, x in self.options.items()}
            if "use_cache" in options:
                options["use_cache"] = False
            return _states(layer.forward(*arguments, **options))


def _copies(argument: Any, example: int, batch: int, count: int) -> Any:
    """One example of an argument over the batch, `count` times; a cache is left out, being full."""
    if is_cache(argument):
        return None
    if isinstance(argument, (tuple, list)):
        return type(argument)(_copies(part, example, batch, count) for part in argument)
    if isinstance(argument, Tensor) and argument.ndim > 1 and len(argument) == batch:
        return argument[example : example + 1].expand(count, *argument.shape[1:])
    return argument


def _states(output: Any) -> Tensor:
    """A layer's output, (batch, positions, width), whatever else it returns beside it."""
    states: Tensor = output[0] if isinstance(output, (tuple, list)) else output
    return states


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two outputs, as a share of the first one's spread."""
    return float((one - other).float().abs().max()) / (float(one.float().std()) or 1.0)


def _check_replay(layer: nn.Module, again: Tensor, output: Tensor) -> None:
    apart = distance(output, again)
    if not apart <= ROUNDING.get(str(output.dtype).removeprefix("torch."), 1e-3):
        raise CaptureError(
            f"A {type(layer).__name__} that runs again on the same input gives another output "
            f"(relative difference {apart:.1e}), so the effect of zeroing a value in it cannot be "
            "measured. Gradient methods work on this model."
        )
