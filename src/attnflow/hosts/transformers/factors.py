"""How a transformers model's attention is held as factors, while its own fused kernels compute it.

Our attention function takes queries and keys after their rotary embedding, runs the fused kernel
that torch would have run, and keeps what it was given. Which keys a query may see is asked of the
model's own mask function at a few rows; a mask that is no band around the diagonal is refused, and
so is a layer whose output at those rows is not what its factors give: nothing is ever assumed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from attnflow.errors import CaptureError, UnsupportedModelError
from attnflow.hosts.balanced import (
    BalancedRules,
    as_one_operation,
    attention_shares,
    take_activations_as_one,
)
from attnflow.hosts.restore import Changes
from attnflow.hosts.scores import InputLeaves, token_scores
from attnflow.hosts.transformers.attention import AttentionCall, AttentionHandler, handle_attention
from attnflow.hosts.transformers.fused import Attended, attend, constant_others, visible_keys
from attnflow.kernels.blocks import Band, Factors, weight_rows
from attnflow.kernels.layer import FactoredLayer, ReadLayer, aside
from attnflow.trace.extras import LOG_PROB

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ROWS_OF_SCORES = 512  # positions whose scores over the vocabulary are in memory at a time
_CHECKED_ROWS = 6  # of every layer, spread over the text, at which factors are held to its output
_AGREEMENT = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}


class _SpansArrived(Exception):  # noqa: N818 - no error: the pass has done its work
    """Spans have passed the highest layer: what the model would compute above it is not needed."""


@dataclass(eq=False)
class FactorRecording(AttentionHandler):
    """The factors of one forward pass, layer by layer.

    gradients: whether values and output gradients are kept too. own_rows: hold the keys and values
    of other positions constant, so that each row's gradient is that of its own answer. spans:
    passed by every layer as it runs, where nothing is to be kept. going_back: blocks are computed
    again for the backward pass, and are kept already. balanced: gradients are those of
    `hosts.balanced`. computes_again: blocks keep their inputs only, and what their attention gave.
    rows: the positions whose rows are read on the way back, where no factors are kept. keys:
    whether the sums over all rows are read beside them. on_host: what blocks keep waits in the
    host's memory.
    """

    gradients: bool = False
    own_rows: bool = False
    balanced: bool = False
    computes_again: bool = False
    on_host: bool = False
    rows: tuple[int, ...] | None = None
    keys: bool = False
    spans: Any = None
    going_back: bool = False
    factors: dict[nn.Module, Factors] = field(default_factory=dict)
    sums: dict[nn.Module, Tensor] = field(default_factory=dict)
    attended: dict[nn.Module, Attended] = field(default_factory=dict)
    read: dict[nn.Module, ReadLayer] = field(default_factory=dict)
    numbers: list[int | None] = field(default_factory=list)
    bands: dict[tuple[int, bool], Band] = field(default_factory=dict)
    differences: list[tuple[str, Tensor]] = field(default_factory=list)
    inputs: InputLeaves = field(default_factory=InputLeaves)
    relevance: list[Tensor] = field(default_factory=list)
    uncovered: set[str] = field(default_factory=set)
    dtype: torch.dtype = torch.float32
    causal: bool = False

    def layers(self) -> Sequence[FactoredLayer | ReadLayer]:
        """Return every layer, in the order in which they ran."""
        if self.gradients:
            gradients = [self.read.get(m, layer.gradient) for m, layer in self.factors.items()]
            if missing := sum(gradient is None for gradient in gradients):
                raise CaptureError(
                    f"The gradient did not reach {missing} of {len(self.factors)} layers with "
                    "attention, so a result would leave some of them out."
                )
        if self.rows is not None:
            return [self.read[module] for module in self.factors]
        return [FactoredLayer(layer, self.sums[module]) for module, layer in self.factors.items()]

    def check(self) -> None:
        """Check that the factors gave every layer's own output; looked at once, at the end."""
        if not self.differences:
            return
        names, shares = zip(*self.differences, strict=True)
        limit = _AGREEMENT.get(self.dtype, 1e-3)
        for name, off in zip(names, torch.stack(shares).tolist(), strict=True):
            if not off <= limit:
                raise UnsupportedModelError(
                    f"{name} computes its attention in a way that is not known here: its "
                    f"output is off by {off:.3g} of its size from that of its queries and keys, "
                    f"more than {limit:g}. Use form='weights'."
                )

    def contexts(self) -> tuple[Any, Any]:
        """Return the blocks under which a layer runs: at first, and again on the way back.

        Torch goes back outside of any function mode, and on a device in a thread of its own.
        """
        return nullcontext(), BalancedRules() if self.balanced else nullcontext()

    @property
    def any_thread(self) -> bool:  # type: ignore[override]
        """The backward pass of a device computes blocks again in a thread of its own."""
        return self.going_back and self.computes_again

    def make_mask(self, **arguments: Any) -> Any:
        """Return `(rows, keys)`: what a few rows of a text may see, in place of all of them."""
        rows = _sampled(arguments["kv_length"], torch.device(arguments.get("device", "cpu")))
        keys = torch.arange(arguments["kv_length"], device=rows.device)
        zero = torch.zeros((), dtype=torch.long, device=rows.device)
        visible = arguments["mask_function"](zero, zero, rows[:, None], keys[None])
        return torch.as_tensor(visible, device=rows.device).expand(len(rows), len(keys))

    def attend(self, call: AttentionCall) -> Tensor:
        """Attend by a fused kernel; keep what it was given, and compare a few rows with it."""
        with as_one_operation():
            return self._attend(call)

    def _attend(self, call: AttentionCall) -> Tensor:
        if self.balanced:
            query, key, value = attention_shares(call.query, call.key, call.value)
            call = replace(call, query=query, key=key, value=value)
        layer, value = self._factors(call), call.value[0]
        known: Any = {"attended": self.attended.get(call.module)}
        if self.gradients:
            known["report"] = partial(self._add_gradient, call.module)
        if self.own_rows:
            output, attended = constant_others(layer, value, **known)
        else:
            output, attended = attend(layer, value, secant=self.balanced, **known)
        arranged = output[None].transpose(1, 2).contiguous()
        if self.going_back:
            return arranged
        if self.computes_again:
            output_kept = aside(attended.output) if self.on_host else attended.output
            self.attended[call.module] = replace(attended, output=output_kept)
        plain = replace(layer, query=layer.query.detach(), key=layer.key.detach())
        difference = _difference(plain, value.detach(), output.detach(), attended.sums)
        self.differences.append((type(call.module).__name__, difference))
        if self.gradients:
            plain = replace(plain, value=value.detach())
        self._add(call, plain, attended.sums)
        if self.spans is not None and self.spans.arrived:
            raise _SpansArrived
        return arranged

    def _factors(self, call: AttentionCall) -> Factors:
        """Return what the module was given, with the scale, cap and sink of its own options."""
        query, key, module = call.query[0], call.key[0], call.module
        if call.options.get("position_bias") is not None or query.shape[1:] != key.shape[1:]:
            raise UnsupportedModelError(
                f"{type(module).__name__} adds a bias to its scores or attends to other positions "
                "than its own, so queries and keys alone do not give its weights. Use "
                "form='weights'."
            )
        causal = call.options.get("is_causal")
        causal = bool(getattr(module, "is_causal", False) if causal is None else causal)
        place = (id(call.mask), causal)
        if place not in self.bands:  # asked once for each mask: looking at it waits for the device
            self.bands[place] = _band(module, call.mask, query.shape[1], causal)
        sink = None if call.sink is None else call.sink.detach()
        return Factors(
            query, key, scale=call.scaling, band=self.bands[place], softcap=call.softcap, sink=sink
        )

    def _add(self, call: AttentionCall, layer: Factors, sums: Tensor) -> None:
        """Keep one layer as it ran, or hand it on at once where spans go up."""
        module = call.module
        self.dtype, self.causal = layer.query.dtype, layer.band.after == 0
        self.numbers.append(call.number)
        if self.spans is not None:
            self.spans.pass_layer(FactoredLayer(layer, sums), self.numbers[-1])
            return
        if module in self.factors:
            raise UnsupportedModelError(
                f"{type(module).__name__} runs more than once in a pass, as layers that share "
                "their parameters do; factors are kept once for each. Use form='weights'."
            )
        if self.rows is not None:  # there will be rows in the place of factors
            empty = layer.query.new_empty(1, 0, 1)
            layer = Factors(empty, empty, layer.scale)
        else:
            self.sums[module] = aside(sums)
        self.factors[module] = layer

    def _add_gradient(self, module: nn.Module, layer: Factors, sums: Tensor) -> None:
        """Keep a layer's values and the gradient of its output, as the backward pass meets it."""
        if self.rows is not None:
            self.read[module] = ReadLayer(FactoredLayer(layer, sums), self.rows, keys=self.keys)
        else:
            self.factors[module] = layer


