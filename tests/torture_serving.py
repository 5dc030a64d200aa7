"""A server under load; a script, and functions for it.

`python tests/torture_serving.py clients 300` sends requests of 64 clients for so many seconds to a
server of its own process, among them half-sent bodies, clients that leave and clients that never
read their stream. `... replicas 100` sends requests to two replicas on Ray and kills one of them.
A request is wrong that is neither answered nor refused in words; so is a server whose memory grows.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import random
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torture_evaluation
from torture_corpus import descendants
from torture_evaluation import Tally

CLIENTS = 64
MOST_GROWTH = 0.10
TEXTS = ["The Buyer pays in 45 days. The fee is 3 %.", "We agreed on Monday. See you there."]
TURNS = [{"role": "user", "content": "How long?"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS, "documents": TEXTS},
    "/v1/responses": {"input": "How long?", "documents": TEXTS},
    "/v1/messages": {"messages": TURNS},
    "/v2/chat": {"messages": TURNS, "documents": TEXTS},
}
LAST_EVENTS = (b"data: [DONE]", b"message_stop", b"response.completed", b"response.incomplete")
CUT_OFF = (ConnectionError, http.client.IncompleteRead, http.client.BadStatusLine)

run_script = partial(torture_evaluation.run_script, script=__file__)


def save_model(folder: Path, **sizes: int) -> Path:
    """Save a small random Llama that can spell everything, with a chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from families import SIZES
    from test_placement import CHATML, byte_level

    tokenizer = byte_level()
    tokenizer.chat_template = CHATML
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": 2048, **sizes}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


# -- one request ----------------------------------------------------------------------------------


def send(port: int, path: str, body: dict[str, Any]) -> str:
    """Send a request, and say how it ended: "ok", a refusal in words, "cut off", or what is odd."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
    except CUT_OFF:
        return "cut off"
    finally:
        connection.close()
    if answer.status != 200:
        return f"refused {answer.status}" if len(content) > 10 else f"{answer.status} without words"
    if body.get("stream"):
        whole = any(event in content[-4000:] for event in LAST_EVENTS)
        return "ok" if whole else f"a stream without its end: {content[-80:]!r}"
    return "ok" if json.loads(content) else "an empty answer"


def send_half(port: int, path: str, rng: random.Random) -> str:
    """Send the head of a request and a part of its body, and wait for what is said, or go."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
        caller.sendall(f'{head}content-length: 900\r\n\r\n{{"messages": '.encode())
        if rng.random() < 0.5:
            return "left"
        answer = caller.recv(4096)
    return "refused 408" if b" 408 " in answer else f"half a body: {answer[:80]!r}"


