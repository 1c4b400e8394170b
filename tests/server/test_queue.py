"""One engine for many clients: order, limits, clients that leave, and the end of the server."""

from __future__ import annotations

import concurrent.futures
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import httpx
import pytest

from dflash_core.events import PrefillEvent
from dflash_core.messages import Message
from dflash_core.record import End, Read, Start
from dflash_core.record import Step as StepLine
from dflash_core.text.tool_calls.parts import Text, Thinking
from dflash_tui.server.asked import Asked
from dflash_tui.server.job import Job
from dflash_tui.server.settings import ServerSettings
from dflash_tui.server.updates import Recorded, Step, Update, Updates
from support import demo_pair
from support.scripted import ScriptedEngine, Steps
from support.serving import LONG, WAIT_S, Running, place, place_of, raw_request, running, wait_for


def test_eight_clients_at_once_get_their_own_answers(server: Running) -> None:
    questions = [f"What is {n} plus {n + 1}?" for n in range(8)]

    def ask(question: str) -> str:
        answer = server.openai().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": question}], max_tokens=3,
            extra_body={"dflash": {"mode": "plain"}},
        )  # fmt: skip
        return answer.choices[0].message.content or ""

    alone = [ask(question) for question in questions]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, questions)) == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_costs_one_step(stream: bool) -> None:
    engine = Steps()
    with running(engine) as server:
        worker = server.service.worker
        with socket.create_connection(place_of(server)) as client:
            client.sendall(raw_request(LONG | {"stream": stream}))
            wait_for(lambda: worker.running is not None)
            engine.permits.release(5)
            wait_for(lambda: engine.steps == 5)
        job = worker.running
        assert job is not None
        wait_for(lambda: job.cancelled)
        engine.permits.release(1000)
        wait_for(lambda: worker.running is None)
        assert engine.steps <= 6
        assert "requests_cancelled_total 1" in httpx.get(f"{server.address}/metrics").text


def test_one_that_waits_and_leaves_is_skipped_and_a_full_queue_is_told() -> None:
    import openai

    engine = Steps()
    with running(engine, ServerSettings(port=0, queue=1)) as server:
        worker, place = server.service.worker, place_of(server)
        with socket.create_connection(place) as first, socket.create_connection(place) as second:
            first.sendall(raw_request(LONG))
            wait_for(lambda: worker.running is not None)
            second.sendall(raw_request(LONG))
            wait_for(lambda: worker.waiting == 1)
            with pytest.raises(openai.RateLimitError) as full:
                server.openai().chat.completions.create(model="demo", messages=LONG["messages"])
            assert full.value.response.headers["retry-after"] == "2"
            assert full.value.code == "queue_full"
            second.close()
            wait_for(lambda: worker.waiting == 0)
            third = threading.Thread(target=lambda: httpx.post(f"{server.address}/v1/messages", json={
                "model": "m", "max_tokens": 2, "messages": LONG["messages"]}, timeout=WAIT_S))  # fmt: skip
            third.start()
            wait_for(lambda: worker.waiting == 1)
            running_job, steps = worker.running, engine.steps
        assert running_job is not None
        wait_for(lambda: running_job.cancelled)
        engine.permits.release(1000)
        third.join(WAIT_S)
        assert not third.is_alive()
        assert engine.steps <= steps + 1 + 2  # a step of the first, and the two tokens of the third


def test_what_needs_no_engine_answers_while_it_is_busy() -> None:
    engine = Steps()
    with running(engine) as server, socket.create_connection(place_of(server)) as client:
        client.sendall(raw_request(LONG))
        wait_for(lambda: server.service.worker.running is not None)
        with server.http() as http:
            for path in ("/health", "/v1/models", "/metrics", "/props", "/slots", "/"):
                assert http.get(path).status_code == 200
            assert http.get("/slots").json()[0]["is_processing"] is True
            asked = {"model": "m", "messages": LONG["messages"]}
            assert http.post("/v1/messages/count_tokens", json=asked).json()["input_tokens"] > 3
            ids = http.post("/tokenize", json={"content": "a b"}).json()["tokens"]
            assert http.post("/detokenize", json={"tokens": ids}).json() == {"content": "a b"}
        engine.permits.release(1000)


