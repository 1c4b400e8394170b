"""The app over a server in the same process: chat, panels, changes, what is not remote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from dflash_core.errors import DFlashError, FormatError
from dflash_core.knobs import Knobs
from dflash_core.messages import Message
from dflash_core.record import End, Start, decode
from dflash_tui.app import DFlashApp
from dflash_tui.application.attach.attaching import attach
from dflash_tui.application.attach.own import AttachedSession
from dflash_tui.application.attach.server import AttachedServer, AttachError
from dflash_tui.application.session import NOT_HERE, LoadRequest
from dflash_tui.application.session_state import decode_state
from dflash_tui.launch import check, loader
from dflash_tui.server.settings import ServerSettings
from dflash_tui.slash.table import complete
from dflash_tui.widgets.flash import Flash
from support import demo_pair
from support.processes import run_python
from support.serving import Running, running, wait_for

from .support import ask, idle, loaded, screen_text, shows, wait_until

KEY = "a-key"
KNOBS = Knobs(max_tokens=12, ignore_eos=True, drafting="tree 15")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(demo_pair.new_engine(), ServerSettings(port=0, keys=(KEY,))) as found:
        yield found


@pytest.fixture
def session(server: Running) -> AttachedSession:
    return AttachedSession(AttachedServer(server.address, KEY))


def test_an_answer_is_the_server_s_whole_record(session: AttachedSession, server: Running) -> None:
    prefill: list[tuple[int, int]] = []
    turn = session.conversation.ask("Write two lines.", KNOBS, on_prefill=lambda *it: prefill.append(it))
    pieces = list(turn)
    wait_for(lambda: server.service.requests.newest_first[0].record is not None)
    there = server.service.requests.newest_first[0].record
    assert there is not None
    assert turn.record is not None
    assert turn.record.pieces == there.pieces
    assert turn.record.report == there.report == turn.report
    assert turn.report is not None
    assert turn.report.knobs.drafting == "tree 15"
    assert len(turn.report.tokens) == 12
    assert turn.text == there.text == "".join(piece.text for piece in pieces) + there.rest[0]
    assert prefill[-1][0] == prefill[-1][1] > 0
    assert session.turns[0] == turn.record
    assert session.conversation.messages == (
        Message("user", "Write two lines."), Message("assistant", turn.text, turn.thinking, turn.report),
    )  # fmt: skip
    assert all(session.token_text(token) == there.token_text(token) for token in turn.report.tokens)


def test_what_the_panels_ask(session: AttachedSession, server: Running) -> None:
    engine = server.service.engine
    assert session.limits == engine.limits
    assert session.context_length == engine.context_length
    assert session.memory().components == engine.memory().components
    assert session.count("a fox, and a hen") == len(engine.target.tokenizer.encode("a fox, and a hen", special=False))
    assert "a fox" in session.conversation.preview("a fox", KNOBS)


def test_auto_with_the_shape_of_a_tree_stays_auto(session: AttachedSession) -> None:
    asked = KNOBS.replace(drafting="auto", p_min=0.1, tree_width=2, max_tokens=4)
    turn = session.conversation.ask("A fox.", asked)
    list(turn)
    assert turn.record is not None
    knobs = turn.record.start.knobs
    assert (knobs.drafting, knobs.p_min, knobs.tree_width) == ("auto", 0.1, 2)


def test_a_stopped_answer_has_its_figures(session: AttachedSession) -> None:
    turn = session.conversation.ask("A story.", KNOBS.replace(max_tokens=1500, drafting="plain"))
    for number, _ in enumerate(turn):
        if number == 2:
            turn.stop()
    assert turn.report is not None
    assert turn.report.stop == "cancelled"
    assert len(turn.report.tokens) < 1500
    assert session.conversation.messages[-1].content == turn.text


def test_a_running_answer_takes_other_parameters(session: AttachedSession) -> None:
    turn = session.conversation.ask("A story.", KNOBS.replace(max_tokens=1500, drafting="plain"))
    for number, piece in enumerate(turn):
        if number == 2:
            turn.change(KNOBS.replace(drafting="tree 7"))
        if number > 2 and piece.event.mode == "tree":
            turn.stop()
    assert turn.record is not None
    assert {step.mode for step in turn.record.steps} == {"plain", "tree"}


def test_every_request_is_told_to_those_who_watch(server: Running, session: AttachedSession) -> None:
    last = server.service.requests.last_line
    list(session.conversation.ask("Hello.", KNOBS))
    it = server.http()
    headers = {"last-event-id": f"{server.service.requests.id}-{last}", "authorization": f"Bearer {KEY}"}
    with it.stream("GET", "/dflash/events", headers=headers) as response:
        found, name = [], ""
        for line in response.iter_lines():
            name = line.removeprefix("event: ") if line.startswith("event: ") else name
            if line.startswith("data: ") and name == "lines":
                assert json.loads(line[6:]) == server.service.requests.id
            elif line.startswith("data: ") and name == "request":
                assert json.loads(line[6:])["path"] == "/v1/chat/completions"
            elif line.startswith("data: "):
                found.append(decode(line[6:].encode()))
            if found and isinstance(found[-1], End):
                break
    assert isinstance(found[0], Start)
    assert found[0].prompt == "Hello."
    assert isinstance(found[-1], End)
    assert found[-1].report == session.turns[-1].report


def test_lines_of_a_server_that_was_started_again_are_not_counted_on(server: Running, session: AttachedSession) -> None:
    list(session.conversation.ask("Hello.", KNOBS))
    headers = {"last-event-id": "another-0", "authorization": f"Bearer {KEY}"}
    with server.http() as http, http.stream("GET", "/dflash/events", headers=headers) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: lines"
        list(session.conversation.ask("Again.", KNOBS))
        found = decode(next(line for line in lines if '"line":"turn"' in line).removeprefix("data: ").encode())
    assert isinstance(found, Start)
    assert found.prompt == "Again."


def test_others_see_no_lines_of_records(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4, "stream": True}
    found = server.http().post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"})
    assert "event: dflash" not in found.text


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        ("{address}", "wrong", "does not accept the key"),
        ("{address}", "", "needs a key"),
        ("http://127.0.0.1:1", "", "does not answer"),
        ("ftp://here", "", "expected an address"),
        ("http://127.0.0.1:x", "", "expected an address"),
    ],
)
def test_refusals_are_one_line(server: Running, url: str, key: str, said: str) -> None:
    with pytest.raises(AttachError, match=said) as caught:
        attach(LoadRequest(attach=url.format(address=server.address), attach_key=key))
    assert "\n" not in str(caught.value)


def test_another_version_is_refused(server: Running) -> None:
    data = AttachedServer(server.address, KEY).fetch("/dflash/session")
    with pytest.raises(FormatError, match="version 9"):
        decode_state(data.replace(b'"lines":2', b'"lines":9'))
    with pytest.raises(FormatError, match="not the state"):
        decode_state(b'{"lines": 2}')


def test_an_answer_that_is_not_there(server: Running) -> None:
    with pytest.raises(AttachError, match="no answer of the number"):
        AttachedServer(server.address, KEY).fetch("/dflash/answers/999999", {"stop": True})


def test_it_needs_no_torch() -> None:
    code = (
        "import sys, dflash_tui.application.attach.attaching\nprint('torch' in sys.modules, 'textual' in sys.modules)"
    )
    assert run_python(code).split() == ["False", "False"]


async def test_the_app_over_a_server(make_app: Callable[..., DFlashApp], server: Running) -> None:
    request = LoadRequest(attach=server.address, attach_key=KEY)
    app = make_app(request=request, load=loader(request), loaders=loader, check=check, knobs=KNOBS)
    async with app.run_test(size=(160, 48)) as pilot:
        await loaded(pilot)
        await shows(pilot, "attached to")
        await ask(pilot, "Write two lines.")
        await wait_until(pilot, lambda: app.state.turn.report is not None)
        await idle(pilot)
        report = app.state.turn.report
        assert report is not None
        assert len(report.tokens) == 12
        await pilot.press("f4")
        await shows(pilot, "step", "F3 Stats")
        assert "F8 Tune" not in screen_text(app), "nothing is tuned without the decoder"
        assert not {"/tune ", "/ab ", "/serve "} & {one.text for one in complete("/", app.chat.parts)}
        for key in ("f8", "/plain", "/ab p_min=0 | p_min=0.2"):
            app.chat.query_one(Flash).hide()
            await (pilot.press(key) if key == "f8" else ask(pilot, key))
            await shows(pilot, NOT_HERE[:40])
            assert app.screen is app.chat
            app.chat.prompt.rewrite("")
        await ask(pilot, "/whatif")
        await shows(pilot, "Adopt best")
        assert "Measure" not in screen_text(app)
        await pilot.press("escape")
        await ask(pilot, "/reload")
        await loaded(pilot)
        assert isinstance(app.state.session, AttachedSession)
        await ask(pilot, "/serve 0")
        await shows(pilot, "the model is on the server")
        assert "Traceback" not in screen_text(app)


async def test_panels_follow_what_others_ask_of_the_server(make_app: Callable[..., DFlashApp], server: Running) -> None:
    request = LoadRequest(attach=server.address, attach_key=KEY)
    app = make_app(request=request, load=loader(request), loaders=loader, check=check, knobs=KNOBS)
    async with app.run_test(size=(160, 48)) as pilot:
        await loaded(pilot)
        await wait_until(pilot, lambda: app.state.watched)
        await ask(pilot, "Write two lines.")  # its own answer is not among the requests of others
        await wait_until(pilot, lambda: app.state.turn.report is not None)
        await idle(pilot)
        own = app.state.turn.report
        agent = {"authorization": f"Bearer {KEY}", "user-agent": "an-agent/1.0 (test)"}
        body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5, "ignore_eos": True}

        def seen() -> bool:  # the stream of requests may not have been open yet
            if not app.state.requests.newest_first:
                server.http().post("/v1/chat/completions", json=body, headers=agent)
            return any(one.record is not None for one in app.state.requests.newest_first)

        await wait_until(pilot, seen)
        await wait_until(pilot, lambda: app.state.shown.report is not None and app.state.shown.report != own)
        assert {one.client for one in app.state.requests.newest_first} == {agent["user-agent"]}
        shown = app.state.shown.report
        assert shown is not None
        assert len(shown.tokens) == 5
        await ask(pilot, "/requests")
        await shows(pilot, "What other programs ask of", "an-agent")
        for action, key in (("Tune", "f8"), ("Preset", "p"), ("Store prompts", "c")):
            assert action not in screen_text(app).splitlines()[-1], "of this program's own server"
            await pilot.press(key)
            await shows(pilot, "the model is on the server")
            assert not app.state.requests.keeps_prompts
        assert app.chat.parts.program.releasable == 0, "the server's memory is not this machine's"
        assert app.state.session is not None
        assert app.state.session.memory().device == "the server"


def test_what_only_the_decoder_s_own_process_can_do(session: AttachedSession) -> None:
    for refused in (session.forget_learned, session.decoder):
        with pytest.raises(DFlashError, match=NOT_HERE[:20]):
            refused()
