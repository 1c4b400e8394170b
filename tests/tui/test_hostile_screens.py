"""A hostile text in every input of the app; the bytes that its driver writes to the terminal are checked."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from dflash_core.demo import demo_target_path
from dflash_core.errors import DFlashError
from dflash_core.memory import Component, MemoryBreakdown
from dflash_core.record import Loaded, lines, pack
from dflash_core.trace import TraceWriter, read_trace
from dflash_tui.app import DFlashApp
from dflash_tui.application.conversations.branches import Branches, Node
from dflash_tui.application.conversations.journal import Place
from dflash_tui.application.conversations.store import Card, Store, StoredConversation
from dflash_tui.application.replay import replaying
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import Config, config_folder
from dflash_tui.screens.models import ModelsScreen
from dflash_tui.screens.replay import ReplayScreen
from support.hostile import HOSTILE, MARKUP, NAME, SEEN, TEXT, assert_harmless
from support.stored import a_report, a_turn, killed_app
from support.turns import step_of, turn_of

from .fake import FakeSession, loader
from .support import ask, idle, loaded, screen_text, shows, wait_until

MakeApp = Callable[..., DFlashApp]
Script = Callable[[Pilot[int]], Awaitable[None]]
Door = Callable[[MakeApp, Path], tuple[DFlashApp, Script]]


@pytest.fixture
def written(frames: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Everything that an app writes to its terminal from now on; a lone surrogate would end its writer."""
    parts: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "is_headless", property(lambda self: False))
    monkeypatch.setattr(HeadlessDriver, "write", lambda self, data: parts.append(data))
    monkeypatch.setattr(DFlashApp, "handle_signals", lambda self: None)
    return parts


async def press(pilot: Pilot[int], *keys: str) -> None:
    """Keys one by one, each with the screen that it leads to."""
    for key in keys:
        await pilot.press(key)
        await pilot.pause(0.05)


# The inputs: an app, and what makes it show the text


