"""Tables 1 and 2 of the paper: does attention agree with what the verb-number model uses?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnflow.errors import percent
from attnflow.methods import quiet_about_limits
from attnflow.models.verb_number import VerbNumberModel, WordVocabulary
from attnflow_experiments.report import Report, SampledExperiment
from attnflow_experiments.verb_number.data import Example
from attnflow_experiments.verb_number.observe import IN_WORDS, PROTOCOLS, observe, text_of
from attnflow_experiments.verb_number.tables import (
    agreements_of,
    faithfulness_table,
    findings_of,
    subject_table,
    tables_of,
)


@dataclass(frozen=True, kw_only=True)
class VerbNumber(SampledExperiment):
    """The verb-number experiment; its options are those of every sampled experiment."""

    samples: int = 2_000

    @quiet_about_limits()  # its tables tell of saturation
    def __call__(
        self,
        examples: Sequence[Example],
        model: VerbNumberModel,
        vocabulary: WordVocabulary,
        *,
        source: str,
    ) -> Report:
        """Run it on these sentences; `source` says in words where they are from."""
        sample, remarks = self.sample(examples, lambda e: _fits(e, vocabulary), "sentence")
        observations = observe(model, vocabulary, sample)
        protocol = PROTOCOLS[self.protocol]
        agreements = agreements_of(observations, protocol)
        tables = [
            *tables_of(observations, protocol, agreements),
            faithfulness_table(model, vocabulary, sample, observations),
        ]
        if any(o.subject is not None for o in observations):
            tables.append(subject_table(observations))
        right = np.mean([o.probability > 0.5 for o in observations])
        return Report(
            name="verb-number",
            title="Verb number: attention against importance, the [CLS] row",
            protocol=(
                f"{len(sample):,} sentences from {source}; the model's answer is right in "
                f"{percent(right, 1)}.{remarks}",
                *IN_WORDS[self.protocol],
            ),
            tables=tuple(tables),
            findings=findings_of(agreements, tables),
        )


def _fits(example: Example, vocabulary: WordVocabulary) -> bool:
    try:
        vocabulary.encode(text_of(example))
    except ValueError:
        return False
    return True
