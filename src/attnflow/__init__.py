"""attnflow: which input did this output come from?

Three nouns, all frozen values. An `AttentionTrace` is what one forward pass did: the attention
weights of every layer, and the tokens. A `LayeredGraph` is the same as a flow network. An
`Attribution` is an answer: how much each target at each layer draws on each source.

Methods lead from one to the other. `Raw`, `Rollout`, `Flow` and `ShapleyFlow` are frozen values
too, and are called on a trace: `Rollout(residual=0.5)(trace)`. So are their stronger relatives,
which need gradients or measurements beside the weights: `GradientAttention`, `GradientRollout`,
`Rollout(matrices="alti")`, `Flow(capacities="gradients")`. `LeaveOneOut`, `AblationRegression`
and `Careful` run the model again, so they are given to `explain` and `generate`.

`capture` runs a model once and gives a trace; with arrays at hand, `AttentionTrace.from_arrays`
does, without any model. `explain` does all of it in one call; `ask` answers a question from
documents and says what each statement rests on; `grounded` says it of an answer that exists.
`generate` continues a prompt and
attributes every new token to it, or reads a completion that is there already.
`explain_transcript` follows an agent's action back through all that it wrote.
`evaluate` says which method to trust for a model and its texts.

Nothing heavy is imported until it is used: no torch for arrays, no matplotlib without a figure.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from attnflow._version import __version__ as __version__

if TYPE_CHECKING:
    from attnflow.attribution import Attribution as Attribution
    from attnflow.attribution import Verdict as Verdict
    from attnflow.errors import AttnflowError as AttnflowError
    from attnflow.evaluation import evaluate as evaluate
    from attnflow.explainers.answers import Answer as Answer
    from attnflow.explainers.answers import ask as ask
    from attnflow.explainers.answers import grounded as grounded
    from attnflow.explainers.completions import generate as generate
    from attnflow.explainers.prompts import neutral_prompt as neutral_prompt
    from attnflow.explainers.selection import select_passages as select_passages
    from attnflow.explainers.texts import explain as explain
    from attnflow.explainers.transcripts import Action as Action
    from attnflow.explainers.transcripts import commanded_by as commanded_by
    from attnflow.explainers.transcripts import explain_transcript as explain_transcript
    from attnflow.graph import LayeredGraph as LayeredGraph
    from attnflow.hosts.capture import capture as capture
    from attnflow.hosts.load import load as load
    from attnflow.hosts.model import Model as Model
    from attnflow.methods import AblationRegression as AblationRegression
    from attnflow.methods import BalancedGradient as BalancedGradient
    from attnflow.methods import Careful as Careful
    from attnflow.methods import Flow as Flow
    from attnflow.methods import GradientAttention as GradientAttention
    from attnflow.methods import GradientRollout as GradientRollout
    from attnflow.methods import LeaveOneOut as LeaveOneOut
    from attnflow.methods import Method as Method
    from attnflow.methods import Raw as Raw
    from attnflow.methods import Rollout as Rollout
    from attnflow.methods import ShapleyFlow as ShapleyFlow
    from attnflow.tokens import Tokens as Tokens
    from attnflow.trace import AttentionTrace as AttentionTrace
    from attnflow.trace import Prediction as Prediction

# The public names, by where they stand.
_NAMES = {
    "trace": ("AttentionTrace", "Prediction"),
    "graph": ("LayeredGraph",),
    "attribution": ("Attribution", "Verdict"),
    "methods": (
        *("Raw", "Rollout", "Flow", "ShapleyFlow", "BalancedGradient", "GradientAttention"),
        *("GradientRollout", "LeaveOneOut", "AblationRegression", "Careful", "Method"),
    ),
    "explainers.answers": ("ask", "Answer", "grounded"),
    "explainers.selection": ("select_passages",),
    "explainers.texts": ("explain",),
    "explainers.transcripts": ("explain_transcript", "commanded_by", "Action"),
    "explainers.completions": ("generate",),
    "explainers.prompts": ("neutral_prompt",),
    "evaluation": ("evaluate",),
    "hosts.load": ("load",),
    "hosts.model": ("Model",),
    "hosts.capture": ("capture",),
    "tokens": ("Tokens",),
    "errors": ("AttnflowError",),
}
_HOME = {name: home for home, names in _NAMES.items() for name in names}
if not TYPE_CHECKING:  # type checkers read the imports above
    __all__ = [*_HOME, "__version__"]

# Submodules that are reached by attribute, so that `import attnflow` is enough.
_SUBMODULES = (
    *("attribution", "corpus", "errors", "evaluation", "explainers", "graph", "hosts", "maxflow"),
    *("methods", "models", "plots", "show", "storage", "testing", "tokens", "trace"),
)


# What the extras install, by the package whose absence shows that an extra is missing.
_EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers"), "models"),
    "matplotlib": "plots",
    "scipy": "evaluate",
    "pyarrow": "corpus",
}


def _load(module: str, name: str) -> ModuleType:
    """Import the home of a name, or say which extra installs what it needs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in _EXTRAS:
            from attnflow.errors import optional_import

            optional_import(package, extra=_EXTRAS[package], purpose=f"attnflow.{name}")
        raise


def __getattr__(name: str) -> object:
    if name in _HOME:
        value: object = getattr(_load(f"attnflow.{_HOME[name]}", name), name)
    elif name in _SUBMODULES:
        value = _load("attnflow.show.plots" if name == "plots" else f"attnflow.{name}", name)
    else:
        raise AttributeError(f"module 'attnflow' has no attribute {name!r}")
    globals()[name] = value  # the next look-up does not come here
    return value


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__", *_SUBMODULES])
