"""A model that explains the texts of a corpus, a batch at a time: what a worker has in memory.

Each way gives what `explain` or `explain_completion` give for a text alone; that a batch is padded
changes the last digits at most.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from attnflow.attribution import Attribution
from attnflow.corpus.last_rows import explain_last_rows
from attnflow.corpus.settings import ALL, PREDICTION, Settings, method_label
from attnflow.corpus.texts import CorpusText
from attnflow.errors import InputError, MethodError
from attnflow.evaluation.fingerprint import digest_of_tokenizer, digest_of_weights
from attnflow.explainers.answer_rows import apply_method, default_method
from attnflow.hosts.capture import capture_batch, provenance_of
from attnflow.hosts.model import Model
from attnflow.hosts.registry import adapter_for
from attnflow.methods import GradientAttention, Method, quiet_about_limits, requirements_of
from attnflow.methods.rows import pooled_row
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import GRADIENT_ATTENTION, GRADIENTS

__all__ = ["Explainer", "TextExplainer"]

_COUNTED_AT_ONCE = 64  # texts whose lengths are taken together


class Explainer(ABC):
    """A loaded model, and what is asked of each text."""

    def __init__(self, loaded: Model, settings: Settings) -> None:
        self.model: Any = loaded.module
        self.tokenizer = loaded.tokenizer
        self.settings = settings
        self.adapter = adapter_for(self.model)

    @abstractmethod
    def length(self, text: CorpusText) -> int:
        """How many tokens it has; raises where the model cannot take it."""

    def lengths(self, texts: Sequence[CorpusText]) -> list[int | Exception]:
        """The length of each text, or why the model cannot take it."""
        return [self._length_or_error(text) for text in texts]

    def _length_or_error(self, text: CorpusText) -> int | Exception:
        try:
            return self.length(text)
        except Exception as error:  # whatever is wrong with a text must not end the run
            return error

    @abstractmethod
    def explain(self, texts: Sequence[CorpusText]) -> list[list[Attribution]]:
        """For each text the results of all methods."""

    @property
    @abstractmethod
    def method_names(self) -> list[str]:
        """The methods by their labels; "default" where the default depends on the text."""

    def document_tokens(self, text: CorpusText) -> list[list[int]] | None:
        """Which tokens each document is made of, where the tokenizer tells the place of a token."""
        if self.settings.level != "document" or not text.documents or self.settings.chat:
            return None
        if not getattr(self.tokenizer, "is_fast", False):
            return None
        spans = self.tokenizer(text.text, return_offsets_mapping=True)["offset_mapping"]
        members: list[list[int]] = []
        place = 0
        for document in text.documents:
            begin = text.text.index(document, place)
            place = begin + len(document)
            members.append([k for k, (a, b) in enumerate(spans) if a < b and begin < b <= place])
        return members

    def check(self) -> None:
        """Refuse what no text could be explained with."""
        layers = self.adapter.expected_layers(self.model)
        if layers is not None and self.settings.layer > layers:
            raise InputError(
                f"layer={self.settings.layer}: the model has {layers} layers with attention; -1 is "
                "the highest."
            )

    def identity(self) -> dict[str, Any]:
        """What a result depends on beside the settings and the data."""
        weights = digest_of_weights(self.model)
        if weights is None:
            raise InputError(
                "Some weights of the model are not in memory, so it cannot be told from another "
                "when the run goes on. Load it without offloading."
            )
        tokenizer = None if self.tokenizer is None else digest_of_tokenizer(self.tokenizer)
        return {"weights": weights, "tokenizer": tokenizer, "methods": self.method_names}

    def provenance(self) -> dict[str, Any]:
        """What the result says of the model."""
        parameter: Any = next(self.model.parameters(), None)
        dtype = "" if parameter is None else str(parameter.dtype).removeprefix("torch.")
        return provenance_of(self.model, dtype)


class TextExplainer(Explainer):
    """Texts (or images) that are explained as they are: `explain` for many."""

    def __init__(self, loaded: Model, settings: Settings) -> None:
        super().__init__(loaded, settings)
        self.methods: tuple[Method, ...] = settings.methods or (default_method(self.model),)
        self._passes = self._divide()

    @property
    def method_names(self) -> list[str]:
        """As they are applied."""
        return [method_label(method) for method in self.methods]

    def length(self, text: CorpusText) -> int:
        """As the model's tokenizer counts, special tokens included."""
        return self._lengths_together([text])[0]

    def lengths(self, texts: Sequence[CorpusText]) -> list[int | Exception]:
        """Many at a time, since asking the tokenizer and the model takes longer than counting.

        Where one cannot be taken, those beside it are asked one by one.
        """
        lengths: list[int | Exception] = []
        for start in range(0, len(texts), _COUNTED_AT_ONCE):
            part = texts[start : start + _COUNTED_AT_ONCE]
            try:
                lengths += self._lengths_together(part)
            except Exception:  # it is told of the text it belongs to
                lengths += super().lengths(part)
        return lengths

    def _lengths_together(self, texts: Sequence[CorpusText]) -> list[int]:
        plain = [text.text for text in texts]
        batch = self.adapter.encode(self.model, self.tokenizer, plain)
        longest = int(batch.inputs["input_ids"].shape[1])
        return [len(batch.positions_of(k, longest)) for k in range(len(texts))]

    def explain(self, texts: Sequence[CorpusText]) -> list[list[Attribution]]:
        """One forward pass for all methods that can share it."""
        by_method: dict[Method, list[Attribution]] = {}
        with quiet_about_limits():
            for way, methods in self._passes:
                by_method |= dict(zip(methods, way(texts, methods), strict=True))
        return [[by_method[method][k] for method in self.methods] for k in range(len(texts))]

    def _divide(self) -> list[tuple[Any, list[Method]]]:
        """Which methods share a pass, and how it is made."""
        by_rows = self.settings.targets == PREDICTION and self.adapter.supports_row_gradients(
            self.model
        )
        own_answers = self.adapter.facts(self.model).answer == "each"
        rows: list[Method] = [
            m for m in self.methods if by_rows and isinstance(m, GradientAttention)
        ]
        single = self.settings.targets not in (PREDICTION, ALL)
        of_answers = {GRADIENTS, GRADIENT_ATTENTION} if single else {GRADIENTS}
        alone = [m for m in self.methods if own_answers and of_answers & set(m.requires.record)]
        shared = [m for m in self.methods if m not in rows and m not in alone]
        passes: list[tuple[Any, list[Method]]] = []
        passes += [(self._by_last_rows, group) for group in _sharing(rows)]
        passes += [(self._one_by_one, alone)] if alone else []
        return passes + [(self._captured, group) for group in _sharing(shared)]

    def _by_last_rows(
        self, texts: Sequence[CorpusText], methods: Sequence[Method]
    ) -> list[list[Attribution]]:
        plain = [text.text for text in texts]
        gradient = [method for method in methods if isinstance(method, GradientAttention)]
        return explain_last_rows(self.model, self.tokenizer, plain, gradient, self.settings.layer)

    def _one_by_one(
        self, texts: Sequence[CorpusText], methods: Sequence[Method]
    ) -> list[list[Attribution]]:
        """A token classifier has one answer for each token, and a gradient for each answer."""
        plain = [text.text for text in texts]
        traces = capture_batch(self.model, plain, tokenizer=self.tokenizer, heads="mean")
        options: dict[str, Any] = {"tokenizer": self.tokenizer, "layers": self.settings.layer}
        return [
            [
                apply_method(method, self.model, text, targets=self._targets(trace), **options)
                for text, trace in zip(plain, traces, strict=True)
            ]
            for method in methods
        ]

    def _captured(
        self, texts: Sequence[CorpusText], methods: Sequence[Method]
    ) -> list[list[Attribution]]:
        traces = capture_batch(
            self.model, self._inputs(texts), tokenizer=self.tokenizer, methods=methods
        )
        return [[self._apply(method, trace) for trace in traces] for method in methods]

    def _apply(self, method: Method, trace: AttentionTrace) -> Attribution:
        """The rows that are asked for; of an answer that all positions give, their one row."""
        prediction, layer = trace.prediction, self.settings.layer
        if self.settings.targets == PREDICTION and prediction is not None and prediction.pooled:
            return pooled_row(method(trace, layers=layer, threads=1))
        return method(trace, targets=self._targets(trace), layers=layer, threads=1)

    def _inputs(self, texts: Sequence[CorpusText]) -> Any:
        return [text.text for text in texts]

    def _targets(self, trace: AttentionTrace) -> Any:
        if self.settings.targets == ALL:
            return None
        if self.settings.targets == PREDICTION:
            # Where there is no answer, the first position stands for a text, or the last of a
            # causal model: no other has seen all of it.
            without = -1 if trace.kind == "causal" else 0
            return trace.prediction.position if trace.prediction else without
        return list(self.settings.targets)


def _sharing(methods: Sequence[Method]) -> list[list[Method]]:
    """Methods whose requirements one forward pass can meet; others get one of their own.

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
