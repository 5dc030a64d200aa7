"""Maximum flow from a target down to a source: the number behind attention flow.

`solve`, `solve_pairs`     many flows, each with a certificate, lower <= flow <= upper
`minimum_cut`, `flow_edges`   one flow in full: the edges that hold it back, the flow on every edge
`estimate_seconds`         about how long a `solve` would take

How it works: capacities become integers (`scaling`), closed forms and bounds decide what they can
(`bounds`), a flow is built from vectors (`construct`, `moves`, `lanes`) and, where that is not yet
provably maximal, raised to the maximum by a search over bit sets (`levels`, `search`, `edges`).
`kernel` strings these together in compiled code; `jobs` cuts a query into pieces and `workers` runs
them in threads.

`reference` solves one pair at a time with scipy: slow, small, and not written by us; every other
solver is held against it.
"""

from __future__ import annotations

from attnflow.maxflow.cuts import MinimumCut, flow_edges, minimum_cut
from attnflow.maxflow.results import Decided, FlowResult
from attnflow.maxflow.solve import estimate_seconds, solve, solve_pairs

__all__ = [
    "Decided",
    "FlowResult",
    "MinimumCut",
    "estimate_seconds",
    "flow_edges",
    "minimum_cut",
    "solve",
    "solve_pairs",
]
