"""A soak for the server: clients of all kinds at once, some of which leave, stall or send rubbish.

Requests come in rounds. After each, nothing may run or wait; after the first one, neither memory nor descriptors may
grow. The store of snapshots is small, so that it is full within the first round.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from abuse.report import Finding, Report, Watermark
from dflash_core.snapshots.store import SnapshotStore
from support import demo_pair
from support.serving import LONG, Running, place_of, raw_request, running, wait_for

ROUND = 100
CLIENTS = 4
CONTEXT = 512
STATES = 16 << 20
TOPICS = ("red", "blue", "12 plus 7", "a story about a cat", "the capital of France", "rain", "a poem", "trees")
TOOL = {
    "type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}}, "required": ["path"],
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
Send = Callable[["_Client"], str]


class _Client:
    """Requests of one client, of random kinds; each returns what is wrong, or ""."""

    def __init__(self, server: Running, rng: np.random.Generator) -> None:
        self._server, self._rng, self._http = server, rng, server.http()

    def close(self) -> None:
        self._http.close()

    def one(self) -> tuple[str, str]:
        """Send one; its kind, and what is wrong with what came back."""
        kind = str(self._rng.choice(list(KINDS)))
        return kind, KINDS[kind](self)

    def _few(self) -> int:
        return int(self._rng.integers(1, 40))

    def _words(self) -> str:
        return f"Tell me about {self._rng.choice(TOPICS)}, {self._rng.integers(30)} words."

    def _asked(self, **more: Any) -> dict[str, Any]:
        sampled = {"temperature": 0.8, "seed": int(self._rng.integers(99))} if self._rng.integers(2) else {}
        mode = str(self._rng.choice(["plain", "tree 16", "chain 4", "auto"]))
        return {"max_tokens": self._few(), "dflash": {"drafting": mode}, **sampled, **more}

    def _messages(self) -> list[dict[str, Any]]:
        before = [{"role": "user", "content": self._words()}, {"role": "assistant", "content": "Well."}]
        return [*before * int(self._rng.integers(3)), {"role": "user", "content": self._words()}]

    def _post(self, path: str, body: Mapping[str, Any] | str, status: int = 200) -> tuple[str, Any]:
        content = body if isinstance(body, str) else json.dumps(body)
        found = self._http.post(path, content=content, headers={"content-type": "application/json"})
        wrong = "" if found.status_code == status else f"{found.status_code} for {path}: {found.text[:200]}"
        return wrong, found.json() if not wrong else None

    def _streamed(self, path: str, body: dict[str, Any], last: str) -> str:
        with self._http.stream("POST", path, json=body | {"stream": True}) as found:
            text = found.read().decode()
        return "" if found.status_code == 200 and last in text else f"{found.status_code} for {path}: {text[-200:]}"

    def chat(self) -> str:
        return self._post("/v1/chat/completions", self._asked(messages=self._messages()))[0]

    def log_probs(self) -> str:
        body = self._asked(messages=self._messages(), logprobs=True, top_logprobs=2)
        return self._post("/v1/chat/completions", body)[0]

    def stream(self) -> str:
        return self._streamed("/v1/chat/completions", self._asked(messages=self._messages()), "data: [DONE]")

    def messages(self) -> str:
        tools = [{"name": "read_file", "description": "Reads a file.", "input_schema": TOOL}]
        body = self._asked(messages=self._messages(), model="m", system="You are brief.")
        return self._streamed(
            "/v1/messages", body | ({"tools": tools} if self._rng.integers(2) else {}), "message_stop"
        )

    def responses(self) -> str:
        body = self._asked(input=self._words())
        return self._streamed("/v1/responses", body | {"max_output_tokens": body.pop("max_tokens")}, "response.")

    def completion(self) -> str:
        return self._post("/v1/completions", self._asked(prompt=self._words(), logprobs=1))[0]

    def choice(self) -> str:
        """The answer is known: no text of another client is in it."""
        word = f"{self._rng.choice(TOPICS)} {self._rng.integers(1000)}"
        body = self._asked(messages=self._messages(), max_tokens=60)
        body["dflash"]["choice"] = [word]
        wrong, found = self._post("/v1/chat/completions", body)
        text = found["choices"][0]["message"]["content"] if found else ""
        return wrong or ("" if text == word else f"{text!r}, expected {word!r}")

    def schema(self) -> str:
        kind = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
        return self._post("/v1/chat/completions", self._asked(messages=self._messages(), response_format=kind))[0]

    def call(self) -> str:
        tool = {"type": "function", "function": {"name": "read_file", "parameters": TOOL}}
        body = self._asked(messages=self._messages(), tools=[tool], tool_choice="required")
        return self._post("/v1/chat/completions", body)[0]

    def count(self) -> str:
        return self._post("/v1/messages/count_tokens", {"messages": self._messages(), "model": "m"})[0]

    def look(self) -> str:
        path = str(self._rng.choice(["/health", "/v1/models", "/metrics", "/props", "/slots", "/dflash/session"]))
        found = self._http.get(path)
        return "" if found.status_code == 200 else f"{found.status_code} for {path}"

    def rubbish(self) -> str:
        body = str(self._rng.choice(["{", "[]", '{"messages": 3}', '{"messages": []}', '"\\ud800"', "[" * 5000]))
        return self._post("/v1/chat/completions", body, 400)[0]

    def too_long(self) -> str:
        return self._post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b " * 2000}]}, 400)[0]

    def refused_schema(self) -> str:
        kind = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}
        return self._post("/v1/chat/completions", {"messages": self._messages(), "response_format": kind}, 400)[0]

    def leaves_a_stream(self) -> str:
        pieces = int(self._rng.integers(1, 5))
        with self._http.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as found:
            for _ in itertools.islice(found.iter_raw(), pieces):
                pass
        return ""

    def leaves_an_answer(self) -> str:
        with socket.create_connection(place_of(self._server)) as one:
            one.sendall(raw_request(LONG))
            time.sleep(float(self._rng.uniform(0, 0.2)))
        return ""

    def half_a_body(self) -> str:
        with socket.create_connection(place_of(self._server)) as one:
            data = raw_request(LONG)
            one.sendall(data[: int(self._rng.integers(1, len(data)))])
        return ""

    def resets(self) -> str:
        one = socket.create_connection(place_of(self._server))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        one.sendall(raw_request(LONG | {"stream": True}))
        time.sleep(float(self._rng.uniform(0, 0.1)))
        one.close()
        return ""


KINDS: Mapping[str, Send] = {
    kind.__name__: kind
    for kind in (
        _Client.chat, _Client.log_probs, _Client.stream, _Client.messages, _Client.responses, _Client.completion,
        _Client.choice, _Client.schema, _Client.call, _Client.count, _Client.look, _Client.rubbish, _Client.too_long,
        _Client.refused_schema, _Client.leaves_a_stream, _Client.leaves_an_answer, _Client.half_a_body, _Client.resets,
    )
}  # fmt: skip


def run(seed: int, folder: Path, *, requests: int = 0, seconds: float = 0.0) -> Report:
    """Rounds of requests on one server until `requests` are done or `seconds` are over."""
    report, watermark, began = Report("clients", seed), Watermark(), time.monotonic()
    engine = demo_pair.new_engine(CONTEXT, SnapshotStore(STATES))
    with running(engine) as server:
        for number in itertools.count():
            sent = report.counts["requests"]
            if (requests and sent >= requests) or (seconds and time.monotonic() - began > seconds):
                break
            _round(server, (seed, number), min(ROUND, requests - sent) if requests else ROUND, report)
            wait_for(lambda: server.service.worker.running is None and not server.service.worker.waiting)
            # Connections that were left are closed by the loop, a little later.
            wait_for(lambda: not server.server.server_state.connections)
            watermark.look(report)
    report.seconds = time.monotonic() - began
    return report


def _round(server: Running, seed: tuple[int, int], count: int, report: Report) -> None:
    tickets, lock = iter(range(count)), threading.Lock()

    def work(at: int) -> None:
        client = _Client(server, np.random.default_rng((*seed, at)))
        try:
            while next(tickets, None) is not None:
                try:
                    kind, wrong = client.one()
                except httpx.HTTPError as error:
                    kind, wrong = "a broken connection", f"{type(error).__name__}: {error}"
                with lock:
                    report.counts["requests"] += 1
                    report.counts[f"kind {kind}"] += 1
                    if wrong:
                        report.crashes.append(Finding(kind, f"{seed}, client {at}", wrong))
        finally:
            client.close()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(CLIENTS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
