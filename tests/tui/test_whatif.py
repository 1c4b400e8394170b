"""The what-if screen over the demo pair."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.widgets import DataTable, Input

from dflash_core.lab.whatif import StepTimes
from dflash_tui.app import DFlashApp
from dflash_tui.screens.experiments import SweepScreen
from dflash_tui.screens.whatif import WhatIfScreen
from dflash_tui.widgets.dialogs import LineScreen

from .fake import FakeSession
from .lab_pair import (
    KNOBS,
    asked,
    demo,
    finished,
    opened,
    said,
    text_of,
    timed,
    two_drafters,
)
from .scenes import send
from .support import idle, loaded, shows, wait_until

MakeApp = Callable[..., DFlashApp]
TIMED = (2, 4)  # budgets whose steps are timed, beside the turn's own


@pytest.fixture
def app(make_app: MakeApp) -> DFlashApp:
    """The app over the demo pair, with short answers."""
    return make_app(load=demo, knobs=KNOBS)


class TestWhatIf:
    async def test_estimate_exact_and_adopt(
        self, app: DFlashApp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(WhatIfScreen, "budgets", (*TIMED, KNOBS.budget))
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            screen = await opened(pilot, "/whatif", WhatIfScreen)
            assert isinstance(screen, WhatIfScreen)
            assert screen.curve is not None
            assert screen.curve.kind == "estimate"
            assert "ESTIMATE" in text_of(screen, "#whatif-finding")
            screen.costs = StepTimes(timed(nodes) for nodes in (2, 4, 8) for _ in range(6))
            await pilot.press("e")
            await finished(pilot)
            assert screen.curve.kind == "exact"
            assert "EXACT" in text_of(screen, "#whatif-finding")
            assert "the estimate was off by up to" in text_of(screen, "#whatif-finding")
            await pilot.press("p")
            await finished(pilot)
            assert "with p_min 0.1, the turn had 0" in text_of(screen, "#whatif-notes")
            await pilot.press("x")
            await wait_until(pilot, lambda: isinstance(app.screen, LineScreen))
            app.screen.query_one(Input).value = str(tmp_path / "curve.json")
            await pilot.press("enter")
            await wait_until(pilot, lambda: app.screen is screen)
            rows = json.loads((tmp_path / "curve.json").read_text())
            assert [row["budget"] for row in rows] == [*TIMED, KNOBS.budget]
            assert {row["p_min"] for row in rows} == {0.1}
            screen.costs = StepTimes(timed(nodes) for nodes in (2, 4, 8) for _ in range(6))
            screen.take("estimate", screen._estimate)
            best = screen.curve.best if screen.curve is not None else None
            assert best is not None
            await pilot.press("a")
            assert (app.chat.state.knobs.budget, app.chat.state.knobs.p_min) == (best.budget, 0.1)

    async def test_budgets_are_measured_by_the_one_experiment(
        self, app: DFlashApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Regression: each size was timed once, and the fastest was called the best."""
        monkeypatch.setattr("dflash_tui.screens.whatif.BUDGETS", TIMED)
        monkeypatch.setattr("dflash_tui.application.lab_request.default_repeats", lambda _: 1)
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            screen = await opened(pilot, "/whatif", WhatIfScreen)
            assert "m measures" in text_of(screen, "#whatif-finding")
            await pilot.press("m")
            await wait_until(pilot, lambda: isinstance(app.screen, SweepScreen) and app.screen.result is not None)
            await finished(pilot)
            assert isinstance(app.screen, SweepScreen)
            assert app.screen.result is not None
            assert [arm.knobs.budget for arm in app.screen.result.arms] == [*TIMED, KNOBS.budget]

    async def test_the_row_under_the_cursor(self, app: DFlashApp) -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            screen = await opened(pilot, "/whatif", WhatIfScreen)
            table = screen.query_one(DataTable)
            assert table.has_focus
            await pilot.press("up", "enter")
            await pilot.pause()
            assert app.chat.state.knobs.budget == 6, "that of the row above"
            assert table.get_row_at(table.cursor_row)[0].plain.strip() == "6"

    async def test_each_of_several_drafters_has_curves_of_its_own(self, make_app: MakeApp) -> None:
        app = make_app(load=two_drafters, knobs=KNOBS)
        async with app.run_test(size=(120, 40)) as pilot:
            await loaded(pilot)
            app.chat.tuning.set(draft="mtp")
            await asked(pilot)
            screen = await opened(pilot, "/whatif", WhatIfScreen)
            assert isinstance(screen, WhatIfScreen)
            assert (screen.drafter, screen.drafters) == ("mtp", ("dflash2", "mtp"))
            assert "(drafter mtp, " in text_of(screen, "#whatif-finding")
            assert "drafters: dflash2, mtp" in text_of(screen, "#whatif-notes")
            assert screen.curve is not None
            lengths = [point.acceptance.length for point in screen.curve.points]
            await pilot.press("d")
            await finished(pilot)
            assert screen.drafter == "dflash2"
            assert screen.curve is None
            assert "dflash2 drafted nothing in the last turn" in text_of(screen, "#whatif-finding")
            await pilot.press("e")
            await finished(pilot)
            assert screen.curve is not None
            assert screen.curve.kind == "exact"
            assert [point.acceptance.length for point in screen.curve.points] != lengths, "another's trees"
            assert "dflash2 ran again as the only drafter" in text_of(screen, "#whatif-finding")
            await pilot.press("enter")
            assert app.chat.state.knobs.draft == "dflash2"
            await pilot.press("d")
            await finished(pilot)
            assert screen.drafter == "mtp"
            assert screen.curve is not None

    async def test_without_a_turn(self, app: DFlashApp) -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await loaded(pilot)
            screen = await opened(pilot, "/whatif", WhatIfScreen)
            await shows(pilot, "No turn yet")
            await pilot.press("e", "m", "a")
            assert screen.chat.state.experiment is None

    async def test_plain_decoding_has_nothing_to_go_by(self, app: DFlashApp) -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await loaded(pilot)
            app.chat.tuning.set(mode="plain")
            await asked(pilot)
            screen = await opened(pilot, "/whatif", WhatIfScreen)
            assert "drafted nothing" in said(screen)
            assert "drafted nothing" in text_of(screen, "#whatif-finding"), "the page says why it is empty"

    async def test_no_replay_while_an_answer_is_written(self, make_app: MakeApp) -> None:
        session = FakeSession(gate=threading.Semaphore(4))
        app = make_app(session)
        async with app.run_test(size=(80, 24)) as pilot:
            await loaded(pilot)
            session.gate = None
            await asked(pilot)
            session.gate = threading.Semaphore(1)
            await send(pilot, "More?")
            await wait_until(pilot, lambda: app.chat.state.busy)
            await send(pilot, "/whatif")
            await wait_until(pilot, lambda: isinstance(app.screen, WhatIfScreen))
            await wait_until(pilot, lambda: app.chat.state.experiment is None)
            await pilot.press("e")
            assert isinstance(app.screen, WhatIfScreen)
            assert "an answer is being written" in said(app.screen)
            session.gate.release(500)
            await idle(pilot)
