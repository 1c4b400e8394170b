"""Other programs use the pair that the app has loaded: /serve, the page of requests, one decoder for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from textual.pilot import Pilot

from dflash_core.knobs import Knobs
from dflash_core.lab import candidates
from dflash_core.lab.grid import Arm
from dflash_tui.app import DFlashApp
from dflash_tui.application.engine_session import load_session
from dflash_tui.application.requests import ServedRequest
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import KEY_VARIABLE, load_config
from dflash_tui.screens import experiment
from dflash_tui.screens.experiments import RequestsTuneScreen
from dflash_tui.screens.requests import RequestsScreen
from dflash_tui.screens.steps import StepsScreen
from dflash_tui.server.settings import ServerSettings

from .fake import FakeSession
from .support import HANGS_S, ask, idle, leave, loaded, shows, wait_until

CLIENT = "an-agent/1.0 (test)"
SHORT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Write two lines about the sea."}], "max_tokens": 12, "temperature": 0,
    "ignore_eos": True,
}  # fmt: skip


@pytest.fixture
def app(make_app: Callable[..., DFlashApp], monkeypatch: pytest.MonkeyPatch) -> DFlashApp:
    """The app over the demo pair."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    knobs = Knobs(max_tokens=8)
    return make_app(load=partial(load_session, LoadRequest(knobs=knobs)), knobs=knobs)


async def serving(pilot: Pilot[int], app: DFlashApp) -> str:
    """The address after /serve."""
    await loaded(pilot)
    await ask(pilot, "/serve 0")
    await wait_until(pilot, lambda: bool(app.state.serving))
    return app.state.serving


async def post(address: str, body: dict[str, Any]) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=HANGS_S, headers={"user-agent": CLIENT}) as client:
        answer = await client.post(f"{address}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def newest(app: DFlashApp) -> ServedRequest:
    return app.state.requests.newest_first[0]


async def test_a_request_is_listed_and_the_panels_follow_it(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        address = await serving(pilot, app)
        answer = await post(address, SHORT)
        assert answer["usage"]["completion_tokens"] == 12
        await wait_until(pilot, lambda: app.state.followed is not None and app.state.followed.record is not None)
        shown = app.state.shown
        assert shown.report is not None
        assert len(shown.report.tokens) == 12
        assert not app.state.shown_runs
        await ask(pilot, "/requests")
        await shows(pilot, "an-agent/1.0", "demo", "length", address)
        assert isinstance(app.screen, RequestsScreen)
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, StepsScreen))
        assert isinstance(app.screen, StepsScreen)
        assert app.screen.turns[0].report == shown.report
        await pilot.press("escape")
        await leave(pilot)
        assert app.state.session is not None
        assert not app.state.session.turns, "an agent's conversation is not the user's"
        assert not app.chat.transcript.turns
        await ask(pilot, "/serve off")
        await wait_until(pilot, lambda: not app.state.serving)
        with pytest.raises(httpx.ConnectError):
            await post(address, SHORT)
        await ask(pilot, "and you?")
        await wait_until(pilot, lambda: app.state.turn.report is not None)
        await idle(pilot)
        assert app.state.shown is app.state.turn


