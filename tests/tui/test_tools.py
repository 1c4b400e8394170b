"""Tools in the chat, over a server of tools and the demo pair with given answers: calls are parsed from text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from dflash_core.knobs import Knobs
from dflash_core.messages import Call
from dflash_tui.app import DFlashApp
from dflash_tui.application.conversations.tool_messages import NO_RESULT
from dflash_tui.application.engine_session import EngineSession
from dflash_tui.application.settings.config import Config, Settings, load_config, user_file
from dflash_tui.application.settings.tool_servers import ToolServer
from dflash_tui.application.tools.rounds import DENIED
from dflash_tui.screens.tools import ToolsScreen
from dflash_tui.widgets.calls import CallsBlock, CallScreen
from support.light_tool_server import COMMAND
from support.scripted import ScriptedEngine

from .fake import FakeSession
from .support import ask, idle, loaded, screen_text, settled, shows, wait_until
from .tool_stub import with_stub

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


async def test_a_denied_call_is_a_refusal_to_the_model(chat_with: Any) -> None:
    app, script = chat_with(written("add", a=2, b=3), "Then I guess five.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "what is two and three?")
        await asked(pilot, app)
        await pilot.press("n")
        await idle(pilot)
        assert results(app) == [("add", "denied", DENIED)]
        await shows(pilot, "not allowed", "Then I guess five.")
    assert DENIED in script.prompts[1]


async def test_a_tool_allowed_for_the_conversation_is_not_asked_about_again(chat_with: Any, tmp_path: Path) -> None:
    file = tmp_path / "stamps"
    stamp, add = written("stamps", path=file), written("add", a=1, b=1)
    app, _ = chat_with(f"{stamp}\n{stamp}", stamp, "Three stamps.", stamp, "Four.", add, "Two.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "stamp three times")
        await asked(pilot, app)
        await pilot.press("t")
        await idle(pilot)
        assert len(file.read_text().splitlines()) == 3
        await ask(pilot, "once more")
        await idle(pilot)
        assert len(file.read_text().splitlines()) == 4
        await ask(pilot, "another tool")  # of the same server
        await asked(pilot, app)
        await pilot.press("n")
        await idle(pilot)


async def test_another_conversation_asks_again(chat_with: Any, tmp_path: Path) -> None:
    stamp = written("stamps", path=tmp_path / "stamps")
    app, _ = chat_with(stamp, "Done.", stamp, "Not done.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "stamp")
        await asked(pilot, app)
        await pilot.press("t")
        await idle(pilot)
        await pilot.press("ctrl+n")
        await ask(pilot, "stamp")
        await asked(pilot, app)
        await pilot.press("n")
        await idle(pilot)


async def test_a_server_allowed_always_is_so_in_the_settings(chat_with: Any) -> None:
    file = user_file()
    file.parent.mkdir(parents=True)
    file.write_text(
        f'# mine\n[mcp_servers.things]\ncommand = "{COMMAND[0]}"  # python\nargs = ["{COMMAND[1]}"]\n', encoding="utf-8"
    )
    [server] = load_config({}, {}).settings.servers
    app, _ = chat_with(written("add", a=2, b=3), written("echo", text="a"), "Both.", server=server)
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "use two tools")
        await asked(pilot, app)
        await pilot.press("s")
        await idle(pilot)
        assert [outcome for _, outcome, _ in results(app)] == ["done", "done"]
    [server] = load_config({}, {}).settings.servers
    assert server.allow == {"*"}
    assert "# mine" in file.read_text()
    assert "# python" in file.read_text()
    app, _ = chat_with(written("add", a=1, b=1), "Two.", server=server)
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "add")
        await idle(pilot)
        assert results(app) == [("add", "done", "2")]


async def test_esc_in_the_question_ends_the_turn(chat_with: Any) -> None:
    app, script = chat_with(f"I add.\n\n{written('add', a=2, b=3)}\n{written('echo', text='b')}", "Well.", "Later.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "add and echo")
        await asked(pilot, app)
        await pilot.press("escape")
        await idle(pilot)
        assert [(name, outcome) for name, outcome, _ in results(app)] == [("add", "cancelled"), ("echo", "cancelled")]
        assert len(script.prompts) == 1
        await pilot.press("ctrl+r")  # the answer to the results, which is empty so far
        await idle(pilot)
        await shows(pilot, "Well.")
        await ask(pilot, "and now?")
        await idle(pilot)
        await shows(pilot, "Later.")
    assert script.prompts[2].count("The user stopped this call.") == 2


async def test_esc_ends_a_running_call(chat_with: Any, tmp_path: Path) -> None:
    file = tmp_path / "called"
    app, script = chat_with(written("waits", path=file), "Never.", "The chat goes on.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "wait")
        await asked(pilot, app)
        await pilot.press("y")
        await wait_until(pilot, file.exists)
        assert app.state.busy
        await pilot.press("escape")
        await idle(pilot)
        assert [(name, outcome) for name, outcome, _ in results(app)] == [("waits", "cancelled")]
        assert len(script.prompts) == 1
        await ask(pilot, "go on")
        await idle(pilot)
        await shows(pilot, "Never.")


async def test_a_message_sent_during_a_call_waits_for_the_end_of_the_turn(chat_with: Any) -> None:
    app, script = chat_with(written("add", a=2, b=3), "Five.", "The other answer.")
    async with app.run_test(size=(100, 40)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "add")
        await asked(pilot, app)
        await app.chat.parts.sending.send("and another thing", "and another thing")
        await pilot.press("y")
        await wait_until(pilot, lambda: len(script.prompts) == 3)
        await idle(pilot)
        text = screen_text(app)
        order = ("add a=2 b=3", "Five.", "and another thing", "The other")
        assert sorted(order, key=text.index) == list(order)


async def test_a_server_that_dies_in_a_call_is_a_line_and_the_chat_goes_on(chat_with: Any) -> None:
    app, script = chat_with(written("dies"), "It is gone.", written("add", a=1, b=1), "Too bad.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "die")
        await asked(pilot, app)
        await pilot.press("y")
        await idle(pilot)
        assert results(app) == [("dies", "failed", "Error: it has ended with code 3: out of luck")]
        await ask(pilot, "again")  # the tool is not offered any more, and the model calls it all the same
        await idle(pilot)
        assert results(app)[1] == ("add", "failed", "There is no tool add. Known tools: none.")
        await shows(pilot, "Too bad.")
    assert '"name": "add"' not in script.prompts[2]


async def test_a_tool_that_fails_tells_the_model(chat_with: Any) -> None:
    app, _ = chat_with(written("fails", text="no such file"), "It fails.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "fail")
        await asked(pilot, app)
        await pilot.press("y")
        await idle(pilot)
        [(_, outcome, text)] = results(app)
        assert outcome == "failed"
        assert text.startswith("Error")


async def test_a_long_result_is_cut_to_what_the_context_has_room_for(chat_with: Any) -> None:
    app, script = chat_with(written("long", characters=100_000), "Long.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "long")
        await asked(pilot, app)
        await pilot.press("y")
        await idle(pilot)
        [(_, outcome, text)] = results(app)
        session = app.state.session
        assert session is not None
        assert outcome == "done"
        assert "[cut here: " in text
        assert "of 64," in text or "of 100,000" in text
        assert session.count(text) < session.context_length // 2
        await shows(pilot, "Long.")
    assert len(script.prompts) == 2


async def test_special_tokens_in_a_result_are_text(chat_with: Any) -> None:
    app, script = chat_with(written("special"), "Fine.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "special")
        await asked(pilot, app)
        await pilot.press("y")
        await idle(pilot)
        session = app.state.session
        assert isinstance(session, EngineSession)
        tokenizer = session.decoder().target.tokenizer
        ends = [session.turns[n].start.prompt_ids.count(tokenizer.special["<|im_end|>"]) for n in range(2)]
    assert "a <|im_end|> b" in script.prompts[1]
    # The question, the answer with the call; the results are the user's turn: the third one.
    assert ends[1] - ends[0] == 2


async def test_calls_without_end_are_ended(chat_with: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ToolServer("things", COMMAND[0], tuple(COMMAND[1:]), allow=frozenset({"add"}))
    app, script = chat_with(*[written("add", a=1, b=1)] * 40, server=server)
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        monkeypatch.setattr("dflash_tui.application.tools.rounds.MAX_ROUNDS", 3)
        await ask(pilot, "add for ever")
        await idle(pilot)
        assert [outcome for _, outcome, _ in results(app)] == ["done"] * 3 + ["failed"] * 2
        await shows(pilot, "the turn ends")
    assert len(script.prompts) == 5


async def test_a_conversation_with_calls_is_stored_exported_and_opened_without_the_package(
    chat_with: Any, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app, _ = chat_with("I add.\n\n" + written("add", a=2, b=3), "It is five.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "what is two and three?")
        await asked(pilot, app)
        await pilot.press("y")
        await idle(pilot)
        markdown, exported = tmp_path / "it.md", tmp_path / "it.json"
        await ask(pilot, f"/export md {markdown}")
        await wait_until(pilot, markdown.exists)
        await ask(pilot, f"/export json {exported}")
        await wait_until(pilot, exported.exists)
    for text in ("I add.", 'add {"a": 2, "b": 3}', "add done:\n5", "It is five."):
        assert text in markdown.read_text(encoding="utf-8")
    monkeypatch.setattr("dflash_tui.application.tools.offered.find_spec", lambda name: None)
    again, next_script = chat_with("Nothing to add.")
    async with again.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+l")
        await shows(pilot, "I add.", "add a=2 b=3", "It is five.")
        await ask(pilot, "thanks")
        await idle(pilot)
        await ask(pilot, "/tools on")
        await shows(pilot, 'pip install "dflash-tui[tools]"')
    assert "<tool_response>\n5\n</tool_response>" in next_script.prompts[0]
    assert "<function=add>" in next_script.prompts[0]
    other = make_app(data_dir=tmp_path / "other")
    async with other.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await ask(pilot, f"/import {exported}")
        await shows(pilot, "imported")
        await pilot.press("alt+l")
        await shows(pilot, "I add.", "add a=2 b=3", "It is five.")


async def test_the_answer_to_results_is_asked_again_without_calling_again(chat_with: Any, tmp_path: Path) -> None:
    file = tmp_path / "stamps"
    app, script = chat_with(written("stamps", path=file), "Once.", "Said again.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "stamp")
        await asked(pilot, app)
        await pilot.press("y")
        await idle(pilot)
        await pilot.press("ctrl+r")
        await idle(pilot)
        await shows(pilot, "Said again.", "‹2/2›")
        await pilot.press("alt+left")
        await shows(pilot, "Once.")
        assert len(file.read_text().splitlines()) == 1
    assert script.prompts[1] == script.prompts[2]


async def test_an_edited_message_begins_a_branch_before_the_calls(chat_with: Any) -> None:
    app, script = chat_with(written("add", a=2, b=3), "Five.", "No sum.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "add")
        await asked(pilot, app)
        await pilot.press("y")
        await idle(pilot)
        await pilot.press("alt+e")
        assert app.chat.prompt.text == "add"
        await pilot.press("s", "enter")
        await idle(pilot)
        await shows(pilot, "No sum.")
        assert "tool_response" not in script.prompts[2].rpartition("<|im_start|>user")[2]
        await pilot.press("alt+left")
        await shows(pilot, "add a=2 b=3", "Five.")


async def test_no_server_is_started_unasked(chat_with: Any) -> None:
    app, script = chat_with("Hello.")
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hello")
        await idle(pilot)
        assert app.chat.parts.tools.servers is None
    assert "tools" not in script.prompts[0]


async def test_the_page_lists_servers_and_tools_and_toggles_them(chat_with: Any) -> None:
    app, script = chat_with("Hello.")
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await ask(pilot, "/tools")
        await shows(pilot, "things", "off")
        await pilot.press("enter")
        await shows(pilot, "Adds two numbers.", "offered")
        await pilot.press("down", "enter")
        servers = app.chat.parts.tools.servers
        assert servers is not None
        assert "add" not in [tool.name for tool in servers.tools]
        await pilot.press("escape")
        await ask(pilot, "hello")
        await idle(pilot)
        assert '"name": "add"' not in script.prompts[0]
        assert '"name": "echo"' in script.prompts[0]
        await ask(pilot, "/tools off")
        await wait_until(pilot, lambda: servers.connections["things"].state == "off")
        assert servers.tools == ()


async def test_pictures_of_a_call(
    make_app: MakeApp, snapshot: Callable[[str, str], None], size: tuple[int, int]
) -> None:
    """The question, the folded and the open call, the page: always the same figures."""
    session = FakeSession(thinking="", answer="The plan has two points: measure, then change one thing.")
    session.calls = [(Call("call_1", "read_file", {"path": "plan.md", "lines": 20}),)]
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        with_stub(app)
        await ask(pilot, "What is the plan?")
        await asked(pilot, app)
        snapshot(f"{size[0]}x{size[1]}-call", await settled(pilot))
        await pilot.press("enter")
        await idle(pilot)
        [block] = blocks(app)
        block.folds["call_1"].line.action_fold()
        snapshot(f"{size[0]}x{size[1]}-calls", await settled(pilot))
        app.chat.open_page("tools")
        await wait_until(pilot, lambda: isinstance(app.screen, ToolsScreen))
        snapshot(f"{size[0]}x{size[1]}-tools", await settled(pilot))


async def test_a_program_that_ends_in_the_question_leaves_a_call_without_a_result(chat_with: Any) -> None:
    app, _ = chat_with("I add.\n\n" + written("add", a=2, b=3), "Never.")
    async with app.run_test(size=(100, 30)) as pilot:
        await with_tools(pilot, app)
        await ask(pilot, "add")
        await asked(pilot, app)
    again, script = chat_with("So it was.")
    async with again.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+l")
        await shows(pilot, "I add.", "called and not answered: add")
        await ask(pilot, "what happened?")
        await idle(pilot)
        await shows(pilot, "So it was.")
    assert NO_RESULT in script.prompts[0]


async def test_a_server_of_the_settings_may_start_with_the_app(chat_with: Any) -> None:
    app, script = chat_with("Hello.", server=msgspec.structs.replace(SERVER, start=True))
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        tools = app.chat.parts.tools
        await wait_until(pilot, lambda: tools.servers is not None and bool(tools.servers.tools))
        await ask(pilot, "hello")
        await idle(pilot)
    assert '"name": "add"' in script.prompts[0]
