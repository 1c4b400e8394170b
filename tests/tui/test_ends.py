"""The app may end while anything runs in it: no fault, even on a slow machine."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from textual.events import Unmount
from textual.message import Message
from textual.pilot import Pilot
from textual.screen import Screen

from dflash_core.lab.results import ExperimentProgress
from dflash_tui.app import DFlashApp
from dflash_tui.application.background import Background, Experiment, any_aside, aside
from dflash_tui.application.conversations.comparing import Comparing
from dflash_tui.application.conversations.store import Store
from dflash_tui.application.hub import find
from dflash_tui.application.lab_request import AB
from dflash_tui.chat import background_plain
from dflash_tui.screens.plan import PlanScreen
from support.grids import full
from support.hub_server import Hub

from .all_handled import nothing_ready
from .fake import FakeSession
from .lab_pair import KNOBS, demo
from .scenes import send
from .support import HANGS_S, ask, idle, loaded, wait_until
from .test_every_key import card

MakeApp = Callable[..., DFlashApp]
Act = Callable[["Midst", Pilot[int]], Awaitable[None]]


@dataclass
class Midst:
    """Makes whatever runs in an app wait in `hold` until the app is being ended. `reached`: something waits there."""

    patch: pytest.MonkeyPatch
    make: MakeApp
    hub: Callable[[], Hub]
    app: DFlashApp = field(init=False)
    reached: threading.Event = field(default_factory=threading.Event)
    may: threading.Event = field(default_factory=threading.Event)

    def hold(self) -> None:
        self.reached.set()
        self.may.wait(HANGS_S)

    def holds(self, owner: Any, name: str) -> None:
        """Make a function wait before it does its work."""
        do = getattr(owner, name)

        def held(*args: Any, **named: Any) -> Any:
            self.hold()
            return do(*args, **named)

        self.patch.setattr(owner, name, held)


LOOKS_S = 0.12  # periodic checks have run by then
RUNS: dict[str, tuple[Callable[[Midst], dict[str, Any]], Act]] = {}


def over(options: Callable[[Midst], dict[str, Any]]) -> Callable[[Act], Act]:
    """Register something that runs in an app with these options, under the function's name."""

    def add(act: Act) -> Act:
        RUNS[act.__name__] = (options, act)
        return act

    return add


class StoredConversation(FakeSession):
    """An answer that is held after its first pieces."""

    midst: Midst
    pieces = 4

    def wait(self) -> None:
        self.pieces -= 1
        if self.pieces == 0:
            self.midst.hold()


def held(midst: Midst) -> dict[str, Any]:
    session = StoredConversation()
    session.midst = midst
    return {"session": session}


def plain(midst: Midst) -> dict[str, Any]:
    return {}


def pair(midst: Midst) -> dict[str, Any]:
    """The demo pair, whose experiments are held after their first progress."""

    def work(self: Experiment) -> None:
        parts = self._parts

        def slowly() -> Iterator[ExperimentProgress]:
            for number, one in enumerate(parts):
                yield one
                if number == 0:
                    midst.hold()

        self._parts = slowly()
        run(self)

    run = Experiment.work
    midst.patch.setattr(Experiment, "work", work)
    return {"load": demo, "knobs": KNOBS}


@over(held)
async def a_turn(midst: Midst, pilot: Pilot[int]) -> None:
    await ask(pilot, "hi")


@over(held)
async def a_queue(midst: Midst, pilot: Pilot[int]) -> None:
    for text in ("one", "two", "three"):
        await ask(pilot, text)


@over(held)
async def a_turn_under_a_question(midst: Midst, pilot: Pilot[int]) -> None:
    await ask(pilot, "hi")
    await pilot.press("ctrl+q")


@over(plain)
async def a_load(midst: Midst, pilot: Pilot[int]) -> None:
    midst.app.chat.parts.program._loader = lambda progress: midst.hold()  # type: ignore[assignment, return-value]
    midst.app.chat.parts.program.begin()


@over(plain)
async def a_restore(midst: Midst, pilot: Pilot[int]) -> None:
    await ask(pilot, "hi")
    await idle(pilot)
    chat = midst.app.chat
    await wait_until(pilot, lambda: chat.state.conversation.card is not None)
    midst.holds(Comparing, "lines")
    midst.app.run_worker(chat.parts.conversation.open(chat.state.conversation.card.id))  # type: ignore[union-attr]


@over(plain)
async def a_look_at_the_store(midst: Midst, pilot: Pilot[int]) -> None:
    midst.holds(Store, "look")
    midst.app.chat.run_worker(midst.app.chat.parts.conversation._look())