async def test_requests_and_the_chat_wait_for_each_other(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        address = await serving(pilot, app)
        with app.state.decoder.using("a test"):
            waits = asyncio.create_task(post(address, SHORT))
            await wait_until(pilot, lambda: bool(app.state.requests.newest_first))
            app.chat.prompt.insert("hello")
            await pilot.press("enter")
            await wait_until(pilot, lambda: app.state.busy)
            await shows(pilot, "waits for a test")
            running = app.state.turn.running
            assert running is not None
            assert running.turn is None
            assert newest(app).state == "waiting"
            await pilot.press("escape")
            await idle(pilot)
            assert app.chat.prompt.text == "hello", "what was not asked comes back"
            await pilot.press("enter")
            await wait_until(pilot, lambda: app.state.busy)
            assert not waits.done()
        assert (await waits)["usage"]["completion_tokens"] == 12
        await idle(pilot)
        assert app.state.turn.report is not None
        assert app.state.session is not None
        assert len(app.state.session.turns) == 1


async def test_a_client_that_leaves_frees_the_decoder(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        address = await serving(pilot, app)
        endless = SHORT | {"max_tokens": 4000, "dflash": {"mode": "plain"}}
        leaves = asyncio.create_task(post(address, endless))
        await wait_until(pilot, lambda: app.state.followed is not None and app.state.shown_runs)
        leaves.cancel()
        await wait_until(pilot, lambda: newest(app).state == "over")
        assert newest(app).why == "client left"
        await wait_until(pilot, lambda: not app.state.decoder.used_by)


async def test_requests_get_the_parameters_of_the_app(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        address = await serving(pilot, app)
        await ask(pilot, "/set drafting tree 7")
        before = app.state.knobs
        await wait_until(pilot, lambda: app.chat.parts.serving._defaults[0].knobs == before)  # type: ignore[index]
        await post(address, SHORT)
        report = newest(app).report
        assert report is not None
        assert report.knobs.drafting == before.drafting
        assert report.knobs.max_tokens == 12


async def test_what_is_served_stays_loaded(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await serving(pilot, app)
        session = app.state.session
        await ask(pilot, "/reload")
        await shows(pilot, "/serve off ends that")
        assert app.state.session is session
        await ask(pilot, "/serve")
        await wait_until(pilot, lambda: isinstance(app.screen, RequestsScreen))


async def test_the_command_line_serves_from_the_load_on(make_app: Callable[..., DFlashApp]) -> None:
    app = make_app(load=partial(load_session, LoadRequest()), serving=ServerSettings(port=0))
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: bool(app.state.serving))
        await post(app.state.serving, SHORT)
        assert newest(app).client == CLIENT


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/serve off", "nothing is served"),
        ("/serve here", "write /serve"),
        ("/serve 0", "a script has no decoder"),
    ],
)
async def test_refusals(make_app: Callable[..., DFlashApp], line: str, said: str) -> None:
    app = make_app(FakeSession())
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, line)
        await shows(pilot, said)
        assert app.chat.prompt.text == line
        assert not app.state.serving


