"""What a pair takes, before it is loaded: the screen of the model picker, by the same figures as `dflash-tui plan`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from dflash_core.backends.cuda.memory_estimator import CardMemoryEstimator
from dflash_core.fits import Setup, plan
from dflash_core.memory import OTHERS, PROGRAM, Component, MemoryBreakdown
from dflash_tui.app import DFlashApp
from dflash_tui.application.hub.fitting import FitCheck
from dflash_tui.application.session import LoadRequest
from dflash_tui.chat.program import ProgramController
from dflash_tui.screens import models
from dflash_tui.screens import plan as screen
from dflash_tui.screens.get import GetScreen
from dflash_tui.screens.models import ModelsScreen
from dflash_tui.screens.plan import PlanScreen, bar, drawn
from support.grids import full
from support.reckoned import estimator

from .fake import FakeSession, loader
from .support import leave, loaded, screen_text, settled, shows, wait_until

GIB = 1 << 30
SIZES = [(80, 24), (120, 40)]


def app_of(make_app: Callable[..., DFlashApp], requests: list[LoadRequest]) -> DFlashApp:
    def loaders(request: LoadRequest) -> object:
        requests.append(request)
        return loader(FakeSession(title="another"))

    return make_app(loaders=loaders)


async def opened(pilot: Pilot[int], app: DFlashApp, path: Path) -> None:
    """The plan of a file that is typed into the picker."""
    await loaded(pilot)
    app.push_screen(ModelsScreen(app.chat.parts))
    await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))
    app.screen.query_one("#models-target").value = str(path)  # type: ignore[attr-defined]
    await pilot.press("f5")
    await wait_until(pilot, lambda: isinstance(app.screen, PlanScreen))
    await shows(pilot, "fits up to")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is planned for a card of 24 GiB, whatever this machine has."""
    monkeypatch.setattr(screen, "estimator_of", lambda request: estimator(24 * GIB, "Q8_0"))
    monkeypatch.setattr(models, "machine", lambda: "a machine")
    monkeypatch.setattr(ProgramController, "releasable", 0)
    monkeypatch.chdir(tmp_path)
    file = Path("model.gguf")
    file.write_bytes(b"GGUF")
    return file


@pytest.mark.parametrize("size", SIZES)
async def test_arrows_change_it_and_enter_loads_it_so(
    size: tuple[int, int], make_app: Callable[..., DFlashApp], snapshot: Callable[[str, str], None], path: Path
) -> None:
    requests: list[LoadRequest] = []
    app = app_of(make_app, requests)
    name = f"{size[0]}x{size[1]}-plan"
    async with app.run_test(size=size) as pilot:
        await opened(pilot, app, path)
        snapshot(name, await settled(pilot))
        for _ in range(2):
            await pilot.press("right")
        await shows(pilot, "131,072 positions", "does not fit", "helps")
        snapshot(f"{name}-short", await settled(pilot))
        await pilot.press("down", "down")
        await shows(pilot, "keys and values as q8_0", "to spare")
        await pilot.press("left", "up", "down", "right")
        await shows(pilot, "131,072 positions", "to spare")
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(requests) == 1)
        await wait_until(pilot, lambda: app.screen is app.chat)
    [asked] = requests
    assert (asked.target, asked.context, asked.kv) == (path, 131_072, "q8_0")


async def test_what_the_present_pair_holds_is_room(
    make_app: Callable[..., DFlashApp], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The present pair is unloaded before another one is loaded. Without its memory a full card had room for
    nothing."""
    monkeypatch.setattr(screen, "estimator_of", lambda request: estimator(10 * GIB, "Q8_0"))
    monkeypatch.setattr(ProgramController, "releasable", 14 * GIB)
    app = app_of(make_app, [])
    async with app.run_test(size=(100, 30)) as pilot:
        await opened(pilot, app, path)
        await shows(pilot, "to spare")


async def test_the_program_itself_stays_in_memory(make_app: Callable[..., DFlashApp]) -> None:
    parts = Component("target", 3 * GIB), Component(OTHERS, 4 * GIB), Component(PROGRAM, GIB)
    session = FakeSession()
    session.memory = lambda: MemoryBreakdown("this machine", parts, 16 * GIB, 8 * GIB)  # type: ignore[method-assign]
    app = make_app(session)
    async with app.run_test() as pilot:
        await loaded(pilot)
        assert app.chat.parts.program.releasable == 3 * GIB


async def test_a_pair_that_is_not_here_is_planned_and_then_fetched(
    make_app: Callable[..., DFlashApp], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its shapes; Enter asks for the download instead of a load."""
    planned = list[tuple[str, str]]()

    def reckoned(request: LoadRequest) -> CardMemoryEstimator:
        planned.append(request.shapes)
        return estimator(24 * GIB, "Q8_0")

    monkeypatch.setattr(screen, "estimator_of", reckoned)
    monkeypatch.setattr(models, "fit_check", lambda request, freed: FitCheck(512, 512, 1 << 30, 0, "a card"))
    requests: list[LoadRequest] = []
    app = app_of(make_app, requests)
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        app.push_screen(ModelsScreen(app.chat.parts, only="qwen3.8-27b"))
        await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        await pilot.press("f5")
        await wait_until(pilot, lambda: isinstance(app.screen, PlanScreen))
        await shows(pilot, "What qwen3.8-27b takes", "fits up to", "fetches it")
        assert planned == [("27b-dflash2", "Q8_0")]
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, GetScreen))
    assert not requests


async def test_esc_leaves_everything_as_it_was(make_app: Callable[..., DFlashApp], path: Path) -> None:
    requests: list[LoadRequest] = []
    app = app_of(make_app, requests)
    async with app.run_test(size=(100, 30)) as pilot:
        await opened(pilot, app, path)
        await pilot.press("right", "escape")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        await pilot.press("escape")  # what was typed
        await leave(pilot)
    assert not requests


async def test_a_file_that_is_no_model_is_one_line(make_app: Callable[..., DFlashApp], tmp_path: Path) -> None:
    file = tmp_path / "no.gguf"
    file.write_bytes(b"nonsense")
    app = app_of(make_app, [])
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        app.push_screen(PlanScreen(app.chat.parts, file, None))
        await wait_until(pilot, lambda: "reading the headers" not in screen_text(app))
        await shows(pilot, "no.gguf")
        await pilot.press("right", "down", "enter", "escape")
        await wait_until(pilot, lambda: app.screen is app.chat)


@pytest.mark.parametrize("memory", [full(12), 16, 24, 80])
def test_the_bar_is_the_card(memory: int) -> None:
    """The bar has its full width, divided by the components' shares; red is what does not fit, and only that."""
    made = estimator(memory * GIB)
    for context in (512, 65_536, 262_144):
        found = plan(made, Setup(context))
        cells = bar(found, 50)
        assert sum(len(text) for text, _ in cells) == 50
        red = sum(len(text) for text, colour in cells if colour == "$error")
        over = max(found.total - found.available, 0) / max(found.total, found.available)
        assert abs(red - 50 * over) <= 1
        assert (red > 0) <= (not found.fits)
        assert "fits" in drawn(found).plain
        assert "frees" not in drawn(found).plain
        assert "and 512.0 MiB that the present pair frees" in drawn(found, GIB // 2).plain