def _sampled(length: int, device: torch.device) -> Tensor:
    return torch.linspace(0, length - 1, min(_CHECKED_ROWS, length), device=device).round().long()


def _band(module: nn.Module, mask: Any, length: int, causal: bool) -> Band:
    """The band that the model's mask function shows at the sampled rows."""
    if mask is None:
        return Band.causal() if causal else Band()
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] == length:
        rows, keys = _sampled(length, mask.device), torch.arange(length, device=mask.device)
        firsts = torch.where(mask.bool(), keys, length).amin(dim=1)
        lasts = torch.where(mask.bool(), keys, -1).amax(dim=1)
        band = Band(
            None if firsts[-1] == 0 else int((rows - firsts).max()),
            None if lasts[0] == length - 1 else int((lasts - rows).max()),
        )
        if torch.equal(visible_keys(band, rows, keys), mask.bool()):
            return band
    raise UnsupportedModelError(
        f"{type(module).__name__} masks its attention in a way that is not a band around the "
        "diagonal, so factors do not describe it. Use form='weights'."
    )


def _difference(layer: Factors, value: Tensor, output: Tensor, sums: Tensor) -> Tensor:
    """Return how far the factors' output is from the layer's own, as a share of its size."""
    rows = _sampled(layer.length, value.device)
    weights = weight_rows(layer, sums[:, rows], rows)
    grouped = weights.view(len(value), -1, layer.length)
    # in the model's own numbers, as its attention multiplies: a device is slow at few long rows in
    # float32
    expected = (grouped.to(value) @ value).float().view(layer.heads, len(rows), -1)
    off = (expected - output[:, rows].float()).abs().amax()
    return off / expected.abs().amax().clamp(min=1e-30)


