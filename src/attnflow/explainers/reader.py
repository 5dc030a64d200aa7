"""A finished text attributed to its prompt: one forward pass, or a whole trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from attnflow.attribution import Attribution
from attnflow.attribution.passages import LOG_PROBS
from attnflow.attribution.rescaling import SOURCE_TOKENS, Span, resolve_spans
from attnflow.errors import InputError, MethodError, shorten
from attnflow.explainers.answer_rows import as_one, join_targets, less_identity, rows_of
from attnflow.explainers.defaults import default_method, drop_sink, measures_words
from attnflow.explainers.gradient_rows import CompletionRows, carried_shares, completion_rows
from attnflow.explainers.measured_words import measure_completion_words
from attnflow.explainers.request import (
    ANSWER,
    Completion,
    CompletionTarget,
    Contrast,
    SourceRefs,
    TargetRef,
    TargetRefs,
    check_contrast,
    list_targets,
    resolve_targets,
    takes_gradients,
)
from attnflow.explainers.rollout_cache import RolloutCache, streams
from attnflow.hosts.adapter import device_of
from attnflow.hosts.capture import capture, read_phrases
from attnflow.hosts.factored import Keys, keys_of
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.inputs import tokens_of
from attnflow.hosts.model import Model
from attnflow.hosts.restore import at_rest
from attnflow.hosts.spans import indicators
from attnflow.hosts.transformers.generate import can_stream, run_once
from attnflow.hosts.vision_language.towers import after_prompt, has_images
from attnflow.methods import Flow, GradientAttention, Method, Rollout, make_method
from attnflow.methods.base import warn_of_limits
from attnflow.methods.products import image_sources
from attnflow.tokens import Tokens
from attnflow.trace import AttentionTrace


@dataclass(frozen=True, eq=False)
class Reader:
    """A language model, and what is asked of its completions.

    target_refs: what of a completion is explained; None for every token alone.
    contrast_text: what the target is held against.
    spans: named spans of the prompt as sources, in place of its tokens.
    is_default: no method was asked for; a default rollout drops the prompt's sink, wherever it is.
    extra: what a prompt has beside its tokens: the images of a vision-language model.
    """

    model: Model
    method: Method
    sources: Literal["prompt", "all"] = "prompt"
    target_refs: tuple[TargetRef, ...] | None = None
    contrast_text: str | None = None
    spans: Mapping[str, Span] | None = None
    is_default: bool = False
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: Model,
        method: str | Method | None = None,
        sources: SourceRefs = "prompt",
        targets: TargetRefs = None,
        contrast: str | None = None,
    ) -> Reader:
        """Check what generate() takes; errors name what is allowed."""
        applied = default_method(model, every_token=True) if method is None else make_method(method)
        spans = sources if isinstance(sources, Mapping) else None
        side = "prompt" if isinstance(sources, Mapping) else sources
        if not isinstance(side, str) or side not in ("prompt", "all") or spans == {}:
            raise InputError(
                "sources is 'prompt', 'all', or spans of the prompt by name, such as "
                f"{{'contract': (0, 120)}}; got {shorten(sources)}."
            )
        references = list_targets(targets)
        if contrast is not None:
            check_contrast(contrast, applied, references)
        return cls(model, applied, side, references, contrast, spans, is_default=method is None)

    @property
    def module(self) -> Any:
        """The model itself."""
        return self.model.module

    def targets(self, ids: list[int]) -> tuple[CompletionTarget, ...]:
        """Return what is explained of a completion."""
        contrast = self.contrast(ids)
        if contrast is not None:
            return (CompletionTarget(contrast.text, (contrast.number,)),)
        return resolve_targets(self.tokens(ids), self.target_refs)

    def contrast(self, ids: list[int]) -> Contrast | None:
        """Return the token that is held against another, if that is asked."""
        if self.contrast_text is None:
            return None
        names = self.tokens(ids)
        (target,) = resolve_targets(names, self.target_refs or ANSWER)
        return Contrast.of(self.model.tokenizer, ids, names, target, self.contrast_text)

    def method_for(self, prompt: list[int]) -> Method:
        """Return the method, with the prompt's own sink dropped where it is the default."""
        if not self.is_default or has_images(self.extra):
            return self.method
        return drop_sink(self.method, self.model, self.text_inputs(prompt, [0]), prompt[0])

    # -- one pass over prompts and completions ------------------------------------------------

    @property
    def row_method(self) -> GradientAttention | None:
        """The method, where one pass over what was written explains it."""
        method = self.method
        if not isinstance(method, GradientAttention):
            return None
        has_rows = self.model.adapter.supports_row_gradients(self.module)
        return method if has_rows and not has_images(self.extra) else None

    def read_all(self, completions: Sequence[Completion]) -> list[Attribution]:
        """Attribute each completion to its prompt, all in one pass where their rows allow that."""
        if self.row_method is None:
            return [self.read(completion) for completion in completions]
        longest = max(len(each.prompt.ids) for each in completions)
        most = max(len(each.ids) for each in completions)
        padding = [longest - len(each.prompt.ids) for each in completions]
        sequences = [
            [0] * pad + each.prompt.ids + each.ids + [0] * (most - len(each.ids))
            for pad, each in zip(padding, completions, strict=True)
        ]
        mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
        ids, visible = (
            torch.tensor(rows, device=device_of(self.module)) for rows in (sequences, mask)
        )
        keys = completions[0].keys if len(completions) == 1 else ()
        return self.read_rows(completions, ids, visible, keys)

    def read_rows(
        self, completions: Sequence[Completion], sequences: Tensor, mask: Tensor, keys: Keys = ()
    ) -> list[Attribution]:
        """Attribute completions by gradient attention; arguments as `completion_rows` has them."""
        contrasts = {}
        for example, each in enumerate(completions):
            contrast = self.contrast(each.ids)
            if contrast is not None:
                contrasts[example, contrast.number] = contrast.other
        method = self.row_method or GradientAttention()
        rows = completion_rows(
            self.module,
            sequences,
            mask,
            mask.shape[1],
            [len(each.ids) for each in completions],
            keys,
            score=method.score,
            balanced=method.balanced,
            contrasts=contrasts,
        )
        if len(completions) == 1 and not completions[0].keys:
            completions[0].keys.extend(rows.keys)
        return [self._from_rows(method, rows, k, each) for k, each in enumerate(completions)]

    def _from_rows(
        self, method: GradientAttention, rows: CompletionRows, example: int, completion: Completion
    ) -> Attribution:
        count = len(completion.ids)
        sink = rows.sink(example, count)
        values, elsewhere = method.without_sink(*rows.of(example, count, self.sources), sink)
        likely = rows.log_probs[example, :count].tolist()
        frame = self._frame(completion, notes={"sink": sink, LOG_PROBS: likely})
        result = Attribution(values, rows.layers, method=method, elsewhere=elsewhere, **frame)
        return self._joined(result, completion)

    def _frame(
        self,
        completion: Completion,
        dtype: str | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the axes of a result, and what it says of the model and the text."""
        prompt, ids = completion.prompt.ids, completion.ids
        dtype = dtype or str(self.module.dtype).removeprefix("torch.")
        about = {**provenance_of(self.module, dtype), **self.about(prompt, ids)}
        return {
            "targets": self.names_after(prompt, resolve_targets(self.tokens(ids), None)),
            "sources": self.tokens([*prompt, *ids[:-1]] if self.sources == "all" else prompt),
            "provenance": {**about, **(notes or {}), **completion.notes},
        }

    def read_carried(self, completion: Completion) -> Attribution:
        """Attribute each token to spans of the prompt, through what was written before it."""
        method, prompt, ids = self.row_method, completion.prompt.ids, completion.ids
        if method is None or self.spans is None:
            raise MethodError(
                "What was written is carried on to spans by gradient attention of a causal model "
                f"without images; this is {self.method.name!r}."
            )
        text = torch.tensor([[*prompt, *ids]], device=self.module.device)
        members = self._members(text[:, : len(prompt)], [0])[0].double().cpu().numpy()
        values = carried_shares(self.module, text, len(prompt), members, method)[None]
        names = self._spans(prompt)
        frame = self._frame(completion)
        frame["sources"] = Tokens(tuple(names), tuple(k[0] for k in names.values()))
        frame["steps"] = (f"spans({', '.join(map(repr, names))})", "carried()")
        layers = (int(self.model.adapter.expected_layers(self.module) or 0),)
        elsewhere = 1 - values[..., :-1].sum(axis=-1)
        return Attribution(values[..., :-1], layers, method=method, elsewhere=elsewhere, **frame)

    # -- rows beside the cache ----------------------------------------------------------------

    @property
    def streams(self) -> bool:
        """True where rows can be had while the model runs; otherwise a whole trace is needed."""
        if self.sources == "all" or has_images(self.extra) or not can_stream(self.module):
            return False
        return isinstance(self.method, Rollout) and streams(self.method)

    @property
    def _sums_early(self) -> bool:
        """True where rows beside the cache hold spans alone."""
        linear = isinstance(self.method, Rollout) and self.method.receptive_field is None
        return self.spans is not None and linear and self.streams

    def cache(
        self, methods: Sequence[Method], ids: Tensor, padding: list[int], room: int
    ) -> RolloutCache:
        """Make room for the rollout of every position, (batch, `room`), each by its method."""
        rollouts = [method for method in methods if isinstance(method, Rollout)]
        dropped = [
            [pad + k for k in self.tokens(row[pad:]).occurrences_of(rollout.drop, required=True)]
            for row, pad, rollout in zip(ids.tolist(), padding, rollouts, strict=True)
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
            rows.append(functional.pad(indicators(spans, len(row) - pad), (0, 0, pad, 0)))
        return torch.stack(rows).to(ids.device)

    def _spans(self, prompt: list[int]) -> dict[str, list[int]]:
        return resolve_spans(self.tokens(prompt), self.spans or {})

    def from_cache(
        self, cache: RolloutCache, example: int, method: Method, completion: Completion
    ) -> Attribution:
        """Return the rows of one example as a result."""
        count = len(completion.ids)
        values, elsewhere = cache.rows(example, count)
        frame = self._frame(completion, cache.dtype)
        if self._sums_early:
            spans = self._spans(completion.prompt.ids)
            values, elsewhere = values[..., :-1], elsewhere + values[..., -1]
            frame["sources"] = Tokens(tuple(spans), tuple(k[0] for k in spans.values()))
            frame["steps"] = (f"spans({', '.join(map(repr, spans))})",)
        else:
            frame["dependence"] = cache.dependence(example, count)
        result = Attribution(values, cache.layers, method=method, elsewhere=elsewhere, **frame)
        warn_of_limits(result)
        return self._joined(result, completion)

    # -- after the fact -----------------------------------------------------------------------

    def read(self, completion: Completion) -> Attribution:
        """Attribute a completion to its prompt: its targets, by default every token of it."""
        if self.row_method is not None:
            return self.read_all([completion])[0]
        prompt, ids = completion.prompt.ids, completion.ids
        method = self.method_for(prompt)
        if takes_gradients(method):
            return self._from_phrases(method, completion)
        if not self.streams:
            return self._from_trace(method, completion)
        text = torch.tensor([[*prompt, *ids[:-1]]], device=device_of(self.module))
        cache = self.cache([method], text[:, : len(prompt)], [0], text.shape[1])
        with at_rest(self.module):
            run_once(self.module, text, cache)
        cache.check(text.shape[1])
        return self.from_cache(cache, 0, method, completion)

    def _from_trace(self, method: Method, completion: Completion) -> Attribution:
        """Apply any method, through a trace of the whole text."""
        prompt, ids = completion.prompt.ids, completion.ids
        trace = capture(self.model, self.text_inputs(prompt, ids), methods=[method])
        first = self._first_row(trace, len(prompt))
        result = self._rows(method, trace, list(range(first, first + len(ids))), len(prompt))
        result = replace(
            result,
            targets=self.names_after(prompt, resolve_targets(self.tokens(ids), None)),
            provenance={**trace.provenance, **self.about(prompt, ids), **completion.notes},
            prediction=None,
        )
        return self._joined(result, completion)

    def _from_phrases(self, method: Method, completion: Completion) -> Attribution:
        """Apply a gradient method to each target."""
        prompt, ids = completion.prompt.ids, completion.ids
        targets = self.targets(ids)
        rows = self.read_phrases(method, completion, [target.tokens for target in targets])
        result = join_targets(rows, self.names_after(prompt, targets))
        if self.is_default and measures_words(method) and self.contrast_text is None:
            result = measure_completion_words(result, self.model, completion, targets)
        about = {**result.provenance, **self.about(prompt, ids), **completion.notes}
        return self._over_spans(replace(result, provenance=about), prompt)

    def read_phrases(
        self,
        method: Method,
        completion: Completion,
        phrases: Sequence[Sequence[int]],
        tell_done: Callable[[int], object] = lambda _: None,
    ) -> list[Attribution]:
        """Apply a gradient method to tokens of a completion together: one row for each phrase."""
        prompt, ids = completion.prompt.ids, completion.ids
        contrast = self.contrast(ids)
        first = 0 if self.model.facts.encoder_decoder else len(prompt) - 1
        waiting = iter(enumerate(phrases, start=1))

        def read(trace: AttentionTrace) -> Attribution:
            number, phrase = next(waiting)
            rows = [self._first_row(trace, len(prompt)) + k for k in phrase]
            result = self._rows(method, trace, rows, len(prompt))
            if not completion.keys:
                completion.keys.extend(keys_of(trace))
            columns = self.columns(trace, len(prompt))
            places = [columns.index(row) if row in columns else trace.length for row in rows]
            tell_done(number)
            return as_one(less_identity(result, places))

        return read_phrases(
            self.model,
            self.text_inputs(prompt, ids),
            [[(first + k, ids[k]) for k in tokens] for tokens in phrases],
            read,
            method=method,
            contrast=None if contrast is None else contrast.other,
        )

    def _rows(
        self, method: Method, trace: AttentionTrace, rows: list[int], prompt: int
    ) -> Attribution:
        """Return these rows over the sources that are asked for; the rest of them is elsewhere."""
        columns = self.columns(trace, prompt)
        if isinstance(method, Flow):  # flows to single sources do not add up: nothing is elsewhere
            return method(trace, targets=rows, sources=columns)
        result = method(trace, targets=rows)
        if len(columns) == trace.length:
            return result
        others = sorted(set(range(trace.length)) - set(columns))
        arrays: dict[str, Any] = {
            name: array[..., columns].copy()
            for name, array in result.arrays().items()
            if name in ("values", "lower", "upper", "saturated")
        }
        return replace(
            result,
            **arrays,
            elsewhere=result.values[..., others].sum(axis=-1),
            sources=result.sources.select(columns),
        )

    def columns(self, trace: AttentionTrace, prompt: int) -> list[int]:
        """Return the positions of a trace that are sources: those of the prompt, or all."""
        sources = image_sources(trace)  # of two towers: patches and words
        if sources is None:
            sources, end = list(range(trace.length)), trace.encoder_length or prompt
        else:
            end = (trace.encoder_length or 0) + prompt
        return sources if self.sources == "all" else [k for k in sources if k < end]

    def _first_row(self, trace: AttentionTrace, prompt: int) -> int:
        """Return the position of a trace that predicts the first token of the completion."""
        before = trace.encoder_length or 0
        return before if self.model.facts.encoder_decoder else before + prompt - 1

    def _joined(self, result: Attribution, completion: Completion) -> Attribution:
        """Return rows of single tokens as those of the targets that are asked for."""
        prompt = completion.prompt.ids
        if self.target_refs is not None or self.contrast_text is not None:
            targets = self.targets(completion.ids)
            parts = [as_one(rows_of(result, target.tokens)) for target in targets]
            result = join_targets(parts, self.names_after(prompt, targets))
        return self._over_spans(result, prompt)

    def _over_spans(self, result: Attribution, prompt: list[int]) -> Attribution:
        if self.spans is None:
            return result
        members = self._spans(prompt)
        if not self._sums_early:
            result = result.spans(self.spans)
        places = [list(positions) for positions in members.values()]
        return replace(result, provenance={**result.provenance, SOURCE_TOKENS: places})

    # -- the text, and its names --------------------------------------------------------------

    def text_inputs(self, prompt: list[int], ids: list[int]) -> dict[str, Tensor]:
        """Return prompt and completion as one text, or as the two sides of an encoder–decoder."""
        if has_images(self.extra):
            return after_prompt(self.module, self.extra, prompt, ids[:-1])
        facts = self.model.facts
        text = torch.tensor([prompt if facts.encoder_decoder else [*prompt, *ids[:-1]]])
        inputs = {"input_ids": text, "attention_mask": torch.ones_like(text)}
        if facts.encoder_decoder:
            inputs["decoder_input_ids"] = torch.tensor([[facts.start_token, *ids[:-1]]])
        return inputs

    def tokens(self, ids: Sequence[int]) -> Tokens:
        """Return these ids by name."""
        return tokens_of(self.model.tokenizer, ids)

    def names_after(self, prompt: list[int], targets: Sequence[CompletionTarget]) -> Tokens:
        """Return targets by name, each at the position of its first token."""
        positions = tuple(len(prompt) + target.tokens[0] for target in targets)
        return Tokens(tuple(target.text for target in targets), positions)

    def about(self, prompt: list[int], ids: list[int]) -> dict[str, Any]:
        """Return what a result says of the text it is about."""
        tokenizer = self.model.tokenizer
        return {
            "prompt_length": len(prompt),
            "completion": None if tokenizer is None else tokenizer.decode(ids),
            "completion_ids": list(ids),
            "kind": "causal",
        }
