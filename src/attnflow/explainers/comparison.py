"""Several methods about the same text, for a reader who wants to switch between them: what the
report and the served page show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnflow.attribution import Attribution
from attnflow.attribution.passages import STATEMENTS
from attnflow.errors import InputError
from attnflow.errors.progress import tell
from attnflow.explainers.answer_checks import measure_answer
from attnflow.explainers.answer_rows import ALL, apply_method, needs_own_gradients
from attnflow.explainers.answers import Answer, ask
from attnflow.explainers.completions import generate, mark_documents
from attnflow.explainers.defaults import measures_words
from attnflow.explainers.prompts import encode_prompts
from attnflow.explainers.questions import question_prompt, uses_chat
from attnflow.explainers.texts import check_answer, default_for, explain
from attnflow.graph import LayeredGraph
from attnflow.hosts.capture import capture
from attnflow.hosts.inputs import tokens_of
from attnflow.hosts.load import ModelLike, as_model
from attnflow.hosts.model import Model
from attnflow.hosts.restore import in_step
from attnflow.methods import BalancedGradient, Flow, Method, Raw, RerunMethod, Rollout, make_method
from attnflow.models import WRITER
from attnflow.show.view import HeadWeights, View, view
from attnflow.tokens.documents import Documents
from attnflow.trace import AttentionTrace

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
    """Return the usual methods behind the model's default; flow only where it takes seconds."""
    others = (Rollout(), Raw(), *((Flow(),) if length <= FLOW_TOKENS else ()))
    return (*(() if first is None or first in others else (first,)), *others)


@in_step
def compare(
    model: ModelLike,
    text: Any,
    methods: Sequence[str | Method | None] | None = None,
    *,
    check: bool = True,
) -> Comparison:
    """Run the model once, with all that these methods need, and apply each to every target.

    Among the methods None stands for the model's default. A method that runs the model again
    explains words, so it stands alone. check: as `explain` takes it, of the first method.
    """
    loaded = as_model(model)
    _check_methods(methods)
    tell("running the model", 0, 1)
    if methods and methods[0] is not None and isinstance(make_method(methods[0]), RerunMethod):
        return Comparison((explain(loaded, text, methods[0], check=check),))
    first = default_for(loaded, text)
    applicable = None
    if methods is not None:
        applicable = tuple(dict.fromkeys(first if m is None else make_method(m) for m in methods))

    def is_apart(method: Method) -> bool:  # it needs a pass for each target and shares none
        return needs_own_gradients(loaded, method, ALL)

    shared = [m for m in applicable or usual_methods(0, first) if not is_apart(m)]
    trace = capture(loaded, text, methods=shared)
    applied = usual_methods(trace.length, first) if applicable is None else applicable
    results: list[Attribution] = []
    for method in applied:
        tell(method.name, 0, 1)
        apart = is_apart(method)
        results.append(apply_method(method, loaded, text, targets=ALL) if apart else method(trace))
    if applied[0] is first and measures_words(first):
        results[0] = measure_answer(results[0], loaded, text)
    if check:
        results[0] = check_answer(results[0], loaded, text)
    heads = None
    if trace.length <= HEADS_TOKENS and trace.encoder_length is None:  # few enough to look at
        heads = trace if trace.weights.shape[1] > 1 else capture(loaded, text)  # one more pass
    one_graph = not any(isinstance(m, Flow) and is_apart(m) for m in applied)
    graph = _graph(trace, applied, results[0]) if one_graph else None  # else one for each target
    return Comparison(tuple(results), graph, HeadWeights.of_trace(heads))


def _check_methods(methods: Sequence[str | Method | None] | None) -> None:
    """Refuse an empty list, and a method over words beside others, which are over tokens."""
    if methods is None:
        return
    if not methods:
        raise InputError("There is nothing to compare: give at least one method.")
    applied = [make_method(method) for method in methods if method is not None]
    reruns = [method.name for method in applied if isinstance(method, RerunMethod)]
    if len(methods) > 1 and reruns:
        raise InputError(
            f"The method {reruns[0]!r} explains words: ask for it alone, without other methods."
        )


