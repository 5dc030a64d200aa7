"""Hostile use of the surface, drawn from a seed: command lines, request bodies, raw requests.

Each function tries `count` cases and returns a line for each that went wrong, so that a small
count runs with every test run and a large one when somebody wants to be sure.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import socket
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnflow.cli.app import _run
from attnflow.methods import METHODS
from serving import JSON, Client

STATUSES = (0, 1, 2)  # done, failure, bad usage
TEXTS = (
    *("the key to the cabinets", "", " ", "\n", "key", "[MASK]", "</script>", "𝔘𝔫𝔦 → ∞", "\ud800"),
    *("the " * 70, "a" * 5000, "$x^2$", "%s %d {}", "-1", "--", "photo.png", "\x00", "\x1b[31m"),
)
NUMBERS = ("0", "1", "2", "-1", "99", "x", "", "1e9", "9" * 30, "-" + "9" * 30, "0x1", "１", "nan")
METHOD_TEXTS = (
    *METHODS,
    *(
        "flo",
        "",
        ":",
        "rollout:",
        "rollout:residual",
        "rollout:residual=2",
        "rollout:=1",
        "raw:a=1",
    ),
    *(
        "rollout:residual=0.4,heads=max",
        "rollout:heads=99",
        "rollout:heads=0,1",
        "flow:tolerance=x",
    ),
    *(
        "rollout:residual=nan",
        "rollout:start_layer=2",
        "rollout:start_layer=true",
        "rollout:drop=the",
    ),
    *("rollout:residual=0.4:heads=max", "flow:threads=2", "rollout:discard=1", "rollout:drop=foo"),
)
FILES = (
    *("x.png", "x.gif", "x.json", "x.safetensors", "x.html", "x.svg", "x.txt", "no/such/x.png"),
    *("", ".", "..", "/", "x", "y" * 300 + ".png", "/dev/full.png", "x.PNG"),
)


def try_command_lines(
    count: int, seed: int, *, encoder: str, writer: str, folder: Path
) -> list[str]:
    """Run command lines of random options; none may end in what should not have happened.

    encoder, writer: folders of a tiny masked and a tiny causal language model. folder: an empty
    one, which the files go to.
    """
    rng = random.Random(seed)
    data = folder / "texts.txt"
    data.write_text("the key to the cabinets\nthe author is here\n", encoding="utf-8")
    wrong = []
    for _ in range(count):
        arguments = _command_line(rng, encoder, writer, data)
        with contextlib.chdir(folder):
            wrong += _complaints(arguments)
    return wrong


def _command_line(rng: random.Random, encoder: str, writer: str, data: Path) -> list[str]:
    command = rng.choice(("explain",) * 8 + ("generate",) * 4 + ("report",) * 2 + (*_RARE,))
    model = rng.choice((None, encoder, encoder, *_MODELS))
    named = [] if model is None else ["--model", model]
    if command == "explain":
        return [command, rng.choice(TEXTS), *named, *_options(rng, _EXPLAIN)]
    if command == "generate":
        few = ["--max-new-tokens", rng.choice(("1", "2", "3", *NUMBERS))]
        return [command, rng.choice(TEXTS), "--model", writer, *few, *_options(rng, _GENERATE)]
    if command == "report":
        return [command, rng.choice(TEXTS), *named, *_options(rng, _REPORT)]
    if command == "evaluate":
        files = (str(data), str(data), "no.csv", "", ".", "x" * 3000)
        few = ["--samples", rng.choice(("1", "2", "0", "x"))]
        return [command, "--data", rng.choice(files), *few, *_options(rng, _EVALUATE)]
    if command == "experiment":
        if rng.random() < 0.5:  # a language model without parts of its prompts
            few = ["--samples", rng.choice(("1", "0", "x")), "--model", writer]
            return [command, "ablation", *few, *_options(rng, _ABLATION)]
        name = rng.choice(("", "verb-number", "known-answer", "x"))
        option = "--prompts" if name == "known-answer" else "--samples"
        few = [option, rng.choice(("2", "0", "-1", "x"))]  # in full they take hours
        return [command, name, *few, *_options(rng, _EXPERIMENT)]
    if command == "serve":  # only what never gets so far as to serve
        return [command, "--no-open", "--port", rng.choice(("70000", "-1", "x", "9" * 40))]
    return [command, *_options(rng, _EXPLAIN)]


_RARE = (
    "evaluate",
    "evaluate",
    *("experiment",) * 3,
    "serve",
    "methods",
    "check",
    "nonsense",
    "--version",
)
_MODELS = ("", " ", "./nowhere", "x" * 5000, "/", ".", "~", "\x00", "no such name")
_OPTION = Sequence[str]
_EXPLAIN: dict[str, _OPTION] = {
    "--method": METHOD_TEXTS,
    "--targets": (*TEXTS, *NUMBERS),
    "--layers": NUMBERS,
    "--answer": (*TEXTS, *NUMBERS),
    "--contrast": TEXTS,
    "--cut": TEXTS,
    "--figure": ("layers", "pairs", "bars", "graph", "x"),
    "--output": FILES,
    "--level": ("token", "word", "x", ""),
    "--images": FILES,
    "--json": (),
    "--nonsense": (),
}
_GENERATE: dict[str, _OPTION] = {
    "--method": ("rollout", "raw", "flow", *METHOD_TEXTS),
    "--targets": (*TEXTS, *NUMBERS, "0:2", "answer"),
    "--completion": TEXTS,
    "--layer": ("mean", *NUMBERS),
    "--top": NUMBERS,
    "--common": ("the key", "the key to cabinets", "", "."),
    "--hide-common": (),
    "--sources": ("all", "a=0:2", "a=key", "a", "=", "a=9:1", "a=0:99999999999999999999"),
    "--seed": NUMBERS,
    "--temperature": ("1", "0", "-1", "nan", "inf", "x"),
    "--output": FILES,
    "--json": (),
    "--chat": (),
}
_REPORT: dict[str, _OPTION] = {
    "--output": ("x.html", *FILES),
    "--methods": METHOD_TEXTS,
    "--title": TEXTS,
    "--max-new-tokens": NUMBERS,
}
_EVALUATE: dict[str, _OPTION] = {
    "--methods": ("raw", "rollout", *METHOD_TEXTS),
    "--by": ("unk", "x", ""),
    "--min-words": NUMBERS,
    "--skip": NUMBERS,
    "--seed": NUMBERS,
    "--batch-size": NUMBERS,
    "--column": ("text", "x"),
    "--output": ("out", "", "texts.txt"),
    "--json": (),
}
_ABLATION: dict[str, _OPTION] = {
    "--method": ("default", "leave-one-out", "careful", "random", *METHOD_TEXTS),
    "--part": ("development", "held-out", "x", ""),
    "--kind": ("facts", "text", "documents", "x", ""),
    "--ablations": ("0", "2", *NUMBERS),
    "--device": ("cpu", "cuda", "x", ""),
    "--data": ("no", ".", "", "texts.txt"),
    "--seed": NUMBERS,
    "--output": ("out", "", "texts.txt"),
}
_EXPERIMENT: dict[str, _OPTION] = {
    "--protocol": ("sound", "x"),
    "--data": ("no.tsv", ".", ""),
    "--seed": ("9" * 40, "-1", "x"),
}


def _options(rng: random.Random, table: dict[str, _OPTION]) -> list[str]:
    parts = []
    for name in rng.sample(sorted(table), rng.randint(0, min(4, len(table)))):
        parts += [name, rng.choice(table[name])] if table[name] else [name]
    return parts


def _complaints(arguments: list[str]) -> list[str]:
    output, errors = (
        io.TextIOWrapper(io.BytesIO(), "utf-8"),
        io.TextIOWrapper(io.BytesIO(), "utf-8"),
    )
    line = " ".join(arguments)[:300]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status = _run(arguments)
        except BaseException as error:
            return [f"{line}: raised {type(error).__name__}: {error}"]
    for stream in (output, errors):
        stream.flush()
    said = errors.buffer.getvalue().decode()  # type: ignore[attr-defined]
    if status not in STATUSES or "should not have happened" in said or "Traceback" in said:
        return [f"{line}: status {status}: {said[-300:]}"]
    return [] if status == 0 or said.strip() else [f"{line}: status {status} without a word"]


# -- the server ------------------------------------------------------------------------------------

BODY_STATUSES = (202, 413, 415, 422, 503)


def try_request_bodies(client: Client, count: int, seed: int, *, model: str) -> list[str]:
    """Send damaged and odd bodies; every answer is a job or a sentence, and no job fails badly."""
    rng = random.Random(seed)
    wrong = []
    for _ in range(count):
        task = rng.choice(("explain", "generate"))
        body = _body(rng, task, model)
        answer = client.send("POST", f"/api/{task}", body, JSON)
        case = f"{task} {body[:200]!r}: {answer.status} {answer.body[:200]!r}"
        if answer.status not in BODY_STATUSES or "content-security-policy" not in answer.headers:
            wrong.append(case)
        elif answer.status == 202:
            job = client.finished(answer.json["id"])
            if "should not have happened" in (job["error"] or ""):
                wrong.append(f"{case}: {job['error']}")
        elif not str(answer.json["error"]).endswith((".", ")")):
            wrong.append(case)
    return wrong


def _body(rng: random.Random, task: str, model: str) -> bytes:
    record: Any = {
        "model": model,
        "text" if task == "explain" else "prompt": "a b c",
        "methods": ["rollout"],
    }
    if task == "generate":
        record |= {"tokens": 2, "chat": False}
    for _ in range(rng.randint(1, 3)):
        key = rng.choice((*record, "path", "__class__", "", "é" * 40))
        record[key] = rng.choice(_VALUES)
    body = json.dumps(record).encode()
    change: Callable[[bytes], bytes] = rng.choice(
        (bytes, bytes, bytes, lambda b: b[: rng.randrange(len(b))], lambda b: _flip(rng, b))
    )
    return rng.choice((*_BODIES, *(change(body),) * 12))


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 16, 17, 10**30, 0.5, float("nan"), "", " ", "a b", "flow"),
    *("x" * 21_000, "a " * 60, "\ud800", "\x00", "</script>", [], {}, ["raw"], ["flow", "raw"]),
    *([["raw"]], ["raw"] * 7, {"a": [{}]}, ["default"], [None], "verb-number", "../verb-number"),
)
_BODIES = (b"", b"{", b"null", b"[" * 20_000, b"\xff\xfe{}", b'{"a":1e999}', b"9" * 5000, b"{}" * 9)


def _flip(rng: random.Random, body: bytes) -> bytes:
    place = rng.randrange(len(body))
    return body[:place] + bytes([rng.randrange(256)]) + body[place + 1 :]


def try_raw_requests(port: int, count: int, seed: int, *, patience: float = 20.0) -> list[str]:
    """Send raw bytes; the server answers without a 5xx or hangs up, in time, and lives on."""
    rng = random.Random(seed)
    wrong = []
    for _ in range(count):
        request = _raw_request(rng)
        answer = _exchange(port, request, patience)
        if answer is None or answer[9:10] == b"5":
            wrong.append(f"{request[:200]!r}: {answer if answer is None else answer[:200]!r}")
        elif answer[9:12] == b"200" and b"content-security-policy" not in answer.lower():
            wrong.append(f"{request[:200]!r}: without its headers")
        elif answer[9:12] == b"200" and any(sign in request for sign in _FOREIGN):
            wrong.append(f"{request[:200]!r}: a foreign caller was answered")
    return wrong


_FOREIGN = (b"evil",)


def _exchange(port: int, request: bytes, patience: float) -> bytes | None:
    """What came back until the server hung up or fell silent; None if it did neither in time."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as visitor:
        try:
            visitor.sendall(request)
            answer = b""
            while b"\r\n\r\n" not in answer:
                piece = visitor.recv(65_536)
                if not piece:
                    break
                answer += piece
        except ConnectionError:
            return b""
        except TimeoutError:
            return None
        return answer


