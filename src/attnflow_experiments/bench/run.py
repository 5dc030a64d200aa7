"""The bench as a run: one job for each model and data set, each with a journal that survives kills.

A journal has a record for what ablations say of an item, and one for each method on it. A record
that is there is never measured again; a method that could not be run is tried again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch

from attnflow.errors import AttnflowError, InputError, StoppedError, TokensError
from attnflow.errors.progress import tell
from attnflow.hosts.model import Model
from attnflow_experiments.bench.cases import (
    NotCountedError,
    PreparedItem,
    Responses,
    measure_sets,
    prepare_item,
    reference_sets,
)
from attnflow_experiments.bench.data import DATA_SETS, BenchItem, BenchPart, load_items
from attnflow_experiments.bench.images import PhotoJudge
from attnflow_experiments.bench.methods import (
    PEER_PACKAGES,
    Peer,
    as_request,
    find_method,
    run_here,
)
from attnflow_experiments.bench.plan import REFERENCE, BenchPlan, record_name
from attnflow_experiments.journal import append_record, read_journal
from attnflow_experiments.options import load_on

_TRIED = 4  # items that are tried for each that is to count
_TRAINING = 32  # items that AT2 is trained on
_FEWEST = 8


class Judge(Protocol):
    """The judge of a kind of data: its items, what is measured once, and what by method."""

    def names(self) -> Sequence[str]:
        """Return the names of the items, in their order."""

    def reference(self, name: str) -> dict[str, Any]:
        """Return what is measured of an item once, for all methods."""

    def method(self, name: str, method: str, reference: Mapping[str, Any]) -> dict[str, Any]:
        """Return what one method says of an item, and what it cost."""

    def close(self) -> None:
        """End what runs beside it."""


def run_bench(plan: BenchPlan) -> None:
    """Run every job that is not done; what is there already is not run again."""
    jobs = plan.jobs
    if plan.processes == 1:
        try:
            for number, (label, name) in enumerate(jobs):
                tell("bench", number, len(jobs))
                run_job(plan, label, name)
        finally:
            _close_peers()
        tell("bench", len(jobs), len(jobs))
        return
    pool = ProcessPoolExecutor(plan.processes, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = [pool.submit(run_job, plan, *job, os.getpid()) for job in jobs]
        for number, future in enumerate(futures):
            future.result()
            tell("bench", number + 1, len(jobs))
    except BrokenProcessPool:
        raise StoppedError(
            f"A process of the bench was ended from outside. What is done is kept in "
            f"{str(plan.output)!r}, and the same command goes on from there."
        ) from None
    except BaseException:
        for process in multiprocessing.active_children():  # no job is waited for: all is kept
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def run_job(plan: BenchPlan, label: str, data_set: str, parent: int | None = None) -> None:
    """Run one data set on one model. parent: the process without which this one must end."""
    if parent is not None:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // plan.processes))
    path = plan.journal(label, data_set)
    with _only_one(path):
        done = read_journal(path)
        judge = _judge(plan, label, data_set)
        try:
            _go_on(plan, judge, done, path, parent)
        finally:
            judge.close()


def _go_on(
    plan: BenchPlan,
    judge: Judge,
    done: dict[str, dict[str, Any]],
    path: Path,
    parent: int | None,
) -> None:
    def keep(record: dict[str, Any]) -> None:
        if parent is not None and os.getppid() != parent:
            os._exit(1)  # the run was killed: another may write to this journal by now
        append_record(path, record)
        done[record["name"]] = record

    counted, samples = 0, plan.samples * DATA_SETS[data_set_of(judge)].runs
    for name in judge.names():
        if counted >= samples:
            break
        reference = done.get(record_name(name, REFERENCE))
        if reference is None:
            try:
                reference = judge.reference(name)
            except (NotCountedError, TokensError) as error:
                # of this item; a device that fails would leave out every one, for ever
                reference = {"left_out": str(error)}
            reference = {"name": record_name(name, REFERENCE), "item": name, **reference}
            keep(reference)
        if "left_out" in reference:
            continue
        counted += 1
        for method in plan.methods:
            key = record_name(name, method)
            if key in done and "refused" not in done[key]:
                continue
            try:
                values = judge.method(name, method, reference)
            except Exception as error:  # a method that fails is listed with the reason
                values = {"refused": f"{type(error).__name__}: {error}"[:300]}
            if values != {"refused": done.get(key, {}).get("refused")}:
                keep({"name": key, "item": name, "method": method, **values})
        tell("items", counted, samples)


def data_set_of(judge: Judge) -> str:
    """Return the name of the data set that a judge was made for."""
    return str(judge.data_set)  # type: ignore[attr-defined]


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Wait until no other process writes to a journal; where files cannot be locked, go on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        with suppress(ImportError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _judge(plan: BenchPlan, label: str, data_set: str) -> Judge:
    kind = DATA_SETS[data_set].kind
    if kind == "photos":
        return PhotoJudge(plan, label, data_set)
    return PromptJudge(plan, label, data_set)


class PromptJudge:
    """Prompts of a language model."""

    def __init__(self, plan: BenchPlan, label: str, data_set: str) -> None:
        self.plan, self.label, self.data_set = plan, label, data_set
        most = plan.samples if DATA_SETS[data_set].runs > 1 else _TRIED * plan.samples + _TRAINING
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
        if not DATA_SETS[self.data_set].ablated:
            return about
        sets = reference_sets(len(sources), item.case.seed)
        responses = Responses(item)
        responses([(), tuple(range(len(sources))), *sets])
        return {**about, "responses": responses.new}

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
            _close_peers(keep=str(folder))
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
        tail = items[self.plan.samples * _TRIED :][-_TRAINING:]
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


def _close_peers(keep: str | None = None) -> None:
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
