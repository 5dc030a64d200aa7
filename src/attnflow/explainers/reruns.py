"""A model run again without parts of a prompt: by a method, or to confirm an explanation.

`methods.reruns` says what the methods are; here a description is the first argument.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnflow.attribution import Attribution, Confirmation
from attnflow.attribution.passages import LOG_PROBS
from attnflow.attribution.rescaling import SOURCE_TOKENS
from attnflow.explainers.ablation import CompletionAblation, ablate
from attnflow.explainers.leave_out import AblationTask, function_of
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.request import Completion, CompletionTarget, resolve_targets
from attnflow.explainers.sources import Sources, strongest
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.inputs import tokens_of
from attnflow.hosts.model import Model
from attnflow.methods.reruns import RerunMethod
from attnflow.tokens import Tokens

_WHOLE_MODEL = 0  # the number of the one layer
_CONFIRMED = 3  # sources that are hidden together
_SIGNS = ".,;:!?\"'()[]{}«»“”‘’"


def measure_completion(
    method: RerunMethod,
    model: Model,
    completion: Completion,
    *,
    targets: Sequence[CompletionTarget] | None = None,
) -> Attribution:
    """Attribute a completion to the sources of its prompt; default: every token of it."""
    sources = Sources.of_prompt(model, completion.prompt, method.level)
    ablation = ablate(model, completion.prompt.ids, completion.ids, by=method.by)
    names = tokens_of(model.tokenizer, completion.ids)
    return measure(method, ablation, sources, names=names, targets=targets)


def measure(
    method: RerunMethod,
    ablation: CompletionAblation,
    sources: Sources,
    *,
    names: Tokens | None = None,
    targets: Sequence[CompletionTarget] | None = None,
) -> Attribution:
    """Do the same on an ablation that is prepared; `names` are the completion's tokens."""
    completion = names or tokens_of(None, ablation.completion_ids)
    if targets is None:
        targets = resolve_targets(completion, None)
    if method.joint:
        columns = tuple(dict.fromkeys(k for target in targets for k in target.tokens))
        joined = "".join(completion.select(columns).surfaces()).strip() or "completion"
        targets = [CompletionTarget(joined, columns)]
    rows = tuple(target.tokens for target in targets)
    values, passes = function_of(method)(method, AblationTask(ablation, sources, rows))
    dtype = str(next(ablation.model.parameters()).dtype).removeprefix("torch.")
    return Attribution(
        values=values[None],
        layers=(_WHOLE_MODEL,),
        targets=Tokens(
            tuple(target.text for target in targets),
            tuple(sources.length + target.tokens[0] for target in targets),
        ),
        sources=sources.tokens,
        method=method,
        provenance={
            **provenance_of(ablation.model, dtype),
            "prompt_length": sources.length,
            "passes": passes,
            SOURCE_TOKENS: [list(each) for each in sources.positions],
        },
    )


def confirm_completion(
    result: Attribution,
    model: Model,
    completion: Completion,
    *,
    tokens: Sequence[int] | None = None,
    passages: Sequence[tuple[str, Sequence[int]]] | None = None,
) -> Confirmation:
    """Measure what a completion loses without the words that a result finds it to draw on most.

    result: over the prompt's tokens, or over sources that were measured. tokens: which tokens of
    the completion it is about, by number; default: all. passages: names with positions of the
    prompt, to be hidden in place of the strongest words.

    Where the log-probabilities of the completion are known from the explanation itself, this is
    one forward pass. Sources are ranked by the sum over the result's targets at its highest layer.
    """
    prompt, ids = completion.prompt.ids, completion.ids
    hidden_sources = passages or _strongest_words(result, model, prompt)
    hidden = sorted({position for _, positions in hidden_sources for position in positions})
    ablation = ablate(model, prompt, ids, by=None)
    known = result.provenance.get(LOG_PROBS)
    if known is not None and len(known) == len(ids):
        rows = np.stack([np.array(known), ablation.token_log_probs([hidden])[0]])
    else:
        rows = ablation.token_log_probs([(), hidden])
    numbers = list(range(len(ids)) if tokens is None else tokens)
    before, after = (tuple(row[numbers].clip(max=0.0).tolist()) for row in rows)
    return Confirmation(
        sources=tuple(name for name, _ in hidden_sources),
        positions=tuple(tuple(positions) for _, positions in hidden_sources),
        targets=tokens_of(model.tokenizer, [ids[k] for k in numbers]).text,
        log_probs=before,
        log_probs_without=after,
        by=ablation.by,
    )


def _strongest_words(
    result: Attribution, model: Model, prompt: list[int]
) -> list[tuple[str, Sequence[int]]]:
    """Return the strongest of the sources that were measured, or of the prompt's words."""
    measured = result.provenance.get(SOURCE_TOKENS)
    if measured is None:
        sources = Sources.of_prompt(model, Prompt(prompt))
    else:
        positions = tuple(tuple(each) for each in measured)
        sources = Sources(tuple(result.sources), positions, len(prompt))
    ranked = strongest(sources.scores(result), _CONFIRMED)
    return [(_readable(sources.names[k]), sources.positions[k]) for k in ranked]


def _readable(name: str) -> str:
    """Return a name as people read it, without the signs around a word."""
    text = Tokens((name,)).text[0]
    return text.strip(_SIGNS) or text
