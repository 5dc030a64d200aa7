"""The paper's experiments, each runnable by name: `attnflow experiment NAME`.

An experiment is a frozen value that is called and gives a `Report`: its protocol in words, its
tables with the paper's numbers beside ours, what follows from them, CSV, Markdown and a figure.
To add one, write the value in a module of its own, its command in `commands`, and its line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Experiment(NamedTuple):
    """The question of an experiment, how long it takes on one slow core, and two ways to run it."""

    question: str
    time: str
    examples: tuple[str, str]


EXPERIMENTS: Mapping[str, Experiment] = {
    "verb-number": Experiment(
        "Tables 1 and 2: raw attention, rollout and flow against blank-out and input gradients on "
        "the embedded model",
        "90 seconds",
        ("", "--data numpred.val --held-out --protocol paper"),
    ),
    "held-out": Experiment(
        "The agreement data that the embedded model never saw, as a table for `attnflow evaluate`",
        "a few seconds",
        ("numpred.val held-out.tsv", "data/numpred.val out/held-out.tsv"),
    ),
    "known-answer": Experiment(
        "Models whose true sources are known: how often does each method find one",
        "about 15 minutes",
        ("--prompts 96", "--wording development --output out"),
    ),
    "ablation": Experiment(
        "Language models: which attribution predicts what ablations do, on facts, running text and "
        "documents",
        "about 10 seconds a fact, longer for running text and documents",
        ("--kind facts --samples 5", "--data FOLDER --samples 60 --output out"),
    ),
    "documents": Experiment(
        "Questions over documents: is the one that states the answer named, wherever it stands "
        "among the others",
        "about half a minute a question",
        ("--methods default --questions 5", "--data FOLDER --output out"),
    ),
    "orders": Experiment(
        "Transcripts: is the sentence named that gave an order, injected or not; passages that "
        "poison an answer, and supports of several hops",
        "about 10 seconds a case",
        ("--data FOLDER --cases 5", "--data FOLDER --kind injections --output out"),
    ),
    "verdicts": Experiment(
        "Answers over documents: is one that rests on them told from one out of memory",
        "about 80 seconds for one question of each kind",
        ("--questions 3", "--data FOLDER --output out"),
    ),
    "scenes": Experiment(
        "Drawn scenes: does the answer of a vision-language model point at the object it is about, "
        "and does hiding that object matter",
        "about 90 seconds",
        ("--scenes 20", "--output out"),
    ),
    "sst2": Experiment(
        "Table 3: the same against input gradients, on any sequence classifier and GLUE data",
        "a minute for 100 texts",
        ("--model ./my-classifier --data dev.tsv", "--data dev.tsv --samples 872 --output out"),
    ),
    "pronouns": Experiment(
        "Figure 4: a model's pronoun beside the antecedent that raw attention, rollout and flow "
        "prefer; Winogender too",
        "40 seconds",
        ("", "--data winogender.tsv --protocol paper"),
    ),
}
