"""Every key of every screen, pressed in every state: none ends the app. Screens and keys come from the classes."""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib
import itertools
import pkgutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.events import Key, MouseDown, MouseUp
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

import dflash_tui
from dflash_core.backends.cuda.memory_estimator import CardMemoryEstimator
from dflash_tui import screens
from dflash_tui.app import DFlashApp
from dflash_tui.application.fetching import Fetching
from dflash_tui.application.hub.catalogue import Pair, Source
from dflash_tui.application.hub.files import FileRequest
from dflash_tui.screens.chat import ChatScreen
from dflash_tui.screens.chats import ChatsScreen
from dflash_tui.screens.experiment import ExperimentScreen
from dflash_tui.screens.experiments import RequestsTuneScreen
from dflash_tui.screens.explain import ExplainScreen, figures
from dflash_tui.screens.get import GetScreen
from dflash_tui.screens.lab import LabScreen, RowsScreen
from dflash_tui.screens.page import HelpScreen, Page
from dflash_tui.screens.pages import PAGES, page
from dflash_tui.screens.palette import Palette
from dflash_tui.screens.plan import PlanScreen
from dflash_tui.screens.replay import ReplayScreen
from dflash_tui.settings.keys import is_nowhere
from dflash_tui.widgets.calls import CallScreen
from dflash_tui.widgets.dialogs import ConfirmScreen, LineScreen, OfferScreen, TextScreen
from dflash_tui.widgets.inspector import TABS
from support.grids import full
from support.reckoned import estimator

from .fake import FakeSession
from .scenes import answered
from .support import loaded, wait_until
from .tool_stub import CALL, READ

MakeApp = Callable[..., DFlashApp]
Opener = Callable[[DFlashApp], Screen[object]]

# Beside the bindings, keys that widgets take without one.
PLAIN = (
    "x", "7", "slash", "space", "enter", "tab", "shift+tab", "up", "down", "left", "right", "home", "end", "pageup",
    "pagedown", "backspace", "delete", "ctrl+j", "escape",
)  # fmt: skip
BASES = {Page, LabScreen, RowsScreen, ExperimentScreen}
CHAT = {ChatScreen, ReplayScreen}  # the same keys; a replay has no prompt to type into


@functools.cache
def card() -> CardMemoryEstimator:
    return estimator(24 << 30)


TINY = Pair("tiny", "a pair", "mit", Source("o/n", "m.gguf"), None)


class NoHub(Fetching):
    """Downloads complete at once, and nothing is requested."""

    def work(self) -> None:
        self.files = [FileRequest(self.pair.target, "m.gguf", 1 << 20)]
        self.ready = True
        self.wait()
        self.complete = not self.stopping


DIALOGS: dict[type[Screen[object]], Opener] = {
    ConfirmScreen: lambda app: ConfirmScreen("A question", "yes", "no"),
    OfferScreen: lambda app: OfferScreen("A question", "yes", "no"),
    LineScreen: lambda app: LineScreen("A line", "text"),
    ExplainScreen: lambda app: ExplainScreen("A head", figures("stats")),
    HelpScreen: lambda app: HelpScreen("about"),
    Palette: lambda app: Palette(id="--command-palette"),
    PlanScreen: lambda app: PlanScreen(app.chat.parts, None, None, card),
    GetScreen: lambda app: GetScreen(app.chat.parts, TINY, NoHub),
    RequestsTuneScreen: lambda app: RequestsTuneScreen(app.chat.parts, "a-client", ()),
    CallScreen: lambda app: CallScreen(CALL, READ),
    TextScreen: lambda app: TextScreen("A title", "a text"),
}
PAGE_OPENERS: dict[str, Opener] = {name: lambda app, name=name: page(name, app.chat.parts, "") for name in PAGES}


def every_screen() -> set[type]:
    for module in pkgutil.iter_modules(screens.__path__):
        importlib.import_module(f"{screens.__name__}.{module.name}")
    found: set[type] = set()
    left: list[type] = [Screen]
    while left:
        for one in left.pop().__subclasses__():
            left.append(one)
            if one.__module__.startswith("dflash_tui."):
                found.add(one)
    return found


