"""A finished text attributed to its prompt: one forward pass, or a whole trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnflow.attribution import Attribution
from attnflow.attribution.rescaling import SOURCE_TOKENS, resolve_spans
from attnflow.explainers.answer_rows import join_targets
from attnflow.explainers.defaults import drop_sink
from attnflow.explainers.gradient_rows import (
    LOG_PROBS,
    CompletionRows,
    completion_rows,
)
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.request import (
    ANSWER,
    CompletionRequest,
    CompletionTarget,
    Contrast,
    resolve_targets,
    takes_gradients,
)
from attnflow.explainers.rollout_cache import RolloutCache, streams
from attnflow.hosts.adapter import ModelFacts
from attnflow.hosts.capture import capture, capture_phrase
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.generate import can_stream, run_once
from attnflow.hosts.transformers.inputs import tokens_of
from attnflow.hosts.vision_language.towers import after_prompt, has_images
from attnflow.methods import Flow, GradientAttention, Method, Rollout
from attnflow.methods.limits import warn_of_limits
from attnflow.methods.rows import as_one, less_identity, rows_of
from attnflow.methods.towers import image_sources
from attnflow.tokens import Tokens
from attnflow.trace import AttentionTrace
from attnflow.trace.extras import LOG_PROB


@dataclass(frozen=True, eq=False)
class Reader:
    """A language model, its tokenizer, and what is asked of its completions."""

    model: Model
    request: CompletionRequest
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """What a prompt has beside its tokens: the images of a vision-language model."""

    @property
    def module(self) -> Any:
        """The model itself."""
        return self.model.module

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.model.tokenizer

    @property
    def facts(self) -> ModelFacts:
        """Facts that are known of the model."""
        return self.model.facts

    def read(self, prompt: Prompt, ids: list[int], notes: dict[str, Any]) -> Attribution:
        """Attribute a completion to its prompt: its targets, by default every token of it."""
        method = self.method_for(prompt)
        return self.finished(self._attribute(method, prompt.ids, ids, notes), prompt, ids)

    def targets(self, ids: list[int]) -> tuple[CompletionTarget, ...]:
        """What is explained of a completion."""
        contrast = self.contrast(ids)
        if contrast is not None:
            return (CompletionTarget(contrast.text, (contrast.number,)),)
        return resolve_targets(self.tokens(ids), self.request.targets)

    def contrast(self, ids: list[int]) -> Contrast | None:
        """The token that is held against another, if that is asked."""
        request, names = self.request, self.tokens(ids)
        if request.contrast is None:
            return None
        (target,) = resolve_targets(names, request.targets or ANSWER)
        return Contrast.of(self.tokenizer, ids, names, target, request.contrast)

    def method_for(self, prompt: Prompt) -> Method:
        """Return the method, with the prompt's own sink dropped where it is the default."""
        if not self.request.is_default or has_images(self.extra):
            return self.request.method
        inputs = self.text_inputs(prompt.ids, [0])
        return drop_sink(self.request.method, self.model, inputs, prompt.ids[0])

    def explains_rows(self, method: Method) -> bool:
        """Whether one pass over what was written explains it."""
        by_rows = isinstance(method, GradientAttention) and self.request.sources == "prompt"
        return (
            by_rows
            and not has_images(self.extra)
            and self.model.adapter.supports_row_gradients(self.module)
        )

    def finished(self, result: Attribution, prompt: Prompt, ids: list[int]) -> Attribution:
        """Return the result over the spans that are asked for."""
        if self.request.spans is None:
            return result
        members = self._spans(prompt.ids)
        if not self._sums_early:
            result = result.spans(self.request.spans)
        places = [list(positions) for positions in members.values()]
        return replace(result, provenance={**result.provenance, SOURCE_TOKENS: places})

    def _spans(self, prompt: list[int]) -> dict[str, list[int]]:
        return resolve_spans(self.tokens(prompt), self.request.spans or {})

    @property
    def _sums_early(self) -> bool:
        """Whether rows beside the cache hold spans alone."""
        request = self.request
        linear = isinstance(request.method, Rollout) and request.method.receptive_field is None
        return request.spans is not None and linear and self.streamable(request.method)

    # -- rows beside the cache ----------------------------------------------------------------

    def streamable(self, method: Method) -> bool:
        """Whether rows can be had while the model runs; otherwise a whole trace is needed."""
        if self.request.sources == "all" or has_images(self.extra) or not can_stream(self.module):
            return False
        return isinstance(method, Rollout) and streams(method)

    def cache(
        self, methods: Sequence[Method], ids: Tensor, padding: list[int], room: int
    ) -> RolloutCache:
        """Room for the rollout of every position, (batch, `room`), each example by its method."""
        rollouts = [method for method in methods if isinstance(method, Rollout)]
        rows = zip(ids.tolist(), padding, rollouts, strict=True)
        dropped = [
            [
                pad + column
                for column in self.tokens(row[pad:]).occurrences_of(rollout.drop, required=True)
            ]
            for row, pad, rollout in rows
        ]
        layers = self.model.adapter.expected_layers(self.module)
        return RolloutCache(
            rollouts[0],
            prompt=ids.shape[1],
            padding=padding,
            dropped=dropped,
            layers=int(layers or 0),
            room=room,
            members=self._members(ids, padding) if self._sums_early else None,
        )

    def _members(self, ids: Tensor, padding: list[int]) -> Tensor:
        """(examples, prompt, spans and one more): which positions each span has; the last column
        is for those of none.
        """
        rows = []
        for row, pad in zip(ids.tolist(), padding, strict=True):
            spans = list(self._spans(row[pad:]).values())
            member = torch.zeros(len(row), len(spans) + 1)
            for column, positions in enumerate(spans):
                member[[pad + k for k in positions], column] = 1
            member[pad:, -1] = (member[pad:].sum(dim=1) == 0).float()
            rows.append(member)
        return torch.stack(rows).to(ids.device)

    def from_cache(
        self,
        cache: RolloutCache,
        example: int,
        method: Method,
        prompt: list[int],
        ids: list[int],
        notes: dict[str, Any],
    ) -> Attribution:
        """The rows of one example as a result."""
        values, elsewhere = cache.rows(example, len(ids))
        frame = self._frame(prompt, ids, cache.dtype, notes)
        if self._sums_early:
            spans = self._spans(prompt)
            values, elsewhere = values[..., :-1], elsewhere + values[..., -1]
            frame["sources"] = Tokens(tuple(spans), tuple(k[0] for k in spans.values()))
            frame["steps"] = (f"spans({', '.join(map(repr, spans))})",)
        else:
            frame["dependence"] = cache.dependence(example, len(ids))
        result = Attribution(values, cache.layers, method=method, elsewhere=elsewhere, **frame)
        warn_of_limits(result)
        return self._joined(result, ids)

    def from_rows(
        self,
        rows: CompletionRows,
        example: int,
        prompt: list[int],
        ids: list[int],
        notes: dict[str, Any],
    ) -> Attribution:
        """The gradient attention of one example as a result."""
        method = self.request.method
        values, elsewhere = rows.of(example, len(ids))
        sink = rows.sink(example, len(ids))
        if isinstance(method, GradientAttention):
            values, elsewhere = method.without_sink(values, elsewhere, sink)
        dtype = str(self.module.dtype).removeprefix("torch.")
        likely = rows.log_probs[example, : len(ids)].tolist()
        frame = self._frame(prompt, ids, dtype, {"sink": sink, LOG_PROBS: likely, **notes})
        result = Attribution(values, rows.layers, method=method, elsewhere=elsewhere, **frame)
        return self._joined(result, ids)

    def _frame(
        self, prompt: list[int], ids: list[int], dtype: str, notes: dict[str, Any]
    ) -> dict[str, Any]:
        """The axes of a result, and what it says of the model and the text."""
        about = {**provenance_of(self.module, dtype), **self.about(prompt, ids), **notes}
        return {
            "targets": self._tokens_after(prompt, ids),
            "sources": self.tokens(prompt),
            "provenance": about,
        }

    # -- after the fact -----------------------------------------------------------------------

    def _attribute(
        self, method: Method, prompt: list[int], ids: list[int], notes: dict[str, Any]
    ) -> Attribution:
        if self.explains_rows(method):
            sequence = torch.tensor([[*prompt, *ids]], device=self.module.device)
            mask = torch.ones_like(sequence[:, : len(prompt)])
            options = self.row_options([ids])
            rows = completion_rows(self.module, sequence, mask, len(prompt), [len(ids)], **options)
            return self.from_rows(rows, 0, prompt, ids, notes)
        if takes_gradients(method):
            return self._from_phrases(method, prompt, ids, notes)
        if not self.streamable(method):
            return self._from_trace(method, prompt, ids, notes)
        text = torch.tensor([[*prompt, *ids[:-1]]], device=self.module.device)
        cache = self.cache([method], text[:, : len(prompt)], [0], text.shape[1])
        with at_rest(self.module):
            run_once(self.module, text, cache)
        cache.check(text.shape[1])
        return self.from_cache(cache, 0, method, prompt, ids, notes)

    def _from_trace(
        self, method: Method, prompt: list[int], ids: list[int], notes: dict[str, Any]
    ) -> Attribution:
        """Any method, through a trace of the whole text."""
        trace = capture(
            self.model,
            self.text_inputs(prompt, ids),
            methods=[method],
        )
        first = self._first_row(trace, len(prompt))
        result = self._rows(method, trace, list(range(first, first + len(ids))), len(prompt))
        result = replace(
            result,
            targets=self._tokens_after(prompt, ids),
            provenance={**trace.provenance, **self.about(prompt, ids), **notes},
            prediction=None,
        )
        return self._joined(result, ids)

    def _from_phrases(
        self, method: Method, prompt: list[int], ids: list[int], notes: dict[str, Any]
    ) -> Attribution:
        """A gradient method: one pass for each target, whatever the number of its tokens."""
        inputs, contrast = self.text_inputs(prompt, ids), self.contrast(ids)
        first = 0 if self.facts.encoder_decoder else len(prompt) - 1
        targets, results = self.targets(ids), []
        for target in targets:
            trace = capture_phrase(
                self.model,
                inputs,
                [(first + k, ids[k]) for k in target.tokens],
                method=method,
                contrast=None if contrast is None else contrast.other,
            )
            rows = [self._first_row(trace, len(prompt)) + k for k in target.tokens]
            part = self._rows(method, trace, rows, len(prompt))
            columns = self.columns(trace, len(prompt))
            places = [columns.index(row) if row in columns else trace.length for row in rows]
            results.append(as_one(less_identity(part, places)))
        names = self.names_after(prompt, targets)
        result = join_targets(results, names)
        about = {**result.provenance, **self.about(prompt, ids), **notes}
        return replace(result, provenance=about)

    def row_options(self, completions: Sequence[list[int]]) -> dict[str, Any]:
        """What gradients are taken of: the method's score, and the contrasts that are asked for."""
        method = self.request.method
        contrasts = {}
        for example, ids in enumerate(completions):
            contrast = self.contrast(ids)
            if contrast is not None:
                contrasts[example, contrast.number] = contrast.other
        score = method.score if isinstance(method, GradientAttention) else LOG_PROB
        return {"score": score, "contrasts": contrasts}

    def _joined(self, result: Attribution, ids: list[int]) -> Attribution:
        """The rows of single tokens as those of the targets that are asked for."""
        if self.request.targets is None and self.request.contrast is None:
            return result
        targets = self.targets(ids)
        parts = [as_one(rows_of(result, target.tokens)) for target in targets]
        prompt = int(result.provenance["prompt_length"])
        return join_targets(parts, self.names_after([0] * prompt, targets))

    def _rows(
        self, method: Method, trace: AttentionTrace, rows: list[int], prompt: int
    ) -> Attribution:
        """These rows over the sources that are asked for; the rest of them is elsewhere."""
        columns = self.columns(trace, prompt)
        if isinstance(method, Flow):  # flows to single sources do not add up: nothing is elsewhere
            return method(trace, targets=rows, sources=columns)
        result = method(trace, targets=rows)
        if len(columns) == trace.length:
            return result
        others = sorted(set(range(trace.length)) - set(columns))
        part: dict[str, Any] = {
            name: None if (array := getattr(result, name)) is None else array[..., columns].copy()
            for name in ("values", "lower", "upper", "saturated")
        }
        return replace(
            result,
            **part,
            elsewhere=result.values[..., others].sum(axis=-1),
            sources=result.sources.select(columns),
        )

    def columns(self, trace: AttentionTrace, prompt: int) -> list[int]:
        """The positions of a trace that are the sources: those of the prompt, or all."""
        sources = image_sources(trace)  # of two towers: patches and words
        if sources is None:
            sources, end = list(range(trace.length)), trace.encoder_length or prompt
        else:
            end = (trace.encoder_length or 0) + prompt
        return sources if self.request.sources == "all" else [k for k in sources if k < end]

    def _first_row(self, trace: AttentionTrace, prompt: int) -> int:
        """The position of a trace that predicts the first token of the completion."""
        if self.facts.encoder_decoder:
            return trace.encoder_length or 0
        return (trace.encoder_length or 0) + prompt - 1

    def text_inputs(self, prompt: list[int], ids: list[int]) -> dict[str, Tensor]:
        """Prompt and completion as one text, or on the two sides of an encoder–decoder."""
        if has_images(self.extra):
            return after_prompt(self.module, self.extra, prompt, ids[:-1])
        if not self.facts.encoder_decoder:
            text = torch.tensor([[*prompt, *ids[:-1]]])
            return {"input_ids": text, "attention_mask": torch.ones_like(text)}
        source, target = torch.tensor([prompt]), torch.tensor([[self.facts.start_token, *ids[:-1]]])
        return {
            "input_ids": source,
            "attention_mask": torch.ones_like(source),
            "decoder_input_ids": target,
        }

    # -- names --------------------------------------------------------------------------------

    def tokens(self, ids: Sequence[int]) -> Tokens:
        """These ids by name."""
        return tokens_of(self.tokenizer, ids)

    def _tokens_after(self, prompt: list[int], ids: list[int]) -> Tokens:
        start = len(prompt)
        return Tokens(self.tokens(ids).texts, tuple(range(start, start + len(ids))))

    def names_after(self, prompt: list[int], targets: Sequence[CompletionTarget]) -> Tokens:
        """Targets by name, each at the position of its first token."""
        positions = tuple(len(prompt) + target.tokens[0] for target in targets)
        return Tokens(tuple(target.text for target in targets), positions)

    def about(self, prompt: list[int], ids: list[int]) -> dict[str, Any]:
        """What a result says of the text it is about."""
        text = None if self.tokenizer is None else self.tokenizer.decode(ids)
        return {
            "prompt_length": len(prompt),
            "completion": text,
            "completion_ids": list(ids),
            "kind": "causal",
        }
