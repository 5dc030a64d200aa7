"""The answer to a query: certified values, and how they were found."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from attnflow.maxflow.scaling import Floats


@dataclass(frozen=True)
class Decided:
    """How many pairs were decided how.

    >>> Decided(closed_form=8, bounds=4, construction=2, search=1).to_dict()["search"]
    1
    """

    closed_form: int  # layers 1 and 2
    bounds: int  # lower and upper bound from the layer below met
    construction: int  # a flow built from vectors, or kept from a neighbour, reached a known bound
    search: int  # the residual graph was searched to a minimum cut or a known upper bound

    def to_dict(self) -> dict[str, int]:
        """The four counts by name."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class FlowResult:
    """`lower <= maximum flow <= upper` of layers x targets x sources, or of each pair, as asked.

    `lower` is the value to report: it is the value of a real flow, and the maximum itself when
    the capacities are multiples of the solver's unit (float32 attention nearly always is).
    `saturated`: the flow equals all that the target sends or all that the input token receives.

    >>> from attnflow.maxflow import solve
    >>> type(solve(np.ones((1, 2, 2)), layers=[1], targets=[0], sources=[1])).__name__
    'FlowResult'
    """

    lower: Floats
    upper: Floats
    saturated: NDArray[np.bool_]
    at_source: NDArray[np.bool_]  # all that the source can receive of this target comes through
    at_target: NDArray[np.bool_]  # all that the target can send to this source comes through
    decided: Decided
