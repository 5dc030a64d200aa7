"""Running the methods on each kind of data of the ablation experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnflow.errors import FileError, InputError
from attnflow.errors.progress import relaying
from attnflow.evaluation.ablation import CompletionEvaluation, CompletionPrompt
from attnflow.evaluation.ablation.run import evaluate_completions
from attnflow_experiments.ablation.data import Part, facts, passages, questions

__all__ = ["DATA_FILES", "KINDS", "Kind", "observe", "prompts_of"]

DATA_FILES: Mapping[str, tuple[str, ...]] = {
    "text": ("enwik8.gz", "enwik8", "text.txt"),
    "documents": ("questions.jsonl", "squad/questions.jsonl"),
}
"""Where each kind of data is looked for in the user's folder; facts are made, not read."""


@dataclass(frozen=True)
class Kind:
    """A kind of data: its title, and how its prompts are run."""

    title: str
    samples: int
    options: Mapping[str, Any] = field(default_factory=dict)
    ablated: bool = True


_NEXT_TOKEN = {"level": "word", "exclude_last_word": True, "max_new_tokens": 1}
KINDS: Mapping[str, Kind] = {
    "facts": Kind("Facts: the word that states the answer", 96, _NEXT_TOKEN),
    "text": Kind("Running text: the next token", 60, _NEXT_TOKEN),
    "documents": Kind(
        "Questions: the paragraph among five that answers",
        60,
        {"level": "sentence", "max_new_tokens": 14, "stop": "\n", "documents": True},
        ablated=False,
    ),
}


def prompts_of(
    kind: str, part: Part, folder: Path | None, skip: int = 0
) -> list[CompletionPrompt] | None:
    """The prompts of one kind after the first `skip`; None where the folder has no file of it."""
    prompts = _all_prompts(kind, part, folder, skip)
    if prompts is not None and len(prompts) <= skip:
        raise InputError(f"There are {len(prompts)} prompts of {kind}; {skip} cannot be skipped.")
    return None if prompts is None else prompts[skip:]


def _all_prompts(
    kind: str, part: Part, folder: Path | None, skip: int
) -> list[CompletionPrompt] | None:
    if kind == "facts":
        return facts(part)
    if folder is None:
        return None
    if not folder.is_dir():
        raise FileError(f"There is no folder {str(folder)!r} to read data from.")
    path = next((folder / name for name in DATA_FILES[kind] if (folder / name).is_file()), None)
    if path is None:
        return None
    return passages(path, part, skip=skip) if kind == "text" else questions(path, part)


def observe(
    kind: str,
    prompts: Sequence[CompletionPrompt],
    model: Any,
    tokenizer: Any,
    *,
    methods: Sequence[str],
    samples: int | None,
    ablations: int,
    seed: int,
    journal: Path | None,
) -> CompletionEvaluation:
    """Every method on every prompt; with a journal, the run goes on where it stopped."""
    with relaying(lambda step: step._replace(stage=kind)):
        return evaluate_completions(
            model,
            prompts,
            tokenizer=tokenizer,
            methods=methods,
            ablations=ablations if KINDS[kind].ablated else 0,
            seed=seed,
            samples=min(KINDS[kind].samples, samples or KINDS[kind].samples),
            resume=journal,
            **KINDS[kind].options,
        )