def model_does_not_load(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    def load(progress: Callable[[str, float], None]) -> FakeSession:
        progress(HOSTILE, 0.5)
        raise DFlashError(HOSTILE)

    async def script(pilot: Pilot[int]) -> None:
        await shows(pilot, "did not load", MARKUP)

    return make_app(load=load), script


def fault_while_loading(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    def load(progress: Callable[[str, float], None]) -> FakeSession:
        raise ValueError(HOSTILE)

    async def script(pilot: Pilot[int]) -> None:
        await shows(pilot, "fault in the program")
        await wait_until(pilot, lambda: MARKUP in "".join(screen_text(pilot.app).split()))  # over two lines
        assert_harmless((home / "data" / "last-error.txt").read_bytes())

    return make_app(load=load), script


def model(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    async def script(pilot: Pilot[int]) -> None:
        await loaded(pilot)
        await shows(pilot, f"dflash  {SEEN}", MARKUP)

    return make_app(FakeSession(title=HOSTILE, notes=(HOSTILE,))), script


def answer(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    entities = "&#x202e;&#27;&#155;"

    async def script(pilot: Pilot[int]) -> None:
        await loaded(pilot)
        await ask(pilot, f"{TEXT}?")
        await idle(pilot)
        await press(pilot, "alt+t", "f3", "f4", "f5", "alt+i", "v", "v", "escape")
        await shows(pilot, MARKUP)

    session = FakeSession(f"{HOSTILE} {entities}\n\n`{HOSTILE}`\n\n```\n{HOSTILE}\n```\n\n| {HOSTILE} |\n|-|\n| b |\n")
    session.thinking = HOSTILE
    return make_app(session), script


def turn_refused(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    async def script(pilot: Pilot[int]) -> None:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "refused", MARKUP)

    return make_app(FakeSession(refuse=DFlashError(HOSTILE))), script


def turn_failed(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    async def script(pilot: Pilot[int]) -> None:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "fault in the program", "quit[/]")  # the rest of it is on the line before

    return make_app(FakeSession(fail_after=1, error=ValueError(HOSTILE))), script


def put(home: Path) -> Card:
    store = Store(home / "data")
    question = Node("user", TEXT)
    reply = Node("assistant", TEXT, question.id, TEXT, TEXT, a_report(TEXT))
    other = Node("assistant", TEXT, question.id, "", TEXT)
    card = Card(TEXT, TEXT, model=TEXT)
    store.put(StoredConversation(card, Branches([question, other, reply], reply.id), {reply.id: pack(a_turn())}))
    store.close()
    return card


def resumed(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    card = put(home)

    async def script(pilot: Pilot[int]) -> None:
        await loaded(pilot)
        await shows(pilot, SEEN, MARKUP)
        await press(pilot, "f3", "alt+i", "v", "escape", "alt+left", "alt+e", "escape")

    return make_app(resume=card.id), script


def conversations(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    put(home)

    async def script(pilot: Pilot[int]) -> None:
        await loaded(pilot)
        await press(pilot, "ctrl+o")
        await shows(pilot, SEEN, MARKUP)
        await press(pilot, "d")
        await shows(pilot, f"Delete “{SEEN}")
        await press(pilot, "escape", "r")
        await shows(pilot, "A new title")
        await press(pilot, "escape", "x")
        pilot.app.screen.query_one(Input).value = f"/nowhere/{NAME}.md"
        await press(pilot, "enter")
        await shows(pilot, "cannot be written", MARKUP.replace("/", ""))

    return make_app(), script


def cut_off(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    killed_app(home / "data", TEXT, place=Place("c", "q", "a", TEXT, None, TEXT))

    async def script(pilot: Pilot[int]) -> None:
        await shows(pilot, f"The program ended in the middle of an answer: {SEEN}", MARKUP[:15])
        await press(pilot, "enter")
        await shows(pilot, f"resumed: {SEEN}", MARKUP)

    return make_app(), script


def slash_commands(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    (home / f"{NAME}.json").write_text("{}")

    async def script(pilot: Pilot[int]) -> None:
        await loaded(pilot)
        for command in (NAME, f"set {NAME}=1", f"theme {NAME}", f"preset {NAME}", f"import {home / NAME}.json"):
            await ask(pilot, f"/{command}")
            await shows(pilot, MARKUP[:15])

    return make_app(), script


def presets_and_themes(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    preset, theme = "about = %s\n[knobs]\nbudget = 7\n%s = 1", 'name = %s\nprimary = "red"'
    for kind, text in (("presets", preset), ("themes", theme)):
        folder = config_folder() / kind
        folder.mkdir(parents=True)
        (folder / f"{NAME}.toml").write_text(text.replace("%s", json.dumps(TEXT)))
        (folder / f"bad {NAME}.toml").write_text(f"{json.dumps(TEXT)} = 1")

    async def script(pilot: Pilot[int]) -> None:
        await loaded(pilot)
        await shows(pilot, "Themes left out", "Settings and log", "Presets", SEEN)
        await press(pilot, "f2", *["f9"] * 7)
        await ask(pilot, "/theme")
        await shows(pilot, "Enter saves", SEEN)
        names = pilot.app.screen.query_one(OptionList)
        names.highlighted = next(at for at, one in enumerate(names.options) if SEEN in (one.id or ""))
        await press(pilot, "enter")
        await shows(pilot, "from now on")

    return make_app(config=Config(problems=(HOSTILE,))), script


def models_near(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    for name in (NAME, "model [Q4_K_M]", "model [Q8]"):
        shutil.copy(demo_target_path(), home / f"{name}.gguf")
    (home / f"{NAME}-damaged.gguf").write_bytes(b"no")

    async def script(pilot: Pilot[int]) -> None:
        await shows(pilot, "Welcome", "model [Q4_K_M].gguf", "model [Q8].gguf", f"{MARKUP.replace('/', '')}.gguf")
        await shows(pilot, "Not offered", "no drafter")
        rows = screen_text(pilot.app).splitlines()
        y = next(number for number, row in enumerate(rows) if SEEN in row)
        left = rows[y].index(SEEN)
        for x, line in itertools.product(range(left, left + 60, 6), (y, y + 1)):
            await pilot.click(offset=(x, line))
            assert pilot.app.is_running
            if not isinstance(pilot.app.screen, ModelsScreen):
                break
        assert isinstance(pilot.app, DFlashApp)
        await wait_until(pilot, lambda: pilot.app.screen is pilot.app.chat)
        assert pilot.app.state.request.target == home / f"{NAME}.gguf"
        await loaded(pilot)
        await pilot.app.push_screen(ModelsScreen(pilot.app.chat.parts))
        pilot.app.screen.query_one("#models-target", Input).value = f"/nowhere/{NAME}"
        await press(pilot, "enter")
        await shows(pilot, "no such file")

    return make_app(first_run=True), script


def replayed(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    turn = turn_of([dataclasses.replace(step_of(), reason=TEXT)] * 3, prompt=TEXT, text=lambda token: TEXT)
    turn = dataclasses.replace(turn, start=msgspec.structs.replace(turn.start, target=TEXT, draft=TEXT))
    path = home / NAME
    with TraceWriter(path) as trace:
        trace(Loaded(TEXT, 4096, MemoryBreakdown(TEXT, (Component(TEXT, 1 << 30, TEXT),), 1 << 34, 1 << 30)))
        for line in lines(turn):
            trace(line)
    path.write_bytes(path.read_bytes()[:-20])  # so that it has a problem, which names the file

    async def script(pilot: Pilot[int]) -> None:
        await wait_until(
            pilot, lambda: len(pilot.app.chat.state.session.turns) == 1 if pilot.app.chat.state.session else False
        )  # type: ignore[attr-defined]
        await idle(pilot)
        await press(pilot, "f3", "f4", "f5", "alt+i", "v", "v", "right", "escape")
        await shows(pilot, SEEN, MARKUP)

    app = DFlashApp(LoadRequest(), replaying(read_trace(path), path), data_dir=home / "data", chat=ReplayScreen)
    return app, script


def watcher(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    class Watcher:
        problem = HOSTILE

        def __call__(self, line: object) -> None: ...

    async def script(pilot: Pilot[int]) -> None:
        await loaded(pilot)
        await shows(pilot, "Trace", SEEN)

    request = LoadRequest(watchers=(Watcher(),))
    return DFlashApp(request, loader(FakeSession()), data_dir=home / "data"), script


def prompt(make_app: MakeApp, home: Path) -> tuple[DFlashApp, Script]:
    async def script(pilot: Pilot[int]) -> None:
        await loaded(pilot)
        pilot.app.chat.prompt.text = f"{HOSTILE}\n{HOSTILE}"  # type: ignore[attr-defined]
        await shows(pilot, MARKUP)

    return make_app(), script


DOORS: tuple[Door, ...] = (
    model_does_not_load, fault_while_loading, model, answer, turn_refused, turn_failed, resumed, conversations, cut_off,
    slash_commands, presets_and_themes, models_near, replayed, watcher, prompt,
)  # fmt: skip


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
async def test_nothing_that_a_terminal_obeys(
    door: Door, make_app: MakeApp, tmp_path: Path, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app, script = door(make_app, tmp_path)
    async with app.run_test(size=(240, 60), notifications=True) as pilot:
        await script(pilot)
        assert app.is_running
    assert not app.fault
    assert_harmless("".join(written).encode())
