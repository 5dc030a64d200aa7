"""Methods that run the model again, carried out on a model, a prompt and its completion.

`methods.reruns` says what they are; here a description is the first argument of every function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.rescaling import SOURCE_TOKENS, Span
from attnflow.errors import TokensError
from attnflow.errors.arguments import checked_arguments
from attnflow.explainers import careful as careful  # it registers how its methods are carried out
from attnflow.explainers.ablation import CompletionAblation, blank_token
from attnflow.explainers.leave_out import AblationTask, function_of
from attnflow.explainers.prompts import Prompt, Prompts, encode_prompts
from attnflow.explainers.request import (
    CompletionTarget,
    TargetRef,
    check_completion,
    completion_ids,
    resolve_targets,
)
from attnflow.explainers.sources import (
    Sources,
    content_spans,
    prompt_tokens,
    spans_of_content,
)
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.transformers.generate import checked_generator
from attnflow.hosts.transformers.inputs import checked_tokenizer
from attnflow.methods.reruns import RerunMethod
from attnflow.tokens import Tokens

Floats = NDArray[np.float64]
_WHOLE_MODEL = 0  # the number of the one layer


@checked_arguments
def run_again(
    method: RerunMethod,
    model: ModelLike,
    prompt: Prompts,
    completion: str | Sequence[int],
    *,
    targets: Sequence[TargetRef] | TargetRef | None = None,
    spans: Mapping[str, Span] | None = None,
    blank: int | None = None,
    batch_tokens: int | None = None,
) -> Attribution:
    """Attribute a completion to the sources of its prompt.

    prompt: a text, a conversation of messages, or prepared inputs with `input_ids`.
    completion: the text as it follows the prompt, with its leading space, or its token ids.
    targets: only these parts of the completion: tokens by number from 0 or by name, phrases,
        slices, or "answer" for all of it as one; default: every token.
    spans: named spans of the prompt as sources, in place of the method's `level`.
    blank: with by="replace", the id of the blank token; default: the tokenizer's.
    """
    loaded = as_model(model, default="smollm2")
    module, tokenizer = loaded
    checked_generator(module)
    if tokenizer is not None:
        checked_tokenizer(tokenizer)
    encoded = encode_prompts(loaded, prompt)
    if len(encoded) != 1:
        raise TokensError(f"One prompt is measured at a time; got {len(encoded)}.")
    (text,) = encoded.prompts()
    prompt_ids = text.ids
    facts = loaded.facts
    completion_row = completion_ids(tokenizer, completion, facts)
    check_completion(module, facts, completion_row)
    tokens, special = prompt_tokens(tokenizer, prompt_ids)
    if spans is not None:
        sources = Sources.of_spans(tokens, spans)
    else:
        sources = Sources.of_tokens(
            tokens,
            level=method.level,
            inside=_contents(tokens, prompt, text.form),
            special=special if tokenizer is not None else (),
            exclude_first=not facts.encoder_decoder,
        )
    names = prompt_tokens(tokenizer, completion_row)[0]
    needs_blank = method.by == "replace" and blank is None and tokenizer is not None
    ablation = CompletionAblation(
        model=module,
        prompt_ids=prompt_ids,
        completion_ids=completion_row,
        by=method.by,
        blank=blank_token(tokenizer) if needs_blank else blank,
        batch_tokens=batch_tokens,
    )
    explained = None if targets is None else resolve_targets(names, targets)
    return measure(method, ablation, sources, names=names, targets=explained)


def measure(
    method: RerunMethod,
    ablation: CompletionAblation,
    sources: Sources,
    *,
    names: Tokens | None = None,
    targets: Sequence[CompletionTarget] | None = None,
) -> Attribution:
    """Do the same on an ablation that is prepared; `names` are the completion's tokens."""
    completion = names or prompt_tokens(None, ablation.completion_ids)[0]
    if targets is None:
        targets = resolve_targets(completion, ablation.targets)
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


def measure_completion(
    method: RerunMethod,
    model: Model,
    prompt: Prompt,
    ids: Sequence[int],
    *,
    targets: Sequence[CompletionTarget] | None = None,
) -> Attribution:
    """Do the same on a prompt that is encoded; what a chat template put there is no source."""
    tokenizer = model.tokenizer
    tokens, special = prompt_tokens(tokenizer, prompt.ids)
    template = [k for k, is_form in enumerate(prompt.form or ()) if is_form]
    sources = Sources.of_tokens(
        tokens,
        level=method.level if tokenizer is not None or method.level != "word" else "token",
        special=(*special, *template),
        exclude_first=not model.facts.encoder_decoder,
    )
    blank = blank_token(tokenizer) if method.by == "replace" and tokenizer is not None else None
    ablation = CompletionAblation(
        model=model.module, prompt_ids=prompt.ids, completion_ids=ids, by=method.by, blank=blank
    )
    names = prompt_tokens(tokenizer, ids)[0]
    return measure(method, ablation, sources, names=names, targets=targets)


def _contents(
    tokens: Tokens, prompt: Any, form: Sequence[bool] | None
) -> list[tuple[int, int]] | None:
    """Where a conversation's messages stand; None if the prompt is no conversation."""
    if form is not None:
        return spans_of_content(tokens, form)
    if isinstance(prompt, (str, Mapping)):
        return None
    contents = [str(m["content"]) for m in prompt if isinstance(m, Mapping) and m.get("content")]
    return content_spans(tokens, contents) if contents else None
