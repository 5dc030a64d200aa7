"""A process of the local engine: `python -m attnflow.corpus.worker_process`.

It reads JSON lines from standard input, what to load and then shards, and writes JSON lines to
standard output: that it is ready, which batch it begins, which part is done. It ends with its
input. What other libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import IO, Any


def main() -> None:
    """Serve shards until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    start = json.loads(sys.stdin.readline() or "null")
    if start is None:
        return
    from attnflow.errors import AttnflowError

    try:
        _serve(start, out)
    except BrokenPipeError:  # nobody waits for this any more
        return
    except AttnflowError as error:
        _send(out, {"failed": {"kind": type(error).__name__, "message": str(error)}})


def _serve(start: dict[str, Any], out: IO[bytes]) -> None:
    import torch

    from attnflow.corpus.engines import JobSpec
    from attnflow.corpus.plan import Shard
    from attnflow.corpus.worker import ShardWorker, load_for
    from attnflow.hosts.load import quiet_hosts

    def report_batch(texts: Sequence[int], tokens: int) -> None:
        _send(out, {"batch": texts, "tokens": tokens})

    quiet_hosts()
    torch.set_num_threads(int(start["threads"]))
    job = JobSpec.from_dict(start["job"])
    device = start["device"] if torch.cuda.is_available() else None
    worker = ShardWorker(job, load_for(job, device), report_batch)
    _send(out, {"ready": vars(worker.identity())})
    for line in sys.stdin:
        task = json.loads(line)
        if "sample" in task:
            _send(out, {"pace": worker.pace(Shard(**task["sample"]))})
            continue
        fatal = {int(number): sentence for number, sentence in task["fatal"].items()}
        notes = worker.run(Shard(**task["shard"]), task["about"], fatal, task["suspects"])
        _send(out, {"part": vars(notes)})


def _send(out: IO[bytes], message: dict[str, Any]) -> None:
    out.write(json.dumps(message).encode() + b"\n")
    out.flush()


if __name__ == "__main__":
    main()
