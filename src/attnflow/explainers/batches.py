"""Many inputs explained together: each gets what `explain` or `generate` gives it alone.

Inputs of about equal length go through the model as one batch. Padding changes the last digits at
most. `TextBatches` takes texts, `ImageBatches` images, `CompletionBatches` prompts with what
followed them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from attnflow.attribution import Attribution
from attnflow.errors import InputError, MethodError, TokensError
from attnflow.explainers.answer_rows import Targets, answer_rows, apply_method, needs_own_gradients
from attnflow.explainers.completions import check_completion
from attnflow.explainers.defaults import default_method, depends_on_text
from attnflow.explainers.gradient_rows import explain_last_rows
from attnflow.explainers.prompts import Prompt, as_chat, encode_parts, encode_prompts
from attnflow.explainers.reader import Reader
from attnflow.explainers.request import Completion, check_room, completion_ids
from attnflow.explainers.texts import apply_default, check_answer
from attnflow.explainers.writer import write
from attnflow.hosts.capture import capture
from attnflow.hosts.images import prepare_images
from attnflow.hosts.model import Model
from attnflow.hosts.transformers.generate import checked_generator
from attnflow.methods import GradientAttention, Method, quiet_about_limits, requirements_of
from attnflow.tokens.units import CharSpan

Item = TypeVar("Item")
Results = list[list[Attribution]]
"""Attributions in two dimensions; which comes first is said beside each use."""

_COUNTED_AT_ONCE = 64  # texts whose lengths are taken together
# Attention grows with the square of the length: a batch has at most this many weights for each
# token of its budget, which bounds the memory of long texts as the budget does of short ones.
_WEIGHTS_PER_TOKEN = 256


def split_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield the numbers of the inputs in each batch, shortest first; a long one goes alone."""
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    batch: list[int] = []
    for number in order:
        longest, count = max(1, lengths[number]), len(batch) + 1
        few_weights = count * longest**2 <= batch_tokens * _WEIGHTS_PER_TOKEN
        if batch and not (few_weights and count * longest <= batch_tokens):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


class Batches(ABC, Generic[Item]):
    """A loaded model, and the methods, defaults resolved, that explain its inputs at one layer."""

    def __init__(self, model: Model, methods: list[Method], layers: int) -> None:
        count = model.adapter.expected_layers(model.module)
        if count is not None and layers > count:
            raise InputError(
                f"layers={layers}: the model has {count} layers with attention; -1 is the highest."
            )
        self.model, self.methods, self.layers = model, methods, layers

    @abstractmethod
    def explain(self, items: Sequence[Item]) -> Results:
        """Return for each input the results of all methods."""

    @abstractmethod
    def length(self, item: Item) -> int:
        """Count the tokens of an input; raise where the model cannot take it."""

    def lengths(self, items: Sequence[Item]) -> list[int | Exception]:
        """Return the length of each input, or the reason why the model cannot take it."""
        lengths: list[int | Exception] = []
        for item in items:
            try:
                lengths.append(self.length(item))
            except Exception as error:  # whatever is wrong with one must not end the others
                lengths.append(error)
        return lengths


