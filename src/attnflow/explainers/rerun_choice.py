"""Methods that run the model again, where a method is asked for by name or as careful=True."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnflow.attribution import Attribution
from attnflow.errors import MethodError
from attnflow.methods import METHODS, Careful, Method, RerunMethod, make_method, parse_method

if TYPE_CHECKING:
    from attnflow.explainers.prompts import Prompt
    from attnflow.explainers.targets import CompletionTarget

__all__ = ["CAREFUL", "MeasuredChoice", "measured_choice"]

CAREFUL = "careful"


@dataclass(frozen=True)
class MeasuredChoice:
    """A method that is called on the model, its prompt and its completion."""

    method: RerunMethod

    def __call__(
        self,
        model: Any,
        prompt: Prompt,
        ids: Sequence[int],
        *,
        tokenizer: Any,
        targets: Sequence[CompletionTarget] | None = None,
    ) -> Attribution:
        """What it finds over the prompt's sources; a chat template's own tokens are none."""
        from attnflow.explainers.reruns import measure_completion

        return measure_completion(
            self.method, model, prompt, ids, tokenizer=tokenizer, targets=targets
        )


def measured_choice(
    method: str | Method | None, careful: bool
) -> MeasuredChoice | str | Method | None:
    """A measured method if one is meant; otherwise what was given.

    >>> measured_choice(None, careful=True).method.name
    'careful'
    >>> measured_choice("rollout", careful=False)
    'rollout'
    """
    if careful:
        if method is not None:
            raise MethodError(f"careful=True is a method of its own; got method={method!r} too.")
        return MeasuredChoice(Careful())
    if isinstance(method, str):
        kind = METHODS.get(parse_method(method)[0])
        if kind is None or not kind.reruns_model:
            return method
        method = make_method(method)
    if isinstance(method, RerunMethod):
        return MeasuredChoice(method)
    if method is None or isinstance(method, Method):
        return method
    raise MethodError(f"A method is a name or a Method; got {type(method).__name__}.")
