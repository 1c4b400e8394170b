"""The main states as text at the three sizes. `pytest tests/tui --update-snapshots` rewrites them; read the diff."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dflash_core.errors import DFlashError
from dflash_tui.app import DFlashApp
from dflash_tui.application.engine_session import load_session
from dflash_tui.application.session import LoadRequest
from dflash_tui.widgets import flash
from dflash_tui.widgets.flash import Note

from .conftest import SIZES
from .fake import FakeSession
from .scenes import QUESTION, answered, scene, send, still
from .support import HANGS_S, bare_text, idle, loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]
Snapshot = Callable[[str, str], None]
Size = tuple[int, int]

PICTURE = Path(__file__).parents[2] / "docs" / "screenshot.svg"


def name(size: Size, state: str) -> str:
    return f"{size[0]}x{size[1]}-{state}"


async def test_empty(make_app: MakeApp, snapshot: Snapshot) -> None:
    app = make_app(FakeSession(notes=("the file has no chat template: plain ChatML is used",)))
    async with app.run_test(size=SIZES[0]) as pilot:
        await loaded(pilot)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await shows(pilot, "mem 13.8")
            snapshot(name(size, "empty"), await settled(pilot))


async def test_answer_and_its_retry(make_app: MakeApp, snapshot: Snapshot) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=SIZES[0]) as pilot:
        await answered(pilot)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            snapshot(name(size, "answer"), await settled(pilot))
        session.answer = "A second answer, shorter than the first."
        await pilot.press("ctrl+r")
        await idle(pilot)
        still(app)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await shows(pilot, "‹2/2›")
            snapshot(name(size, "retried"), await settled(pilot))


async def test_panels(make_app: MakeApp, snapshot: Snapshot, size: Size) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await answered(pilot)
        for key, state in (("f3", "stats"), ("f4", "tree"), ("f5", "memory"), ("f2", "params")):
            await pilot.press(key)
            await pilot.pause()
            if state == "params":
                await pilot.press("right", "right")
            still(app)
            await pilot.pause()
            snapshot(name(size, state), await settled(pilot))


async def test_error(make_app: MakeApp, snapshot: Snapshot) -> None:
    app = make_app(FakeSession(fail_after=6))
    async with app.run_test(size=SIZES[0]) as pilot:
        await loaded(pilot)
        await send(pilot, QUESTION)
        await wait_until(pilot, lambda: bool(app.chat.query(Note)))
        await idle(pilot)
        app.chat.inspector.active = "memory"
        meter = app.chat.state.turn.meter
        assert meter is not None
        meter.first_at = meter.last_at  # no report, so no clock that could be scripted
        app.chat.transcript.answer.place(1, 1)  # type: ignore[union-attr]
        still(app)
        for size in SIZES[:2]:
            await pilot.resize_terminal(*size)
            text = "\n".join(line for line in (await settled(pilot)).splitlines() if "tok/s" not in line) + "\n"
            snapshot(name(size, "error"), text)


STATES = [("", "answer"), ("f2", "params"), ("f3", "stats"), ("f4", "tree"), ("f5", "memory"), ("f1", "help")]


# Sizes differ as they do with color: each state is seen at one of the ends; with `full` at all.
@pytest.mark.parametrize(
    ("size", "key", "state"),
    [
        pytest.param(
            size,
            *state,
            marks=() if turn == (0, 2)[at % 2] else pytest.mark.full,
            id=f"{state[0]}-{state[1]}-{size[0]}x{size[1]}",
        )
        for at, state in enumerate(STATES)
        for turn, size in enumerate(SIZES)
    ],
)
async def test_without_color(
    make_app: MakeApp, snapshot: Snapshot, no_color: None, size: Size, key: str, state: str
) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await answered(pilot)
        if key:
            await pilot.press(key)
        await pilot.pause()
        if state == "params":
            await pilot.press("right", "right")
        if state != "help":
            still(app)
        snapshot(f"bare-{name(size, state)}", await settled(pilot, bare_text))


async def test_load_failed(make_app: MakeApp, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "MIN_S", HANGS_S)  # the notice stays, however slow the machine is

    def load(progress: object) -> FakeSession:
        raise DFlashError(
            "x.gguf: tensor blk.3.attn_q.weight ends 1,204 bytes past the file; it is truncated: fetch it"
        )

    app = make_app(load=load)
    async with app.run_test(size=SIZES[0]) as pilot:
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await shows(pilot, "the model did not load")
            snapshot(name(size, "load-failed"), await settled(pilot))


async def test_loading(make_app: MakeApp, snapshot: Snapshot) -> None:
    done = threading.Event()

    def load(progress: Callable[[str, float], None]) -> FakeSession:
        progress("target weights", 0.42)
        done.wait(600)
        return FakeSession()

    app = make_app(load=load)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "42%")
        lines = screen_text(app).splitlines()
        line = next(line for line in lines if "loading:" in line)
        snapshot("80x24-loading-line", line.split("%")[0] + "%\n")
        done.set()
        await loaded(pilot)


async def test_help(make_app: MakeApp, snapshot: Snapshot) -> None:
    app = make_app()
    async with app.run_test(size=SIZES[0]) as pilot:
        await loaded(pilot)
        await pilot.press("f1")
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await shows(pilot, "Esc closes")
            snapshot(name(size, "help"), await settled(pilot))


async def test_tiny(make_app: MakeApp, snapshot: Snapshot) -> None:
    app = make_app()
    async with app.run_test(size=(38, 10)) as pilot:
        await shows(pilot, "38x10")
        snapshot("38x10-tiny", await settled(pilot))


async def test_picture_of_the_readme(make_app: MakeApp, request: pytest.FixtureRequest) -> None:
    """The demo pair answers. Written with `--update-snapshots` or where it is missing; otherwise only tried."""
    demo = LoadRequest()
    app = make_app(load=partial(load_session, demo))
    async with app.run_test(size=(120, 40)) as pilot:
        await scene(pilot)
        svg = app.export_screenshot(title="dflash-tui")
    assert svg.startswith("<svg")
    assert "tok/step" in svg
    if request.config.getoption("--update-snapshots", default=False) or not PICTURE.exists():
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(svg, encoding="utf-8")
