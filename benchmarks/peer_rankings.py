"""Each peer as a ranking of the same sources: one function each.

A ranking gives one score for each prompt token or each source. The peers run as they are on PyPI,
with their own defaults. What had to be bent is said beside it: two of them put every prompt into a
chat template, one looks for torch's own layers, and none knows the words of our prompts.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnflow.evaluation.subjects.rankings import CompletionCase, Ranking
from attnflow.explainers.ablation import blank_token
from attnflow.hosts.adapter import device_of

__all__ = ["PEERS", "AttnLrp", "trained_at2"]

Floats = NDArray[np.float64]
_STEPS = 32
_ABLATIONS = 32
_SAME = 0.01  # nats: the same model by two versions of transformers


def flashtrace(case: CompletionCase) -> Floats:
    """FlashTrace's public call, for the completion as one span, prompt as it is."""
    from flashtrace import FlashTrace

    tracer = FlashTrace(case.model.module, case.model.tokenizer, recompute_attention=True)
    last = len(case.completion_ids) - 1
    result = tracer.trace(prompt=_prompt(case), target=_completion(case), output_span=(0, last))
    return np.asarray(result.scores)


def context_cite(case: CompletionCase) -> Floats:
    """ContextCite with 32 ablations; a partition of its own kind gives it our sources."""
    from context_cite import ContextCiter
    from context_cite.context_partitioner import BaseContextPartitioner

    ids, sources, tokenizer = case.prompt_ids, case.sources, case.model.tokenizer

    class Partition(BaseContextPartitioner):  # type: ignore[misc]
        num_sources = len(sources)

        def split_context(self) -> None:
            """Nothing is to be split: the sources are there."""

        def get_source(self, index: int) -> str:
            return sources.names[index]

        def get_context(self, mask: NDArray[np.bool_] | None = None) -> str:
            away = set() if mask is None else {p for own in sources.hidden(~mask) for p in own}
            return str(tokenizer.decode([t for i, t in enumerate(ids) if i not in away]))

    class Plain(ContextCiter):  # type: ignore[misc]
        """Without the chat template, which our prompts are not written for."""

        def _get_prompt_ids(self, mask: Any = None, return_prompt: bool = False) -> Any:
            prompt = self.partitioner.get_context(mask)
            own = self.tokenizer.encode(prompt, add_special_tokens=False)
            return (own, prompt) if return_prompt else own

    padding_left = copy(tokenizer)
    padding_left.padding_side = "left"
    citer = Plain(
        case.model.module,
        padding_left,
        _prompt(case),
        "",
        partitioner=Partition(_prompt(case)),
        num_ablations=_ABLATIONS,
        batch_size=8,
    )
    citer._cache["output"] = _prompt(case) + _completion(case)
    return np.asarray(citer.get_attributions(verbose=False))


def integrated_gradients(case: CompletionCase) -> Floats:
    """captum's integrated gradients of the log-probability, from the blank token's embedding."""
    from captum.attr import LayerIntegratedGradients

    ids = torch.tensor([case.prompt_ids], device=device_of(case.model.module))
    module: Any = case.model.module
    method = LayerIntegratedGradients(_log_prob(case), module.get_input_embeddings())
    values = method.attribute(
        ids,
        baselines=torch.full_like(ids, blank_token(case.model.tokenizer)),
        n_steps=_STEPS,
        internal_batch_size=8,
    )
    prompt = values.sum(-1)[0, : len(case.prompt_ids)]  # the completion's embeddings stay
    return np.asarray(prompt.detach().cpu(), dtype=np.float64)


def feature_ablation(case: CompletionCase) -> Floats:
    """captum's feature ablation: every source in turn is replaced by the blank token."""
    from captum.attr import FeatureAblation

    ids = torch.tensor([case.prompt_ids], device=device_of(case.model.module))
    groups = torch.full_like(ids, len(case.sources))  # what is no source is a feature of its own
    for number, positions in enumerate(case.sources.positions):
        groups[0, list(positions)] = number
    values = FeatureAblation(_log_prob(case)).attribute(
        ids,
        baselines=blank_token(case.model.tokenizer),
        feature_mask=groups,
        perturbations_per_eval=8,
    )
    first = [positions[0] for positions in case.sources.positions]
    return np.asarray(values[0, first].detach().cpu(), dtype=np.float64)


def gim(case: CompletionCase) -> Floats:
    """GIM's explain() as it is called, for the sum of the completion's logits.

    On a Llama of transformers only one of its three rules has an effect, that on queries, keys and
    values: it looks for torch's RMSNorm and for a softmax of its own step.
    """
    from gim import explain

    class SummedLogits(nn.Module):
        """The model with one logit, the sum of the completion's: one backward pass for all."""

        def __init__(self) -> None:
            super().__init__()
            self.model: Any = case.model.module

        def get_input_embeddings(self) -> Any:
            return self.model.get_input_embeddings()

        def forward(self, inputs_embeds: Tensor, use_cache: bool) -> Tensor:
            return _completion_logits(case, inputs_embeds=inputs_embeds).sum().view(1, 1, 1)

    device = device_of(case.model.module)
    ids = torch.tensor([case.prompt_ids + case.completion_ids], device=device)
    tokenizer = case.model.tokenizer
    values = explain(SummedLogits(), ids, target_token_id=0, tokenizer=tokenizer)
    return np.asarray(values[: len(case.prompt_ids)].cpu(), dtype=np.float64)