@over(pair)
async def plain_measuring(midst: Midst, pilot: Pilot[int]) -> None:
    midst.patch.setattr(background_plain, "QUIET_S", 0.001)
    midst.patch.setattr(background_plain, "SLOW_MS", 1e9)
    await ask(pilot, "Tell me a story about a fox.")


async def asked(pilot: Pilot[int]) -> None:
    await ask(pilot, "Tell me a story about a fox.")
    await idle(pilot)


@over(pair)
async def tune(midst: Midst, pilot: Pilot[int]) -> None:
    await send(pilot, "/tune")


@over(pair)
async def sweep(midst: Midst, pilot: Pilot[int]) -> None:
    await asked(pilot)
    await send(pilot, "/sweep budget=4,8")


@over(pair)
async def ab(midst: Midst, pilot: Pilot[int]) -> None:
    await asked(pilot)
    await send(pilot, f"/ab {AB}")


@over(pair)
async def whatif(midst: Midst, pilot: Pilot[int]) -> None:
    await asked(pilot)
    await send(pilot, "/whatif")


@over(plain)
async def headers(midst: Midst, pilot: Pilot[int]) -> None:
    midst.hub()
    midst.holds(find, "read_header")
    await send(pilot, "/models")


@over(plain)
async def a_download(midst: Midst, pilot: Pilot[int]) -> None:
    hub = midst.hub()
    await send(pilot, "/get slow-1")
    await wait_until(pilot, lambda: bool(midst.app.screen.query("#get")))
    downloads = midst.app.chat.parts.downloads
    await wait_until(pilot, lambda: any(one.state == "ready" for one in _fetching(midst)))
    await pilot.press("enter")
    await wait_until(pilot, lambda: any(one.done for one in downloads))
    midst.patch.setattr(midst, "may", hub.stalled)
    midst.reached.set()


def _fetching(midst: Midst) -> list[Any]:
    screen = midst.app.screen
    return [one for one in vars(screen).values() if isinstance(one, Background)]


@over(plain)
async def a_plan(midst: Midst, pilot: Pilot[int]) -> None:
    def make() -> Any:
        midst.hold()
        return card()

    midst.app.push_screen(PlanScreen(midst.app.chat.parts, None, None, make))


@pytest.mark.parametrize(
    "goes_on", ["while the screens go", pytest.param("when the screens are gone", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("name", [full(name) if name in ("whatif", "ab") else name for name in RUNS])
async def test_the_app_may_end_in_the_midst(
    make_app: MakeApp,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    name: str,
    goes_on: str,
) -> None:
    midst = Midst(monkeypatch, make_app, lambda: request.getfixturevalue("hub"))
    options, act = RUNS[name]
    begun: list[Background] = []
    start = Background.start

    def starts(self: Background) -> None:
        begun.append(self)
        start(self)

    monkeypatch.setattr(Background, "start", starts)
    app = midst.app = make_app(**options(midst))
    close_all, dispatch = app._close_all, Screen._dispatch_message

    async def go_on() -> None:
        midst.may.set()
        await asyncio.to_thread(ended)
        await nothing_ready()
        await asyncio.sleep(LOOKS_S)
        await nothing_ready()

    def ended() -> None:
        for one in begun:
            one.stop()
            assert one.join(HANGS_S)

    async def slowly(self: Screen[Any], message: Message) -> None:
        if isinstance(message, Unmount) and goes_on == "while the screens go":
            await go_on()  # its widgets are gone by now
        await dispatch(self, message)

    async def closed() -> None:
        await close_all()
        await go_on()

    monkeypatch.setattr(Screen, "_dispatch_message", slowly)
    monkeypatch.setattr(app, "_close_all", closed)
    with caplog.at_level(logging.ERROR):
        async with app.run_test(size=(120, 40)) as pilot:
            await loaded(pilot)
            await act(midst, pilot)
            await wait_until(pilot, midst.reached.is_set)
    assert not app.fault
    assert app._exception is None
    assert [one.getMessage() for one in caplog.records] == []


@pytest.mark.parametrize("given_up", [False, True])
def test_a_program_that_ends_does_not_wait_for_what_runs_aside(given_up: bool) -> None:
    """Given up: the worker that waited is cancelled, as at quitting; the work goes on, and what it returns is lost."""
    begun, go_on = threading.Event(), threading.Event()
    thread = list[threading.Thread]()

    def work() -> str:
        thread.append(threading.current_thread())
        begun.set()
        go_on.wait(30.0)
        return "done"

    async def program() -> None:
        waiting = asyncio.ensure_future(aside(work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        if given_up:
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(program())
    assert thread[0].is_alive()
    assert any_aside()
    go_on.set()
    thread[0].join(30.0)
