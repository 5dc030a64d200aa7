"""Methods of the bench by name: ours, peers in processes of their own, and one of your own.

A method is a function of a `CompletionCase` that gives one score for each prompt token or each
source. One of your own comes from a file, `--method mine.py:my_method`, or from a package that
names it under the entry point group "attnflow.bench".
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import attnflow_experiments
from attnflow.attribution import Attribution
from attnflow.attribution.passages import DOCUMENTS, STATEMENTS, statements_of
from attnflow.errors import AttnflowError, InputError, MethodError
from attnflow.evaluation.subjects.rankings import CompletionCase, Ranking, named_rankings
from attnflow.explainers.completions import read_completion
from attnflow.explainers.defaults import default_method, measures_documents
from attnflow.explainers.prompts import Prompt
from attnflow.explainers.request import Completion
from attnflow.explainers.rereading import Reading, measure_documents
from attnflow.explainers.verdicts import check_statements
from attnflow.hosts.adapter import device_of
from attnflow.hosts.restore import at_rest
from attnflow.methods import make_method
from attnflow_experiments.bench.peers.meter import Meter

Floats = NDArray[np.float64]
GROUP = "attnflow.bench"
DEFAULT = "default"
OURS = (
    *("default", "checked", "careful", "balanced", "gradient-attention", "gradient-rollout"),
    *("alti", "flow", "rollout", "raw-mean", "last-layer-attention", "leave-one-out"),
    *("ablation-regression:samples=32", "arc-jsd", "position", "random"),
)
PEER_PACKAGES = {
    "attnlrp": "lxt",
    "gim": "gim",
    "gim-all-rules": "gim",
    "flashtrace": "flashtrace",
    "ifr": "flashtrace",
    "context-cite": "contextcite",
    "captum-integrated-gradients": "captum",
    "captum-shapley": "captum",
    "captum-feature-ablation": "captum",
    "inseq": "inseq",
    "at2": "at2",
}
"""The folder or environment of each peer, under the one that `make bench-peers` makes."""
TEXT_METHODS = (
    *("default", "balanced", "gradient-attention", "gradient-rollout", "alti", "flow", "rollout"),
    *("raw", "leave-one-out", "ablation-regression:samples=32", "random"),
)
TEXT_PEERS = tuple(name for name, package in PEER_PACKAGES.items() if package == "captum")
"""The peers that can explain models which do not write."""
PHOTO_METHODS = (
    *("default", "gradient-attention", "gradient-rollout", "alti", "rollout", "raw"),
    *("grad-cam", "layer-cam", "centre", "random"),
)
NOT_RUN = {
    "DPA": "its code is no package, and its tracer fails on transformers 5, where the call that it "
    "takes for attention is another",
    "DePass": "its code is no package, and is written for transformers 4.44",
}
# Packages of the peer's environment go before those of ours, which are there for one module.
_PROGRAM = (
    "import sys; sys.path.append({!r}); "
    "from attnflow_experiments.bench.peers.worker import main; main()"
)
_HOME = Path(attnflow_experiments.__file__).parents[1]
_SAME = 0.05  # nats: the same model by two versions of transformers
_LONGEST_FLOW = 160  # tokens: max-flow over thirty layers of more takes minutes a prompt


@dataclass
class Cost:
    """The cost of a method on a prompt."""

    passes: float
    seconds: float
    memory: float


def arc_jsd(case: CompletionCase) -> Floats:
    """ARC-JSD: how far the distributions of the answer's tokens move without each source.

    The Jensen–Shannon divergence between the distributions with the whole context and without the
    source, summed over the answer's tokens, as its paper defines it.
    """
    prompt, completion = case.prompt_ids, case.completion_ids
    complete = _distributions(case, prompt, completion)
    values = []
    for positions in case.sources.positions:
        hidden = set(positions)
        rest = [token for k, token in enumerate(prompt) if k not in hidden]
        other = _distributions(case, rest, completion)
        middle = ((complete + other) / 2).log()
        halves = [(p * (p.clamp_min(1e-30).log() - middle)).sum() for p in (complete, other)]
        values.append(float(sum(halves) / 2))
    return np.array(values)


def _distributions(case: CompletionCase, prompt: list[int], completion: list[int]) -> Tensor:
    module = case.model.module
    ids = torch.tensor([prompt + completion], device=device_of(module))
    with torch.no_grad(), at_rest(module):
        logits = module(input_ids=ids, logits_to_keep=len(completion) + 1).logits
    return logits[0, -len(completion) - 1 : -1].double().softmax(-1)


def position(case: CompletionCase) -> Floats:
    """The later a source stands, the higher: what a method must beat that looks at the text."""
    return np.arange(len(case.sources), dtype=np.float64)


def default(case: CompletionCase) -> Attribution:
    """What explains when nothing is asked for; documents, and sentences of one, as `ask` does."""
    if case.sources.level not in ("document", "sentence"):
        return case.by_default()
    method = default_method(case.model)
    completion, result = _over_documents(case)
    if not measures_documents(method):
        return result
    return measure_documents(result, Reading(result, case.model, completion))


def checked(case: CompletionCase) -> Floats:
    """The default with its documents in the order that `ask` gives them after its check."""
    sources = case.sources
    if sources.level != "document":
        raise MethodError("`ask` checks documents; words and sentences are not ranked again.")
    completion, result = _over_documents(case)
    result = check_statements(result, case.model, completion, default_method(case.model))
    scores = sources.scores(result)
    first = [each.passage for each in statements_of(result)[0].sources]
    order = first + [k for k in np.argsort(-scores, kind="stable").tolist() if k not in first]
    in_order = np.empty_like(scores)
    in_order[order] = np.sort(scores)[::-1]
    return in_order


def _over_documents(case: CompletionCase) -> tuple[Completion, Attribution]:
    """Return the completion, and what one pass says, as `ask` notes both: sources are documents."""
    sources, completion = case.sources, Completion(Prompt(case.prompt_ids), case.completion_ids)
    count = len(completion.ids)
    result = read_completion(case.model, completion, default_method(case.model), [slice(0, count)])
    column = {place: k for k, place in enumerate(result.sources.positions)}
    marks = []
    for name, positions in zip(sources.names, sources.positions, strict=True):
        columns = [column[place] for place in positions if place in column]
        marks.append([name, columns[0], columns[-1] + 1])
    noted = {DOCUMENTS: marks, STATEMENTS: [[0, count, 0, "the answer"]]}
    return completion, replace(result, provenance={**result.provenance, **noted})


def flow(case: CompletionCase) -> Any:
    """Attention flow, where the prompt is short enough for it."""
    if case.sources.length > _LONGEST_FLOW:
        raise MethodError(f"flow is run on prompts of up to {_LONGEST_FLOW} tokens.")
    return named_rankings(["flow"])["flow"](case)


_FUNCTIONS: dict[str, Ranking] = {
    "arc-jsd": arc_jsd,
    "checked": checked,
    DEFAULT: default,
    "position": position,
    "flow": flow,
    "last-layer-attention": lambda case: named_rankings(["raw"])["raw"](case),
}


def find_method(name: str) -> Ranking:
    """Return a method that runs in this process, by its name, its file or its entry point."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    path, _, attribute = name.rpartition(":")
    if path.endswith(".py"):
        return _from_file(Path(path), attribute)
    for point in entry_points(group=GROUP):
        if point.name == name:
            function: Ranking = point.load()
            return function
    (ranking,) = named_rankings([name], score="log-odds").values()
    return ranking


