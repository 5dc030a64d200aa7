"""A model that is spread over two processes is explained in each as in one: `make holding`.

Here one process is alone with its shards; what another would say is put in its place.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch import distributed

import attnflow
import holding
from attnflow.errors import ModelError, StoppedError
from attnflow.hosts.restore import at_rest
from interrupts import WORDS, state_of
from ranks import end_one, sharded, two_ranks

slow = pytest.mark.skipif(os.environ.get("ATTNFLOW_SLOW") != "1", reason="half a minute each")


@slow
@pytest.mark.parametrize("kind", ["tp", "fsdp"])
def test_two_processes_get_what_one_gets(kind: str) -> None:
    """Heads are gathered and gradients come back, at every door, on either rank."""
    for door, off in two_ranks(kind).items():
        assert off <= 1e-5, door


@slow
@pytest.mark.filterwarnings("ignore")  # of transformers, about tp_plan
@pytest.mark.parametrize("kind", ["tp", "fsdp"])
def test_a_process_that_ends_is_told_of_by_the_other(kind: str) -> None:
    told = end_one(kind)
    assert len(told) == 2
    assert all(error.startswith("ModelError: One of the processes") for error in told)


@pytest.fixture
def shards() -> Iterator[Any]:
    """A model whose shards this process has all."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield sharded(holding.plain().requires_grad_(False))
    distributed.destroy_process_group()
    signal.signal(signal.SIGINT, handler)


def written(model: Any) -> Any:
    """Return the explanation of two tokens: passes in one block, and some behind them."""
    given = (model, holding.tokenizer())
    return attnflow.generate(given, WORDS, max_new_tokens=2, check=False).values


def test_an_interrupt_waits_until_a_pass_is_over(shards: Any) -> None:
    expected, before = written(shards), state_of(shards)
    ends: list[int] = []

    def strike(*_: object) -> None:
        ends.append(0)
        signal.raise_signal(signal.SIGINT)

    struck = shards.model.layers[0].register_forward_hook(strike)
    over = shards.model.layers[2].register_forward_hook(lambda *_: ends.append(2))
    with pytest.raises(KeyboardInterrupt):
        written(shards)
    struck.remove()
    over.remove()
    assert ends == [0, 2]  # this pass is whole, and there was no other
    assert state_of(shards) == before
    assert np.array_equal(written(shards), expected)


def test_what_stops_another_process_stops_this_one_in_a_sentence(
    shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state_of(shards)
    with monkeypatch.context() as patch:
        patch.setattr(distributed, "all_reduce", lambda stops, *_, **__: stops.fill_(1))
        with pytest.raises(StoppedError, match="call again"):
            written(shards)
    assert state_of(shards) == before
    written(shards)


@pytest.mark.parametrize(
    "error", [RuntimeError("[gloo/tcp/pair.cc:553] Connection closed by peer"), KeyboardInterrupt()]
)
def test_a_model_whose_processes_are_out_of_step_is_refused(
    shards: Any, error: BaseException
) -> None:
    """It would take what the others still send of the last pass for that of the next."""

    def run(error: BaseException | None = None) -> None:
        with at_rest(shards):
            if error is not None:
                raise error

    with pytest.raises(ValueError, match="raised by all"):
        run(ValueError("raised by all"))
    run()
    with pytest.raises((ModelError, KeyboardInterrupt), match=r"End all of them|^$"):
        run(error)
    with pytest.raises(ModelError, match="End all of them"):
        run()
