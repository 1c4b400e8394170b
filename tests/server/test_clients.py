"""What depends on who asks: the preset of a program or of a key, and who may watch whose requests."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_core.arch.recommended import NOTHING
from dflash_core.knobs import Knobs
from dflash_tui.application.settings.presets import Presets
from dflash_tui.server.sampling import Defaults, of_clients
from dflash_tui.server.settings import ServerSettings
from support.scripted import ScriptedEngine, Steps
from support.serving import Running, running

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
KEYS = ("one-key", "two-key")


def ask(server: Running, agent: str, key: str = KEYS[0]) -> tuple[str, str, float]:
    """The preset of a request, and what it ran with."""
    with server.http() as http:
        headers = {"user-agent": agent, "authorization": f"Bearer {key}"}
        assert http.post("/v1/chat/completions", json=ASK, headers=headers).status_code == 200
    request = server.service.requests.newest_first[0]
    assert request.report is not None
    return request.preset, request.report.knobs.drafting, request.report.knobs.temperature


def test_a_client_gets_its_preset() -> None:
    clients, problems = of_clients(
        {"Claude-CLI": "plain", "key-2": "sampled", "codex": "gone"}, Presets(), NOTHING, greedy=True
    )
    assert problems == [
        "the client codex has no preset: no preset 'gone'; there are default, plain, chain, wide, sure, sampled"
    ]
    settings = ServerSettings(port=0, keys=KEYS)
    with running(ScriptedEngine(lambda prompt: "one two"), settings) as server:
        server.service.retune(Defaults(Knobs(drafting="tree 9"), greedy=True), clients)
        assert ask(server, "claude-cli/2.1.197 (external, cli)") == ("plain", "plain", 0.0)
        assert ask(server, "codex/0.171") == ("", "tree 9", 0.0)
        assert ask(server, "") == ("", "tree 9", 0.0)
        preset, drafting, temperature = ask(server, "claude-cli/2.1.197", KEYS[1])
        assert (preset, drafting, temperature) == ("sampled", Knobs().drafting, 0.6), "a key goes before a name"
        with server.http() as http:  # what a request names goes before any preset
            headers = {"user-agent": "claude-cli/1", "authorization": f"Bearer {KEYS[0]}"}
            http.post("/v1/chat/completions", json=ASK | {"dflash": {"drafting": "chain 3"}}, headers=headers)
        report = server.service.requests.newest_first[0].report
        assert report is not None
        assert report.knobs.drafting == "chain 3"


@pytest.mark.parametrize(
    ("keys", "shared", "status", "other"),
    [((), False, 200, 200), (KEYS[:1], False, 200, 401), (KEYS, False, 403, 404), (KEYS, True, 200, 200)],
)
def test_requests_are_shown_to_others_only_if_asked_for(
    keys: tuple[str, ...], shared: bool, status: int, other: int
) -> None:
    """`status` is of watching all, `other` that of changing another's answer."""
    settings = ServerSettings(port=0, keys=keys, share_events=shared)
    engine = Steps()
    with running(engine, settings) as server, server.http() as http:
        mine, theirs = ({"authorization": f"Bearer {key}"} for key in KEYS)
        with http.stream("GET", "/dflash/events", headers=mine) as events:
            assert events.status_code == status
            if status == 403:
                events.read()
                assert events.json()["error"]["code"] == "events_not_shared"
                assert "--share-events" in events.text
        engine.permits.release()
        with http.stream("POST", "/v1/chat/completions", json=ASK | {"stream": True}, headers=mine) as answer:
            path = f"/dflash/answers/{answer.headers['x-dflash-answer']}"
            for headers, found in ((theirs, other), (mine, 200)):
                assert http.post(path, json={"answer_now": True}, headers=headers).status_code == found
            assert http.post(path, json={"stop": True}, headers=mine).status_code == 200
            engine.permits.release(1000)
            assert '"cancelled"' in answer.read().decode()
