"""Each peer as a function of a case: a score for each prompt token or each source.

The peers run as they are on PyPI, with their own defaults. What had to be bent is said beside it.
These files need torch, transformers and the peer, and nothing of attnflow.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_STEPS = 32
_ABLATIONS = 32
_ROWS = 8  # variants of a prompt that run at once,
_TOKENS = 4_096  # and fewer of long ones where what they computed is kept
_EACH = 3  # axes of logits that each position has


class Case:
    """One prompt with its completion, and what peers need of it."""

    def __init__(self, model: Any, tokenizer: Any, entry: dict[str, Any]) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.prompt: list[int] = entry["prompt"]
        self.completion: list[int] = entry["completion"]
        self.sources: list[list[int]] = entry["sources"]
        self.place: int | None = entry.get("place")
        self._blank: int | None = entry.get("blank")

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def prompt_text(self) -> str:
        """The prompt as text, which must become the same tokens."""
        return self._text(self.prompt)

    @property
    def completion_text(self) -> str:
        """The completion as text."""
        return self._text(self.completion)

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def logits(self, **inputs: Tensor) -> Tensor:
        """(completion): the logit of each of its tokens, for one prompt with its completion."""
        logits = self.model(**inputs, use_cache=False).logits[0]
        completion = torch.tensor(self.completion, device=logits.device)
        return logits[len(self.prompt) - 1 : -1].gather(1, completion[:, None])[:, 0]

    def log_prob(self, prompts: Tensor) -> Tensor:
        """The log-probability of the completion after each of a batch of prompts.

        Of a model that does not write it is that of a class, read at a place where each has one.
        """
        if self.place is not None:
            logits = self.model(input_ids=prompts).logits
            logits = logits[:, self.place] if logits.dim() == _EACH else logits
            return logits.float().log_softmax(-1)[:, self.completion[0]]
        completion = torch.tensor([self.completion], device=prompts.device)
        own = completion.expand(len(prompts), -1)
        if self.model.config.is_encoder_decoder:
            start = self.model.generation_config.decoder_start_token_id
            decoder_ids = torch.cat([torch.full_like(own[:, :1], start), own[:, :-1]], dim=1)
            logits = self.model(input_ids=prompts, decoder_input_ids=decoder_ids).logits
        else:
            ids, places = torch.cat([prompts, own], dim=1), own.shape[1] + 1
            takes = inspect.signature(self.model.forward).parameters
            few = {"logits_to_keep": places} if "logits_to_keep" in takes else {}
            logits = self.model(input_ids=ids, **few).logits[:, -places:-1]
        predicting = logits.float().log_softmax(-1)
        return predicting.gather(2, own[:, :, None]).sum(dim=(1, 2))

    def log_odds(self, prompts: Tensor) -> Tensor:
        """The same as log odds, which a sure answer still moves; our own reruns have them, too."""
        log_prob = self.log_prob(prompts).double()
        return log_prob - torch.log((-torch.expm1(log_prob)).clamp_min(1e-12))

    def blank(self) -> int:
        """The token that was told, or a space or the unknown one, in the place of what is left."""
        if self._blank is not None:
            return self._blank
        space = self.tokenizer(" ", add_special_tokens=False)["input_ids"]
        return int(space[0] if len(space) == 1 else self.tokenizer.unk_token_id or 0)

    def blanked(self) -> Tensor:
        """(1, prompt): the prompt with every source blanked, and what is no source as it is."""
        ids = torch.tensor([self.prompt], device=self.device)
        return torch.where(self.groups() < len(self.sources), self.blank(), ids)

    def groups(self) -> Tensor:
        """(1, prompt): the source of each token; what is no source is one more."""
        groups = torch.full((1, len(self.prompt)), len(self.sources), device=self.device)
        for number, positions in enumerate(self.sources):
            groups[0, positions] = number
        return groups


def attnlrp(case: Case) -> Tensor:
    """AttnLRP by lxt: input × gradient of the summed logits, with the classes that it patched."""
    ids = torch.tensor([case.prompt + case.completion], device=case.device)
    embedded = case.model.get_input_embeddings()(ids).detach().requires_grad_()
    case.logits(inputs_embeds=embedded).sum().backward()
    return (embedded * embedded.grad).sum(-1)[0, : len(case.prompt)]


def gim(case: Case) -> Tensor:
    """GIM's explain() as it is called, for the sum of the completion's logits.

    On a Llama of transformers only one of its three rules has an effect, that on queries, keys and
    values: it looks for torch's RMSNorm and for a softmax of its own step.
    """
    explain = importlib.import_module("gim").explain

    class SummedLogits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = case.model

        def get_input_embeddings(self) -> Any:
            return self.model.get_input_embeddings()

        def forward(self, inputs_embeds: Tensor, **_: Any) -> Tensor:
            return case.logits(inputs_embeds=inputs_embeds).sum().view(1, 1, 1)

    ids = torch.tensor([case.prompt + case.completion], device=case.device)
    values = explain(SummedLogits(), ids, target_token_id=0, tokenizer=case.tokenizer)
    return torch.as_tensor(values)[: len(case.prompt)]


def gim_all_rules(case: Case) -> Tensor:
    """GIM with every rule of it in effect, as its paper has it."""
    with _torch_layers(case.model):
        return gim(case)


@contextmanager
def _torch_layers(model: nn.Module) -> Iterator[None]:
    """Exchange a Llama's norms and its fused attention for torch's own steps, the same forward."""
    functional: Any = nn.functional
    fused = functional.scaled_dot_product_attention
    norms: list[tuple[nn.Module, str, Any]] = [
        (parent, name, norm)
        for parent in model.modules()
        for name, norm in parent.named_children()
        if type(norm).__name__ in ("LlamaRMSNorm", "Qwen2RMSNorm")
    ]
    if not norms:
        raise NotImplementedError("GIM's rule for norms is put into force for Llama and Qwen2 only")

    def attend(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(groups, dim=1) for each in (k, v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return nn.functional.softmax(scores.masked_fill(ahead, -torch.inf), dim=-1) @ v

    try:
        functional.scaled_dot_product_attention = attend
        for parent, name, norm in norms:
            plain = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon)
            plain.weight = norm.weight
            setattr(parent, name, plain)
        yield
    finally:
        functional.scaled_dot_product_attention = fused
        for parent, name, norm in norms:
            setattr(parent, name, norm)


def flashtrace(case: Case, method: str = "flashtrace") -> Any:
    """FlashTrace's public call, for the completion as one span, prompt as it is."""
    tracer = importlib.import_module("flashtrace").FlashTrace(
        case.model, case.tokenizer, recompute_attention=True
    )
    span = (0, len(case.completion) - 1)
    text, target = case.prompt_text, case.completion_text
    return tracer.trace(prompt=text, target=target, output_span=span, method=method).scores


