"""Downloads from a hub in the app: confirmed first, then in the dialog or the background, until they or the app end."""

from __future__ import annotations

import errno
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from dflash_tui.app import DFlashApp
from dflash_tui.application import fetching
from dflash_tui.application.hub import fetch, files
from dflash_tui.application.hub.catalogue import load_catalogue
from dflash_tui.application.hub.files import begun
from dflash_tui.application.settings.config import user_file
from dflash_tui.chat import downloads as holder
from dflash_tui.chat.offered import PAIR
from dflash_tui.launch import open_app
from dflash_tui.screens.get import GetScreen
from dflash_tui.screens.models import FIRST, ModelsScreen
from dflash_tui.widgets.strip import TitleRow
from support.grids import full
from support.hub_server import BODY, Hub

from .model_machine import PAIRS, Opened
from .scenes import answered, send
from .support import loaded, screen_text, settled, shows, smallest, wait_until

MakeApp = Callable[..., DFlashApp]
SIZES = [(80, 24), (120, 40)]
HALF = "get 50 %"  # what the hub's slow files stop at


@pytest.fixture(autouse=True)
def notices_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep notices on the screen, however long a busy machine takes to look at them."""
    monkeypatch.setattr(holder, "TOAST_S", 3600.0)


@pytest.fixture
def folder(model_home: Path) -> Path:
    return model_home / "xdg_data_home" / "dflash-tui" / "models"


async def command(pilot: Pilot[int], text: str) -> None:
    """Type a command in the chat, as soon as nothing covers it."""
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await wait_until(pilot, lambda: app.screen is app.chat)
    await send(pilot, text)


async def said(pilot: Pilot[int], text: str) -> None:
    """Wait until a notice was shown; it may have faded since."""
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await wait_until(pilot, lambda: text in app.notices.page())


async def get(pilot: Pilot[int], name: str) -> GetScreen:
    """Open the dialog of a pair, and confirm the download."""
    await command(pilot, f"/get {name}")
    await shows(pilot, "Enter fetches it")
    await pilot.press("enter")
    assert isinstance(pilot.app.screen, GetScreen)
    return pilot.app.screen


async def in_background(pilot: Pilot[int], name: str) -> None:
    """Leave the download of a slow pair half done, and go back to the chat."""
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await get(pilot, name)
    await shows(pilot, "The download continues when you leave.", "b to the chat")
    await pilot.press("escape")
    await wait_until(pilot, lambda: app.screen is app.chat)
    await said(pilot, f"{name} is being fetched in the background: Ctrl+G shows it")


def title(app: DFlashApp) -> str:
    return app.chat.query_one(TitleRow).downloads[0]


def running(app: DFlashApp) -> list[str]:
    return [one.pair.name for one in app.chat.parts.downloads if one.state == "running"]


def states(app: DFlashApp) -> dict[str, str]:
    return {one.pair.name: one.state for one in app.chat.parts.downloads}


@pytest.mark.parametrize("size", SIZES)
async def test_a_pair_is_fetched_and_loaded(
    make_app: MakeApp, hub: Hub, folder: Path, size: tuple[int, int], snapshot: Callable[[str, str], None]
) -> None:
    it = Opened(make_app)
    async with it.app.run_test(size=size) as pilot:
        await it.open(pilot, "/get")
        await it.to(pilot, f"{PAIR}tiny")
        await shows(pilot, "Enter Get")
        it.screen.set_focus(it.screen._field)
        await shows(pilot, "Enter Get")
        it.screen.set_focus(it.screen._list)
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(it.app.screen, GetScreen))
        await shows(pilot, "licence  mit", "3.0 MiB", "6.0 MiB", "fits: about 1.6 GiB of 32.0 GiB", "Enter fetches it")
        snapshot(f"{size[0]}x{size[1]}-get", await settled(pilot))
        assert hub.gets == [], "not a byte before it is agreed to"
        await pilot.press("enter")
        await shows(pilot, "complete and checked", "Enter loads it")
        await pilot.press("enter")
        await it.closed(pilot)
        [one] = it.asked
        assert (one.target, one.draft) == (folder / "o--good" / "tiny.gguf", folder / "o--also" / "d.gguf")
        assert one.target.read_bytes() == BODY
        await wait_until(pilot, lambda: title(it.app) == "")


@smallest
async def test_it_goes_on_behind_the_chat(make_app: MakeApp, hub: Hub, folder: Path, size: tuple[int, int]) -> None:
    """The chat answers meanwhile, the title row says how far it is, and its end takes nothing of what is typed."""
    it = Opened(make_app)
    async with it.app.run_test(size=size, notifications=True) as pilot:
        await loaded(pilot)
        await in_background(pilot, "slow-1")
        await shows(pilot, HALF, "Ctrl+G Download")
        await answered(pilot)
        await pilot.press(*"typing")
        hub.stalled.set()
        await shows(pilot, "slow-1 is complete. Ctrl+G, then Enter, loads it", "get done: Ctrl+G")
        assert it.app.screen is it.app.chat
        await pilot.press(*"more")
        assert it.app.chat.prompt.text == "typingmore"
        assert not it.asked, "nothing is loaded that nobody asked for"
        await pilot.press("ctrl+g")
        await shows(pilot, "complete and checked", "Enter loads it")
        await wait_until(pilot, lambda: "slow-1 is here" not in screen_text(it.app))  # no notice lies over it
        await pilot.press("enter")
        await it.closed(pilot)
        assert [one.target for one in it.asked] == [folder / "o--slow" / "m.gguf"]
        assert it.app.chat.prompt.text == "typingmore"
        await wait_until(pilot, lambda: title(it.app) == "")
    assert len(hub.gets) == 1, "once"


async def test_a_reload_does_not_end_it(make_app: MakeApp, hub: Hub) -> None:
    it = Opened(make_app)
    async with it.app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        before = it.app.chat.state.session
        await in_background(pilot, "slow-1")
        await shows(pilot, HALF)
        await send(pilot, "/reload 8192")
        await wait_until(pilot, lambda: it.app.chat.state.session not in (None, before))
        assert [one.context for one in it.asked] == [8192]
        assert running(it.app) == ["slow-1"]
        hub.stalled.set()
        await wait_until(pilot, lambda: states(it.app) == {"slow-1": "fetched"})
    assert len(hub.gets) == 1, "once"


async def test_the_list_shows_it_and_opens_it_again(make_app: MakeApp, hub: Hub) -> None:
    it = Opened(make_app)
    async with it.app.run_test(size=(120, 40)) as pilot:
        await it.open(pilot)
        await it.fetch(pilot, "slow-2")
        await shows(pilot, "s stops it")
        await pilot.press("escape")
        await wait_until(pilot, lambda: isinstance(it.app.screen, ModelsScreen))
        await said(pilot, "slow-2 is being fetched in the background")
        await shows(pilot, "50 % of 3.0 MiB")
        first = next(one for one in it.screen._offered.rows(()) if (one.id or "").startswith(PAIR))
        assert first.id == f"{PAIR}slow-2", "those that are fetched first"
        await pilot.press("enter")
        await shows(pilot, "1.5 MiB of 3.0 MiB", "b to the chat")
        await pilot.press("b")
        await wait_until(pilot, lambda: it.app.screen is it.app.chat)
        await shows(pilot, HALF)
        await command(pilot, "/get slow-2")
        await shows(pilot, "s stops it")
        await pilot.press("escape")
        await command(pilot, "/models")
        await shows(pilot, "50 % of 3.0 MiB")
        await pilot.press("ctrl+g")
        await shows(pilot, "s stops it")
        assert len(hub.gets) == 1, "at most one of a pair"
        hub.stalled.set()
        await shows(pilot, "complete and checked")
        await pilot.press("escape")
        await said(pilot, "slow-2 is on this machine: /models loads it")
        await pilot.press("ctrl+g")
        await said(pilot, "no download runs")


async def test_two_at_once_and_the_others_wait(make_app: MakeApp, hub: Hub) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await in_background(pilot, "slow-1")
        await get(pilot, "twin")
        await shows(pilot, "waits until another download is over", "The download begins by itself")
        await pilot.press("escape")
        await in_background(pilot, "slow-2")
        await get(pilot, "slow-3")
        await shows(pilot, "waits until another download is over")
        await pilot.press("b")
        await wait_until(pilot, lambda: app.screen is app.chat)
        await wait_until(pilot, lambda: states(app)["slow-3"] == "waiting")
        assert running(app) == ["slow-1", "slow-2"], "twin has a file of slow-1"
        assert title(app).startswith("get 4, ")
        await command(pilot, "/get slow-3")
        await shows(pilot, "s stops it")
        await pilot.press("s")
        await shows(pilot, "stopped; ", "Enter resumes it")
        await pilot.press("escape")
        await wait_until(pilot, lambda: "slow-3" not in states(app))
        hub.stalled.set()
        await wait_until(pilot, lambda: set(states(app).values()) == {"fetched"})
        assert set(states(app)) == {"slow-1", "slow-2", "twin"}


async def test_s_ends_it_and_says_what_is_kept(make_app: MakeApp, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT_S", 3600.0)
    it = Opened(make_app)
    async with it.app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await in_background(pilot, "slow-1")
        await shows(pilot, HALF)
        await pilot.press("ctrl+g")
        await shows(pilot, "s stops it, keeps the received part")
        await pilot.press("s")  # the hub does not reply any more, and is not waited for
        await shows(pilot, "stopped; ", "Enter resumes it")
        assert "the next try continues there" in re.sub(r"[│\s]+", " ", screen_text(it.app))
        hub.stalled.set()
        await pilot.press("enter")
        await shows(pilot, "complete and checked")
        assert any(one not in ("", "bytes=0-") for one in hub.gets), "gone on with"
        await pilot.press("escape")
        await it.closed(pilot)
    assert not it.asked


async def test_what_is_seen_before_the_next_look_is_told_no_more(
    make_app: MakeApp, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a dialog has shown is not announced again by the holder's timer, even if the dialog has closed by then, or
    the same pair is fetched again."""
    monkeypatch.setattr(holder, "LOOK_S", 3600.0)
    app = make_app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await loaded(pilot)
        await get(pilot, "slow-1")
        await shows(pilot, "s stops it")
        await pilot.press("s")
        hub.stalled.set()
        await shows(pilot, "stopped; ")
        await pilot.press("enter")
        await shows(pilot, "waits until")
        app.chat.parts.downloads._look()
        assert states(app)["slow-1"] in ("running", "fetched")  # it is fast now
        await shows(pilot, "complete and checked")
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        app.chat.parts.downloads._look()
        await pilot.pause()
        assert (states(app), title(app)) == ({}, "")
        assert "is here" not in screen_text(app)


