"""The lab's screens as text, from figures made by hand, and the pictures of the documents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Static

from dflash_core.knobs import Knobs
from dflash_core.lab.results import ExperimentProgress
from dflash_core.lab.whatif import Acceptance, StepTimes
from dflash_tui.app import DFlashApp
from dflash_tui.screens.experiment import ExperimentScreen
from dflash_tui.screens.experiments import ABScreen, SweepScreen
from dflash_tui.screens.lab import LabScreen
from dflash_tui.screens.whatif import WhatIfScreen
from support.measured import PAIR, report_of, sweep_of

from .fake import FakeSession
from .lab_pair import (
    KNOBS,
    asked,
    demo,
    engine,
    finished,
    opened,
    timed,
)
from .support import SIZES, bare_text, leave, loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]
Snapshot = Callable[[str, str], None]
Size = tuple[int, int]
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def app(make_app: MakeApp) -> DFlashApp:
    """The app over the demo pair, with short answers."""
    return make_app(load=demo, knobs=KNOBS)


def scripted() -> FakeSession:
    return FakeSession(knobs=Knobs())


async def test_an_experiment_ends_on_the_screen_that_began_it(make_app: MakeApp) -> None:
    """The timer of a screen below goes on, and it may look first."""
    app = make_app()
    ended: list[str] = []
    over = threading.Event()

    def run() -> Iterator[ExperimentProgress]:
        over.wait()
        yield from ()

    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for page in ("past", "sweep"):
            app.chat.open_page(page)
            await wait_until(
                pilot,
                lambda page=page: (
                    isinstance(app.screen, LabScreen) and {"sweep": "experiment"}.get(page, page) == app.screen.SCOPE
                ),
            )
        below, above = app.screen_stack[-2:]
        assert isinstance(below, LabScreen)
        assert isinstance(above, LabScreen)
        for screen in (below, above):
            over.clear()
            screen.begin(run(), lambda _, screen=screen: ended.append(screen.SCOPE))
            assert app.chat.state.experiment is not None
            over.set()
            assert app.chat.state.experiment.join(60)
            if screen is above:
                below._look()
            screen._look()
            assert app.chat.state.experiment is None
        assert ended == ["past", "experiment"]


async def whatif(pilot: Pilot[int]) -> WhatIfScreen:
    """The what-if screen with a curve that is known."""
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await asked(pilot)
    screen = await opened(pilot, "/whatif", WhatIfScreen)
    assert isinstance(screen, WhatIfScreen)
    screen.costs = StepTimes(timed(nodes) for nodes in (4, 8, 15, 22, 32, 48) for _ in range(6))
    lengths = [(budget, 8 - 6.2 / (1 + budget / 9)) for budget in screen.budgets]
    screen.take("estimate", tuple(Acceptance(budget, length, budget, 40) for budget, length in lengths))
    screen.draw()
    return screen


def measured(screen: ExperimentScreen, *axes: str, **options: object) -> None:
    screen.result = sweep_of(*axes, **options)  # type: ignore[arg-type]
    screen.draw()


async def sweep_screen(pilot: Pilot[int], *axes: str, **options: object) -> None:
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await loaded(pilot)
    screen = SweepScreen(app.chat.parts, " ".join(axes))
    await app.push_screen(screen)
    await pilot.pause()
    screen.query_one("#lab-table").focus()
    measured(screen, *axes, **options)


async def ab_screen(pilot: Pilot[int]) -> None:
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await loaded(pilot)
    screen = ABScreen(app.chat.parts, "drafting=chain | drafting=tree")
    await app.push_screen(screen)
    await pilot.pause()
    screen.query_one("#lab-table").focus()
    result = replace(sweep_of("mode=chain,tree", speeds=(104.2, 131.7), lengths=(4.71, 6.18), base=0), axes=())
    last = result.trials[-1]
    other = report_of(132, 6.18, last.report.knobs, "A fox lived near the sea.")
    screen.result = replace(result, trials=(*result.trials[:-1], replace(last, report=other)))
    screen.draw()


# Without color the other sizes differ as they do with it.
@pytest.mark.parametrize(
    ("size", "bare"),
    [
        pytest.param(
            size,
            bare,
            id=f"{size[0]}x{size[1]}-{'bare' if bare else 'colour'}",
            marks=pytest.mark.full if bare and size != SIZES[0] else (),
        )
        for size in SIZES
        for bare in (False, True)
    ],
)
async def test_snapshots(
    make_app: MakeApp, snapshot: Snapshot, size: Size, bare: bool, request: pytest.FixtureRequest
) -> None:
    if bare:
        request.getfixturevalue("no_color")
    app = make_app(scripted())
    async with app.run_test(size=size) as pilot:
        for state in ("sweep", "sweep2", "ab", "whatif"):
            if state == "whatif":
                await whatif(pilot)
            elif state == "sweep":
                await sweep_screen(pilot, "budget=4,12,20,28")
            elif state == "sweep2":
                await sweep_screen(pilot, "budget=4,12,20,28", "p_min=0..0.2:0.1", prompts=8, repeats=1)
            else:
                await ab_screen(pilot)
            name = f"{size[0]}x{size[1]}-lab-{state}"
            text = await settled(pilot, bare_text if bare else screen_text)
            snapshot(f"bare-{name}" if bare else name, text)
            await leave(pilot)


# What they show is measured in other tests, too.
@pytest.mark.full
@pytest.mark.parametrize("name", ["whatif", "sweep"])
async def test_pictures_of_the_readme(
    app: DFlashApp, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The demo pair, measured. Written with `--update-snapshots` or where missing; otherwise only tried, in short."""
    path = DOCS / f"{name}.svg"
    writes = request.config.getoption("--update-snapshots", default=False) or not path.exists()
    if not writes:
        monkeypatch.setattr(WhatIfScreen, "budgets", (4, 16, 22))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.chat.tuning.set(max_tokens=256 if writes else 16)
        await asked(pilot)
        if name == "whatif":
            await opened(pilot, "/whatif", WhatIfScreen)
            await pilot.press("e")
            await finished(pilot)
            await shows(pilot, "EXACT")
        else:
            await opened(pilot, f"/sweep budget 4..40{'' if writes else ':36 repeats=1'}", SweepScreen)
            await shows(pilot, "tok/s by tree budget", "best")
        svg = app.export_screenshot(title="dflash-tui")
    assert svg.startswith("<svg")
    if writes:
        path.write_text(svg, encoding="utf-8")


def test_the_limits_of_the_support_module_are_those_of_the_pair() -> None:
    assert PAIR.drafter.block == engine().session.capabilities.block


async def test_the_field_of_a_sweep_has_colors_and_is_not_cut(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=SIZES[0]) as pilot:
        await loaded(pilot)
        screen = SweepScreen(app.chat.parts)
        await app.push_screen(screen)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            axes = ("tree_temperature=0.5,1", "p_min=0..0.9:0.1") if size[0] > 100 else ("budget=4,12", "p_min=0,0.1")
            screen.result = sweep_of(*axes, prompts=2, repeats=1)
            screen.draw()
            await pilot.pause()
            field = screen.query_one("#lab-field", Static)
            seen = field.region.intersection(field.parent.content_region)
            assert seen.width == field.region.width >= max(map(cell_len, str(field.visual).splitlines())), size
            strips = [field.render_line(y) for y in range(field.size.height)]
            shown = [one.style for strip in strips for one in strip if one.style and one.text.strip().isdigit()]
            assert len({style.bgcolor for style in shown}) > 2, size