def never_read(port: int, seconds: float) -> str:
    """Ask for more than the buffers on the way hold, read nothing, and wait for the server to hang
    up.
    """
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.connect(("127.0.0.1", port))
        caller.sendall(b"GET /assets/answer.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000)
        hung_up = select.poll()
        hung_up.register(caller, select.POLLHUP | select.POLLERR)
        return "given up" if hung_up.poll(1000 * seconds) else "a client that never reads is kept"


def leave_stream(port: int, path: str, body: dict[str, Any], seconds: float) -> str:
    """Ask for a stream and never read it."""
    content = json.dumps({**body, "stream": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
        caller.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        time.sleep(seconds)
    return "left"


# -- many of them ---------------------------------------------------------------------------------


def in_threads(
    count: int, work: Callable[[random.Random], str], goes_on: Callable[[], bool]
) -> dict[str, int]:
    """Repeat work in threads while `goes_on()`; return how often each outcome came."""
    outcomes: dict[str, int] = {}
    lock = Lock()

    def client(seed: int) -> None:
        rng = random.Random(seed)
        while goes_on():
            try:
                outcome = work(rng)
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            with lock:
                outcomes[outcome] = outcomes.get(outcome, 0) + 1

    threads = [Thread(target=client, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _serve(folder: str, port: int) -> None:
    """Serve in a process of its own: its memory is the server's."""
    import torch
    import uvicorn

    from attnflow_connect.server.guard import server_settings
    from attnflow_connect.server.models import Limits, named_models
    from serving import entrance

    torch.set_num_threads(1)
    limits = Limits(answer_tokens=12, seconds_to_send=2.0, seconds_to_read=5.0)
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(256)
    app = entrance(named_models([folder]), limits)
    uvicorn.Server(server_settings(app, limits)).run(sockets=[listening])


def resident(process: int) -> int:
    """Return the bytes of memory that a process holds."""
    fields = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def clients(seconds: int, seed: int, folder: Path) -> Tally:
    """64 clients at once, some of whom send half a body, leave, or never read."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(str(save_model(folder)), port)
    )
    process.start()
    wait_for(port)
    assert process.pid is not None

    def work(rng: random.Random) -> str:
        path = rng.choice(list(BODIES))
        kind, body = rng.random(), {**BODIES[path], "stream": rng.random() < 0.5}
        if kind < 0.05:
            return send_half(port, path, rng)
        if kind < 0.10:
            return leave_stream(port, path, body, rng.uniform(0, 3))
        if kind < 0.105:
            return never_read(port, 60)
        outcome = send(port, path, body)
        if outcome == "refused 429":
            time.sleep(rng.uniform(0, 1))
        return outcome

    sizes: list[int] = []
    end = time.monotonic() + seconds
    try:
        warm = time.monotonic() + seconds / 10
        outcomes = in_threads(CLIENTS, work, lambda: time.monotonic() < warm)
        sizes.append(resident(process.pid))
        for outcome, count in in_threads(CLIENTS, work, lambda: time.monotonic() < end).items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        sizes.append(resident(process.pid))
        outcomes[f"then {send(port, '/v1/chat/completions', BODIES['/v1/chat/completions'])}"] = 1
    finally:
        process.terminate()
        process.join(30)
    growth = sizes[-1] / sizes[0] - 1
    print(f"{outcomes}; memory {sizes[0] >> 20} to {sizes[-1] >> 20} MB", flush=True)
    wrong = [f"{n} times: {o}" for o, n in outcomes.items() if o not in _FINE]
    if growth > MOST_GROWTH:
        wrong.append(f"memory grew by {growth:.0%}")
    return Tally(sum(outcomes.values()), wrong)


_FINE = {"ok", "left", "given up", "refused 408", "refused 429", "then ok"}


def replicas(count: int, seed: int, folder: Path) -> Tally:
    """Two replicas on Ray; one is killed while they answer eight clients."""
    from attnflow_connect.server.models import Access
    from attnflow_connect.server.replicas import running_replicas

    name, port = str(save_model(folder)), free_port()
    left, victims, path = list(range(count)), [1], "/v1/chat/completions"

    def work(rng: random.Random) -> str:
        with suppress(IndexError):
            if len(left) <= count // 2 and victims.pop():
                os.kill(descendants(os.getpid(), b"ServeReplica")[0], signal.SIGKILL)
        try:
            number = left.pop()
        except IndexError:
            return "none left"
        body = {**BODIES[path], "max_tokens": 24, "stream": number % 2 == 1}
        return send(port, path, body)

    with running_replicas([name], 2, Access(), ("127.0.0.1", port)):
        outcomes = in_threads(8, work, lambda: bool(left))
        outcomes.pop("none left", None)
        outcomes["then " + send(port, path, BODIES[path])] = 1
    print(outcomes, flush=True)
    lost = outcomes.get("cut off", 0) + outcomes.get("refused 500", 0)
    fine = {*_FINE, "cut off", "refused 500", "refused 503"}
    wrong = [f"{n} times: {o}" for o, n in outcomes.items() if o not in fine]
    if not 1 <= lost <= 8:  # no more than were on their way
        wrong.append(f"{lost} requests ended with an error")
    if sum(outcomes.values()) != count + 1:
        wrong.append(f"{count} requests were sent, and {outcomes} came of them")
    return Tally(count, wrong)


def wait_for(port: int, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def main() -> None:
    """The command line: a kind, a count, and a seed."""
    kind, count, *seed = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        run = {"clients": clients, "replicas": replicas}[kind]
        tally = run(int(count), int(seed[0]) if seed else 0, Path(folder))
    print(f"tried {tally.tried}, wrong {len(tally.wrong)}")
    print(json.dumps(tally._asdict()))


if __name__ == "__main__":
    main()