@contextmanager
def _holding_factors(model: PreTrainedModel, recording: FactorRecording) -> Iterator[Changes]:
    """Every attention of the model is held as factors; then all is as it was.

    With gradients each block of a long text is computed a second time on the way back instead of
    keeping what it computed, where the model's file offers that; the embedded tokens are the one
    leaf of the graph, so that no parameter is touched.
    """
    with handle_attention(model, recording) as changes:
        if recording.gradients:
            streams = recording.balanced and not recording.own_rows
            words = model.get_input_embeddings()
            recording.inputs.watch(model, words, changes, streams=streams)
        if recording.computes_again:
            from transformers.modeling_layers import GradientCheckpointingLayer

            for module in model.modules():
                if isinstance(module, GradientCheckpointingLayer):
                    changes.add(partial(_give_back_forward, module, vars(module).get("forward")))
                    again = partial(_compute_again, recording, module.forward)
                    module.__dict__["forward"] = again
        if recording.balanced:
            take_activations_as_one(model, changes)
        yield changes


def _compute_again(recording: FactorRecording, forward: Any, *args: Any, **options: Any) -> Any:
    """Run a block of which only its inputs are kept.

    On the way back it stops where all is there that the way back needs: before its last product.
    What brings offloaded parameters in takes them out at the block's end, so there it runs on.
    """
    pinned = torch.cuda.is_available()
    keeping = save_on_cpu(pin_memory=pinned) if recording.on_host else nullcontext()
    with set_checkpoint_early_stop(not _brings_parameters(forward)), keeping:
        return checkpoint(
            forward, *args, **options, context_fn=recording.contexts, use_reentrant=False
        )