class TextBatches(Batches[Any]):
    """Texts, and the targets that `explain` would take: `explain` for many."""

    def __init__(
        self,
        model: Model,
        methods: Sequence[Method] = (),
        *,
        targets: Targets = None,
        layers: int = -1,
        check: bool = False,
    ) -> None:
        super().__init__(model, list(methods) or [default_method(model)], layers)
        self._targets, self._check = targets, check
        self._passes = self._divide()

    def length(self, item: Any) -> int:
        """Count as the model's tokenizer does, special tokens included."""
        return self._lengths_together([item])[0]

    def lengths(self, items: Sequence[Any]) -> list[int | Exception]:
        """Count many at a time, which is quicker; where one cannot be taken, one by one."""
        lengths: list[int | Exception] = []
        for start in range(0, len(items), _COUNTED_AT_ONCE):
            several = items[start : start + _COUNTED_AT_ONCE]
            try:
                lengths += self._lengths_together(several)
            except Exception:  # it is told of the input it belongs to
                lengths += super().lengths(several)
        return lengths

    def _lengths_together(self, items: Sequence[Any]) -> list[int]:
        batch = self.model.adapter.encode(self.model.module, self.model.tokenizer, list(items))
        longest = int(batch.inputs["input_ids"].shape[1])
        return [len(batch.positions_of(k, longest)) for k in range(len(items))]

    def explain(self, items: Sequence[Any]) -> Results:
        """Run one forward pass for all methods that can share it."""
        results: dict[Method, list[Attribution]] = {}
        with quiet_about_limits():
            for explain_group, methods in self._passes:
                results |= zip(methods, explain_group(items, methods), strict=True)
        if self._check:
            pairs = zip(results[self.methods[0]], items, strict=True)
            results[self.methods[0]] = [check_answer(one, self.model, item) for one, item in pairs]
        return [[results[method][k] for method in self.methods] for k in range(len(items))]

    def _divide(self) -> list[tuple[Callable[[Sequence[Any], list[Any]], Results], list[Method]]]:
        """Return which methods share a pass, and the function that makes it for all inputs."""
        adapter = self.model.adapter
        by_rows = self._targets is None and adapter.supports_row_gradients(self.model.module)
        rows: list[Method] = [
            m for m in self.methods if by_rows and isinstance(m, GradientAttention)
        ]
        alone = [
            method
            for method in self.methods
            if depends_on_text(method, self.model)
            or needs_own_gradients(self.model, method, self._targets)
        ]
        shared = [m for m in self.methods if m not in rows and m not in alone]
        last_rows = partial(explain_last_rows, self.model, layers=self.layers)
        return [
            *((last_rows, group) for group in _sharing(rows)),
            *([(self._explain_alone, alone)] if alone else []),
            *((self._explain_traces, group) for group in _sharing(shared)),
        ]

    def _explain_alone(self, items: Sequence[Any], methods: Sequence[Method]) -> Results:
        """Explain one by one what has a gradient for each answer, or is fitted to each text."""

        def explain(method: Method, text: Any) -> Attribution:
            request: dict[str, Any] = {"targets": self._targets, "layers": self.layers}
            if depends_on_text(method, self.model):
                return apply_default(self.model, text, **request)
            return apply_method(method, self.model, text, **request)

        return [[explain(method, text) for text in items] for method in methods]

    def _explain_traces(self, items: Sequence[Any], methods: Sequence[Method]) -> Results:
        traces = capture(self.model, self._inputs(items), methods=methods)
        return [
            [answer_rows(method, trace, self._targets, self.layers, threads=1) for trace in traces]
            for method in methods
        ]

    def _inputs(self, items: Sequence[Any]) -> Any:
        return list(items)


