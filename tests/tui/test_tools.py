"""Tools in the chat, over a real server of tools and the demo pair with given answers: calls are parsed from text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.engine_session import EngineSession
from dflash_tui.application.settings.config import Config, Settings, load_config, user_file
from dflash_tui.application.settings.tool_servers import ToolServer
from dflash_tui.application.tools.rounds import DENIED
from dflash_tui.widgets.call_dialog import CallScreen
from dflash_tui.widgets.calls import CallsBlock
from support.scripted import ScriptedEngine
from support.tool_server import COMMAND

from .support import ask, idle, loaded, screen_text, shows, wait_until

MakeApp = Callable[..., DFlashApp]
SERVER = ToolServer("things", COMMAND[0], tuple(COMMAND[1:]))


def written(name: str, **arguments: object) -> str:
    """A call as the demo model writes one."""
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


class Script:
    """Answers in their order; `prompts` are what the model was given."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self._answers.pop(0) if self._answers else "nothing more"


@pytest.fixture(autouse=True)
def keys_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallScreen, "DEAF_S", 0.0)


@pytest.fixture
def chat_with(make_app: MakeApp) -> Callable[..., tuple[DFlashApp, Script]]:
    def made(*answers: str, server: ToolServer = SERVER) -> tuple[DFlashApp, Script]:
        script, knobs = Script(*answers), Knobs(thinking=False)
        session = EngineSession(ScriptedEngine(script, width=5), "scripted", knobs, ())
        settings = Settings(servers=(server,), knobs=knobs)
        return make_app(load=lambda progress: session, config=Config(settings), knobs=knobs), script

    return made


async def with_tools(pilot: Pilot[int], app: DFlashApp) -> None:
    await loaded(pilot)
    await ask(pilot, "/tools on")
    servers = app.chat.parts.tools
    await wait_until(pilot, lambda: servers.servers is not None and not servers.servers.starting)
    assert servers.servers is not None
    assert servers.servers.connections["things"].state == "on", servers.servers.connections["things"].why


async def asked(pilot: Pilot[int], app: DFlashApp) -> None:
    await wait_until(pilot, lambda: isinstance(app.screen, CallScreen))


def blocks(app: DFlashApp) -> list[CallsBlock]:
    return [one for one in app.chat.transcript.turns if isinstance(one, CallsBlock)]


def results(app: DFlashApp) -> list[tuple[str, str, str]]:
    return [(one.name, one.outcome, one.text) for block in blocks(app) for one in block.results]


async def test_a_call_is_asked_about_made_and_answered(chat_with: Any) -> None:
    app, script = chat_with("I add.\n\n" + written("add", a=2, b=3), "It is five.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "what is two and three?")
        await asked(pilot, app)
        assert results(app) == []
        await pilot.press("enter")
        await idle(pilot)
        assert results(app) == [("add", "done", "5")]
        await shows(pilot, "I add.", "add a=2 b=3", "It is five.")
        assert "<tool_call>" not in screen_text(app)
    first, second = script.prompts
    assert '"name": "add"' in first
    assert "<tool_response>\n5\n</tool_response>" in second
    # The first prompt is the beginning of the second one but for the opening of an answer.
    assert second.startswith(first[: first.rindex("<|im_start|>assistant")])