def test_an_engine_that_fails_is_told_and_goes_on() -> None:
    import openai

    class Failing(ScriptedEngine):
        fails = True

        def _told_of(self, *args: Any) -> Any:
            events = super()._told_of(*args)
            yield next(events)
            if self.fails:
                raise RuntimeError("a fault with /a/path in it")
            yield from events

    engine = Failing(lambda prompt: "one two three")
    with running(engine) as server:
        client = server.openai()
        with pytest.raises(openai.InternalServerError) as told:
            client.chat.completions.create(model="demo", messages=LONG["messages"])
        assert "/a/path" not in str(told.value)
        stream = client.chat.completions.create(model="demo", messages=LONG["messages"], stream=True)
        with pytest.raises(openai.APIError):
            list(stream)
        raw = httpx.post(f"{server.address}/v1/chat/completions", json=LONG | {"stream": True}, timeout=WAIT_S).text
        assert "[DONE]" not in raw
        raw = httpx.post(
            f"{server.address}/v1/messages", timeout=WAIT_S,
            json={"model": "m", "max_tokens": 9, "messages": LONG["messages"], "stream": True},
        ).text  # fmt: skip
        assert "event: error" in raw
        assert "message_stop" not in raw
        engine.fails = False
        answer = client.chat.completions.create(model="demo", messages=LONG["messages"])
        assert answer.choices[0].message.content == "one two three"


def test_sigterm_ends_a_stream_and_the_process() -> None:
    command = [sys.executable, "-m", "dflash_tui", "serve", "--demo", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = line.removeprefix("listening on ").strip()
        assert address.startswith("http://127.0.0.1:")
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=LONG | {"stream": True}, timeout=WAIT_S) as it:
            lines = it.iter_lines()
            for _ in range(6):
                next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert any('"shutting_down"' in one for one in rest)
        assert "data: [DONE]" not in rest
        out, errors = process.communicate(timeout=WAIT_S)
        assert (process.returncode, out) == (0, "")
        assert "Traceback" not in errors
        with pytest.raises(ConnectionRefusedError), socket.create_connection(place(address), timeout=1):
            pass
    finally:
        process.kill()
        process.wait()


def test_the_demo_engine_is_freed_in_mid_prompt_and_answers_the_next() -> None:
    """A client leaves at once; the next answer is what it would have been."""
    with running(demo_pair.new_engine()) as server:
        client = server.openai()
        with socket.create_connection(place_of(server)) as gone:
            gone.sendall(raw_request({"messages": [{"role": "user", "content": "word " * 1500}]}))
            wait_for(lambda: server.service.worker.running is not None)
        answer = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "What is 2 plus 2?"}]
        )
        assert answer.choices[0].finish_reason == "stop"


async def updates_of(*, streamed: bool, events: bool = False) -> list[Update]:
    """All updates of an answer of four words."""
    with running(ScriptedEngine(lambda prompt: "one two three four", width=1)) as server:
        service = server.service
        prepared = service.preparer.prepare(
            Asked(messages=(Message("user", "Hello"),), events=events), service.served.defaults
        )
        request = service.requests.add("a client", "/v1/chat/completions", "demo")
        job = Job(prepared, request, service.requests, streamed=streamed)
        last = job.run(service.engine)
        found = job.updates.now()
    assert "".join(part.text for part in job.updates.parts if isinstance(part, Text)) == "one two three four"
    assert found[-1] is last
    return found


async def test_a_whole_answer_wakes_the_loop_at_its_end_alone() -> None:
    assert len(await updates_of(streamed=False)) == 1


async def test_a_line_of_a_record_follows_the_text_of_its_step() -> None:
    found = await updates_of(streamed=True, events=True)
    lines = [one.line for one in found if isinstance(one, Recorded)]
    assert isinstance(lines[0], Start)
    assert isinstance(lines[-1], End)
    text = ""
    for update in found:
        if isinstance(update, Step):
            text += "".join(part.text for part in update.parts if isinstance(part, Text))
        elif isinstance(update, Recorded) and isinstance(update.line, (Read, StepLine)):
            assert text.endswith(update.line.text)
            text = text.removesuffix(update.line.text)
    assert text == ""


async def test_steps_that_wait_are_one_update_with_their_count() -> None:
    updates = Updates(streamed=True)
    read = PrefillEvent((1,), 1, 0, 1.0, "plain", "", None)
    updates.step([Text("a")], read)
    updates.step([])  # half a character: nothing to write
    updates.step([Text("b"), Thinking("c")])
    updates.put(Recorded(End()))
    updates.step([Thinking("d")])
    assert await updates.take() == [
        Step((Text("ab"), Thinking("c")), 3, read), Recorded(End()), Step((Thinking("d"),), 0),
    ]  # fmt: skip
    updates.step([Thinking("e")])
    assert updates.now() == [Step((Thinking("e"),), 1)]
    assert updates.now() == []
