"""Every model type of transformers that can be explained, tiny and random.

`python tests/sweep.py` examines the causal ones, `python tests/sweep.py TASK [TYPE ...]` those of
another task. Weights are held against the model's own eager attention, gradients against autograd
through the eager graph, balanced gradients kept as weights against those kept as factors; the pass
under their rules must be the plain one to the last bit. A type agrees, or is refused in a sentence;
a wrong number and an error without a sentence are faults.
"""

from __future__ import annotations

import copy
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.gpt_oss import modeling_gpt_oss

import attnflow
import tiny
from attnflow.errors import AttnflowError, UnsupportedModelError
from attnflow.hosts.balanced import balanced
from attnflow.hosts.load import as_model
from attnflow.hosts.restore import undone
from attnflow.hosts.scores import InputLeaves
from attnflow.methods import BalancedGradient, GradientAttention

Array = NDArray[Any]
Layers = list[tuple[str, Array]]
Inputs = dict[str, Tensor]
Outcome = Literal["agrees", "refused", "wrong", "bare", "not built"]
IDS = torch.tensor([[1, 5, 6, 7, 8, 9, 10, 11, 12, 4]])
MASK = 7  # in the place of a word, for models that fill it in
SAME = 2e-5
SAME_BALANCED = 2e-4  # states that grow from layer to layer (MobileBERT) cost digits
# Types that cannot be run by themselves, or not here.
NOT_ALONE = {
    "gemma4_assistant": "runs on the cache of the model that it assists",
    "gemma4_unified_assistant": "runs on the cache of the model that it assists",
    "gemma3n": "its part for images is a model of timm",
}


class Task(NamedTuple):
    """What models are for: their classes by type, and inputs for a config."""

    types: Mapping[str, str]
    inputs: Callable[[Any], Inputs]


