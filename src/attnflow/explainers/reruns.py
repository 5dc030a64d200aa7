"""What a completion draws on, measured: each source taken away, or many at random.

These are not methods of a trace. A method reads what one forward pass did; these run the model
again, once for each source or each random set, so they are called on the model itself. Their
results are `Attribution`s like any other, with one layer, numbered 0: the whole model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from attnflow.attribution import Attribution
from attnflow.attribution.rescaling import Span
from attnflow.errors import MethodError, TokensError
from attnflow.errors.arguments import (
    check_fields,
    check_named,
    checked_arguments,
    checked_seed,
)
from attnflow.explainers.ablation import (
    By,
    CompletionAblation,
    Score,
    blank_token,
    log_odds,
)
from attnflow.explainers.prompts import Prompt, encode_prompts
from attnflow.explainers.regression import lasso, random_ablations
from attnflow.explainers.request import check_completion, completion_ids
from attnflow.explainers.sources import (
    SOURCE_TOKENS,
    Sources,
    content_spans,
    prompt_tokens,
    spans_of_content,
)
from attnflow.explainers.targets import CompletionTarget, TargetRef, resolve_targets
from attnflow.hosts.forward_pass import provenance_of
from attnflow.hosts.registry import adapter_for
from attnflow.hosts.transformers.generate import checked_generator
from attnflow.hosts.transformers.inputs import checked_tokenizer
from attnflow.tokens import Tokens
from attnflow.tokens.units import Level, check_level

__all__ = [
    "AblationRegression",
    "AblationTask",
    "LeaveOneOut",
    "MeasuredMethod",
    "measure_completion",
]

Floats = NDArray[np.float64]
_WHOLE_MODEL = 0  # the number of the one layer
_MOST = 1_000_000  # passes: more is a mistake


@dataclass(frozen=True, eq=False)
class AblationTask:
    """What a method measures: which tokens of a completion, on which sources.

    targets: of each row of a result the completion's tokens that it is about, by number from 0.
    """

    ablation: CompletionAblation
    sources: Sources
    targets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class MeasuredMethod(ABC):
    """A frozen value that is called on a model, a prompt and its completion.

    level: what a source is: "token", "word", "sentence" or "document".
    by: how a source is taken away: "hide", "replace" or "delete".
    score: what is measured: "log-prob" or "log-odds".
    joint: whether all completion tokens are one target.

    >>> LeaveOneOut(level="sentence", joint=True).to_dict()["options"]["level"]
    'sentence'
    """

    name: ClassVar[str]

    level: Level = "word"
    by: By = "hide"
    score: Score = "log-prob"
    joint: bool = False

    def __post_init__(self) -> None:
        check_level(self.level)
        check_named("by", self.by, get_args(By))
        check_named("score", self.score, get_args(Score))
        check_fields(self)

    @checked_arguments
    def __call__(
        self,
        model: Any,
        prompt: Any,
        completion: str | Sequence[int],
        *,
        tokenizer: Any = None,
        chat: bool = False,
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
        if tokenizer is not None:
            checked_tokenizer(tokenizer)
        encoded = encode_prompts(checked_generator(model), tokenizer, prompt, chat=chat)
        if len(encoded) != 1:
            raise TokensError(f"One prompt is measured at a time; got {len(encoded)}.")
        (text,) = encoded.prompts()
        prompt_ids = text.ids
        facts = adapter_for(model).facts(model)
        completion_row = completion_ids(tokenizer, completion, facts)
        check_completion(model, facts, completion_row)
        tokens, special = prompt_tokens(tokenizer, prompt_ids)
        if spans is not None:
            sources = Sources.of_spans(tokens, spans)
        else:
            sources = Sources.of_tokens(
                tokens,
                level=self.level,
                inside=_contents(tokens, prompt, chat, text.form),
                special=special if tokenizer is not None else (),
                exclude_first=not facts.encoder_decoder,
            )
        names = prompt_tokens(tokenizer, completion_row)[0]
        needs_blank = self.by == "replace" and blank is None and tokenizer is not None
        ablation = CompletionAblation(
            model=model,
            prompt_ids=prompt_ids,
            completion_ids=completion_row,
            by=self.by,
            blank=blank_token(tokenizer) if needs_blank else blank,
            batch_tokens=batch_tokens,
        )
        explained = None if targets is None else resolve_targets(names, targets)
        return self.measure(ablation, sources, names=names, targets=explained)

    def measure(
        self,
        ablation: CompletionAblation,
        sources: Sources,
        *,
        names: Tokens | None = None,
        targets: Sequence[CompletionTarget] | None = None,
    ) -> Attribution:
        """The same on an ablation that is prepared; `names` are the completion's tokens."""
        completion = names or prompt_tokens(None, ablation.completion_ids)[0]
        if targets is None:
            targets = resolve_targets(completion, ablation.targets)
        if self.joint:
            columns = tuple(dict.fromkeys(k for target in targets for k in target.tokens))
            joined = "".join(completion.select(columns).surfaces()).strip() or "completion"
            targets = [CompletionTarget(joined, columns)]
        rows = tuple(target.tokens for target in targets)
        values, passes = self._values(AblationTask(ablation, sources, rows))
        dtype = str(next(ablation.model.parameters()).dtype).removeprefix("torch.")
        return Attribution(
            values=values[None],
            layers=(_WHOLE_MODEL,),
            targets=Tokens(
                tuple(target.text for target in targets),
                tuple(sources.length + target.tokens[0] for target in targets),
            ),
            sources=sources.tokens,
            method=self,  # type: ignore[arg-type]
            provenance={
                **provenance_of(ablation.model, dtype),
                "prompt_length": sources.length,
                "passes": passes,
                SOURCE_TOKENS: [list(each) for each in sources.positions],
            },
        )

    @abstractmethod
    def _values(self, task: AblationTask) -> tuple[Floats, int]:
        """(targets, sources), and how many passes it took."""

    def _responses(self, task: AblationTask, sets: Sequence[Sequence[int]]) -> Floats:
        """(sets, targets): what is measured with each set of positions taken away."""
        tokens = task.ablation.token_log_probs(sets)
        log_probs = np.stack([tokens[:, list(row)].sum(axis=1) for row in task.targets], axis=1)
        return log_odds(log_probs) if self.score == "log-odds" else log_probs

    def to_dict(self) -> dict[str, Any]:
        """Name and options, for files."""
        return {"name": self.name, "options": asdict(self)}


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(MeasuredMethod):
    """What the completion loses when one source is taken away: a pass for each source.

    Not a method of a trace: it runs the model again (see this module's first lines).

    >>> import transformers
    >>> config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=20)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> inputs = {"input_ids": [[3, 4, 5, 6]]}
    >>> result = LeaveOneOut(level="token")(model, inputs, [7, 8])
    >>> result.values.shape, list(result.sources), list(result.targets)
    ((1, 2, 3), ['4', '5', '6'], ['7', '8'])
    """

    name: ClassVar[str] = "leave-one-out"

    def _values(self, task: AblationTask) -> tuple[Floats, int]:
        sets = [(), *task.sources.positions]
        responses = self._responses(task, sets)
        return np.ascontiguousarray((responses[0] - responses[1:]).T), len(sets)


