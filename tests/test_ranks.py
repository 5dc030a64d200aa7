"""A model that is spread over two processes is explained in each as in one: `make holding`."""

from __future__ import annotations

import os

import pytest

from ranks import two_ranks


@pytest.mark.skipif(os.environ.get("ATTNFLOW_SLOW") != "1", reason="half a minute each")
@pytest.mark.parametrize("kind", ["tp", "fsdp"])
def test_two_processes_get_what_one_gets(kind: str) -> None:
    """Heads are gathered and gradients come back, at every door, on either rank."""
    for door, off in two_ranks(kind).items():
        assert off <= 1e-5, door
