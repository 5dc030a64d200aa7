"""The server, asked over a real socket: answers, limits, refusals, and many at once."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

import attnflow
from attnflow import AttentionTrace, Rollout
from attnflow.cli.app import _run
from attnflow.errors import AttributionWarning
from attnflow.errors.progress import Progress, relaying
from attnflow.hosts.model import Model
from attnflow.methods import trace_methods
from attnflow.show.view import unpack_values
from attnflow.testing import tiny_encoder
from attnflow_connect.server.jobs import CancelledJobError, Job, Jobs, QueueFullError, Results
from attnflow_connect.server.models import Limits, OfferedModel, embedded_models, named_models
from hostile_surface import try_raw_requests, try_request_bodies
from serving import JSON, Client, running, serving

TEXT = "the key to the cabinets"


def tiny_writer() -> Model:
    """A GPT-2 too small to say anything, with a vocabulary that holds a script tag."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = [
        "<unk>",
        "</script>",
        "<script>",
        *["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"],
    ]
    inner = Tokenizer(
        models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<unk>"
    )
    torch.manual_seed(0)
    size: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}
    config = GPT2Config(vocab_size=len(words), bos_token_id=None, eos_token_id=None, **size)
    return Model(GPT2LMHeadModel(config).eval(), tokenizer)


def models() -> list[OfferedModel]:
    return [
        embedded_models()[0],
        OfferedModel(
            "tiny-writer", "writes nonsense", explains=True, generates=True, load=tiny_writer
        ),
    ]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(models(), Limits(tokens=48, flow_tokens=24, new_tokens=16)) as running:
        yield running


def start(client: Client, task: str = "explain", **fields: Any) -> Any:
    default = (
        {"model": "verb-number", "text": TEXT} if task == "explain" else {"model": "tiny-writer"}
    )
    return client.post(f"/api/{task}", {**default, **fields})


# -- what it is for --------------------------------------------------------------------------------


def test_a_text_is_explained_as_the_library_does(client: Client) -> None:
    from attnflow import explain

    started = start(client, methods=["rollout", "flow"])
    assert started.status == 202
    job = client.finished(started.json["id"])
    assert job["state"] == "done"
    document = client.get(f"/api/results/{job['result']}.json").json
    assert [found["name"] for found in document["results"]] == ["rollout", "flow"]
    assert unpack_values(document) == pytest.approx(
        explain(None, TEXT, "rollout", targets="all").values, abs=1e-4
    )
    assert document["graph"]["length"] == 7


def test_a_prompt_is_continued_and_attributed(client: Client) -> None:
    started = start(client, "generate", prompt="a b c", tokens=5, methods=["rollout", "raw"])
    job = client.finished(started.json["id"])
    assert job["state"] == "done", job
    document = client.get(f"/api/results/{job['result']}.json").json
    written = document["targets"]["texts"]
    assert len(written) == 5
    assert job["text"].split() == written
    assert unpack_values(document, 1).shape == (2, 5, 3)


def test_results_come_as_files(client: Client) -> None:
    name = client.finished(start(client).json["id"])["result"]
    starts = {"json": b'{"format"', "html": b"<!doctype html>", "png": b"\x89PNG"}
    for form, first in starts.items():
        answer = client.get(f"/api/results/{name}.{form}")
        assert answer.status == 200
        assert answer.body.startswith(first)
        assert answer.headers["content-disposition"].startswith("attachment; filename=")
    other = client.get(f"/api/results/{name}.png?result=1&target=3")
    assert other.status == 200
    assert other.body != client.get(f"/api/results/{name}.png").body
    for wrong in ("result=99", "target=7", "target=x", "target=-1"):
        assert client.get(f"/api/results/{name}.png?{wrong}").status == 422
    assert client.get("/api/results/nothing-here.json").status == 404
    assert "not kept any more" in client.get("/api/results/nothing-here.json").json["error"]


def test_the_page_and_its_files_are_served_and_nothing_else(client: Client) -> None:
    index = client.get("/")
    assert index.status == 200
    found = re.findall(r'(?:src|href)="([^"]+)"', index.body.decode())
    assert len(found) > 8
    for path in {path.partition("#")[0] for path in found}:
        assert client.get(path).status == 200
    for path in ("/assets/server.py", "/assets/..%2fserver.py", "/assets/../server.py", "/docs"):
        assert client.get(path).status == 404
    listed = client.get("/api/models").json["models"]
    assert [model["name"] for model in listed] == ["verb-number", "tiny-writer"]