def gim_all_rules(case: CompletionCase) -> Floats:
    """The same with every rule of it in effect, as its paper has it."""
    with _torch_layers(case.model.module):
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
        if type(norm).__name__.endswith("RMSNorm")
    ]

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


class AttnLrp:
    """AttnLRP by lxt, in the process of `peer_lxt.py`, with the environment that lxt needs.

    python: the interpreter of that environment.
    """

    def __init__(self, model: Any, python: Path) -> None:
        folder = Path(mkdtemp())
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config |= config.get("rope_parameters") or {}  # where an older transformers looks for it
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name("peer_lxt.py")), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, case: CompletionCase) -> Floats:
        """Return relevance of each prompt token for the completion's summed logits."""
        request, reply = self._process.stdin, self._process.stdout
        assert request is not None
        assert reply is not None
        ids = {"prompt": case.prompt_ids, "completion": case.completion_ids}
        request.write(json.dumps(ids) + "\n")
        request.flush()
        result = json.loads(reply.readline())
        own = float(case.ablation.log_probs([()])[0])
        if abs(own - result["log_prob"]) > _SAME:
            raise RuntimeError(f"Not the same model: {own} here, {result['log_prob']} by lxt.")
        return np.asarray(result["scores"], dtype=np.float64)


def trained_at2(
    model: Any, tokenizer: Any, cases: Sequence[CompletionCase], folder: Path
) -> Ranking:
    """AT2's estimator, trained by its own trainer on cases that are not reported.

    Its published estimators are for other models. Each prompt is followed by 16 tokens of the
    model's own, each of them a target, over 32 ablations of its sources. The folder keeps what was
    computed, and training goes on from it.
    """
    from at2.attribution import AT2Attributor
    from at2.attribution.features import AttentionFeatureExtractor
    from at2.attribution.trainer import LinearScoreEstimatorTrainer
    from at2.tasks import AttributionTask
    from datasets import Dataset

    class Task(AttributionTask):  # type: ignore[misc]
        """A prompt as it is, whose sources are token ranges."""

        def __init__(self, text: str, ranges: list[tuple[int, int]]) -> None:
            options = {"max_new_tokens": 16, "do_sample": False}
            super().__init__(model, tokenizer, generate_kwargs=options)
            self._text, self._ranges = text, ranges

        @property
        def input_text(self) -> str:
            return self._text

        def _get_source_token_ranges(self) -> list[tuple[int, int]]:
            return self._ranges

        @property
        def target_token_range(self) -> tuple[int, int]:
            return self.generation_token_start, self.generation_token_end

    def task_of(case: CompletionCase) -> Task:
        return Task(_prompt(case), [(own[0], own[-1] + 1) for own in case.sources.positions])

    config = model.config
    features = AttentionFeatureExtractor(
        config.num_hidden_layers, config.num_attention_heads, config.model_type
    )
    dataset = Dataset.from_dict({"number": list(range(len(cases)))})
    trainer = LinearScoreEstimatorTrainer(
        folder,
        dataset,
        model,
        tokenizer,
        lambda example, *_: task_of(cases[example["number"]]),
        feature_extractor=features,
        split_target_by="token",
        num_masks=_ABLATIONS,
    )
    trainer.generate(batch_size=1)  # in batches it would pad on the wrong side
    trainer.compute_features_and_outputs(batch_size=4)
    estimator = trainer.train(
        batch_size=min(64, len(dataset)), device=str(model.device), print_every=10_000
    )

    def at2(case: CompletionCase) -> Floats:
        task = task_of(case)
        task.set_generation(_completion(case))
        return np.asarray(AT2Attributor(task, estimator).get_attribution_scores())

    return at2


def _prompt(case: CompletionCase) -> str:
    return str(case.model.tokenizer.decode(case.prompt_ids))


def _completion(case: CompletionCase) -> str:
    return str(case.model.tokenizer.decode(case.completion_ids))


def _completion_logits(case: CompletionCase, **inputs: Tensor) -> Tensor:
    """(completion): the logit of each of its tokens, for one prompt with its completion."""
    logits = case.model.module(**inputs, use_cache=False).logits[0]
    completion = torch.tensor(case.completion_ids, device=logits.device)
    return logits[len(case.prompt_ids) - 1 : -1].gather(1, completion[:, None])[:, 0]


def _log_prob(case: CompletionCase) -> Callable[[Tensor], Tensor]:
    """The log-probability of the completion after a batch of prompts."""
    completion = torch.tensor([case.completion_ids], device=device_of(case.model.module))

    def score(prompts: Tensor) -> Tensor:
        own = completion.expand(len(prompts), -1)
        logits = case.model.module(input_ids=torch.cat([prompts, own], dim=1)).logits
        predicting = logits[:, prompts.shape[1] - 1 : -1].float().log_softmax(-1)
        return predicting.gather(2, own[:, :, None]).sum(dim=(1, 2))

    return score


PEERS: dict[str, Ranking] = {
    "GIM": gim,
    "GIM, all its rules": gim_all_rules,
    "FlashTrace": flashtrace,
    "ContextCite, 32 passes": context_cite,
    "captum integrated gradients": integrated_gradients,
    "captum feature ablation": feature_ablation,
}
