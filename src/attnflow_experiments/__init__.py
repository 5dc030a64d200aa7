"""The paper's experiments, each runnable by name: `attnflow experiment NAME`.

An experiment is a frozen value that is called and gives a `Report`: its protocol in words, its
tables with the paper's numbers beside ours, what follows from them, CSV, Markdown and a figure.
To add one, write the value in a module of its own, its command in `commands`, and its line here.
"""

from __future__ import annotations

from collections.abc import Mapping

EXPERIMENTS: Mapping[str, str] = {
    "verb-number": "Tables 1 and 2: raw attention, rollout and flow against blank-out and input "
    "gradients on the embedded model",
    "known-answer": "Models whose true sources are known: how often does each method find one",
    "ablation": "Language models: which attribution predicts what ablations do, on facts, running "
    "text and documents",
    "documents": "Questions over documents: is the one that states the answer named, wherever it "
    "stands among the others",
    "orders": "Transcripts: is the sentence named that gave an order, injected or not; passages "
    "that poison an answer, and supports of several hops",
    "verdicts": "Answers over documents: is one that rests on them told from one out of memory",
    "scenes": "Drawn scenes: does the answer of a vision-language model point at the object it is "
    "about, and does hiding that object matter",
    "sst2": "Table 3: the same against input gradients, on any sequence classifier and GLUE data",
    "pronouns": "Figure 4: a model's pronoun beside the antecedent that raw attention, rollout and "
    "flow prefer; Winogender too",
}