async def test_a_hub_that_refuses_is_a_line(make_app: MakeApp, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TRIES", 1)
    it = Opened(make_app)
    async with it.app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await command(pilot, "/get lost")
        await shows(pilot, "not on the hub (404)", "Enter tries again")
        await pilot.press("escape")
        await it.closed(pilot)
        await get(pilot, "broken")
        await shows(pilot, "saved in", "Enter tries again")
        await pilot.press("enter")
        await shows(pilot, "complete and checked")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bad-secret", "refused (401): the repository does not exist, or needs a token"),
        ("lost", "not on the hub (404)"),
        ("bad-busy", "429: too many requests); try again in 7 s"),
        ("bad-page", "check HF_ENDPOINT"),
    ],
)
async def test_each_refusal_is_said_in_the_dialog_and_esc_leaves_it(
    make_app: MakeApp, hub: Hub, name: str, why: str
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await command(pilot, f"/get {name}")
        await shows(pilot, "Enter tries again")
        shown = re.sub(r"[│\s]+", " ", screen_text(app))
        assert why in shown
        await pilot.press("enter")
        await shows(pilot, "Enter tries again")
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert states(app) == {}, "nothing was begun"


@pytest.mark.parametrize("silent", ["HEAD", "bytes"])
async def test_esc_leaves_a_hub_that_says_nothing(make_app: MakeApp, hub: Hub, silent: str) -> None:
    """Before the file's details arrive, nothing is kept. Amid a file the download goes on, and the key s keeps what is
    here."""
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        hub.silent = silent
        if silent == "HEAD":
            await command(pilot, "/get tiny")
            await wait_until(pilot, hub.fell_silent.is_set)
            await pilot.press("escape")
            await wait_until(pilot, lambda: app.screen is app.chat)
            assert states(app) == {}
            return
        await get(pilot, "tiny")
        await wait_until(pilot, hub.fell_silent.is_set)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert running(app) == ["tiny"]
        await pilot.press("ctrl+g")
        await shows(pilot, "s stops it, keeps the received part")
        await pilot.press("s")
        await shows(pilot, "Enter resumes it")
        assert not hub.stalled.is_set(), "the hub still says nothing"


async def test_what_breaks_off_in_the_background_is_told(
    make_app: MakeApp, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "TRIES", 1)
    receive = fetch._receive

    def when_left(*given: Any) -> None:
        hub.stalled.wait(600)
        receive(*given)

    monkeypatch.setattr(fetch, "_receive", when_left)
    it = Opened(make_app)
    async with it.app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        await in_background(pilot, "broken")
        await pilot.press(*"typing")
        hub.stalled.set()
        await shows(pilot, "broken at 50 %", "o/cut/m.gguf: the connection broke off", "get failed: Ctrl+G")
        assert it.app.chat.prompt.text == "typing"
        assert it.app.focused is it.app.chat.prompt
        await pilot.press("ctrl+g")
        await shows(pilot, "saved in", "Enter tries again")
        await pilot.press("enter")
        await shows(pilot, "complete and checked")
        assert hub.gets[0] == "bytes=0-"
        assert hub.gets[1] != "bytes=0-", "gone on with"


async def test_a_disk_that_fills_up_in_the_background(
    make_app: MakeApp, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free space counts once: a second download may not use what the first one has yet to fetch."""
    it = Opened(make_app)
    received = fetch._receive
    free = files.SPARE + len(BODY) + (1 << 20)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free})())

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            if hub.stalled.is_set():
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    def fills(url: str, one: Any, file: Any, told: Callable[..., None]) -> None:
        with Full(file.name, "a") as full:
            received(url, one, full, told)  # type: ignore[arg-type]

    monkeypatch.setattr(fetch, "_receive", fills)
    async with it.app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        await in_background(pilot, "slow-1")
        await shows(pilot, HALF)
        await command(pilot, "/get slow-2")
        await shows(
            pilot, "3.0 MiB to fetch", "260.0 MiB free", "free some space"
        )  # where it wraps depends on the path
        await pilot.press("escape")
        hub.stalled.set()
        await shows(pilot, "slow-1 at 50 %", "no space left on the disk", "get failed: Ctrl+G")
        assert begun(PAIRS["slow-1"], folder)[0] > len(BODY) // 3
        monkeypatch.setattr(fetch, "_receive", received)
        await pilot.press("ctrl+g")
        await shows(pilot, "Enter tries again")
        await pilot.press("enter")
        await shows(pilot, "complete and checked")


async def test_a_hub_that_stops_sending_is_seen(make_app: MakeApp, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "QUIET_S", 0.0)
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await in_background(pilot, "slow-1")
        await shows(pilot, HALF)
        await pilot.press("ctrl+g")
        await shows(pilot, "m.gguf: nothing received for")
        await pilot.press("escape")
        await command(pilot, "/models")
        await shows(pilot, "50 % of 3.0 MiB, nothing received for")


async def test_the_first_start_chats_meanwhile(make_app: MakeApp, hub: Hub) -> None:
    """b leads from the first question to the demo pair; which pair to begin with is asked again until one is chosen."""
    it = Opened(make_app, first_run=True)
    async with it.app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await shows(pilot, FIRST)
        await it.found(pilot)
        await it.fetch(pilot, "slow-1")
        await shows(pilot, "b to the chat")
        await pilot.press("b")
        await it.closed(pilot)
        await shows(pilot, HALF, "Try one")
        assert not user_file().exists()
        assert not it.asked


async def test_quitting_in_the_middle_keeps_what_is_here(make_app: MakeApp, hub: Hub, folder: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await in_background(pilot, "slow-1")
        await shows(pilot, HALF)
        [one] = app.chat.parts.downloads
        await pilot.press("ctrl+q")
        assert one.stopping
    assert app.chat.parts.downloads.last_words() == [
        "the download of slow-1 stopped at 50 %; dflash-tui get slow-1 resumes it"
    ]
    hub.stalled.set()
    assert one.join(600)
    size, whole = begun(PAIRS["slow-1"], folder)
    assert size >= len(BODY) // 2
    assert not whole
    it = Opened(make_app)
    async with it.app.run_test(size=(120, 40)) as pilot:
        await it.open(pilot)
        await shows(pilot, "MiB of it is on this machine")
        await it.fetch(pilot, "slow-1", "of it is on this machine already")
        await shows(pilot, "complete and checked")
    assert hub.gets == ["bytes=0-", f"bytes={size}-"]


async def test_a_restart_goes_on_with_what_is_under_way(
    make_app: MakeApp, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new process asks nothing again; what the user has ended stays ended."""
    monkeypatch.setattr(sys, "argv", ["dflash-tui"])
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await in_background(pilot, "slow-1")
        await in_background(pilot, "slow-2")
        await shows(pilot, "get 2, 50 %")
        going, ended = app.chat.parts.downloads
        ended.stop()
        app.restart("", 0)
        await wait_until(pilot, lambda: going.stopping)
    assert app.again
    assert app.chat.parts.downloads.handed_over == ("slow-1",)
    assert [line.split(" stopped")[0] for line in app.chat.parts.downloads.last_words()] == ["the download of slow-2"]
    hub.stalled.set()
    assert going.join(600)
    assert ended.join(600)
    size, whole = begun(PAIRS["slow-1"], folder)
    assert not whole

    again = make_app()
    async with again.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await said(pilot, "slow-1: the download continues, Ctrl+G shows it")
        await wait_until(pilot, lambda: states(again) == {"slow-1": "fetched"})
    assert begun(PAIRS["slow-1"], folder)[1]
    assert f"bytes={size}-" in hub.gets
    once_more = make_app()
    async with once_more.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        assert not [*once_more.chat.parts.downloads], "they are handed over once"


@pytest.mark.parametrize("text", [full(b""), b"{", full(b"7"), b'["unknown", 3, null]', b"\xff"])
async def test_what_was_handed_over_may_be_anything(make_app: MakeApp, hub: Hub, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "downloads.json").write_bytes(text)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        assert not [*app.chat.parts.downloads]
    assert not app.fault


async def test_a_model_is_not_loaded_into_an_answer(make_app: MakeApp, hub: Hub) -> None:
    """Enter says so in the dialog, which stays open with its pair."""
    it = Opened(make_app)
    async with it.app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await get(pilot, "tiny")
        await shows(pilot, "complete and checked")
        it.app.chat.state.experiment = object()  # type: ignore[assignment]
        await pilot.press("enter")
        await shows(pilot, "a load or an answer is running")
        assert not it.asked
        it.app.chat.state.experiment = None
        await pilot.press("enter")
        await it.closed(pilot)
        assert len(it.asked) == 1


def test_the_end_says_how_to_go_on(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = make_app()
    monkeypatch.setattr(app, "run", lambda **_: 0)
    monkeypatch.setattr(app.chat.parts.downloads, "last_words", lambda: ["the download of x stopped at 3 %"])
    assert open_app(app) == 0
    assert "dflash-tui: the download of x stopped at 3 %\n" in capsys.readouterr().err


def test_a_pause_that_begins_between_two_looks_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    speeds = iter([1.0])
    monkeypatch.setattr(fetching.Fetching, "speed", property(lambda self: next(speeds, 0.0)))
    monkeypatch.setattr(fetching.Fetching, "state", "running")
    it = fetching.Fetching(next(iter(load_catalogue().pairs.values())), tmp_path)
    assert it.words.endswith("under a minute left")
    assert "left" not in it.words


def test_what_is_left_is_said_roughly() -> None:
    said = [fetching.about(left) for left in (0, 20, 40, 600, 3600, 7384)]
    assert said == [
        "under a minute left", "under a minute left", "1 min left", "10 min left", "1 h 0 min left", "2 h 3 min left"
    ]  # fmt: skip


async def test_the_figure_leaves_room_for_the_others(make_app: MakeApp, hub: Hub) -> None:
    for width in (40, 60, 80):
        app = make_app()
        async with app.run_test(size=(width, 24)) as pilot:
            await loaded(pilot)
            app.chat.query_one(TitleRow).downloads = ("get 43 %", "")
            await shows(pilot, "get 43 %")
            row = screen_text(app).splitlines()[0]
            assert len(row) <= width
            assert "ctx " in row
