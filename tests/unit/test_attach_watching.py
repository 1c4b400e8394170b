"""What other programs ask of a server of ours, as an attached app sees it."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler

import pytest

from dflash_core.events import PrefillEvent
from dflash_core.knobs import Knobs
from dflash_core.record import End, Line, Read, Start, encode
from dflash_tui.application.attach import own
from dflash_tui.application.attach.own import PATH, Watching
from dflash_tui.application.attach.server import AttachedServer
from dflash_tui.application.requests import Requests
from support.engine_recordings import SSE
from support.engine_server import replaying, reply, stream
from support.serving import wait_for

START = Start("2026-11-28T12:00:00+00:00", "demo", "", "", "Hello.", (1, 2), Knobs())
END_OF_ANOTHER = End(None, "of another request")
READ = Read(PrefillEvent((3,), 2, 0, 1.0, "plain", ""), 0.001, "a", "", {3: "a"})


def events(client: str, *lines: Line) -> bytes:
    """The lines of one request."""
    asked = json.dumps({"client": client, "path": "/v1/messages", "model": "demo"}).encode()
    return b"event: request\ndata: %b\n\n" % asked + b"".join(
        b"id: 1\nevent: dflash\ndata: %b\n\n" % encode(line) for line in lines
    )


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "AGAIN_S", 0.0)


def test_a_broken_stream_is_asked_for_again() -> None:
    requests, taken, asked = Requests(), list[Line](), list[int]()

    def answer(to: BaseHTTPRequestHandler) -> None:
        asked.append(1)
        whole = (START, READ, End()) if len(asked) == 2 else (START, READ)
        stream(to, events(f"agent {len(asked)}", *whole), SSE, whole=len(asked) > 1)

    with replaying() as server:
        server.answers[PATH] = answer
        it = Watching(AttachedServer(server.url), requests, taken.append)
        it.start()
        wait_for(lambda: len(asked) > 2)
        it.stop()
        assert it.join(60)
    first, second = requests.newest_first[-1], requests.newest_first[-2]
    assert (first.client, first.state, first.why) == ("agent 1", "over", "lost before its end")
    assert (second.client, second.state, second.path) == ("agent 2", "over", "/v1/messages")
    assert second.record is not None
    assert second.record.pieces[0].event == READ.event
    assert taken[:2] == [START, READ]
    assert it.error is None


def numbered(source: str, *lines: Line, first: int = 1, begins: bool = False) -> bytes:
    """What our server sends of lines from that number on; `begins`: with their request."""
    data = events("agent", *lines) if begins else events("agent", *lines).partition(b"\n\n")[2]
    for number in range(first, first + len(lines)):
        data = data.replace(b"id: 1\n", b"id: %s-%d\n" % (source.encode(), number), 1)
    return b'event: lines\ndata: "%s"\n\n' % source.encode() + data


def watched(*streams: bytes, asked: list[str] | None = None) -> Requests:
    """What an app has seen once the connection has broken after each of these, and the next was refused."""
    requests, left = Requests(), list(streams)

    def answer(to: BaseHTTPRequestHandler) -> None:
        if asked is not None:
            asked.append(to.headers.get("last-event-id", ""))
        if not left:
            reply(to, 404, {"error": {"message": "no"}})
        elif not (data := left.pop(0)):
            reply(to, 503, {"error": {"message": "the server is starting"}})
        else:
            stream(to, data, SSE, whole=False)

    with replaying() as server:
        server.answers[PATH] = answer
        it = Watching(AttachedServer(server.url), requests, lambda line: None)
        it.start()
        assert it.join(60)
    assert it.error is None
    return requests


def test_a_broken_stream_goes_on_where_it_broke() -> None:
    asked = list[str]()
    whole = numbered("ab12", START, READ, begins=True)
    # The second is cut within a line, and the server does not answer at once.
    found = watched(whole, numbered("ab12", End(), first=3)[:-20], b"", numbered("ab12", End(), first=3), asked=asked)
    assert asked == ["", "ab12-2", "ab12-2", "ab12-2", "ab12-3"]
    [one] = found.newest_first
    assert (one.client, one.state, one.why) == ("agent", "over", "failed")
    assert one.record is not None
    assert [piece.event for piece in one.record.pieces] == [READ.event]


def test_a_server_that_was_started_again_has_no_lines_of_before() -> None:
    found = watched(
        numbered("ab12", START, READ, begins=True), numbered("cd34", END_OF_ANOTHER, first=9),
        numbered("cd34", START, READ, End(), first=10, begins=True),
    )  # fmt: skip
    second, first = found.newest_first
    assert (first.state, first.why, first.record) == ("over", "lost before its end", None)
    assert (second.state, second.record is not None) == ("over", True)


def test_requests_of_this_app_are_not_those_of_others() -> None:
    requests = Requests()
    with replaying() as server:
        its = AttachedServer(server.url)
        data = events(its.agent, START, READ, End()) + events("another", START, READ, End())
        server.answers[PATH] = lambda to: stream(to, data, SSE)
        it = Watching(its, requests, lambda line: None)
        it.start()
        wait_for(lambda: any(one.state == "over" for one in requests.newest_first))
        it.stop()
        assert it.join(60)
    assert {one.client for one in requests.newest_first} == {"another"}


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_does_not_show_them(status: int) -> None:
    with replaying() as server:
        server.answers[PATH] = lambda to: reply(to, status, {"error": {"message": "no"}})
        it = Watching(AttachedServer(server.url), Requests(), lambda line: None)
        it.start()
        assert it.join(60)
        assert len(server.asked) == 1
    assert it.error is None


def test_records_of_another_version() -> None:
    with replaying() as server:
        server.answers[PATH] = lambda to: stream(to, b'event: dflash\ndata: {"line": "newer"}\n\n', SSE)
        it = Watching(AttachedServer(server.url), Requests(), lambda line: None)
        it.start()
        assert it.join(60)
    assert it.error is None
