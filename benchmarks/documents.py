"""Of questions answered rightly over five paragraphs: is the right paragraph named first?

python benchmarks/documents.py questions.jsonl --questions 20 --part held-out

The file holds lines of JSON with article, paragraph, context, question, answer and start; questions
are taken from one half of it in order, until so many were answered rightly. Each is asked as
`attnflow ask` asks it, with its defaults.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import attnflow
from attnflow.evaluation import CompletionPrompt
from attnflow.evaluation.subjects.rankings import is_answered
from attnflow.hosts.load import as_model, quiet_hosts
from attnflow_experiments.ablation.data import PARTS, questions


def question_of(prompt: CompletionPrompt) -> str:
    """The question alone, as it stands at the end of the prompt."""
    start = prompt.prompt.rindex("Question: ") + len("Question: ")
    return prompt.prompt[start : prompt.prompt.rindex("\nAnswer:")]


def documents_of(prompt: CompletionPrompt) -> tuple[list[str], int, str]:
    """The paragraphs, the number of the right one, and the sentence with the answer."""
    spans = list(prompt.documents or ())
    texts = [prompt.prompt[start:end] for start, end in spans]
    place = (prompt.answer or (0, 0))[0]
    right = next(k for k, (start, end) in enumerate(spans) if start <= place < end)
    return texts, right, prompt.expected or ""


def main() -> None:
    """Ask, and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions_file", type=Path)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--part", choices=PARTS, default="development")
    parser.add_argument("--method", default=None)
    parser.add_argument("--model", default=None)
    arguments = parser.parse_args()
    quiet_hosts()
    model, tokenizer = as_model(arguments.model, default="smollm2")
    answered = first = sentence = number = 0
    prompts = questions(arguments.questions_file, arguments.part)
    for prompt in prompts:
        number += 1
        texts, right, expected = documents_of(prompt)
        answer = attnflow.ask(
            (model, tokenizer), question_of(prompt), texts, method=arguments.method
        )
        if not is_answered(expected, answer.text, cut_off=False):
            continue
        sources = max(answer.statements, key=lambda statement: expected in statement.text).sources
        answered += 1
        first += sources[0].passage == right
        sentence += expected in sources[0].text
        print(
            f"{answered:3} {'right' if sources[0].passage == right else 'WRONG'} "
            f"{sources[0]!s:34} {answer.text[:60]!r} ({number} asked)",
            flush=True,
        )
        if answered == arguments.questions:
            break
    print(
        f"{answered} of {number} questions answered rightly; right paragraph first: {first}, "
        f"sentence with the answer first: {sentence}"
    )


if __name__ == "__main__":
    main()
