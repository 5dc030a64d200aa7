"""Several methods about the same text, for a reader who wants to switch between them: what the
report and the served page show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnflow.attribution import Attribution
from attnflow.errors import InputError
from attnflow.errors.progress import tell
from attnflow.graph import LayeredGraph
from attnflow.methods import Flow, Method, Raw, Rollout
from attnflow.show.view import HeadWeights, View, view

if TYPE_CHECKING:
    from attnflow.explainers.answers import Answer
    from attnflow.hosts.model import Model
    from attnflow.tokens.documents import Documents
    from attnflow.trace import AttentionTrace

__all__ = ["FLOW_TOKENS", "Comparison", "answered", "compare", "continued", "usual_methods"]

HEADS_TOKENS = 64  # up to here the weights of every head are shown
COMPLETION_TOKENS = 640  # of prompt and completion: only the rows of the completion are shown
FLOW_TOKENS = 128  # up to here the flows of all pairs take seconds, and everybody wants to see them


@dataclass(frozen=True, eq=False)
class Comparison:
    """The results of several methods about the same targets, and the graph and heads under them."""

    results: tuple[Attribution, ...]
    graph: LayeredGraph | None = None
    heads: HeadWeights | None = None

    def view(self, *, title: str | None = None, image: Any = None) -> View:
        """The document the viewer shows."""
        return view(self.results, title=title, graph=self.graph, image=image, heads=self.heads)


def usual_methods(length: int, first: Method | None = None) -> tuple[Method, ...]:
    """What is shown when nothing was asked for: the model's default (`first`) before all others,
    flow only where it takes seconds.

    >>> from attnflow import GradientAttention
    >>> [method.name for method in usual_methods(12, GradientAttention())]
    ['gradient-attention', 'rollout', 'raw', 'flow']
    """
    others = (Rollout(), Raw(), *((Flow(),) if length <= FLOW_TOKENS else ()))
    return (*(() if first is None or first in others else (first,)), *others)


def compare(
    loaded: Model,
    text: Any,
    methods: Sequence[Method | None] | None = None,
    *,
    decoder_text: str | None = None,
    careful: bool = False,
    confirm: bool = False,
) -> Comparison:
    """Run the model once, with all that these methods need, and apply each to every target.

    Among the methods None stands for the model's default. careful, confirm: as `explain` takes
    them; a model that is no causal language model is not confirmed.

    >>> from attnflow.hosts.load import load
    >>> comparison = compare(load(), "the key to the cabinets", [Rollout(), Raw()])
    >>> [result.method.name for result in comparison.results]
    ['rollout', 'raw']
    """
    from attnflow.explainers.next_token import next_token
    from attnflow.explainers.texts import default_method, explain, with_confirmation
    from attnflow.hosts.capture import capture
    from attnflow.hosts.registry import adapter_for

    if methods is not None and not methods:
        raise InputError("There is nothing to compare: give at least one method.")
    tell("running the model", 0, 1)
    if careful:
        _check_alone(methods)
        options: dict[str, Any] = {"tokenizer": loaded.tokenizer, "confirm": confirm}
        return Comparison((explain(loaded.module, text, careful=True, **options),))
    first = default_method(loaded.module)
    if methods is not None:
        methods = list(dict.fromkeys(method or first or Rollout() for method in methods))
    trace = capture(
        loaded,
        text,
        decoder_text=decoder_text,
        methods=[m for m in methods or usual_methods(0, first) if m is not None],
    )
    applied = usual_methods(trace.length, first)
    if methods is not None:
        applied = tuple(method for method in methods if method is not None)
    results = tuple(_apply(method, trace) for method in applied)
    if confirm and adapter_for(loaded.module).supports_row_gradients(loaded.module):
        tell("hiding the strongest sources", 0, 1)
        answer = next_token(loaded.module, text, loaded.tokenizer, None)
        confirmed = with_confirmation(results[0], loaded.module, answer, loaded.tokenizer)
        results = (confirmed, *results[1:])
    heads = _all_heads(loaded, text, trace) if decoder_text is None else None
    return Comparison(results, _graph(trace, applied, results[0]), HeadWeights.of_trace(heads))


def _check_alone(methods: Sequence[Method | None] | None) -> None:
    """The careful method is over words, which others cannot be shown beside."""
    if any(method is not None for method in methods or ()):
        raise InputError("The careful method explains words: ask for it alone, without methods.")


def continued(
    loaded: Model,
    prompt: Any,
    methods: Sequence[Method | None] = (None,),
    *,
    max_new_tokens: int = 20,
    images: Sequence[Any] | None = None,
    chat: bool = False,
    careful: bool = False,
    confirm: bool = False,
) -> Comparison:
    """Continue a prompt; the first method watches it being written, the others read it again.

    None stands for the default of `generate`. images, careful, confirm: as `generate` takes them.
    """
    from attnflow.explainers.completions import explain_completion, generate

    if not methods:
        raise InputError("There is nothing to compare: give at least one method.")
    if careful:
        _check_alone(methods)
    shared: dict[str, Any] = {"tokenizer": loaded.tokenizer, "chat": chat, "images": images}
    tell("writing", 0, max_new_tokens)
    first: Attribution = generate(
        loaded.module,
        prompt,
        max_new_tokens=max_new_tokens,
        method=methods[0],
        careful=careful,
        confirm=confirm,
        **shared,
    )
    ids = first.provenance["completion_ids"]  # not by name: names of tokens may be ambiguous
    results = [first]
    for method in methods[1:]:
        tell("default" if method is None else method.name, 0, 1)
        results.append(explain_completion(loaded.module, prompt, ids, method=method, **shared))
    heads = None if images else _completion_heads(loaded, prompt, ids, chat)
    return Comparison(tuple(results), heads=heads)


def answered(
    loaded: Model,
    question: str,
    documents: Documents,
    methods: Sequence[Method | None] = (None,),
    *,
    max_new_tokens: int = 64,
    chat: bool | None = None,
    careful: bool = False,
    confirm: bool = False,
) -> tuple[Answer, Comparison]:
    """Answer a question from documents; the first method explains it, the others stand beside it.

    None stands for the default of `ask`. careful, confirm, chat: as `ask` takes them.

    >>> from attnflow.testing import tiny_decoder
    >>> answer, comparison = answered(tiny_decoder(), "the keys", ["the author is old ."],
    ...     [None, Rollout()], max_new_tokens=3)
    >>> [result.method.name for result in comparison.results]
    ['gradient-attention', 'rollout']
    """
    from attnflow.explainers.answers import ask, question_prompt, uses_chat
    from attnflow.explainers.completions import explain_completion
    from attnflow.explainers.documents import mark_documents

    if not methods:
        raise InputError("There is nothing to compare: give at least one method.")
    if careful:
        _check_alone(methods)
    templated = uses_chat(loaded.tokenizer, chat)
    tell("reading and answering", 0, 0)
    answer = ask(
        loaded.module,
        question,
        documents,
        tokenizer=loaded.tokenizer,
        max_new_tokens=max_new_tokens,
        method=methods[0],
        careful=careful,
        chat=templated,
        confirm=confirm,
    )
    prompt = question_prompt(question, answer.documents, templated)
    ids = answer.result.provenance["completion_ids"]
    results = [answer.result]
    for method in methods[1:]:
        tell("default" if method is None else method.name, 0, 1)
        result = explain_completion(
            loaded.module, prompt, ids, method=method, tokenizer=loaded.tokenizer, chat=templated
        )
        results.append(mark_documents(result, answer.documents, loaded.tokenizer))
    heads = _completion_heads(loaded, prompt, ids, templated)
    return answer, Comparison(tuple(results), heads=heads)


def _completion_heads(
    loaded: Model,
    prompt: Any,
    ids: Sequence[int],
    chat: bool,
) -> HeadWeights | None:
    """Where every head looks while the completion is written: one more pass, if it is short."""
    from attnflow.explainers.prompts import encode_prompts
    from attnflow.hosts.capture import capture
    from attnflow.hosts.registry import adapter_for
    from attnflow.hosts.transformers.inputs import tokens_of

    encoded = encode_prompts(loaded.module, loaded.tokenizer, prompt, chat=chat).prompts()[0].ids
    text = [[*encoded, *ids[:-1]]]
    two_sided = adapter_for(loaded.module).facts(loaded.module).encoder_decoder
    if two_sided or len(text[0]) > COMPLETION_TOKENS:
        return None
    tell("looking at every head", 0, 1)
    inputs = {"input_ids": text, "attention_mask": [[1] * len(text[0])]}
    trace = capture(loaded, inputs)
    if trace.weights.ndim != 4 or trace.weights.shape[1] < 2:
        return None
    return HeadWeights.of_completion(trace, len(encoded), tokens_of(loaded.tokenizer, ids))


def _apply(method: Method, trace: AttentionTrace) -> Attribution:
    tell(method.name, 0, 1)
    return method(trace)


def _all_heads(loaded: Model, text: Any, trace: AttentionTrace) -> AttentionTrace | None:
    """Every head by itself, where they are few enough to look at: one more pass."""
    from attnflow.hosts.capture import capture

    if trace.length > HEADS_TOKENS or trace.encoder_length is not None:
        return None
    if trace.weights.shape[1] > 1:
        return trace
    return capture(loaded, text)


def _graph(
    trace: AttentionTrace, methods: Sequence[Method], first: Attribution
) -> LayeredGraph | None:
    """The network of the flow that was asked for, else that of plain attention flow."""
    flow = next((method for method in methods if isinstance(method, Flow)), None)
    if flow is None and trace.mixed_heads in (None, "mean"):
        flow = Flow()
    if flow is None or first.layers != trace.layers or flow.start_layer > trace.layers[0]:
        return None
    return flow.graph(trace)
