"""The paper's protocol of the SST-2 experiment, with its oddities, and what they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from attnflow.evaluation.metrics import dense_rank_correlation, spearman, summarize
from attnflow.evaluation.table import Cell, Table, decimals
from attnflow.experiments.layers import METHODS, Agreement, layer_names, over_layers
from attnflow.experiments.sst2.observe import DoubleEmbedded, observe_double_embedded
from attnflow.experiments.sst2.tables import Outcome, Run, accuracy_of, table_3

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


def run_as_paper(run: Run) -> Outcome:
    """Table 3 as the authors' script makes it, and the same with a number that is there."""
    observations = observe_double_embedded(run)
    layers = observations[0].layers
    sums, norms = (_of_columns(observations, name) for name in ("sums", "norms"))
    rows = {method: over_layers(values) for method, values in norms.items()}
    tables = (
        table_3("Table 3: correlation with |Σ_d| of the gradient", sums, layers),
        Table(
            "norms", "The same with ‖·‖ of the gradient", layer_names(layers), rows, in_figure=True
        ),
        _of_the_sums(observations),
    )
    return Outcome(accuracy_of(observations), _AS_PAPER, tables, _what_the_sums_are(observations))


def _of_columns(observations: Sequence[DoubleEmbedded], part: str) -> Agreement:
    return {
        method: np.array(
            [
                [dense_rank_correlation(row, getattr(o.single, part)) for row in o.columns[method]]
                for o in observations
            ]
        )
        for method in METHODS
    }


def _of_the_sums(observations: Sequence[DoubleEmbedded]) -> Table:
    pairs = {
        "the sums in single and in double precision": [
            spearman(o.single.sums, o.double.sums) for o in observations
        ],
        "the norms in single and in double precision": [
            spearman(o.single.norms, o.double.norms) for o in observations
        ],
        "the sums and the norms, single precision": [
            spearman(o.single.sums, o.single.norms) for o in observations
        ],
    }
    rows = {name: (Cell.of_mean(summarize(values)),) for name, values in pairs.items()}
    note = "A number that is there ranks the tokens alike with more digits; rounding does not."
    return Table("sums", "Is the importance a number or rounding?", ("Spearman",), rows, note)


def _what_the_sums_are(observations: Sequence[DoubleEmbedded]) -> tuple[str, ...]:
    share = max(o.single.largest_share for o in observations)
    if share > _ROUNDING:
        return (f"The gradient's sums are up to {share:.1g} of what they could be: a number.",)
    same = summarize([spearman(o.single.sums, o.double.sums) for o in observations]).mean
    size = summarize([spearman(o.single.sums, o.single.norms) for o in observations]).mean
    return (
        "The importance is rounding: the largest sum of a gradient over its dimensions is "
        f"{share:.0e} of what it could be. The vectors are read through LayerNorm only, which "
        "ignores a constant added to all dimensions, and the sum is the derivative in that "
        f"direction. In double precision the tokens rank otherwise (correlation {decimals(same)}).",
        "What agreement is left comes from rounding being larger where the gradient is "
        f"(correlation with its norm {decimals(size)}). It is so for every model that reads its "
        "vectors through LayerNorm only, the paper's DistilBERT among them.",
    )