def test_the_page_offers_what_python_does(client: Client) -> None:
    offers = client.get("/api/models").json
    assert offers["methods"] == ["default", *trace_methods(), "careful"]
    for task, function in (("generate", attnflow.generate), ("ask", attnflow.ask)):
        default = inspect.signature(function).parameters["max_new_tokens"].default
        assert offers["new_tokens"][task] == default


def test_careful_is_a_method_that_stands_alone(client: Client) -> None:
    sent = start(client, "generate", prompt="a b c", tokens=3, methods=["careful"])
    job = client.finished(sent.json["id"])
    document = client.get(f"/api/results/{job['result']}.json").json
    assert [result["name"] for result in document["results"]] == ["careful"]
    assert document["request"]["methods"] == ["careful"]
    sent = start(client, "generate", prompt="a b c", tokens=3, methods=["careful", "raw"])
    assert "ask for it alone" in client.finished(sent.json["id"])["error"]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"text": "  "}, "the text is empty"),
        ({"text": 5}, "'text' must be a text; got 5"),
        ({"text": "a " * 11_000}, "22,000 characters; this server takes up to 20,000"),
        ({"text": "\ud800"}, "half of a surrogate pair"),
        ({"model": "/etc"}, "no model '/etc' here to explain a text; this server offers verb-n"),
        ({"model": "../verb-number"}, "no model '../verb-number' here"),
        ({"model": None}, "'model' must be a text; got None"),
        ({"methods": ["flaw"]}, "Unknown method 'flaw'; allowed: default, raw, rollout"),
        ({"methods": [["raw"]]}, "Unknown method ['raw']"),
        ({"methods": ["raw"] * 7}, "up to 6 methods; got 7"),
        ({"methods": "raw"}, "'methods' must be a list"),
        ({"path": "/etc/passwd"}, "Unknown field 'path'; the fields are model, methods, text"),
    ],
)
def test_bad_requests_are_told_why(client: Client, fields: dict[str, Any], said: str) -> None:
    answer = start(client, **fields)
    assert answer.status == 422
    assert said in answer.json["error"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": "a", "tokens": 17}, "from 1 to 16; got 17"),
        ({"prompt": "a", "tokens": True}, "'tokens' must be a whole number"),
        ({"prompt": "a", "model": "verb-number"}, "to continue a prompt; this server offers tiny"),
        ({"prompt": "a", "methods": ["altai"]}, "allowed: default, raw, rollout"),
    ],
)
def test_bad_prompts_are_told_why(client: Client, fields: dict[str, Any], said: str) -> None:
    answer = start(client, "generate", **fields)
    assert answer.status == 422
    assert said in answer.json["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"nul", b"\xff\xfe", b"[" * 30_000])
def test_a_malformed_body_is_told_so(client: Client, body: bytes) -> None:
    answer = client.send("POST", "/api/explain", body, JSON)
    assert answer.status == 422
    assert answer.json["error"].startswith("The request ")


def test_long_texts_fail_with_their_length_in_tokens(client: Client) -> None:
    long = client.finished(start(client, model="tiny-writer", text="a " * 49).json["id"])
    assert long["state"] == "failed"
    assert "49 tokens; this server takes up to 48." in long["error"]
    asked = start(client, model="tiny-writer", text="a " * 25, methods=["flow"])
    assert "up to 24 for flow" in client.finished(asked.json["id"])["error"]
    own = client.finished(start(client, text="the key " * 40).json["id"])
    assert "82 tokens" in own["error"]


def test_a_huge_body_is_refused_before_it_is_read(client: Client) -> None:
    announced = client.send("POST", "/api/explain", b"{}", {**JSON, "content-length": "100000000"})
    assert announced.status == 413
    assert "larger than 64 KB" in announced.json["error"]

    # One chunk that passes the limit, and no end: whoever waited for the end would never answer.
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as endless:
        head = "POST /api/explain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        body = b"x" * (64 * 1024 + 1)
        endless.sendall(
            f"{head}transfer-encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body
        )
        assert b" 413 " in endless.recv(4096)


def test_a_body_that_never_comes_is_given_up() -> None:
    with (
        serving([], Limits(seconds_to_send=0.3)) as client,
        socket.create_connection(("127.0.0.1", client.port), timeout=20) as half,
    ):
        head = "POST /api/explain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        half.sendall(f"{head}content-length: 50\r\n\r\n{{".encode())
        assert b" 408 " in half.recv(4096)


def test_other_hosts_pages_and_kinds_of_body_are_refused(client: Client) -> None:
    def post(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = json.dumps({"model": "verb-number", "text": TEXT}).encode()
        return client.send("POST", "/api/explain", body, {**JSON, **named}).status

    assert post(host="evil.example") == 421
    assert post(host="127.0.0.1.evil.example:80") == 421
    assert post(origin="http://evil.example") == 403
    assert post(origin="null") == 403
    assert post(content_type="text/plain") == 415
    assert post(origin=f"http://127.0.0.1:{client.port}") == 202
    assert client.send("GET", "/", headers={"host": "evil.example"}).status == 421
    assert client.send("GET", "/", headers={"host": "localhost:1234"}).status == 200


def test_every_answer_carries_the_policy(client: Client) -> None:
    for path in ("/", "/api/models", "/assets/viewer.js", "/nowhere", "/api/jobs/none"):
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert b"<script>" not in client.get("/").body  # nothing inline
    assert client.send("PUT", "/api/models", b"{}", JSON).status == 405


# -- many, and stopping ----------------------------------------------------------------------------


def stuck(go: Event) -> OfferedModel:
    def load() -> Model:
        go.wait(30)
        return embedded_models()[0].load()

    return OfferedModel("slow", "takes its time", explains=True, generates=False, load=load)


@pytest.mark.timing
def test_two_hundred_at_once_are_queued_or_told_to_come_back() -> None:
    go = Event()
    with serving([stuck(go)], Limits(waiting=20)) as client:
        body = {"model": "slow", "text": TEXT, "methods": ["rollout"]}
        with ThreadPoolExecutor(200) as crowd:
            answers = list(crowd.map(lambda _: client.post("/api/explain", body), range(200)))
        taken = [answer.json["id"] for answer in answers if answer.status == 202]
        told = [answer for answer in answers if answer.status == 503]
        assert len(taken) + len(told) == 200
        assert 20 <= len(taken) <= 21  # those that wait, and the one that runs
        assert told[0].headers["retry-after"] == "5"
        assert told[0].json["error"].startswith("20 requests are waiting already.")
        # The crowd does not arrive in the order of its numbers: whoever came last has all ahead.
        assert max(client.get(f"/api/jobs/{name}").json["ahead"] for name in taken) >= 18
        go.set()
        assert all(client.finished(name)["state"] == "done" for name in taken)
        assert client.post("/api/explain", body).status == 202


def test_waiting_and_running_jobs_can_be_cancelled() -> None:
    go = Event()
    with serving([stuck(go)]) as client:
        names = [
            client.post("/api/explain", {"model": "slow", "text": TEXT}).json["id"] for _ in "ab"
        ]
        while client.get(f"/api/jobs/{names[0]}").json["state"] != "running":
            time.sleep(0.01)
        assert client.send("DELETE", f"/api/jobs/{names[1]}").json["state"] == "cancelled"
        assert client.send("DELETE", f"/api/jobs/{names[0]}").status == 200
        go.set()
        assert client.finished(names[0])["state"] == "cancelled"
        assert client.get(f"/api/jobs/{names[1]}").json["result"] is None
        assert client.send("DELETE", "/api/jobs/nothing").status == 404


def test_generation_stops_between_two_words(client: Client) -> None:
    """Cancelled from inside the stream, as a visitor's click would: the rest is never written."""
    from attnflow.explainers.comparison import compare_completions

    heard: list[str] = []

    def hear(step: Progress) -> Progress:
        if step.text:
            heard.append(step.text)
            job.cancel()
        return step

    def work() -> str:
        with relaying(hear):
            compare_completions(tiny_writer(), "a b", [Rollout()], max_new_tokens=12)
        return "never"

    job = Job(work)
    job.run()
    assert (job.state, job.result) == ("cancelled", None)
    assert len(heard) == 1


def test_flow_stops_between_two_pairs() -> None:
    from attnflow import Flow
    from attnflow.testing import random_trace

    def work() -> str:
        job.cancel()
        Flow()(random_trace(layers=4, length=24))
        return "never"

    job = Job(work)
    job.run()
    assert (job.state, job.result) == ("cancelled", None)


def test_a_failing_job_leaves_the_thread_alive() -> None:
    jobs = Jobs(waiting=3)

    def broken() -> str:
        raise RuntimeError("of no use")

    try:
        first, second = jobs.submit(broken), jobs.submit(lambda: "result")
        while second.state != "done":
            time.sleep(0.01)
        assert first.error == "This should not have happened (RuntimeError: of no use)."
    finally:
        jobs.close()
    assert not jobs._thread.is_alive()


def nothing() -> str:
    return ""


def test_the_queue_and_the_results_are_bounded() -> None:
    go = Event()
    jobs = Jobs(waiting=2)
    try:
        running = jobs.submit(lambda: str(go.wait(20)))
        while running.state != "running":
            time.sleep(0.01)
        waiting = [jobs.submit(nothing) for _ in range(2)]
        with pytest.raises(QueueFullError):
            jobs.submit(nothing)
        assert [jobs.ahead_of(job) for job in (running, *waiting)] == [0, 1, 2]
    finally:
        go.set()
        jobs.close()
    results = Results(most=2)
    names = [results.add(str(k)) for k in range(2)]  # type: ignore[arg-type]
    assert results.get(names[0]) == "0"  # looked at: it stays longer
    results.add("2")  # type: ignore[arg-type]
    assert results.get(names[0]) == "0"
    assert results.get(names[1]) is None
    cancelled = Job(nothing)
    cancelled.cancel()
    with pytest.raises(CancelledJobError):
        cancelled.hear(Progress("on", 0, 0))


# -- models ----------------------------------------------------------------------------------------


def test_a_model_is_loaded_once() -> None:
    count: list[int] = []

    def load() -> Model:
        count.append(1)
        return embedded_models()[0].load()

    with serving([OfferedModel("one", "", explains=True, generates=False, load=load)]) as client:
        for _ in range(3):
            name = client.post("/api/explain", {"model": "one", "text": TEXT}).json["id"]
            assert client.finished(name)["state"] == "done"
    assert len(count) == 1


def test_a_folder_is_offered_by_its_name_alone(tmp_path: Any) -> None:
    loaded = tiny_encoder()
    folder = tmp_path / "private" / "tiny"
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    (offer,) = named_models([str(folder)])
    assert offer.name == "tiny"
    assert (offer.explains, offer.generates) == (True, False)
    assert "private" not in json.dumps(offer.to_dict())


def test_serve_says_what_is_wrong_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert _run(["serve", "--no-open", "--port", port]) == 2
    assert f"Port {port} of 127.0.0.1 cannot be used" in capsys.readouterr().err
    assert _run(["serve", "--no-open", "--port", "70000"]) == 2
    assert _run(["serve", "--no-open", "--port", "0", "--model", "./nowhere"]) == 1
    assert "There is no folder './nowhere'" in capsys.readouterr().err


def test_serve_runs_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "attnflow", "serve", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = process.stderr.readline()
            found = re.fullmatch(r"attnflow: http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)\n", said)
            assert found is not None, said
            client = Client(int(found[1]))
            assert b"<title>attnflow</title>" in client.get("/").body
            assert client.get("/api/models").json["models"][0]["name"] == "verb-number"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


# -- hostile callers -------------------------------------------------------------------------------


def raw(port: int, request: bytes) -> bytes:
    """Everything that comes back for these bytes until the server hangs up."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as visitor:
        visitor.sendall(request)
        while piece := visitor.recv(65_536):
            answer += piece
    return answer


def get(port: int, *headers: str) -> bytes:
    lines = ["GET / HTTP/1.1", *headers, "connection: close"]
    return raw(port, ("\r\n".join(lines) + "\r\n\r\n").encode())


@pytest.mark.parametrize(
    "host", ["[", "evil.com@127.0.0.1", "127.0.0.1:80@evil.com", "127.0.0.1:port", "[::1", "//"]
)
def test_a_host_that_is_none_of_ours_is_refused_with_the_policy(client: Client, host: str) -> None:
    answer = get(client.port, f"host: {host}")
    assert answer.startswith(b"HTTP/1.1 421 ")
    assert b"content-security-policy" in answer
    assert b"answers on 127.0.0.1 and localhost only" in answer


def test_every_name_of_this_machine_is_answered(client: Client) -> None:
    for host in ("127.0.0.1", "LOCALHOST", "[::1]:8765", "localhost:1234"):
        assert get(client.port, f"host: {host}").startswith(b"HTTP/1.1 200 ")


def test_two_origins_are_refused_whichever_comes_last(client: Client) -> None:
    own, foreign = "origin: http://127.0.0.1", "origin: http://evil.example"
    for headers in ([own, foreign], [foreign, own], [own, own]):
        answer = get(client.port, "host: 127.0.0.1", *headers)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"The header 'origin' was sent twice." in answer


def test_the_content_type_is_read_as_the_standard_says(client: Client) -> None:
    body = json.dumps({"model": "verb-number", "text": TEXT}).encode()
    for kind in ("application/JSON", "application/json; charset=utf-8", "APPLICATION/json ;x=y"):
        answer = client.send("POST", "/api/explain", body, {"content-type": kind})
        assert answer.status == 202, kind


def test_half_sent_headers_are_given_up_and_others_are_answered_meanwhile() -> None:
    halves = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: local", b"POST /api/explain HTTP/1.1\r\n")
    with serving([], Limits(seconds_to_send=0.4)) as client:
        visitors = [
            socket.create_connection(("127.0.0.1", client.port), timeout=20) for _ in range(40)
        ]
        try:
            for k, visitor in enumerate(visitors):
                visitor.sendall(halves[k % len(halves)])
            assert client.get("/").status == 200
            assert all(visitor.recv(4096) == b"" for visitor in visitors)
        finally:
            for visitor in visitors:
                visitor.close()


def test_a_second_request_has_the_deadline_too() -> None:
    with serving([], Limits(seconds_to_send=0.4)) as client:
        request = b"GET /favicon.ico HTTP/1.1\r\nhost: localhost\r\n\r\n"
        assert raw(client.port, request + b"GET / HTTP/1.1\r\nho").count(b"HTTP/1.1 204") == 1
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as visitor:
            visitor.sendall(request)
            assert b" 204 " in visitor.recv(4096)
            visitor.sendall(b"GET / HTTP/1.1\r\nho")
            assert visitor.recv(4096) == b""


@pytest.mark.parametrize("more", [b"", b"GET / HTTP"])
def test_a_visitor_who_never_reads_is_given_up(more: bytes) -> None:
    ended = Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 100_000
                await asyncio.sleep(0)
        finally:
            ended.set()

    app = Starlette(routes=[Route("/", lambda _: StreamingResponse(endless()))])
    with (
        running(app, Limits(seconds_to_read=0.3)) as client,
        socket.create_connection(("127.0.0.1", client.port), timeout=20) as visitor,
    ):
        visitor.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        time.sleep(0.15)
        visitor.sendall(more)
        assert ended.wait(10)


def test_odd_bodies_get_a_job_or_a_sentence(client: Client) -> None:
    assert try_request_bodies(client, 40, seed=1, model="tiny-writer") == []


def test_odd_headers_get_an_answer_or_a_hang_up() -> None:
    with serving([], Limits(seconds_to_send=0.2)) as client:
        assert try_raw_requests(client.port, 60, seed=1) == []
        assert client.get("/").status == 200


def test_a_result_that_says_less_than_it_seems_is_shown_with_its_remark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A method that warns does not fail the job: the document carries the remark instead."""
    from attnflow import Attribution

    def compute(self: Rollout, trace: AttentionTrace, *rest: Any) -> Attribution:
        warnings.warn("the rows are all the same", AttributionWarning, stacklevel=2)
        return original(self, trace, *rest)

    original = Rollout._compute
    monkeypatch.setattr(Rollout, "_compute", compute)
    monkeypatch.setattr("attnflow.show.view.remarks", lambda _: ["the rows are all the same"])
    with serving([models()[0]]) as client:
        job = client.finished(start(client, methods=["rollout"]).json["id"])
        assert job["state"] == "done", job
        document = client.get(f"/api/results/{job['result']}.json").json
    assert "the rows are all the same" in document["results"][0]["remarks"]
