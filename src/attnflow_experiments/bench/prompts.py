"""The judge of prompts and texts: what ablations say of an item, and what each method does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnflow.errors import AttnflowError, InputError
from attnflow.hosts.model import Model
from attnflow_experiments.bench.cases import (
    PreparedItem,
    Responses,
    measure_sets,
    prepare_item,
    reference_sets,
)
from attnflow_experiments.bench.data import DATA_SETS, BenchItem, BenchPart, load_items
from attnflow_experiments.bench.methods import (
    PEER_PACKAGES,
    Peer,
    as_request,
    find_method,
    run_here,
)
from attnflow_experiments.bench.plan import BenchPlan, record_name
from attnflow_experiments.journal import append_record
from attnflow_experiments.options import load_on

TRIED = 4  # items that are tried for each that is to count
_TRAINING = 32  # items that AT2 is trained on
_FEWEST = 8


class PromptJudge:
    """Prompts of a language model."""

    def __init__(self, plan: BenchPlan, label: str, data_set: str) -> None:
        self.plan, self.label, self.data_set = plan, label, data_set
        most = plan.samples if DATA_SETS[data_set].runs > 1 else TRIED * plan.samples + _TRAINING
        self._items = {i.name: i for i in load_items(data_set, plan.data, plan.part, most)}
        self._prepared: tuple[str, PreparedItem] | None = None
        self._model: Model | None = None
        self._ended: dict[str, str] = {}  # peers that did not start

    @property
    def model(self) -> Model:
        """The model, loaded when it is first needed: a run that is done needs none."""
        if self._model is None:
            self._model = _load(self.plan.device, self.plan.models[self.label])
        return self._model

    def names(self) -> Sequence[str]:
        """Return the names of the items."""
        return list(self._items)

    def _prepare(self, name: str) -> PreparedItem:
        if self._prepared is None or self._prepared[0] != name:
            seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
            self._prepared = name, prepare_item(self.model, self._items[name], seed)
        return self._prepared[1]

    def reference(self, name: str) -> dict[str, Any]:
        """Return the item as this model reads it, and its responses to ablations."""
        item = self._prepare(name)
        sources = item.case.sources
        about = {
            "sources": len(sources),
            "tokens": sources.length,
            "completion": len(item.case.completion_ids),
            "right": list(item.right),
            "top": item.top,
            "answer": item.answer,
            "note": dict(self._items[name].note),
        }
        responses = Responses(item)
        if DATA_SETS[self.data_set].ablated:
            sets = reference_sets(len(sources), item.case.seed)
            responses([(), tuple(range(len(sources))), *sets])
            about["responses"] = dict(responses.new)
        if item.right:
            base, without = responses([(), item.right])
            about["loss"] = float(base - without)
        return about

    def method(self, name: str, method: str, reference: Mapping[str, Any]) -> dict[str, Any]:
        """Return the scores of the sources, what the sets they ask for say, and the cost."""
        peer = self._peer(method) if method in PEER_PACKAGES else None
        item = self._prepare(name)
        if peer is not None:
            scores, cost = peer.score(item.case)
        else:
            scores, cost = run_here(find_method(method), item.case)
        values: dict[str, Any] = {"scores": scores.tolist(), **vars(cost)}
        if "responses" in reference:
            responses = Responses(item, reference["responses"])
            sets = measure_sets(scores, item.top)
            responses([each for group in sets.values() for each in group])
            values["measured"] = {k: responses(group).tolist() for k, group in sets.items()}
        return values

    def _peer(self, name: str) -> Peer:
        if name in self._ended:
            raise InputError(self._ended[name])
        if self.plan.peers is None:
            raise InputError("no --peers folder is given; `make bench-peers` makes one")
        folder = self.plan.output / "models" / self.label
        key = (str(folder), "" if name != "at2" else self.data_set, name)  # it is trained for one
        if key not in _PEERS:
            close_peers(keep=str(folder))
            log = self.plan.output / "peers.log"
            peer = Peer(
                name, self.plan.peers, peer_model(self.model, folder), self.plan.device, log
            )
            try:
                if name == "at2":
                    self._train(peer)
                else:
                    peer.start()
            except AttnflowError as error:
                self._ended[name] = str(error)
                peer.close()
                raise
            _PEERS[key] = peer
        return _PEERS[key]

    def _train(self, peer: Peer) -> None:
        """Train on items that are not reported: the last ones, of the development part."""
        part: BenchPart = "development" if self.plan.part == "held-out" else self.plan.part
        items: list[BenchItem] = load_items(self.data_set, self.plan.data, part, None)
        tail = items[self.plan.samples * TRIED :][-_TRAINING:]
        requests = []
        for item in tail:
            with suppress(AttnflowError):
                requests.append(as_request(prepare_item(self.model, item, 0).case))
        if len(requests) < _FEWEST:
            raise InputError(f"{len(requests)} items are left to train on, {_FEWEST} are needed")
        cost = peer.ask({"train": requests})
        record = {"name": record_name("training", peer.name), "items": len(requests), **cost}
        append_record(self.plan.journal(self.label, self.data_set), record)

    def close(self) -> None:
        """End the peer that was trained for these data; the others serve the next data set."""
        for key in [key for key in _PEERS if key[1] == self.data_set]:
            _PEERS.pop(key).close()


_PEERS: dict[tuple[str, str, str], Peer] = {}  # by the model's folder, the data set, the name


def close_peers(keep: str | None = None) -> None:
    """End the peers, but those that have a model loaded which is still run."""
    for key in [key for key in _PEERS if key[0] != keep]:
        _PEERS.pop(key).close()


@lru_cache(maxsize=1)
def _load(device: str, name: str) -> Model:
    """Return a model; the data sets of one follow each other and share it."""
    return load_on(device, name)


def peer_model(model: Model, folder: Path) -> Path:
    """Return a folder with the model as every version of transformers reads it; made once."""
    if not (folder / "done").is_file():
        module: Any = model.module
        module.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        config |= config.get("rope_parameters") or {}  # where an older transformers looks for it
        path.write_text(json.dumps(config), encoding="utf-8")
        (folder / "done").touch()
    return folder