@dataclass(frozen=True, kw_only=True)
class AblationRegression(MeasuredMethod):
    """Sparse linear regression of the response on random ablations, after ContextCite.

    Not a method of a trace: it runs the model again (see this module's first lines). Its cost does
    not grow with the number of sources.

    samples: how many random ablations, a pass each.
    hidden: the share of the sources that each of them takes away.
    alpha: how strongly small weights are drawn to zero.
    seed: decides which sources are taken away.

    >>> AblationRegression(samples=64).to_dict()["options"]["samples"]
    64
    """

    name: ClassVar[str] = "ablation-regression"

    samples: int = 32
    hidden: float = 0.3
    alpha: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_seed(self.seed)
        if not 2 <= self.samples <= _MOST:
            raise MethodError(f"samples is a number from 2 to {_MOST:,}; got {self.samples!r}.")
        if not 0 < self.hidden < 1 or not 0 <= self.alpha < float("inf"):
            raise MethodError(
                "hidden is a share between 0 and 1, and alpha is a penalty of at least 0; got "
                f"hidden={self.hidden!r}, alpha={self.alpha!r}."
            )

    def _values(self, task: AblationTask) -> tuple[Floats, int]:
        count = len(task.sources)
        choice = random_ablations(self.samples, count, hidden=self.hidden, seed=self.seed)
        responses = self._responses(task, task.sources.hidden(choice))
        visible = (~choice).astype(np.float64)
        return np.stack([lasso(visible, y, alpha=self.alpha) for y in responses.T]), len(choice)


def measure_completion(
    method: MeasuredMethod,
    model: Any,
    prompt: Prompt,
    ids: Sequence[int],
    *,
    tokenizer: Any = None,
    targets: Sequence[CompletionTarget] | None = None,
) -> Attribution:
    """The same on a prompt that is encoded; what a chat template put there is no source."""
    tokens, special = prompt_tokens(tokenizer, prompt.ids)
    template = [k for k, is_form in enumerate(prompt.form or ()) if is_form]
    sources = Sources.of_tokens(
        tokens,
        level=method.level if tokenizer is not None or method.level != "word" else "token",
        special=(*special, *template),
        exclude_first=not adapter_for(model).facts(model).encoder_decoder,
    )
    blank = blank_token(tokenizer) if method.by == "replace" and tokenizer is not None else None
    ablation = CompletionAblation(
        model=model, prompt_ids=prompt.ids, completion_ids=ids, by=method.by, blank=blank
    )
    names = prompt_tokens(tokenizer, ids)[0]
    return method.measure(ablation, sources, names=names, targets=targets)


def _contents(
    tokens: Tokens, prompt: Any, chat: bool, form: Sequence[bool] | None
) -> list[tuple[int, int]] | None:
    """Where a conversation's messages stand; None if the prompt is no conversation."""
    if form is not None:
        return spans_of_content(tokens, form)
    if isinstance(prompt, str):
        return content_spans(tokens, [prompt]) if chat else None
    if isinstance(prompt, Mapping):
        return None
    contents = [str(m["content"]) for m in prompt if isinstance(m, Mapping) and m.get("content")]
    return content_spans(tokens, contents) if contents else None