def information_flow_routes(case: Case) -> Any:
    """Information flow routes (IFR) of the completion as one span, as FlashTrace has them."""
    return flashtrace(case, "ifr-span")


def context_cite(case: Case) -> Any:
    """ContextCite with 32 ablations; a partition of its own kind gives it our sources."""
    package: Any = importlib.import_module("context_cite")
    base: Any = importlib.import_module("context_cite.context_partitioner").BaseContextPartitioner

    class Partition(base):  # type: ignore[misc]
        num_sources = len(case.sources)

        def split_context(self) -> None:
            """Split nothing: the sources are there."""

        def get_source(self, index: int) -> str:
            return str(index)

        def get_context(self, mask: Any = None) -> str:
            present = np.ones(len(case.sources), dtype=bool) if mask is None else mask
            own = zip(case.sources, present, strict=True)
            away = {position for source, is_kept in own if not is_kept for position in source}
            return case._text([t for k, t in enumerate(case.prompt) if k not in away])

    class Plain(package.ContextCiter):  # type: ignore[misc]
        """Without the chat template, which our prompts have already, or are not written for."""

        def _get_prompt_ids(self, mask: Any = None, return_prompt: bool = False) -> Any:
            prompt = self.partitioner.get_context(mask)
            ids = self.tokenizer.encode(prompt, add_special_tokens=False)
            return (ids, prompt) if return_prompt else ids

    tokenizer = copy(case.tokenizer)
    tokenizer.padding_side = "left"
    text = case.prompt_text
    options = {"num_ablations": _ABLATIONS, "batch_size": _ROWS, "partitioner": Partition(text)}
    citer = Plain(case.model, tokenizer, text, "", **options)
    citer._cache["output"] = text + case.completion_text
    return citer.get_attributions(verbose=False)


