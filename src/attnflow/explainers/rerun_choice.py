"""Methods that run the model again, where a method is asked for by name or as careful=True."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnflow.attribution import Attribution
from attnflow.errors import MethodError
from attnflow.methods import MEASURED_METHODS, Method, measured_method, parse_method

if TYPE_CHECKING:
    from attnflow.explainers.prompts import Prompt
    from attnflow.explainers.reruns import MeasuredMethod
    from attnflow.explainers.targets import CompletionTarget

__all__ = ["CAREFUL", "MeasuredChoice", "measured_choice"]

CAREFUL = "careful"


@dataclass(frozen=True)
class MeasuredChoice:
    """A method that is called on the model, its prompt and its completion."""

    method: MeasuredMethod

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
    method: str | Method | MeasuredMethod | None, careful: bool
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
        return MeasuredChoice(measured_method(CAREFUL))
    if method is None or isinstance(method, Method):
        return method
    if isinstance(method, str):
        measured = parse_method(method)[0] in MEASURED_METHODS
        return MeasuredChoice(measured_method(method)) if measured else method
    if getattr(method, "name", None) in MEASURED_METHODS:
        return MeasuredChoice(method)
    raise MethodError(f"A method is a name or a Method; got {type(method).__name__}.")