async def test_a_program_has_a_preset_of_its_own(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        address = await serving(pilot, app)
        await post(address, SHORT)
        assert (newest(app).preset, newest(app).report.knobs.mode) == ("", "auto")  # type: ignore[union-attr]
        await ask(pilot, "/requests")
        await shows(pilot, "an-agent/1.0")
        await pilot.press("p", "p")
        await shows(pilot, "the next requests of an-agent get the preset plain")
        assert app.state.clients == {"an-agent": "plain"}
        assert load_config().settings.clients == {"an-agent": "plain"}, "it is remembered"
        clients = app.chat.parts.serving
        await wait_until(pilot, lambda: "an-agent" in clients._defaults[1])  # type: ignore[index]
        await post(address, SHORT)
        report = newest(app).report
        assert report is not None
        assert (newest(app).preset, report.knobs.mode, report.knobs.max_tokens) == ("plain", "plain", 12)
        await shows(pilot, "plain")
        names = app.chat.state.presets.names_for(app.state.model)
        for _ in range(len(names) - names.index("plain")):
            await pilot.press("p")
        await shows(pilot, "get the parameters of the app")
        assert load_config().settings.clients == {}


async def test_prompts_of_programs_are_kept_only_with_consent(app: DFlashApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few settings are tried: how they are chosen has other tests."""
    monkeypatch.setattr(experiment, "REDRAW_S", 0)  # the first run is shown at once
    monkeypatch.setattr(candidates, "arms", lambda now, limits: [Arm("now", now, "now"), Arm("plain", now, "plain")])
    async with app.run_test(size=(120, 40)) as pilot:
        address = await serving(pilot, app)
        await post(address, SHORT)
        await ask(pilot, "/requests")
        await pilot.press("f8")
        await shows(pilot, "stored only if you agree")
        assert newest(app).prompt is None
        await pilot.press("c", "f8")
        await shows(pilot, "no prompt of an-agent is stored yet")
        await post(address, SHORT)
        await post(address, SHORT | {"messages": [{"role": "user", "content": "Count to five."}]})
        kept = newest(app).prompt
        assert kept is not None
        assert "Count to five." in kept.text
        await pilot.press("f8")
        await wait_until(pilot, lambda: isinstance(app.screen, RequestsTuneScreen))
        screen = app.screen
        assert isinstance(screen, RequestsTuneScreen)
        await wait_until(pilot, lambda: screen.result is not None and bool(screen.result.trials))
        assert screen.result is not None
        assert screen.result.prompts == ("an-agent 1", "an-agent 2")
        assert {trial.report.stats.prompt_tokens for trial in screen.result.trials} <= {
            len(one.prompt.ids) for one in app.state.requests.newest_first if one.prompt
        }
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.running)
        await pilot.press("escape")
        await wait_until(pilot, lambda: isinstance(app.screen, RequestsScreen))
        await pilot.press("c")
        assert not any(one.prompt for one in app.state.requests.newest_first)
        assert app.state.session is not None
        assert not app.state.session.turns


PICTURE = Path(__file__).parents[2] / "docs" / "serving.svg"
AGENT: dict[str, Any] = {
    "model": "demo", "max_tokens": 90, "temperature": 0, "system": "You are an agent that works in a folder. " * 10,
    "tools": [{"name": "read_file", "description": "Reads a file.", "input_schema": {"type": "object"}}],
}  # fmt: skip
TURNS = ("Tell me a story about a fox.", "Write a Python function that returns the largest of three numbers.")


async def test_the_picture_of_an_agent_s_session(app: DFlashApp, request: pytest.FixtureRequest) -> None:
    """An agent's turns, a title that it asks for between them, and an answer that is being written."""

    def written() -> int:
        followed = app.state.followed
        return followed.meter.tokens if followed is not None and followed.meter is not None else 0

    async with app.run_test(size=(120, 40)) as pilot:
        app.state.clients["claude-cli"] = "wide"
        address = await serving(pilot, app)
        headers = {"user-agent": "claude-cli/2.1.197 (external, cli)"}
        async with httpx.AsyncClient(base_url=address, timeout=HANGS_S, headers=headers) as client:
            history: list[dict[str, Any]] = []
            for question in TURNS:
                history.append({"role": "user", "content": question})
                answer = (await client.post("/v1/messages", json=AGENT | {"messages": history})).json()
                history.append({"role": "assistant", "content": answer["content"]})
                title = {"system": "You name chats.", "messages": history[:1], "tools": [], "max_tokens": 12}
                await client.post("/v1/messages", json=AGENT | title)
            history.append({"role": "user", "content": "Explain the function."})
            body = AGENT | {"messages": history, "stream": True, "max_tokens": 900, "dflash": {"ignore_eos": True}}
            async with client.stream("POST", "/v1/messages", json=body) as running:
                await wait_until(pilot, lambda: written() > 60)
                await pilot.press("f4")
                await shows(pilot, "claude-cli: tree")
                svg = app.export_screenshot(title="dflash-tui")
                await ask(pilot, "/requests")
                for size in ((120, 40), (80, 24)):
                    await pilot.resize_terminal(*size)
                    await shows(pilot, "claude-cli/", "wide", "tok/step", " state", "writes", "length")
                await running.aclose()
        await wait_until(pilot, lambda: newest(app).state == "over")
        assert newest(app).why == "client left"
        reused = [one.report.stats.reused_tokens for one in app.state.requests.newest_first if one.report]
        assert reused[2] > 100, "the second turn read what was new"
    if request.config.getoption("--update-snapshots", default=False) or not PICTURE.exists():
        PICTURE.write_text(svg, encoding="utf-8")