async def test_no_screen_is_forgotten(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        walked = {type(opener(app)) for opener in (*PAGE_OPENERS.values(), *DIALOGS.values())}
        assert walked | CHAT | BASES == every_screen()


class Walk:
    """One app in one state. `stand` puts it back there after each key, whatever the key did."""

    def __init__(self, pilot: Pilot[int], session: FakeSession, state: str, *, drawn: bool) -> None:
        """`drawn`: wait after each key until it is on the screen, and not only until it has been handled."""
        assert isinstance(pilot.app, DFlashApp)
        self.drawn = drawn
        self.pilot, self.app, self.session, self.state = pilot, pilot.app, session, state
        self.pressed: set[tuple[object, ...]] = set()

    async def pause(self) -> None:
        """Wait until everything that a key started is done. Pilot's own pause polls every widget and draws, which costs
        20 times as much."""
        if self.drawn or self.app._exception is not None:
            await self.pilot.pause()
            return
        for place in (self.app, self.app.screen, self.app.focused, self.app.screen, self.app):
            done = threading.Event()
            if place is not None and place.call_later(done.set):
                while not done.is_set() and place.is_running and self.app._exception is None:
                    await asyncio.sleep(0.001)

    async def until(self, holds: Callable[[], bool]) -> None:
        if not holds():
            await wait_until(self.pilot, holds)

    async def stand(self, opener: Opener | None) -> Screen[object]:
        app, chat = self.app, self.app.chat
        while len(app.screen_stack) > 1 and app.screen is not chat:
            app.pop_screen()
            await self.pause()
        await self.until(lambda: chat.state.session is not None and not chat.state.waiting)
        if self.state == "answering" and not chat.state.busy:
            self.session.gate = threading.Semaphore(3)
        if (self.state == "answering" and not chat.state.busy) or (self.state == "full" and not chat.transcript.turns):
            chat.prompt.text = "hello there"
            chat.prompt.action_send()
            await self.until(lambda: chat.state.busy or bool(chat.transcript.answer))
            if self.state == "full":
                await self.until(lambda: not chat.state.busy)
        if self.state == "empty" and chat.transcript.turns:
            self.session.gate = None
            await self.until(lambda: not chat.state.busy)
            await chat.transcript.clear()
        if chat.prompt.text:
            chat.prompt.text = ""
        if opener is None:
            return chat
        screen = opener(app)
        await app.push_screen(screen)
        await self.pause()
        return screen

    async def walk(
        self,
        opener: Opener | None,
        enter: Callable[[Screen[object]], None] = lambda screen: None,
        *,
        special: bool = False,
    ) -> int:
        """Press every key with the focus on each kind of widget, once. `enter` prepares the screen; where that makes it
        a `special` one, the keys of the widgets themselves are pressed once more."""
        count = 0
        screen = await self.stand(opener)
        enter(screen)
        await self.pause()
        kinds = list(dict.fromkeys(type(one) for one in screen.focus_chain)) or [None]
        for kind in kinds:
            for key, what in list(self._keys(screen, kind)):
                press = (type(screen) if what else kind, key, what, enter if special else None)
                if press in self.pressed or (special and what is not None and what[0] is not kind):
                    continue
                self.pressed.add(press)
                if screen is not self.app.screen or (self.state == "answering" and not self.app.chat.state.busy):
                    screen = await self.stand(opener)
                    enter(screen)
                    await self.pause()
                self._focus(screen, kind)
                self.app.post_message(Key(key, key if len(key) == 1 else None))
                await self.pause()
                count += 1
                assert self.app._exception is None, (self.state, type(screen), kind, key, what)
                assert self.app.is_running, (self.state, type(screen), kind, key, what)
        return count

    def _focus(self, screen: Screen[object], kind: type[Widget] | None) -> None:
        focus = next((one for one in screen.focus_chain if type(one) is kind), None)
        screen.set_focus(focus)

    def _keys(self, screen: Screen[object], kind: type[Widget] | None) -> Iterator[tuple[str, tuple[type, str] | None]]:
        """Keys, each with the class and the action of its binding."""
        self._focus(screen, kind)
        for key, active in screen.active_bindings.items():
            if not is_nowhere(key):
                yield key, (type(active.node), active.binding.action)
        ours = kind is not None and kind.__module__.startswith("dflash_tui.")
        for key in PLAIN if ours else PLAIN[:2]:
            yield key, None


SIZES = ((80, 24), (2, 60), (120, 40), (80, 1))
STATES = ("full", "answering", "empty")
# Which of the screens are walked in each run of the tests, as slices: from which one on, and every how many. Together
# these are an eighth of the screens; make test-full walks the rest.
EVERY = slice(0, None, 1)
ALWAYS = {((80, 24), "full"): slice(0, None, 16), ((2, 60), "empty"): slice(2, None, 32),
          ((80, 1), "answering"): slice(10, None, 32)}  # fmt: skip


@pytest.mark.parametrize(
    ("size", "state"),
    [
        pytest.param(size, state, marks=() if (size, state) in ALWAYS else pytest.mark.full, id=f"{size}-{state}")
        for size in SIZES
        for state in STATES
    ],
)
async def test_no_key_ends_the_app(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: tuple[int, int], state: str
) -> None:
    monkeypatch.chdir(tmp_path)  # exports go there
    left: list[int] = []
    monkeypatch.setattr(DFlashApp, "_leave", lambda self, code=0: left.append(code))
    session = FakeSession(answer=SHORT, thinking="")
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        walk = Walk(pilot, session, state, drawn=(size, state) not in ALWAYS)
        count = 0
        dealt = ALWAYS.get((size, state), EVERY)
        for name in TABS[dealt]:
            count += await walk.walk(None, lambda screen, name=name: app.chat.inspector.enter(name))
        count += await walk.walk(None, completing, special=True)
        for opener in (*PAGE_OPENERS.values(), *DIALOGS.values())[dealt]:
            count += await walk.walk(opener)
        count += await walk.walk(PAGE_OPENERS["chats"], searching, special=True)
        assert count > 150 // dealt.step
        assert left or state == "answering", "Ctrl+Q was among them; in mid-answer the app asks first"
        await pilot.pause()
        await walk.stand(None)
        app.chat.parts.sending.flow.stop()
        await wait_until(pilot, lambda: not app.chat.state.busy)


SHORT = "Each turn that is shown costs time with every key, so this is a short one: **few** words, and `code`.\n"


async def test_a_palette_closed_while_it_searches_ends_quietly(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        for text in ("x", "y"):
            await app.push_screen(Palette(id="--command-palette"))
            await pilot.pause()
            app.post_message(Key(text, text))
            palette = app.screen
            assert isinstance(palette, Palette)
            await palette.dismiss()
            palette._gather_commands(text)  # the text's own message comes after the one that closes
            await pilot.pause()
        assert app._exception is None


def completing(screen: Screen[object]) -> None:
    """A command is being typed, and completions are offered."""
    assert isinstance(screen, ChatScreen)
    screen.prompt.focus()
    screen.prompt.text = "/s"


def searching(screen: Screen[object]) -> None:
    """The list of conversations is narrowed by a search."""
    assert isinstance(screen, ChatsScreen)
    screen.action_search()
    screen.focused.value = "hello"  # type: ignore[union-attr]


def test_nothing_is_looked_up_by_a_text_made_at_run_time() -> None:
    """A composed selector may be invalid; widgets found by name are kept instead."""
    lookups = {"query", "query_one", "query_exactly_one", "query_children", "get_widget_by_id", "get_child_by_id"}
    found = []
    for path in sorted(Path(dflash_tui.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in lookups:
                for one in node.args[:1]:
                    if path.parent.name != "store" and not is_selector(one):
                        found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "focus('" in node.value:
                found.append(f"{path.name}:{node.lineno}: {node.value}")
    assert found == []


def is_selector(node: ast.expr) -> bool:
    """A class, or a constant text."""
    if isinstance(node, ast.Name):
        return node.id.lstrip("_")[:1].isupper()
    return isinstance(node, ast.Constant)


@pytest.mark.parametrize("turns", [(0, 4), *(full((n,)) for n in (0, 1, 2, 3, 4, 6, 8, 12))], ids=str)
async def test_a_screen_may_close_before_it_is_drawn(make_app: MakeApp, turns: tuple[int, ...]) -> None:
    """`turns` of the loop later, dealt to the screens one after the other."""
    app = make_app()
    async with app.run_test() as pilot:
        await loaded(pilot)
        for opener, later in zip((*PAGE_OPENERS.values(), *DIALOGS.values()), itertools.cycle(turns), strict=False):
            screen = opener(app)
            app.push_screen(screen)
            for _ in range(later):
                await asyncio.sleep(0)
            screen.dismiss()
            await wait_until(pilot, lambda: app.screen is app.chat)
            assert app._exception is None, type(screen)


async def test_a_click_on_what_is_gone(make_app: MakeApp) -> None:
    """What was removed stays on the screen until the next frame."""
    app = make_app()
    async with app.run_test() as pilot:
        await answered(pilot)
        [turn] = app.chat.transcript.turns
        text = turn.query_one(".user-text")
        x, y = text.content_region.offset
        seen = app.screen.get_widget_and_offset_at
        await turn.remove()
        app.screen.get_widget_and_offset_at = lambda x, y: (text, seen(x, y)[1] or Offset(0, 0))  # as before a frame
        app.post_message(MouseDown(None, x, y, 0, 0, 1, False, False, False))
        await pilot.pause()
        assert not text.is_attached
        # The end of a selection that began elsewhere.
        app.screen._selecting = True
        app.post_message(MouseUp(None, x, y, 0, 0, 1, False, False, False))
        await wait_until(pilot, lambda: not app.screen._selecting)