def _from_file(path: Path, attribute: str) -> Ranking:
    if not path.is_file():
        raise InputError(f"There is no file {str(path)!r} with a method.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, attribute, None)
    if not callable(function):
        there = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise InputError(
            f"{path.name} has no function {attribute!r}; it has {', '.join(there) or 'none'}."
        )
    ranking: Ranking = function
    return ranking


def run_here(ranking: Ranking, case: CompletionCase) -> tuple[Floats, Cost]:
    """Return a score for each source, and what that cost."""
    meter = Meter(case.model.module)
    with meter.running():
        scores = case.sources.scores(ranking(case))
    return scores, Cost(meter.passes, meter.seconds, meter.memory)


@dataclass
class Peer:
    """A peer in a process of its own, which starts with the first case and stays.

    name: as in PEER_PACKAGES. packages: where the peers' environments are; each is a folder of
    packages, which goes before those of this interpreter, or a virtual environment. folder: the
    model, as from_pretrained reads it.
    """

    name: str
    packages: Path
    folder: Path
    device: str
    log: Path | None = None
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def start(self) -> subprocess.Popen[str]:
        """Start the process, and wait until it has loaded the model."""
        home = (self.packages / PEER_PACKAGES[self.name]).absolute()
        if not home.is_dir():
            raise MethodError(f"{self.name} is not installed: `make bench-peers` makes {home.name}")
        python, environment = home / "bin/python", dict(os.environ)
        environment.pop("PYTHONPATH", None)
        if not python.is_file():
            python = Path(sys.executable)
            there = [str(home), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, there))
        errors = subprocess.DEVNULL if self.log is None else self.log.open("ab")
        process = subprocess.Popen(
            [
                str(python),
                "-c",
                _PROGRAM.format(str(_HOME)),
                self.name,
                str(self.folder),
                self.device,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        self._process = process
        self._reply()
        return process

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the reply; an error that the peer met is raised."""
        process = self._process or self.start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise MethodError(f"{self.name} has ended: {error}") from error
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise MethodError(f"{self.name} ended without a word; its messages say why")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise MethodError(f"{self.name}: {reply['error'].splitlines()[0][:300]}")
        return reply

    def score(self, case: CompletionCase) -> tuple[Floats, Cost]:
        """Return a score for each source, and what that cost in the peer's process."""
        reply = self.ask(as_request(case))
        own = float(case.ablation.log_probs([()])[0])
        if abs(own - reply["log_prob"]) > _SAME:
            raise MethodError(f"{self.name}: another model, {reply['log_prob']:.3f} for {own:.3f}")
        scores = case.sources.scores(np.asarray(reply["scores"], dtype=np.float64))
        return scores, Cost(reply["passes"], reply["seconds"], reply["memory"])

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):  # what it was not told any more
                        stream.close()
            self._process.wait()
            self._process = None


def as_request(case: CompletionCase) -> dict[str, Any]:
    """Return a case as a peer gets it."""
    return {
        "prompt": case.prompt_ids,
        "completion": case.completion_ids,
        "sources": [list(each) for each in case.sources.positions],
        "blank": case.ablation.blank,
        "place": getattr(case.ablation, "place", None),
    }


def check_methods(names: Sequence[str]) -> None:
    """Raise on a name that nothing answers to, before a long run begins."""
    for name in names:
        if name not in PEER_PACKAGES:
            try:
                find_method(name)
            except AttnflowError as error:
                peers = ", ".join(PEER_PACKAGES)
                raise InputError(f"--method {name}: {error} Peers are {peers}.") from error


def check_photo_methods(names: Sequence[str]) -> None:
    """Raise on a name that is no method for photos."""
    for name in names:
        if name not in PHOTO_METHODS:
            try:
                make_method(name)
            except AttnflowError as error:
                others = ", ".join(PHOTO_METHODS)
                raise InputError(f"--method {name}: {error} For photos: {others}.") from error