def integrated_gradients(case: Case) -> Tensor:
    """captum's integrated gradients of the log odds, from the blank token's embedding."""
    method = importlib.import_module("captum.attr").LayerIntegratedGradients
    ids = torch.tensor([case.prompt], device=case.device)
    reads = case.model.get_encoder() if case.model.config.is_encoder_decoder else case.model
    values = method(case.log_odds, reads.get_input_embeddings()).attribute(
        ids,
        baselines=case.blanked(),
        n_steps=_STEPS,
        internal_batch_size=max(1, min(_ROWS, _TOKENS // ids.shape[1])),
    )
    return values.sum(-1)[0, : len(case.prompt)]  # the completion's embeddings stay


def shapley_sampling(case: Case) -> Tensor:
    """captum's Shapley value sampling, four orders of our sources, blanks in their place."""
    return _by_sources(case, "ShapleyValueSampling", n_samples=4)


def feature_ablation(case: Case) -> Tensor:
    """captum's feature ablation: every source in turn is replaced by the blank token."""
    return _by_sources(case, "FeatureAblation")


def _by_sources(case: Case, name: str, **options: Any) -> Tensor:
    method = getattr(importlib.import_module("captum.attr"), name)
    with torch.no_grad():
        values = method(case.log_odds).attribute(
            torch.tensor([case.prompt], device=case.device),
            baselines=case.blanked(),
            feature_mask=case.groups(),
            perturbations_per_eval=_ROWS,
            **options,
        )
    return values[0, [positions[0] for positions in case.sources]]


def inseq(case: Case) -> Tensor:
    """inseq's input × gradient, summed as it does by default, over the completion's tokens."""
    package = importlib.import_module("inseq")
    model = package.load_model(case.model, "input_x_gradient", tokenizer=case.tokenizer)
    text = case.prompt_text
    result = model.attribute(
        text,
        text + case.completion_text,
        show_progress=False,
        skip_special_tokens=False,
        attributed_fn="logit",
    )
    values = result.sequence_attributions[0].aggregate().target_attributions
    return torch.nan_to_num(values[: len(case.prompt)]).sum(-1)


class At2:
    """AT2's estimator, trained by its own trainer on cases that are not reported.

    Its published estimators are for other models. Each prompt is followed by 16 tokens of the
    model's own, each of them a target, over 32 ablations of its sources.
    """

    def __init__(self) -> None:
        self.estimator: Any = None

    def _task(self, case: Case) -> Any:
        base: Any = importlib.import_module("at2.tasks").AttributionTask
        ranges = [(own[0], own[-1] + 1) for own in case.sources]
        text = case.prompt_text

        class Task(base):  # type: ignore[misc]
            @property
            def input_text(self) -> str:
                return text

            def _get_source_token_ranges(self) -> list[tuple[int, int]]:
                return ranges

            @property
            def target_token_range(self) -> tuple[int, int]:
                return self.generation_token_start, self.generation_token_end

        options = {"max_new_tokens": 16, "do_sample": False}
        return Task(case.model, case.tokenizer, generate_kwargs=options)

    def train(self, cases: list[Case]) -> None:
        """Fit the weights of heads to ablations of these cases."""
        model, tokenizer = cases[0].model, cases[0].tokenizer
        config = model.config
        features = importlib.import_module("at2.attribution.features").AttentionFeatureExtractor(
            config.num_hidden_layers, config.num_attention_heads, config.model_type
        )
        numbers = {"number": list(range(len(cases)))}
        dataset = importlib.import_module("datasets").Dataset.from_dict(numbers)
        trainer = importlib.import_module("at2.attribution.trainer").LinearScoreEstimatorTrainer(
            Path(mkdtemp()),
            dataset,
            model,
            tokenizer,
            lambda example, *_: self._task(cases[example["number"]]),
            feature_extractor=features,
            split_target_by="token",
            num_masks=_ABLATIONS,
        )
        trainer.generate(batch_size=1)  # in batches it would pad on the wrong side
        trainer.compute_features_and_outputs(batch_size=4)
        self.estimator = trainer.train(
            batch_size=min(64, len(cases)), device=str(model.device), print_every=10_000
        )

    def __call__(self, case: Case) -> Any:
        """Return the score of each source."""
        task = self._task(case)
        task.set_generation(case.completion_text)
        attributor = importlib.import_module("at2.attribution").AT2Attributor
        return attributor(task, self.estimator).get_attribution_scores()


PEERS: dict[str, Callable[[Case], Any]] = {
    "attnlrp": attnlrp,
    "gim": gim,
    "gim-all-rules": gim_all_rules,
    "flashtrace": flashtrace,
    "ifr": information_flow_routes,
    "context-cite": context_cite,
    "captum-integrated-gradients": integrated_gradients,
    "captum-shapley": shapley_sampling,
    "captum-feature-ablation": feature_ablation,
    "inseq": inseq,
    "at2": At2(),
}