@in_step
def compare_completions(
    model: ModelLike,
    prompt: Any,
    methods: Sequence[str | Method | None] = (None,),
    *,
    max_new_tokens: int = 20,
    images: Sequence[Any] | None = None,
    check: bool = True,
) -> Comparison:
    """Continue a prompt by the first method (None: the default); the others read it again."""
    loaded = as_model(model, default=WRITER)
    _check_methods(methods)
    tell("writing", 0, max_new_tokens)
    writing: dict[str, Any] = {"max_new_tokens": max_new_tokens, "check": check}
    first = generate(loaded, prompt, methods[0], images=images, **writing)
    ids = first.provenance["completion_ids"]  # not by name: names of tokens may be ambiguous
    others = _read_again(loaded, prompt, ids, methods[1:], images=images)
    heads = None if images else _completion_heads(loaded, prompt, ids)
    return Comparison((first, *others), heads=heads)


@in_step
def compare_answers(
    model: ModelLike,
    question: str,
    documents: Documents,
    methods: Sequence[str | Method | None] = (None,),
    *,
    max_new_tokens: int = 64,
    chat: bool | None = None,
    confirm: bool = False,
) -> tuple[Answer, Comparison]:
    """Answer a question by the first method (None: the default); the others read it again."""
    loaded = as_model(model, default=WRITER)
    _check_methods(methods)
    tell("reading and answering", 0, 0)
    writing: dict[str, Any] = {"max_new_tokens": max_new_tokens, "confirm": confirm}
    answer = ask(loaded, question, documents, methods[0], chat=chat, **writing)
    templated = uses_chat(loaded.tokenizer, chat)
    prompt = question_prompt(loaded, question, answer.documents, templated)
    ids = answer.result.provenance["completion_ids"]
    targets = None  # beside a method that explains statements the others explain them too
    if isinstance(answer.result.method, BalancedGradient):
        marks = answer.result.provenance[STATEMENTS]
        targets = [slice(first, end) for first, end, *_ in marks] or None
    others = [
        mark_documents(result, answer.documents, prompt)
        for result in _read_again(loaded, prompt, ids, methods[1:], targets=targets)
    ]
    heads = _completion_heads(loaded, prompt, ids)
    return answer, Comparison((answer.result, *others), heads=heads)


def _read_again(
    model: Model, prompt: Any, ids: Sequence[int], methods: Sequence[Any], **options: Any
) -> list[Attribution]:
    """Explain a completion that exists by other methods."""
    results = []
    for method in methods:
        tell("default" if method is None else str(method), 0, 1)
        results.append(generate(model, prompt, method, completion=ids, check=False, **options))
    return results


def _completion_heads(model: Model, prompt: Any, ids: Sequence[int]) -> HeadWeights | None:
    """Return where every head looks while the completion is written: one more pass, if short."""
    encoded = encode_prompts(model, prompt).prompts[0].ids
    text = [[*encoded, *ids[:-1]]]
    if model.facts.encoder_decoder or len(text[0]) > COMPLETION_TOKENS:
        return None
    tell("looking at every head", 0, 1)
    trace = capture(model, {"input_ids": text, "attention_mask": [[1] * len(text[0])]})
    if trace.weights.ndim != 4 or trace.weights.shape[1] < 2:
        return None
    return HeadWeights.of_completion(trace, len(encoded), tokens_of(model.tokenizer, ids))


def _graph(
    trace: AttentionTrace, methods: Sequence[Method], first: Attribution
) -> LayeredGraph | None:
    """Return the network of the flow that was asked for, else that of plain attention flow."""
    flow = next((method for method in methods if isinstance(method, Flow)), None)
    if flow is None and trace.mixed_heads in (None, "mean"):
        flow = Flow()
    if flow is None or first.layers != trace.layers or flow.start_layer > trace.layers[0]:
        return None
    return flow.graph(trace)
