"""A model run again without parts of a prompt, by a method.

`methods.reruns` says what the methods are; here a description is the first argument.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnflow.attribution import Attribution
from attnflow.attribution.rescaling import SOURCE_TOKENS
from attnflow.explainers.ablation import CompletionAblation, ablate
from attnflow.explainers.leave_out import AblationTask, function_of
from attnflow.explainers.request import Completion, CompletionTarget, resolve_targets
from attnflow.explainers.sources import Sources
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.inputs import tokens_of
from attnflow.hosts.model import Model
from attnflow.methods.reruns import RerunMethod
from attnflow.tokens import Tokens

_WHOLE_MODEL = 0  # the number of the one layer


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