class ImageBatches(TextBatches):
    """Images of a vision model, as `explain` takes them: the sources are patches."""

    def _lengths_together(self, items: Sequence[Any]) -> list[int]:
        """All images have one size, and so one number of patches."""
        module: Any = self.model.module
        embedding = getattr(module, "patch_embed", None)
        if embedding is not None:  # timm
            return [int(embedding.num_patches) + 1] * len(items)
        size, patch = (_side(module.config, name) for name in ("image_size", "patch_size"))
        return [max(1, size // max(1, patch)) ** 2 + 1] * len(items)

    def _inputs(self, items: Sequence[Any]) -> Any:
        images = prepare_images(self.model, items)
        return [{"pixel_values": torch.cat([image.inputs["pixel_values"] for image in images])}]


def _side(config: Any, name: str) -> int:
    value = getattr(config, name, 1)
    return int(value[0] if isinstance(value, (tuple, list)) else value)


def _sharing(methods: Sequence[Method]) -> list[list[Method]]:
    """Group methods whose requirements one forward pass can meet.

    Heads are mixed as they are seen wherever possible, so methods that mix them alike stay together
    and apart from those that need every head: a second pass costs less than all heads in memory.
    """
    groups: list[list[Method]] = []
    for method in methods:
        for group in groups:
            try:
                both = requirements_of([*group, method])
            except MethodError:
                continue
            if both.heads == group[0].requires.heads == method.requires.heads:
                group.append(method)
                break
        else:
            groups.append([method])
    return groups


class PromptText(NamedTuple):
    """A prompt, what followed it (None: to be written), and where documents stand in characters."""

    prompt: str
    completion: str | None = None
    documents: tuple[CharSpan, ...] = ()


class CompletionBatches(Batches[PromptText]):
    """Prompts whose completions are explained, given or (`max_new_tokens`) written, for many."""

    def __init__(
        self,
        model: Model,
        methods: Sequence[Method] = (),
        *,
        layers: int = -1,
        max_new_tokens: int = 0,
        chat: bool = False,
        check: bool = False,
    ) -> None:
        checked_generator(model.module)
        choices: Sequence[Method | None] = methods or (None,)
        self._readers = [Reader.of(model, method) for method in choices]
        super().__init__(model, [reader.method for reader in self._readers], layers)
        self._max_new_tokens, self._chat, self._check = max_new_tokens, chat, check

    def length(self, item: PromptText) -> int:
        """Count the prompt and its completion, or the room for one."""
        prompt = self._prompt(item)
        new = self._max_new_tokens
        if item.completion is not None:
            new = len(completion_ids(self.model, item.completion))
        elif not new:
            raise TokensError(
                "The prompt has no completion. Give one in a column (--completion), or have one "
                "made: max_new_tokens=20 (--max-new-tokens 20)."
            )
        check_room(self.model, len(prompt.ids), new)
        return len(prompt.ids) + new

    def explain(self, items: Sequence[PromptText]) -> Results:
        """Read the completions that are there together, and write the others together."""
        results: dict[int, list[Attribution]] = {}
        for explain_group, has_text in ((self._read_all, True), (self._write_all, False)):
            group = {k: item for k, item in enumerate(items) if (item[1] is not None) is has_text}
            if group:
                with quiet_about_limits():
                    results |= zip(group, explain_group(list(group.values())), strict=True)
        return [results[k] for k in range(len(items))]

    def _read_all(self, items: Sequence[PromptText]) -> Results:
        completions = [
            Completion(self._prompt(item), completion_ids(self.model, item.completion or ""))
            for item in items
        ]
        results = [reader.read_all(completions) for reader in self._readers]
        return self._with_verdicts(completions, [list(row) for row in zip(*results, strict=True)])

    def _write_all(self, items: Sequence[PromptText]) -> Results:
        first, *others = self._readers
        batch = encode_prompts(self.model, [self._wording(item) for item in items])
        pairs = write(first, batch, self._max_new_tokens)
        completions = [Completion(text.prompt, text.ids) for text, _ in pairs]
        results = [reader.read_all(completions) for reader in others]
        rows = [[result, *row] for (_, result), *row in zip(pairs, *results, strict=True)]
        return self._with_verdicts(completions, rows)

    def _with_verdicts(self, completions: Sequence[Completion], rows: Results) -> Results:
        if not self._check:
            return rows
        return [
            [check_completion(self._readers[0], completion, first), *others]
            for completion, (first, *others) in zip(completions, rows, strict=True)
        ]

    def _prompt(self, item: PromptText) -> Prompt:
        return encode_prompts(self.model, self._wording(item)).prompts[0]

    def _wording(self, item: PromptText) -> Any:
        if item.documents:
            parts = item.documents
            return encode_parts(self.model.tokenizer, item.prompt, parts, chat=self._chat)
        return as_chat(item.prompt) if self._chat else item.prompt
