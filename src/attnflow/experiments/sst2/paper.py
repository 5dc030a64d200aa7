"""The paper's protocol of the SST-2 experiment, with its oddities, and what they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from torch import nn

from attnflow.evaluation.metrics import dense_rank_correlation, spearman, summarize
from attnflow.experiments.report import Table, decimals, summarized
from attnflow.experiments.sst2.data import LabelledText
from attnflow.experiments.sst2.observe import METHODS, DoubleEmbedded, observe_fed_twice
from attnflow.experiments.sst2.tables import Agreed, Found, accuracy_of, named, over_layers, table_3
from attnflow.experiments.verb_number.observe import Stages

__all__ = ["run_as_paper"]

_ROUNDING: Final = 1e-5  # a gradient's sum below this share of what it could be is no number
_AS_PAPER: Final = (
    "As the authors' published script has it: the output of the embedding layer is given to the "
    "model as its word vectors, so positions and normalisation are applied twice, and both the "
    "attention and the gradient are of that pass.",
    "Importance is |Σ_d| of the gradient of the label's logit with respect to these vectors, of "
    "all tokens, those that frame the text among them.",
    "Attribution of a token is the most that any position draws on it (the maximum of its column); "
    "flows are first divided by the sum of their row; raw attention is without the residual.",
    "1 − 6 Σ d² / (n (n² − 1)) over dense ranks, as the authors' code computes it. Mean ± standard "
    "deviation over texts, 95 % bootstrap interval of the mean.",
)


def run_as_paper(
    model: nn.Module,
    tokenizer: Any,
    examples: Sequence[LabelledText],
    label: int,
    stages: Stages,
) -> Found:
    """Table 3 as the authors' script makes it, and the same with a number that is there."""
    seen = observe_fed_twice(model, tokenizer, examples, label, stages)
    layers = seen[0].layers
    sums, norms = (_of_columns(seen, name) for name in ("sums", "norms"))
    rows = {method: over_layers(values) for method, values in norms.items()}
    tables = (
        table_3("Table 3: correlation with |Σ_d| of the gradient", sums, layers),
        Table("norms", "The same with ‖·‖ of the gradient", named(layers), rows, drawn=True),
        _of_the_sums(seen),
    )
    return Found(accuracy_of(seen), _AS_PAPER, tables, _what_the_sums_are(seen))


def _of_columns(seen: Sequence[DoubleEmbedded], of: str) -> Agreed:
    return {
        method: np.array(
            [
                [dense_rank_correlation(row, getattr(o.single, of)) for row in o.columns[method]]
                for o in seen
            ]
        )
        for method in METHODS
    }


def _of_the_sums(seen: Sequence[DoubleEmbedded]) -> Table:
    pairs = {
        "the sums in single and in double precision": [
            spearman(o.single.sums, o.double.sums) for o in seen
        ],
        "the norms in single and in double precision": [
            spearman(o.single.norms, o.double.norms) for o in seen
        ],
        "the sums and the norms, single precision": [
            spearman(o.single.sums, o.single.norms) for o in seen
        ],
    }
    rows = {name: (summarized(summarize(values)),) for name, values in pairs.items()}
    note = "A number that is there ranks the tokens alike with more digits; rounding does not."
    return Table("sums", "Is the importance a number or rounding?", ("Spearman",), rows, note)


def _what_the_sums_are(seen: Sequence[DoubleEmbedded]) -> tuple[str, ...]:
    share = max(o.single.largest_share for o in seen)
    if share > _ROUNDING:
        return (f"The gradient's sums are up to {share:.1g} of what they could be: a number.",)
    same = summarize([spearman(o.single.sums, o.double.sums) for o in seen]).mean
    size = summarize([spearman(o.single.sums, o.single.norms) for o in seen]).mean
    return (
        "The importance is rounding: the largest sum of a gradient over its dimensions is "
        f"{share:.0e} of what it could be. The vectors are read through LayerNorm only, which "
        "ignores a constant added to all dimensions, and the sum is the derivative in that "
        f"direction. In double precision the tokens rank otherwise (correlation {decimals(same)}).",
        "What agreement is left comes from rounding being larger where the gradient is "
        f"(correlation with its norm {decimals(size)}). It is so for every model that reads its "
        "vectors through LayerNorm only, the paper's DistilBERT among them.",
    )
