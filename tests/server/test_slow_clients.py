"""Clients that wait, that are slow, and that only hold a connection."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from h11._connection import DEFAULT_MAX_INCOMPLETE_EVENT_SIZE

from dflash_core.messages import Message
from dflash_tui.server import connection as connections
from dflash_tui.server import exchange as exchanges
from dflash_tui.server.asked import Asked
from dflash_tui.server.chat import ChatRequest, ChatWriter
from dflash_tui.server.job import Job
from dflash_tui.server.serving import bound
from dflash_tui.server.settings import ServerSettings
from support.scripted import ScriptedEngine, Steps
from support.serving import LONG, WAIT_S, place_of, raw_request, running, wait_for

ASK: list[Any] = [{"role": "user", "content": "Hello"}]
QUEUED = {
    "/v1/chat/completions": ({"messages": ASK}, ": waiting 1 of 1"),
    "/v1/messages": ({"messages": ASK, "model": "m", "max_tokens": 5}, "event: ping"),
    "/v1/responses": ({"input": "Hello"}, "event: response.in_progress"),
    "/v1/completions": ({"prompt": "Hello"}, ": working"),
}


@pytest.mark.parametrize("path", QUEUED)
def test_a_stream_that_waits_hears_of_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "ALIVE_S", 0.05)
    engine = Steps()
    body, sign = QUEUED[path]
    with running(engine) as server, socket.create_connection(place_of(server)) as first:
        first.sendall(raw_request(LONG))
        wait_for(lambda: server.service.worker.running is not None)
        with httpx.stream("POST", f"{server.address}{path}", json=body | {"stream": True}, timeout=WAIT_S) as waiting:
            assert waiting.status_code == 200
            assert waiting.headers["x-queue-position"] == "1"
            lines = waiting.iter_lines()
            seen = _until(lines, sign)
            first.close()
            engine.permits.release(5000)
            rest = "\n".join(lines)
    assert "word" in rest
    if path == "/v1/responses":
        assert [line for line in seen if line.startswith("event: response.created")]
        assert "event: response.created" not in rest
    if path == "/v1/messages":
        assert "event: message_start" in rest


def _until(lines: Iterator[str], sign: str) -> list[str]:
    seen = []
    for line in lines:
        seen.append(line)
        if line == sign:
            return seen
    raise AssertionError(f"{sign} never came")


def test_the_progress_of_a_prompt_is_told_on_request() -> None:
    with running(ScriptedEngine(lambda prompt: "one two")) as server, server.http() as http:
        body = {"messages": ASK, "stream": True, "return_progress": True, "stream_options": {"include_usage": True}}
        text = http.post("/v1/chat/completions", json=body).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 1


def test_half_a_body_and_many_idle_connections_keep_nobody_waiting() -> None:
    with running(ScriptedEngine(lambda prompt: "one two")) as server, ExitStack() as stack:
        place = place_of(server)
        idle = [stack.enter_context(socket.create_connection(place)) for _ in range(200)]
        for one in idle[:20]:
            one.sendall(raw_request(LONG)[:-10])
        answer = server.openai().chat.completions.create(model="demo", messages=ASK)
        assert answer.choices[0].message.content == "one two"
        for one in idle:
            one.close()
        assert server.openai().chat.completions.create(model="demo", messages=ASK).choices


async def test_a_client_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "PATIENCE_S", 0.05)
    engine = Steps()
    with running(engine) as server:
        service = server.service
        request = service.requests.add("a client", "/v1/chat/completions", "demo")
        prepared = service.preparer.prepare(Asked(messages=(Message("user", "Hello"),)), service.served.defaults)
        job = Job(prepared, request, service.requests, streamed=True)
        writer = ChatWriter(ChatRequest(messages=[]), "demo")
        scope: dict[str, Any] = {"log": {}}

        async def never() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        engine.permits.release(3)
        await exchanges.exchange(job, service.worker, writer, scope, never, send)
        assert job.cancelled
        engine.permits.release(1000)
        wait_for(lambda: service.worker.running is None)
        assert engine.steps <= 4


def test_a_server_that_ends_refuses_those_that_wait() -> None:
    engine = Steps()
    with running(engine) as server, ExitStack() as stack:
        worker = server.service.worker
        first, second = (stack.enter_context(socket.create_connection(place_of(server))) for _ in range(2))
        first.sendall(raw_request(LONG))
        wait_for(lambda: worker.running is not None)
        second.sendall(raw_request(LONG))
        wait_for(lambda: worker.waiting == 1)
        worker.end()
        for one in (first, second):
            one.settimeout(WAIT_S)
            data = b""
            while b"shutting_down" not in data:
                data += (more := one.recv(65536))
                assert more, data
            assert data.startswith(b"HTTP/1.1 503 ")
        engine.permits.release(1000)


def _alive(one: socket.socket) -> bool:
    """Whether the server has not closed it: it answers a request."""
    one.settimeout(WAIT_S)
    try:
        one.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        data = b""
        while b'"ok"' not in data:
            data += (more := one.recv(4096))
            if not more:
                return False
    except ConnectionError:
        return False
    return True


def test_the_oldest_idle_connection_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 4)
    engine = Steps()
    with running(engine) as server, ExitStack() as stack:
        place = place_of(server)
        busy = stack.enter_context(socket.create_connection(place))
        busy.sendall(raw_request(LONG))
        wait_for(lambda: server.service.worker.running is not None)
        idle = []
        for _ in range(5):
            idle.append(stack.enter_context(socket.create_connection(place)))
            assert _alive(idle[-1])
        assert [_alive(one) for one in idle] == [False, False, True, True, True]
        engine.permits.release(5000)
        busy.settimeout(WAIT_S)
        assert busy.recv(4096).startswith(b"HTTP/1.1 200")


def test_where_no_connection_is_idle_one_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    engine = Steps()
    with running(engine) as server, ExitStack() as stack:
        place = place_of(server)
        for _ in range(2):
            stack.enter_context(socket.create_connection(place)).sendall(raw_request(LONG))
        wait_for(lambda: server.service.worker.waiting == 1)
        late = stack.enter_context(socket.create_connection(place))
        late.settimeout(WAIT_S)
        data = b""
        while more := late.recv(4096):
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: " in head
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        engine.permits.release(5000)


@pytest.mark.parametrize("sent", [
    b"HELLO\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b"GET /health HTTP/1.1\r\n\r\n",
    (b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 20_000)[: DEFAULT_MAX_INCOMPLETE_EVENT_SIZE + 1],
    b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
])  # fmt: skip
def test_what_is_no_request_gets_an_error_object(sent: bytes) -> None:
    with running(ScriptedEngine(lambda prompt: "one")) as server, socket.create_connection(place_of(server)) as client:
        client.settimeout(WAIT_S)
        client.sendall(sent)
        data = client.recv(4096)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert "use http://" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nhost: loc"])
def test_headers_that_never_come_end_the_connection(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_S", 0.2)
    with running(ScriptedEngine(lambda prompt: "one two")) as server, ExitStack() as stack:
        fresh, used = (stack.enter_context(socket.create_connection(place_of(server))) for _ in range(2))
        assert _alive(used)
        for one in (fresh, used):
            one.settimeout(WAIT_S)
            one.sendall(begun)
        assert fresh.recv(10) == b""
        if begun:  # between two requests a connection may rest for longer
            assert used.recv(10) == b""
        else:
            assert _alive(used)


def test_a_reader_that_stalls_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a real connection with small buffers: the next client is answered meanwhile, the stalled one given up."""
    monkeypatch.setattr(exchanges, "PATIENCE_S", 0.3)

    def small(settings: ServerSettings) -> socket.socket:
        found = bound(settings)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # its connections get it too
        return found

    monkeypatch.setattr("support.serving.bound", small)
    with running(ScriptedEngine(lambda prompt: "word " * 1200, width=1)) as server, ExitStack() as stack:
        stalled = stack.enter_context(socket.socket())
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(place_of(server))
        body = {"messages": ASK, "stream": True, "dflash": {"events": True}}  # a megabyte
        stalled.sendall(raw_request(body))
        requests = server.service.requests
        wait_for(lambda: bool(requests.newest_first) and requests.newest_first[0].state == "over")
        answer = server.openai().chat.completions.create(model="demo", messages=ASK, max_tokens=3)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
        wait_for(lambda: not server.server.server_state.tasks)
        stalled.settimeout(WAIT_S)
        data = b""
        while more := stalled.recv(65536):
            data += more
        assert data.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" not in data