def _raw_request(rng: random.Random) -> bytes:
    method = rng.choice((*("GET", "POST", "DELETE") * 3, "PUT", "OPTIONS", "X" * 90, "get", ""))
    path = rng.choice(
        (
            "/",
            "/api/models",
            "/api/jobs/x",
            "/api/explain",
            "http://evil.com/",
            "*",
            "/%ff",
            "/\xff",
        )
    )
    version = rng.choice((*("HTTP/1.1",) * 6, "HTTP/1.0", "HTTP/9.9", "http/1.1", ""))
    lines = [f"{method} {path} {version}"]
    hosts = [f"host: {rng.choice(_HOSTS)}"] * rng.choice((0, 1, 1, 1, 1, 1, 2))
    extra = [rng.choice(_HEADERS) for _ in range(rng.randint(0, 3))]
    lines += rng.sample(hosts + extra, len(hosts + extra))
    ending = rng.choice((*("\r\n\r\n",) * 6, "\r\n", "", "\n\n", "\r\n\r\n{"))
    return ("\r\n".join(lines) + ending).encode("latin-1", "replace")


_PATHS = (
    *("/", "/api/models", "/api/jobs/x", "/api/explain", "http://evil.com/", "*", "/%ff", "/\xff"),
)
_HOSTS = (
    *("127.0.0.1", "localhost", "127.0.0.1:80", "[::1]", "LOCALHOST:1") * 2,
    *("[", "]", "[::1", "evil.com@127.0.0.1", "127.0.0.1:80@evil.com", "127.0.0.1.evil.com", ""),
    *("127.0.0.1:", "127.0.0.1:99999999", "127.0.0.1, evil.com", "evil.com#127.0.0.1", "//", "é"),
)
_HEADERS = (
    *("origin: http://127.0.0.1", "origin: http://evil.com", "origin: null", "origin:"),
    *("content-type: application/JSON", "content-type: text/plain", "content-type: ;"),
    *(
        "content-length: 0",
        "content-length: 5",
        "content-length: -1",
        "content-length: 9" + "9" * 30,
    ),
    *(
        "transfer-encoding: chunked",
        "connection: close",
        "connection: upgrade",
        "upgrade: websocket",
    ),
    *("expect: 100-continue", "x: " + "y" * 70_000, "no colon here", ": no name", " folded: line"),
    *("x: " + string.printable[:90], "cookie: a=b", "range: bytes=0-1", "x-\xe9: 1", "x: \x00"),
)
