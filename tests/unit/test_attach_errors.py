"""What goes wrong with a server is one line, and the text that arrived stays."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from dflash_core.knobs import Knobs
from dflash_tui.application.attach.attaching import attach, find, lines
from dflash_tui.application.attach.engines import usual_urls
from dflash_tui.application.attach.server import AttachedServer, AttachError, Stream
from dflash_tui.application.session import LoadRequest, TurnLike
from support.engine_recordings import LLAMA_SERVER, NINFER, OLLAMA, PLAIN, SSE, VLLM
from support.engine_server import Answer, Replaying, replaying, reply, stream

KNOBS = Knobs(max_tokens=20)


def refused(url: str, key: str = "", model: str = "") -> str:
    """The refusal to attach, which is one line."""
    with pytest.raises(AttachError) as caught:
        attach(LoadRequest(attach=url, attach_key=key, attach_model=model))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def broken(server: Replaying) -> tuple[TurnLike, str]:
    """A turn that fails, and the line that says why."""
    session = attach(LoadRequest(attach=server.url))
    turn = session.conversation.ask("Why?", KNOBS)
    with pytest.raises(AttachError) as caught:
        list(turn)
    assert "\n" not in str(caught.value)
    assert session.conversation.messages[-1].content == turn.text
    return turn, str(caught.value)


def test_nothing_listens() -> None:
    with replaying(VLLM) as server:
        url = server.url
    assert "does not answer: Connection refused; check that a server runs there" in refused(url)


@pytest.mark.parametrize("it", [LLAMA_SERVER, VLLM, OLLAMA], ids=lambda it: it.engine)
def test_keys(it: object) -> None:
    with replaying(it, key="sesame") as server:  # type: ignore[arg-type]
        assert "it needs a key: --key or DFLASH_TUI_API_KEY (Invalid API Key)" in refused(server.url)
        assert "it does not accept the key (Invalid API Key)" in refused(server.url, "other")
        attach(LoadRequest(attach=server.url, attach_key="sesame"))


@pytest.mark.parametrize("key", ["sesame\r", "sésame"])
def test_a_key_that_no_header_can_carry_is_not_quoted(key: str) -> None:
    with pytest.raises(AttachError, match="characters that a header cannot carry") as caught:
        AttachedServer("http://127.0.0.1:1", key)
    assert "same" not in str(caught.value)


def test_a_model_that_is_not_there() -> None:
    with replaying(VLLM) as server:
        assert "vLLM has no model 'other'; it has test-model" in refused(server.url, model="other")


def test_a_server_without_a_model() -> None:
    with replaying(NINFER) as server:
        server.answers["/v1/models"] = lambda to: reply(to, 200, {"object": "list", "data": []})
        assert "lists no models" in refused(server.url)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda to: reply(to, 200, "<!doctype html><p>Hello", "text/html; charset=utf-8"), "a web page, not the API"),
        (lambda to: reply(to, 200, "hello", "text/plain"), "expected an object of JSON, found 'hello'"),
        (lambda to: reply(to, 200, "", "application/json"), "expected an object of JSON, found nothing"),
        (lambda to: reply(to, 200, "[" * 100_000, "application/json"), "expected an object of JSON"),
        (lambda to: reply(to, 500, {"error": "out of memory"}), "out of memory"),
        (lambda to: reply(to, 503, {"error": {"message": "Loading model"}}), "Loading model"),
        (lambda to: reply(to, 400, {"detail": "no"}), ": no"),
        (lambda to: reply(to, 418, "x" * 500, "text/plain"), "it answers 418 without a reason"),
    ],
)
def test_what_is_no_list_of_models(answer: Answer, said: str) -> None:
    with replaying() as server:
        server.answers["/v1/models"] = answer
        assert said in refused(server.url)


def test_a_server_of_something_else() -> None:
    with replaying() as server:
        assert "it is no known server of models" in refused(server.url)


def test_a_redirect_is_told_and_not_followed() -> None:
    def elsewhere(to: BaseHTTPRequestHandler) -> None:
        to.send_response(307)
        to.send_header("location", "https://elsewhere.example/v1/models")
        to.send_header("content-length", "0")
        to.end_headers()

    with replaying() as server:
        server.answers["/v1/models"] = elsewhere
        assert "from another address, https://elsewhere.example/v1/models: attach to that" in refused(server.url, "key")


def cut(data: bytes) -> Answer:
    return lambda to: stream(to, data, SSE, whole=False)


@pytest.mark.parametrize("it", [LLAMA_SERVER, VLLM, NINFER], ids=lambda it: it.engine)
def test_a_server_that_dies_in_mid_stream(it: object) -> None:
    with replaying(it) as server:  # type: ignore[arg-type]
        whole = it.stream  # type: ignore[attr-defined]
        begun = b"\n\n".join(whole.split(b"\n\n")[:4]) + b"\n\n"
        server.answers["/v1/chat/completions"] = cut(begun)
        turn, said = broken(server)
    assert "ended the connection in mid-answer; what has arrived stays" in said
    assert turn.text or turn.thinking
    assert turn.report is turn.record is None


def test_ollama_that_dies_in_mid_stream() -> None:
    with replaying(OLLAMA) as server:
        server.answers["/api/chat"] = lambda to: stream(to, OLLAMA.stream[:220], OLLAMA.kind, whole=False)
        turn, said = broken(server)
    assert "JSON" in said or "mid-answer" in said
    assert turn.thinking == "Why?"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda to: reply(to, 200, {"choices": []}), "expected a stream of events, found '{\"choices\""),
        (lambda to: reply(to, 200, "<html>", "text/html"), "expected a stream of events, found '<html>'"),
        (lambda to: stream(to, b"data: {broken\n\n", SSE), "a piece of its stream is not JSON"),
        (lambda to: stream(to, b'data: {"error": {"message": "CUDA error"}}\n\n', SSE), "vLLM: CUDA error"),
        (lambda to: stream(to, b'data: {"error": "gone"}\n\n', SSE), "vLLM: gone"),
        (lambda to: stream(to, b"", SSE), "in mid-answer"),
        (lambda to: reply(to, 404, {"error": {"message": "The model `a` is gone."}}), "The model `a` is gone"),
        (lambda to: reply(to, 429, {"message": "busy"}), "busy"),
    ],
)  # fmt: skip
def test_answers_that_are_none(answer: Answer, said: str) -> None:
    with replaying(VLLM) as server:
        server.answers[VLLM.path] = answer
        turn, told = broken(server)
    assert said in told
    assert turn.text == ""


def test_a_tag_that_never_ends_is_text() -> None:
    begun = b'data: {"choices": [{"delta": {"content": "a\\n<thi"}}]}\n\n'
    with replaying(PLAIN) as server:
        server.answers[PLAIN.path] = cut(begun)
        turn, _ = broken(server)
    assert turn.text == "a\n<thi"


def test_a_stopped_answer_keeps_its_text_and_has_figures() -> None:
    arrived = threading.Event()

    def slow(to: BaseHTTPRequestHandler) -> None:
        piece = json.dumps({"choices": [{"delta": {"content": "one"}}], "usage": {"completion_tokens": 1}}).encode()
        to.send_response(200)
        to.send_header("content-type", SSE)
        to.end_headers()
        to.wfile.write(b"data: " + piece + b"\n\n")
        to.wfile.flush()
        arrived.wait(60)
        to.close_connection = True

    with replaying(VLLM) as server:
        server.answers[VLLM.path] = slow
        session = attach(LoadRequest(attach=server.url))
        turn = session.conversation.ask("Why?", KNOBS)
        for piece in turn:
            if piece.text:
                turn.stop()
        arrived.set()
    assert turn.text == "one"
    assert turn.report is not None
    assert turn.report.stop == "cancelled"
    assert turn.report.stats.tokens == 1


def test_a_turn_that_is_stopped_before_it_begins() -> None:
    with replaying(VLLM) as server:
        session = attach(LoadRequest(attach=server.url))
        turn = session.conversation.ask("Why?", KNOBS)
        turn.stop()
        assert list(turn) == []
        assert not any(path == VLLM.path for path, _, _ in server.asked)
    assert turn.report is not None
    assert turn.report.stop == "cancelled"
    assert turn.record is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("https://example.org/llm/v1/", "https://example.org/llm"),
    ],
)
def test_addresses_as_people_have_them(typed: str, meant: str) -> None:
    assert AttachedServer(typed).url == meant


@pytest.mark.parametrize("typed", ["ftp://here", "http://", "http://127.0.0.1:x", "http://user:word@host"])
def test_what_is_no_address(typed: str) -> None:
    with pytest.raises(AttachError, match="expected an address such as"):
        AttachedServer(typed)


def test_https_where_there_is_none() -> None:
    with replaying(VLLM) as server:
        assert "no https there" in refused(server.url.replace("http:", "https:"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_that_signs_itself(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout {key.name} -out {certificate.name}".split(),
        check=True,
        capture_output=True,
        cwd=tmp_path,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with replaying(VLLM, context=context) as server:
        said = refused(server.url)
        assert "its certificate is not trusted (self-signed certificate); SSL_CERT_FILE names further ones" in said


def test_servers_of_this_machine_are_found_at_once() -> None:
    with (
        replaying(VLLM) as vllm, replaying(OLLAMA) as ollama, replaying(LLAMA_SERVER, key="k") as keyed,
        replaying() as other,
    ):  # fmt: skip
        gone = "http://127.0.0.1:9"
        found = find([vllm.url, gone, ollama.url, keyed.url, other.url], patience_s=60)
        sent = [key for one in (vllm, ollama, keyed, other) for _, key, _ in one.asked]
    assert list(found) == [vllm.url, ollama.url, keyed.url]
    assert "it needs a key" in found[keyed.url]
    assert not any(sent)
    assert list(lines(found))[:2] == [
        f"{vllm.url}  vLLM: test-model",
        f"{ollama.url}  Ollama: gemma4:latest, llama3.2:latest",
    ]


def test_only_usual_ports_of_this_machine_are_asked() -> None:
    assert {url.rpartition(":")[2] for url in usual_urls()} == {"8080", "8000", "30000", "1234", "11434"}
    assert all(url.startswith("http://127.0.0.1:") for url in usual_urls())
    assert "nothing answers on the usual ports of this machine (8080, 8000, 30000, 11434, 1234)" in next(lines({}))


def test_a_server_that_says_nothing_does_not_hold_the_list_up() -> None:
    held = threading.Event()

    def silent(to: BaseHTTPRequestHandler) -> None:
        held.wait(60)
        to.close_connection = True

    with replaying() as server:
        server.answers["/v1/models"] = silent
        assert find([server.url], patience_s=0.2) == {}
        held.set()


def test_a_line_that_the_connection_cuts_is_no_event() -> None:
    """Regression: the half of a line was read as one, and an answer failed as a record of another version."""
    whole, half = b'event: dflash\ndata: {"a": 1}\n\n', b'event: dflash\ndata: {"line": "st'
    found = []
    with replaying() as server:
        server.answers["/"] = lambda to: stream(to, whole + half, SSE, whole=False)
        with suppress(AttachError):
            for one in Stream(AttachedServer(server.url), "/"):
                found.append(one)
    assert found == [("dflash", b'{"a": 1}')]