def _words(_: Any) -> Inputs:
    return {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def _ended_words(config: Any) -> Inputs:
    """A text whose last token ends it, where some classifiers read their class."""
    end = getattr(config, "eos_token_id", None)
    ids = torch.cat([IDS[:, :-1], torch.tensor([[end if isinstance(end, int) else 4]])], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _both_sides(config: Any) -> Inputs:
    return {**_words(config), "decoder_input_ids": IDS[:, :4]}


def _pixels(config: Any) -> Inputs:
    size = getattr(config, "image_size", 32)
    height, width = (size, size) if isinstance(size, int) else size
    noise = torch.Generator().manual_seed(0)
    return {"pixel_values": torch.randn(1, 3, height, width, generator=noise)}


def _sound(config: Any) -> Inputs:
    noise = torch.Generator().manual_seed(0)
    if config.model_type == "wav2vec2-bert":
        return {"input_features": torch.randn(1, 12, 160, generator=noise)}
    if (bins := getattr(config, "num_mel_bins", None)) is None:
        return {"input_values": torch.randn(1, 1600, generator=noise)}
    if (length := getattr(config, "max_length", None)) is not None:
        return {"input_values": torch.randn(1, length, bins, generator=noise)}
    frames = 2 * getattr(config, "max_source_positions", 10)
    return {"input_features": torch.randn(1, bins, frames, generator=noise)}


def _speech(config: Any) -> Inputs:
    return {**_sound(config), "decoder_input_ids": IDS[:, :4]}


TASKS = {
    "causal": Task(CAUSAL, _words),
    "masked": Task(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, _words),
    "texts": Task(auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, _ended_words),
    "both": Task(auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, _both_sides),
    "speech": Task(auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, _speech),
    "images": Task(auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, _pixels),
    "audio": Task(auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES, _sound),
}


class Line(NamedTuple):
    """What became of one model type."""

    kind: str
    outcome: Outcome
    detail: str


class _Words(SimpleNamespace):
    """As much of a tokenizer as a model needs that fills in a mask."""

    mask_token_id, all_special_ids = MASK, ()

    def __call__(self, *_: Any, **__: Any) -> None: ...

    def convert_ids_to_tokens(self, ids: Any) -> list[str]:
        return list(map(str, ids))


def build(kind: str, task: str = "causal") -> Any:
    """A tiny random model of a type."""
    names = TASKS[task].types[kind]
    names = names if isinstance(names, str) else names[0]
    return tiny.build(kind, names, TASKS[task].inputs, decoder=task == "causal")


# --- references -----------------------------------------------------------------------------------


def eager_layers(outputs: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights that a model returns with their stages, in the order in which it attends.

    A decoder attends to itself and then to the encoder, layer by layer.
    """
    if getattr(outputs, "encoder_attentions", None) is None:
        yield from (("self", one) for one in getattr(outputs, "attentions", None) or ())
        return
    yield from (("encoder", one) for one in outputs.encoder_attentions)
    for own, other in zip(outputs.decoder_attentions, outputs.cross_attentions, strict=True):
        yield "decoder", own
        yield "cross", other


def best_score(logits: Tensor, inputs: Mapping[str, Tensor], model: Any) -> Tensor:
    """The log-probability of a model's answer: a class, the word under the mask, the next word."""
    row = logits[0]
    if logits.ndim == 3:
        filled = type(model).__name__.endswith("ForMaskedLM")
        row = row[inputs["input_ids"][0].tolist().index(MASK) if filled else -1]
    return row.log_softmax(dim=-1).max()


def by_autograd(model: Any, inputs: Mapping[str, Tensor]) -> tuple[Layers, Layers] | None:
    """The weights of every layer and their gradients, by the eager graph.

    model: with eager attention. None where it shows no weights that its answer depends on.
    """
    with torch.enable_grad():
        options = (
            {} if "pixel_values" in inputs or "input_values" in inputs else {"use_cache": False}
        )
        outputs = model(**inputs, output_attentions=True, **options)
        layers = [(stage, one) for stage, one in eager_layers(outputs) if one is not None]
        if not layers or any(one.ndim != 4 for _, one in layers):
            return None
        score = best_score(outputs.logits, inputs, model)
        gradients = torch.autograd.grad(score, [one for _, one in layers], allow_unused=True)
    if any(gradient is None for gradient in gradients):
        return None
    pairs = zip(layers, gradients, strict=True)
    return (
        [(stage, one[0].detach().numpy()) for stage, one in layers],
        [(stage, gradient[0].numpy()) for (stage, _), gradient in pairs],
    )


def autograd_rows(model: Any, ids: Tensor) -> tuple[list[Array], Array] | None:
    """The weights of every layer, and the last row of gradient attention, by the eager graph."""
    found = by_autograd(model, {"input_ids": ids})
    if found is None:
        return None
    weights, gradients = ([one for _, one in layers] for layers in found)
    return weights, _last_rows(weights, gradients)


def _last_rows(weights: list[Array], gradients: list[Array]) -> Array:
    pairs = zip(weights, gradients, strict=True)
    return np.stack([(a[:, -1] * g[:, -1]).clip(min=0).mean(axis=0) for a, g in pairs])


def eager_reference(model: Any, inputs: Mapping[str, Tensor]) -> tuple[Layers, Layers] | None:
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
        return by_autograd(eager.eval(), inputs)
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


def furthest(stack: Any, layers: Layers, encoder_length: int | None) -> float:
    """How far a trace's layers are from these; of an encoder–decoder each has its own corner."""
    if len(stack) != len(layers):
        return float("inf")
    first, second = slice(0, encoder_length), slice(encoder_length, None)
    places = {
        "self": (slice(None), slice(None)), "encoder": (first, first),
        "decoder": (second, second), "cross": (second, first),
    }  # fmt: skip
    corners = [one[:, *places[stage]] for one, (stage, _) in zip(stack, layers, strict=True)]
    return max(distance(a, b) for a, (_, b) in zip(corners, layers, strict=True))


def forward_is_the_same(model: Any, inputs: Inputs) -> bool:
    """Whether a pass under the rules of balanced gradients gives the plain one's bits."""
    outputs = []
    model.requires_grad_(False)  # torch takes another kernel for a mask that is a parameter
    with undone() as changes, torch.enable_grad():
        InputLeaves().watch(model, model.get_input_embeddings(), changes)
        outputs.append(model(**inputs).logits)
        with balanced(model, changes):
            outputs.append(model(**inputs).logits)
    model.requires_grad_(True)
    return torch.equal(*outputs)


def positions_read(model: Any, inputs: Inputs) -> set[int] | None:
    """The last hidden states that the answer depends on; None where a model shows none."""
    states: list[Any] = []
    hook = model.base_model.register_forward_hook(
        lambda *arguments: states.append(getattr(arguments[2], "last_hidden_state", None))
    )
    with torch.enable_grad():
        score = best_score(model(**inputs).logits, inputs, model)
    hook.remove()
    if len(states) != 1 or states[0] is None or not states[0].requires_grad:
        return None
    (gradient,) = torch.autograd.grad(score, states[0], allow_unused=True)
    return None if gradient is None else set(gradient[0].any(dim=-1).nonzero()[:, 0].tolist())


# --- one type -------------------------------------------------------------------------------------


class Examination:
    """What was found of one model so far."""

    def __init__(self, model: Any, inputs: Inputs, task: str) -> None:
        self.model, self.inputs, self.task = model, inputs, task
        self.held = (model, _Words()) if task == "masked" else model
        self.notes: list[str] = []
        self.wrong = False

    def compare(self, what: str, off: float, limit: float = SAME) -> None:
        self.wrong |= not off <= limit
        self.notes.append(f"{what} {off:.0e}")

    def run(self) -> None:
        """All that is compared, in turn."""
        try:
            reference = eager_reference(self.model, self.inputs)
        except Exception as error:
            reference = None
            self.notes.append(f"no eager reference ({type(error).__name__}: {str(error)[:80]})")
        trace = attnflow.capture(self.held, self.inputs)
        if reference is None:
            self.notes.append("weights unchecked")
        else:
            self.compare("weights", furthest(trace.weights, reference[0], trace.encoder_length))
        self.take_gradients(reference)
        self.find_answer(trace)
        attnflow.explain(self.held, self.inputs)  # by whatever is the default
        if "input_ids" in self.inputs:
            self.balance()
        if self.task == "causal":
            attnflow.generate(self.held, self.inputs, max_new_tokens=2, min_new_tokens=2)

    def take_gradients(self, reference: tuple[Layers, Layers] | None) -> None:
        if self.task == "causal":
            rows = last_row(self.held, self.inputs)
            if reference is not None:
                weights, gradients = ([one for _, one in layers] for layers in reference)
                self.compare("gradients", distance(rows, _last_rows(weights, gradients)))
            return
        trace = attnflow.capture(self.held, self.inputs, record=["gradients"])
        if reference is not None:
            off = furthest(trace.gradients, reference[1], trace.encoder_length)
            self.compare("gradients", off)

    def find_answer(self, trace: Any) -> None:
        """The prediction must stand where the model reads it."""
        read = positions_read(self.model, self.inputs)
        if read is None or trace.prediction is None or trace.stages is not None:
            return
        pooled, place = trace.prediction.pooled, {trace.prediction.position}
        right = len(read) > 1 if pooled else read in (place, {0, 1})  # or a second class token
        self.wrong |= not right
        if not right:
            self.notes.append(f"answer at {sorted(read)}, not {'all' if pooled else place}")

    def balance(self) -> None:
        self.wrong |= not (same := forward_is_the_same(self.model, self.inputs))
        self.notes.append(f"forward {'same' if same else 'DIFFERS'}")
        if not as_model(self.model).adapter.supports_factors(self.model, self.inputs):
            return
        fair, ways = BalancedGradient(), []
        for form in ("weights", "factors"):
            try:
                trace = attnflow.capture(self.held, self.inputs, methods=[fair], form=form)
            except UnsupportedModelError as error:
                if form == "weights":
                    raise
                self.notes.append(f"no factors ({str(error)[:60]})")
                return
            ways.append(fair(trace).values)
        self.compare("balanced", distance(*ways), SAME_BALANCED)


def examine(kind: str, task: str = "causal") -> Line:
    """Try one type."""
    if kind in NOT_ALONE:
        return Line(kind, "not built", NOT_ALONE[kind])
    try:
        model = build(kind, task)
    except Exception as error:
        return Line(kind, "not built", f"{type(error).__name__}: {str(error)[:200]}")
    examination = Examination(model, TASKS[task].inputs(model.config), task)
    notes = examination.notes
    try:
        examination.run()
    except AttnflowError as error:
        notes.append(f"{type(error).__name__}: {error}")
        return Line(kind, "wrong" if examination.wrong else "refused", "; ".join(notes))
    except Exception as error:
        place = [f"{f.name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)][-3:]
        notes.append(f"{type(error).__name__}: {str(error)[:200]} {place}")
        return Line(kind, "bare", "; ".join(notes))
    return Line(kind, "wrong" if examination.wrong else "agrees", "; ".join(notes))


def main(task: str = "causal", *kinds: str) -> int:
    """Examine these types of a task, or all; a line for each, then the counts."""
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    counts: Counter[str] = Counter()
    for kind in kinds or TASKS[task].types:
        line = examine(kind, task)
        counts[line.outcome] += 1
        print(f"{line.outcome:9} {line.kind:24} {line.detail[:400]}", flush=True)
    print(dict(counts))
    return int(counts["wrong"] + counts["bare"] > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
