"""attnflow and its peers on the same prompts, held against the same ablations.

    make bench-peers DATA=folder    # it holds running text and questions.jsonl, either or both
    make bench-peers DATA=folder PEERS="--part held-out --skip 250 --samples 40 --kind facts"

SmolLM2 on facts (which word states the answer?), running text, and questions over five documents,
asked as `attnflow ask` asks them: ordinary documents, the right one at another place in each, and
paragraphs of SQuAD. Every peer runs as it is on PyPI; AttnLRP has an environment of its own,
`--lxt`. The table gives each method's agreement with ablations, or how often it names the right
document, and its cost in seconds for a prompt; the second one its paired difference from balanced
gradients, attnflow's default for one answer. AT2 is trained on prompts of the same kind from the
development part. An interrupted run goes on by the same command.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from peer_rankings import PEERS, AttnLrp, trained_at2

from attnflow.evaluation import CompletionPrompt, Evaluation, Prompts, evaluate
from attnflow.evaluation.subjects.rankings import CompletionCase
from attnflow.explainers.questions import question_text
from attnflow.hosts.load import as_model
from attnflow.hosts.model import Model
from attnflow.storage import write_text
from attnflow.tokens.documents import named_documents
from attnflow_experiments.ablation.data import PARTS, Part
from attnflow_experiments.ablation.experiment import (
    KINDS,
    differences_table,
    kind_table,
    prompts_of,
)
from attnflow_experiments.documents.data import (
    SourcedQuestion,
    ordinary_questions,
    paragraph_questions,
)

_OWN = (
    *("balanced", "default", "careful", "gradient-attention", "leave-one-out"),
    *("ablation-regression:samples=32", "raw-mean"),
)
_LRP, _AT2 = "AttnLRP", "AT2"
_DOCUMENTS = {"ordinary": "Ordinary documents", "paragraphs": "Paragraphs of SQuAD"}
_ASKED = Prompts(level="sentence", max_new_tokens=24, documents=True, chat=True, ablations=0)


def prompts_and_subject(
    kind: str, part: Part, data: Path | None, skip: int
) -> tuple[list[CompletionPrompt], Prompts] | None:
    """Return the prompts of a kind and how they are run; None where the folder has none of it."""
    if kind in _DOCUMENTS:
        if kind == "ordinary":
            asked = [
                question.at_place(number % len(question.documents), len(question.documents))
                for number, question in enumerate(ordinary_questions(part))
            ]
        elif data is not None and (data / "questions.jsonl").is_file():
            asked, _ = paragraph_questions(data, part)
        else:
            return None
        return [question_to_prompt(question) for question in asked], _ASKED
    prompts = prompts_of(kind, part, data, skip)
    return None if prompts is None else (prompts, Prompts(**KINDS[kind].options))


def question_to_prompt(question: SourcedQuestion) -> CompletionPrompt:
    """Return a question over documents as one prompt; the shortest accepted answer is expected."""
    documents = named_documents(dict(question.documents))
    prompt, spans = question_text(question.question, documents, chat=True)
    start, end = spans[question.right[0]]
    evidence = question.evidence[0].strip()
    begin = prompt.index(evidence, start, end)
    return CompletionPrompt(
        prompt,
        answer=(begin, begin + len(evidence)),
        expected=min(question.answers, key=len),
        inside=tuple(spans),
        documents=tuple(spans),
    )


def development_cases(
    model: Model, kind: str, data: Path | None, count: int
) -> list[CompletionCase]:
    """Return cases of the development part to train on, each with the sources of its kind."""
    found = prompts_and_subject(kind, "development", data, 0)
    assert found is not None
    cases: list[CompletionCase] = []

    def collect(case: CompletionCase) -> Any:
        cases.append(case)
        return np.zeros(len(case.sources))

    subject = replace(found[1], ablations=0, documents=False)
    evaluate(model, found[0], {"collect": collect}, subject=subject, samples=count)
    return cases


def rankings(
    model: Model, kind: str, names: Sequence[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Return ours by name and theirs by function; balanced gradients come first."""
    selection: dict[str, Any] = {}
    for name in names:
        if name in _OWN:
            selection[name] = name
        elif name == _LRP:
            selection[name] = AttnLrp(model.module, options.lxt)
        elif name == _AT2:
            cases = development_cases(model, kind, options.data, options.training)
            folder = options.output / f"at2-{kind}-{len(cases)}"
            selection[name] = trained_at2(model.module, model.tokenizer, cases, folder)
        else:
            selection[name] = PEERS[name]
    return selection


def tables(kind: str, evaluation: Evaluation) -> str:
    """Return both tables as Markdown."""
    columns = "documents" if kind in _DOCUMENTS else kind
    pages = [kind_table(columns, evaluation), differences_table(columns, evaluation)]
    title = _DOCUMENTS.get(kind, pages[0].title)
    markdown = ["\n".join(page.markdown()) for page in pages]
    return "\n\n".join([f"{title}. {pages[0].note}", *markdown])


def main() -> None:
    """Print both tables for each kind of data there is, and write them."""
    every = [*_OWN, _LRP, *PEERS, _AT2]
    kinds = ["facts", "text", *_DOCUMENTS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default=None, help="a causal language model; default: SmolLM2")
    parser.add_argument("--data", type=Path, default=None, help="folder with text and questions")
    parser.add_argument("--kind", action="append", default=[], choices=kinds)
    parser.add_argument("--part", choices=PARTS, default="development")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--skip", type=int, default=0, help="facts and passages looked at already")
    parser.add_argument("--only", action="append", default=[], choices=every)
    parser.add_argument("--training", type=int, default=64, help="prompts AT2 is trained on")
    parser.add_argument("--lxt", type=Path, default=Path(".venv-lxt/bin/python"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("out/peers"))
    options = parser.parse_args()
    model = as_model(options.model, default="smollm2")
    model.module.float().to(options.device)
    options.output.mkdir(parents=True, exist_ok=True)
    for kind in options.kind or kinds:
        found = prompts_and_subject(kind, options.part, options.data, options.skip)
        if found is None:
            continue
        prompts, subject = found
        evaluation = evaluate(
            model,
            prompts,
            rankings(model, kind, options.only or every, options),
            subject=subject,
            samples=options.samples,
            journal=options.output / f"{kind}-{options.part}-{options.skip}.jsonl",
        )
        page = tables(kind, evaluation)
        print(page, flush=True)
        write_text(options.output / f"{kind}-{options.part}.md", page)


if __name__ == "__main__":
    main()
