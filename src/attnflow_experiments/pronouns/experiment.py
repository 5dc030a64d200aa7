"""Figure 4 of the paper: the pronoun a model prefers, beside the antecedent attention prefers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attnflow.methods import quiet_about_limits
from attnflow_experiments.known_answer.experiment import LESS_NEUTRAL
from attnflow_experiments.pronouns import tables, winogender_tables
from attnflow_experiments.pronouns.data import PronounSentence, Schema
from attnflow_experiments.pronouns.observe import PronounReader
from attnflow_experiments.report import Experiment, Report

_PROTOCOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "sound": (
        "A causal model's text opens with a line end (unless its tokenizer begins with a token of "
        "its own): decoders park attention on the first token, and a name must not be that token.",
        f"{LESS_NEUTRAL!r} is there for causal models: rollout with a residual that does not drown "
        "depth, the first token dropped, less the same of a neutral prompt.",
    ),
    "paper": (
        "As in the paper: the text as it is, raw attention, rollout and flow with half of each "
        "layer for the residual, heads averaged, rows of flow divided by their sum. The first "
        "token of a causal model, which collects attention whatever it is, counts like any other.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Pronouns(Experiment):
    """The pronoun experiment, on sentences or on Winogender schemas."""

    @quiet_about_limits()  # its tables tell of saturation
    def of_sentences(
        self,
        model: Any,
        tokenizer: Any,
        sentences: Sequence[PronounSentence],
    ) -> Report:
        """Each sentence at every layer, and how often method and pronoun agree over all."""
        reader = PronounReader(model=model, tokenizer=tokenizer, protocol=self.protocol)
        readings = reader(sentences)
        frames = tables.frames_of(readings)
        questions = tables.questions_of(frames)
        methods = list(reader.methods)
        return Report(
            name="pronouns",
            title="Pronouns: the preferred pronoun beside the preferred antecedent",
            protocol=_in_words(reader),
            tables=tables.tables_of(readings, questions, methods),
            findings=tables.findings_of(readings, frames, questions, methods),
            figure=lambda path: tables.draw(tables.detailed(readings), path),
        )

    @quiet_about_limits()  # its tables tell of saturation
    def of_winogender(
        self,
        model: Any,
        tokenizer: Any,
        schemas: Sequence[Schema],
    ) -> Report:
        """A summary over all schemas."""
        reader = PronounReader(model=model, tokenizer=tokenizer, protocol=self.protocol)
        winogender = winogender_tables.read_schemas(reader, schemas)
        return Report(
            name="pronouns",
            title="Winogender: the model's pronoun and the methods' antecedents",
            protocol=(*_in_words(reader), *winogender_tables.protocol(winogender)),
            tables=winogender_tables.tables(winogender),
            findings=winogender_tables.findings(winogender),
            figure=lambda path: winogender_tables.draw(winogender, path),
        )


def _in_words(reader: PronounReader) -> tuple[str, ...]:
    name = getattr(getattr(reader.model, "config", None), "name_or_path", "")
    model = Path(str(name)).name or type(reader.model).__name__
    if reader.masked:
        sees = "a masked model: the row of the mask in the whole sentence"
    else:
        sees = (
            "a causal model: the row of the last position before the pronoun, which predicts it; "
            "what stands after the pronoun it does not see"
        )
    return (
        f"{model}, {sees}.",
        "The first pronoun goes with the first antecedent, the second with the second. "
        "Probabilities are of all words; a lean is (first − second) / (|first| + |second|), for "
        "pronouns and for attributions: positive prefers the first antecedent.",
        "An antecedent's attribution is the sum over its word pieces, in the mean of all heads; "
        "flows to several pieces are added, which is no flow itself.",
        *_PROTOCOLS[reader.protocol],
    )
