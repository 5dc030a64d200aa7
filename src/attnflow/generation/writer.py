"""What a language model wrote, attributed to its prompt: while it writes, or afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from attnflow.attribution import Attribution
from attnflow.errors import InputError, MethodError
from attnflow.extras import GRADIENTS
from attnflow.generation.gradient_rows import (
    CompletionRows,
    can_explain_rows,
    completion_rows,
    empty_cache,
)
from attnflow.generation.prompts import Prompt, neutral_ids
from attnflow.generation.rollout_cache import RolloutCache, streams
from attnflow.hosts.capture import capture, provenance_of
from attnflow.hosts.registry import adapter_for
from attnflow.hosts.restore import at_rest
from attnflow.hosts.transformers.generate import can_stream, end_tokens, run_generate, run_once
from attnflow.methods import Flow, GradientAttention, Method, Rollout, make_method
from attnflow.methods.mixing import ONE_STEP
from attnflow.tokens import Tokens

__all__ = [
    "DEFAULT_METHOD",
    "FALLBACK_METHOD",
    "Baseline",
    "CompletionRequest",
    "Sources",
    "Writer",
    "default_method",
]

DEFAULT_METHOD = GradientAttention()
"""What agrees best with leaving sources out, for one pass (docs/generation.md)."""
FALLBACK_METHOD = Rollout(residual=ONE_STEP)
"""For the models in which gradient attention cannot be had for every generated token at once."""

Baseline = Literal["neutral"] | Sequence[int] | None
Sources = Literal["prompt", "all"]


def default_method(model: Any) -> Method:
    """What explains a completion when nothing is asked for."""
    return DEFAULT_METHOD if can_explain_rows(model) else FALLBACK_METHOD


@dataclass(frozen=True)
class CompletionRequest:
    """What is to be computed of each completion."""

    method: Method
    baseline: Literal["neutral"] | tuple[int, ...] | None
    sources: Sources

    @classmethod
    def of(
        cls, model: Any, method: str | Method | None, baseline: Baseline, sources: Sources
    ) -> CompletionRequest:
        """From what generate() takes; errors name what is allowed."""
        chosen = default_method(model) if method is None else make_method(method)
        if GRADIENTS in chosen.requires.record:
            raise MethodError(
                f"{chosen.name!r} needs the gradient of one score, and every generated token has "
                "its own; explain(model, prompt) gives it for the next token."
            )
        if sources not in ("prompt", "all"):
            raise InputError(f"sources is 'prompt' or 'all'; got {sources!r}.")
        if isinstance(chosen, GradientAttention) and not can_explain_rows(model):
            raise MethodError(
                f"{chosen.name!r} of every generated token needs a causal model in which attention "
                f"alone carries one position to another; {type(model).__name__} is none. Use "
                "method='rollout'."
            )
        if isinstance(baseline, str) and baseline != "neutral":
            raise InputError(
                f"baseline is 'neutral', None, or token ids of a prompt; got {baseline!r}."
            )
        if baseline is None or isinstance(baseline, str):
            return cls(chosen, baseline, sources)
        return cls(chosen, tuple(int(token) for token in baseline), sources)


@dataclass(frozen=True, eq=False)
class Writer:
    """A language model, its tokenizer, and what is asked of what it writes."""

    model: Any
    tokenizer: Any
    asked: CompletionRequest

    def write(
        self,
        prompt: Prompt,
        max_new_tokens: int,
        *,
        seed: int | None,
        stream: Callable[[str], None] | None,
        options: dict[str, Any],
    ) -> list[Attribution]:
        """Generate, watched where the method can be streamed."""
        observer = self._watcher(prompt, max_new_tokens)
        pad = {} if self.tokenizer is None else {"pad_token_id": _pad_token(self.tokenizer)}
        cache = empty_cache() if self._by_rows() else None
        own_cache = {} if cache is None else {"past_key_values": cache}
        chosen = {**pad, **own_cache, **options, "max_new_tokens": max_new_tokens}
        with at_rest(self.model):
            sequences = run_generate(
                self.model,
                prompt.inputs(),
                chosen,
                observer=observer,
                tokenizer=self.tokenizer,
                stream=stream,
                seed=seed,
            )
        notes = {"generate": {**options, "max_new_tokens": max_new_tokens, "seed": seed}}
        written = [self._written(row, prompt) for row in sequences]
        if self._by_rows():
            lengths = [len(ids) for ids in written]
            rows = completion_rows(
                self.model, sequences, prompt.mask, prompt.length, lengths, cache
            )
            results = [
                self._from_rows(rows, b, prompt.own_ids(b), ids, {**notes, "streamed": True})
                for b, ids in enumerate(written)
            ]
            return [
                self._less_baseline(result, prompt.own_ids(b), ids)
                for b, (result, ids) in enumerate(zip(results, written, strict=True))
            ]
        if observer is None:
            return [
                self.read(prompt.own_ids(b), ids, {**notes, "streamed": False})
                for b, ids in enumerate(written)
            ]
        observer.check(sequences.shape[1] - 1)
        streamed = [
            self._from_rows(observer, b, prompt.own_ids(b), ids, {**notes, "streamed": True})
            for b, ids in enumerate(written)
        ]
        return [
            self._less_baseline(result, prompt.own_ids(b), ids)
            for b, (result, ids) in enumerate(zip(streamed, written, strict=True))
        ]

    def read(self, prompt: list[int], ids: list[int], notes: dict[str, Any]) -> Attribution:
        """Attribute a finished text."""
        return self._less_baseline(self._after_the_fact(prompt, ids, notes), prompt, ids)

    # -- both ways ----------------------------------------------------------------------------

    def _by_rows(self) -> bool:
        """Whether one pass over what was written explains it."""
        return isinstance(self.asked.method, GradientAttention) and self.asked.sources == "prompt"

    def _streamable(self) -> Rollout | None:
        """The rollout whose rows can be had while the model runs; None needs a whole trace."""
        method = self.asked.method
        if self.asked.sources == "all" or not can_stream(self.model):
            return None
        return method if isinstance(method, Rollout) and streams(method) else None

    def _watcher(self, prompt: Prompt, max_new_tokens: int) -> RolloutCache | None:
        method = self._streamable()
        if method is None:
            return None
        return self._rows(method, prompt.ids, prompt.padding, prompt.length + max_new_tokens)

    def _rows(self, method: Rollout, ids: Tensor, padding: list[int], room: int) -> RolloutCache:
        dropped = []
        for row, pad in zip(ids.tolist(), padding, strict=True):
            columns = self._tokens(row[pad:]).occurrences_of(method.drop)
            dropped.append([pad + column for column in columns])
        layers = adapter_for(self.model).expected_layers(self.model)
        return RolloutCache(
            method,
            prompt=ids.shape[1],
            padding=padding,
            dropped=dropped,
            layers=int(layers or 0),
            room=room,
        )

    def _from_rows(
        self,
        rows: RolloutCache | CompletionRows,
        example: int,
        prompt: list[int],
        ids: list[int],
        notes: dict[str, Any],
    ) -> Attribution:
        if isinstance(rows, CompletionRows):
            values, elsewhere = rows.of(example, len(ids))
            sink = rows.sink(example, len(ids))
            if isinstance(self.asked.method, GradientAttention):
                values, elsewhere = self.asked.method.without_sink(values, elsewhere, sink)
            notes = {**notes, "sink": sink}
            dtype = str(self.model.dtype).removeprefix("torch.")
        else:
            values, elsewhere = rows.rows(example, len(ids))
            dtype = rows.dtype
        return Attribution(
            values=values,
            layers=rows.layers,
            targets=self._generated(prompt, ids),
            sources=self._tokens(prompt),
            method=self.asked.method,
            elsewhere=elsewhere,
            provenance={**self._about(prompt, ids, dtype), **notes},
        )

    def _after_the_fact(
        self, prompt: list[int], ids: list[int], notes: dict[str, Any]
    ) -> Attribution:
        if self._by_rows():
            sequence = torch.tensor([[*prompt, *ids]], device=self.model.device)
            mask = torch.ones_like(sequence[:, : len(prompt)])
            rows_of_text = completion_rows(self.model, sequence, mask, len(prompt), [len(ids)])
            return self._from_rows(rows_of_text, 0, prompt, ids, notes)
        method = self._streamable()
        if method is None:
            return self._captured(prompt, ids, notes)
        whole = torch.tensor([[*prompt, *ids[:-1]]], device=self.model.device)
        rows = self._rows(method, whole[:, : len(prompt)], [0], whole.shape[1])
        with at_rest(self.model):
            run_once(self.model, whole, rows)
        rows.check(whole.shape[1])
        return self._from_rows(rows, 0, prompt, ids, notes)

    def _captured(self, prompt: list[int], ids: list[int], notes: dict[str, Any]) -> Attribution:
        """Any method, through a trace of the whole text."""
        method, both = self.asked.method, self.asked.sources == "all"
        trace = capture(
            self.model,
            self._text_inputs(prompt, ids),
            tokenizer=self.tokenizer,
            methods=[method],
        )
        first = (trace.encoder_length or len(prompt)) - (trace.encoder_length is None)
        rows = list(range(first, first + len(ids)))
        length = trace.encoder_length or len(prompt)
        named: dict[str, Any] = {
            "targets": self._generated(prompt, ids),
            "provenance": {**trace.provenance, **self._about(prompt, ids, None), **notes},
            "prediction": None,
        }
        if isinstance(method, Flow):  # flows to single sources do not add up: nothing is elsewhere
            columns = list(range(trace.length if both else length))
            return replace(method(trace, targets=rows, sources=columns), **named)
        found = method(trace, targets=rows)
        if both:
            return replace(found, **named)
        cut: dict[str, Any] = {
            name: None if (array := getattr(found, name)) is None else array[..., :length].copy()
            for name in ("values", "lower", "upper", "saturated")
        }
        return replace(
            found,
            **cut,
            elsewhere=found.values[..., length:].sum(axis=-1),
            sources=found.sources.select(range(length)),
            **named,
        )

    def _text_inputs(self, prompt: list[int], ids: list[int]) -> dict[str, Tensor]:
        """Prompt and completion as one text, or on the two sides of an encoder–decoder."""
        if not getattr(self.model.config, "is_encoder_decoder", False):
            whole = torch.tensor([[*prompt, *ids[:-1]]])
            return {"input_ids": whole, "attention_mask": torch.ones_like(whole)}
        start = self.model.generation_config.decoder_start_token_id
        source, target = torch.tensor([prompt]), torch.tensor([[start, *ids[:-1]]])
        return {
            "input_ids": source,
            "attention_mask": torch.ones_like(source),
            "decoder_input_ids": target,
        }

    def _less_baseline(self, result: Attribution, prompt: list[int], ids: list[int]) -> Attribution:
        baseline = self.asked.baseline
        if baseline is None:
            return result
        if baseline == "neutral":
            other = neutral_ids(self.tokenizer, prompt)
        else:
            other = list(baseline)
            if len(other) != len(prompt):
                raise InputError(
                    f"The baseline has {len(other)} tokens and the prompt {len(prompt)}; a "
                    "baseline needs as many."
                )
        name = "neutral prompt" if baseline == "neutral" else "baseline prompt"
        return result.minus(self._after_the_fact(other, ids, {}), name=name)

    # -- names --------------------------------------------------------------------------------

    def _written(self, row: Tensor, prompt: Prompt) -> list[int]:
        """The completion up to its end token, which is left out."""
        start = 1 if getattr(self.model.config, "is_encoder_decoder", False) else prompt.length
        ids = row[start:].tolist()
        ends = end_tokens(self.model)
        stop = next((k for k, token in enumerate(ids) if token in ends), len(ids))
        if stop == 0:
            raise InputError(
                f"The model ended at once: the first token it generated is its end token "
                f"({self._tokens(ids[:1])[0]!r}), so there is nothing to explain. Try another "
                "prompt, chat=True for a model trained on chats, or min_new_tokens=1."
            )
        return ids[:stop]

    def _tokens(self, ids: Sequence[int]) -> Tokens:
        ids = list(ids)
        named = ids if self.tokenizer is None else self.tokenizer.convert_ids_to_tokens(ids)
        return Tokens(tuple(map(str, named)))

    def _generated(self, prompt: list[int], ids: list[int]) -> Tokens:
        start = len(prompt)
        return Tokens(self._tokens(ids).texts, tuple(range(start, start + len(ids))))

    def _about(self, prompt: list[int], ids: list[int], dtype: str | None) -> dict[str, Any]:
        text = None if self.tokenizer is None else self.tokenizer.decode(ids)
        about = {"prompt_length": len(prompt), "completion": text, "kind": "causal"}
        return about if dtype is None else {**provenance_of(self.model, dtype), **about}


def _pad_token(tokenizer: Any) -> int:
    found = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((int(token) for token in found if token is not None), 0)