def _brings_parameters(forward: Any) -> bool:
    """Return whether accelerate puts parameters into the modules of a block while they run."""
    block = getattr(forward, "__self__", None)
    if not isinstance(block, nn.Module):  # accelerate's own forward, for one
        return True
    return any("_hf_hook" in vars(module) for module in block.modules())


def _give_back_forward(module: nn.Module, before: Any) -> None:
    """Put back what a block ran with: its class's own, or what accelerate or a compiler set."""
    module.__dict__.pop("forward", None)
    if before is not None:
        module.__dict__["forward"] = before


@dataclass(eq=False)
class FactoredRun:
    """A forward pass whose attention was held as factors, and the way back through it.

    hidden: (1, n, width), what the model's head reads, where gradients are asked for.
    """

    model: PreTrainedModel
    recording: FactorRecording
    outputs: Any = None
    hidden: Tensor | None = None

    def run(self, inputs: Mapping[str, Tensor], scored: int = 1) -> FactoredRun:
        """Run one forward pass; of a language model's scores only those of the last positions."""
        parameters = inspect.signature(self.model.forward).parameters
        wishes: dict[str, Any] = {"use_cache": False}
        if self.model.can_generate():  # a classifier finds its row among all of them
            wishes["logits_to_keep"] = scored
        options = {name: wish for name, wish in wishes.items() if name in parameters}
        rules = BalancedRules()
        with suppress(_SpansArrived), _holding_factors(self.model, self.recording) as changes:
            changes.hook(self.model.base_model.register_forward_hook, self._keep_hidden)
            with rules if self.recording.balanced else nullcontext():
                self.outputs = self.model(**inputs, **options)
        self.recording.uncovered |= rules.uncovered
        return self  # `recording.check()` waits for the device: whoever asked does it

    def _keep_hidden(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.hidden = getattr(output, "last_hidden_state", None)

    def go_back(self, root: Tensor, gradient: Tensor | None = None, *, last: bool = True) -> None:
        """Send a gradient down to the embedded tokens; keep each layer's on its way.

        last: nobody goes back again after this.
        """
        leaves = self.recording.inputs
        with _holding_factors(self.model, replace(self.recording, going_back=True)):
            gradients = torch.autograd.grad(root, leaves.leaves, gradient, not last)
        self.recording.relevance = [each[0] for each in leaves.relevance(gradients)]

    def go_back_by_rows(self, ids: Tensor, last: int) -> None:
        """Return the gradient of each position's own answer, which is the token that follows it."""
        if self.hidden is None:
            raise CaptureError(f"{type(self.model).__name__} shows no last hidden state.")
        tokens = torch.cat([ids[1:], ids.new_tensor([last])])
        head = _checked_head(self.model, self.hidden, self.outputs.logits)
        gradient = torch.empty_like(self.hidden)
        for start in range(0, len(tokens), _ROWS_OF_SCORES):
            rows = slice(start, start + _ROWS_OF_SCORES)
            part = self.hidden[:, rows].detach().requires_grad_()
            scores = token_scores(head(part), tokens[None, rows], LOG_PROB)
            (gradient[:, rows],) = torch.autograd.grad(scores.sum(), part)
        self.go_back(self.hidden, gradient)


def _checked_head(model: PreTrainedModel, hidden: Tensor, logits: Tensor) -> Any:
    """The model's output embedding, if it alone makes scores of hidden states."""
    head = model.get_output_embeddings()
    if head is not None and torch.equal(head(hidden[:, -1:]), logits[:, -1:]):
        return head
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if head is not None and cap is not None:
        return lambda states: torch.tanh(head(states) / cap) * cap
    raise UnsupportedModelError(
        f"{type(model).__name__} makes its scores in a way that is not known here; use "
        "form='weights'."
    )
