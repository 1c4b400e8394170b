"""The Tune screen over the demo pair: the best setting by one key; Esc keeps what is done, Enter uses it."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input

from dflash_core.knobs import Knobs
from dflash_core.lab import candidates, schedule
from dflash_core.lab.experiment import Experiment
from dflash_core.lab.grid import Arm
from dflash_core.lab.table import best, rows
from dflash_core.limits import Limits
from dflash_tui.app import DFlashApp
from dflash_tui.application.figures.measurements import MeasuredRow, Measurements
from dflash_tui.screens.experiments import TuneScreen
from dflash_tui.screens.lab import PastScreen
from dflash_tui.widgets import literal as widgets
from dflash_tui.widgets.dialogs import LineScreen
from dflash_tui.widgets.literal import Static

from .fake import FakeSession
from .gallery import SHOWN
from .lab_pair import KNOBS, asked, demo, finished
from .scenes import answered, send
from .support import leave, loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]
FEW = ((4, 0.0), (15, 0.1))
AROUND = candidates.around


@pytest.fixture
def app(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> DFlashApp:
    """The demo pair with short answers, few settings to try and few rounds: how they are chosen has other tests."""

    def few(now: Knobs, limits: Limits) -> list[Arm]:
        found = [Arm("auto", now, "now"), Arm("plain", now.replace(mode="plain"), "plain")]
        for budget, p_min in FEW:
            knobs = now.replace(mode="tree", budget=budget, p_min=p_min)
            found.append(Arm(candidates.label(knobs), knobs))
        return found

    monkeypatch.setattr(candidates, "arms", few)
    monkeypatch.setattr(schedule, "ROUND_PAIRS", 1)
    monkeypatch.setattr(schedule, "ROUND_TOKENS", 1)
    monkeypatch.setattr(schedule, "ROUNDS", 2)
    monkeypatch.setattr(candidates, "around", lambda *_: [])
    return make_app(load=demo, knobs=KNOBS)


def footer(pilot: Pilot[int]) -> str:
    return screen_text(pilot.app).splitlines()[-1].strip()


async def test_a_folder_in_place_of_a_file_of_prompts_is_called_one(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "/tune /")
        await shows(pilot, "/ is a folder, expected a file")
        await send(pilot, "/tune /none")
        await shows(pilot, "/none: no such file; /tune without a file")


async def test_one_key_to_the_best_setting_on_the_conversations_prompts(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await asked(pilot)
        messages = list(app.chat.state.session.conversation.messages)  # type: ignore[union-attr]
        await pilot.press("f8")
        await wait_until(pilot, lambda: isinstance(app.screen, TuneScreen))
        await shows(pilot, "on the last prompt of this conversation")
        await finished(pilot)
        screen = app.screen
        assert isinstance(screen, TuneScreen)
        result = screen.result
        assert result is not None
        assert result.complete
        await shows(pilot, "now", "plain", "tree 4", "tree 15, p_min 0.1", "★")
        top = best(rows(result))
        assert top is not None
        assert f"{top.arm.label}: " in str(screen.query_one("#lab-finding", Static).content)
        if top.arm.role == "now":
            await pilot.press("down")
        await pilot.press("enter")
        await shows(pilot, "from the next turn; s saves it as a preset")
        assert app.chat.state.knobs.max_tokens == KNOBS.max_tokens
        await pilot.press("s")
        await wait_until(pilot, lambda: isinstance(app.screen, LineScreen))
        await pilot.press("enter")
        await shows(pilot, "preset tuned is saved")
        assert "tuned" in app.chat.state.presets.names_for(app.chat.state.model)
        await pilot.press("h")
        await wait_until(pilot, lambda: isinstance(app.screen, PastScreen))
        await shows(pilot, "tune", "tree 4")
        await pilot.press("enter", "down", "enter")
        await shows(pilot, "from the next turn")
        await pilot.press("escape", "escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert list(app.chat.state.session.conversation.messages) == messages  # type: ignore[union-attr]
        kept = Measurements(app.chat.state.past.folder, "demo pair").newest_first
        assert [one.what for one in kept] == ["tune"]
        assert sum(row.mark == "best" for row in kept[0].rows) == 1


async def test_window_and_temperature_of_the_tree_are_rows_that_can_be_used(
    app: DFlashApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Around the leading setting, which the test sets: another one is fastest on another machine. Prompts have 8
    tokens."""
    leads = KNOBS.replace(mode="auto")
    monkeypatch.setattr(candidates, "WINDOWS", (0, 8))
    around = AROUND
    monkeypatch.setattr(candidates, "around", lambda best, *rest: around(leads, *rest))
    async with app.run_test(size=(120, 40)) as pilot:
        await asked(pilot)
        await pilot.press("f8")
        await wait_until(pilot, lambda: isinstance(app.screen, TuneScreen))
        await finished(pilot)
        screen = app.screen
        assert isinstance(screen, TuneScreen)
        assert screen.result is not None
        await shows(pilot, "auto, tree T 0.7", "auto, tree T 1.4", "auto, window 8")
        arm = next(at for at, one in enumerate(screen.result.arms) if one.label == "auto, window 8")
        table = screen.query_one(DataTable)
        table.move_cursor(row=table.get_row_index(str(arm)))
        await pilot.press("enter")
        await shows(pilot, "auto, window 8 from the next turn")
        assert app.chat.state.knobs == leads.replace(draft_window=8)


async def test_esc_keeps_what_is_done_and_examples_do_without_a_conversation(
    app: DFlashApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed, following = threading.Event(), Experiment._next

    def held(it: Experiment) -> object:
        if len(it.result.trials) > 1:
            pressed.wait()
        return following(it)

    monkeypatch.setattr(Experiment, "_next", held)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("f8")
        await shows(pilot, "on 4 examples")
        screen = app.screen
        assert isinstance(screen, TuneScreen)
        await wait_until(pilot, lambda: screen.result is not None and len(screen.result.trials) > 1)
        await wait_until(pilot, lambda: footer(pilot).startswith("Enter Use") and footer(pilot).endswith("Esc Stop"))
        await pilot.press("down", "enter")
        await shows(pilot, "from the next turn; s saves it as a preset")
        await pilot.press("h")
        await shows(pilot, "an experiment is running: Esc stops it")
        await pilot.press("escape")
        pressed.set()
        await finished(pilot)
        assert app.screen is screen
        await shows(pilot, "so far:", "auto", "on 4 examples; prompts=FILE takes yours")
        await wait_until(pilot, lambda: footer(pilot).endswith("Esc Back"))
        await leave(pilot)


async def test_a_file_that_cannot_be_read_is_mended_where_it_was_typed(app: DFlashApp, tmp_path: Path) -> None:
    """The line holds what was typed."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Count to three.\n")
    async with app.run_test(size=(120, 30)) as pilot:
        await loaded(pilot)
        await app.push_screen(TuneScreen(app.chat.parts, "prompts=/no/such/file.txt"))
        await pilot.press("enter")
        await shows(pilot, "cannot be read: No such file or directory")
        app.screen.query_one(Input).value = f"prompts={prompts}"
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.chat.state.experiment is not None)
        await shows(pilot, "on 1 prompt of")
        await pilot.press("escape")
        await finished(pilot)


async def test_the_footer_of_what_was_measured_before(app: DFlashApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.chat.open_page("past")
        await shows(pilot, "Nothing measured yet: F8 in the chat tunes.")
        await wait_until(pilot, lambda: footer(pilot) == "F1 Help  Esc Back")
        await pilot.press("escape")
        kept = Measurements(app.chat.state.past.folder, app.chat.state.model)
        kept.add("tune", "plain is the best", [MeasuredRow("plain", KNOBS.replace(mode="plain"), 21.0, 1, 47, 1)])
        app.chat.open_page("past")
        await wait_until(pilot, lambda: footer(pilot) == "Enter Settings  F1 Help  Esc Back")
        await pilot.press("enter")
        await wait_until(pilot, lambda: footer(pilot) == "Enter Use  F1 Help  Esc Back")
        await pilot.press("enter")
        await shows(pilot, "plain from the next turn")
        assert app.chat.state.knobs.mode == "plain"


def test_measurements_whose_date_is_none_are_unreadable(tmp_path: Path) -> None:
    Measurements(tmp_path, "a pair").add("tune", "plain is the best", [])
    assert Measurements(tmp_path, "a pair").newest_first
    [file] = (tmp_path / "measurements").iterdir()
    [kept] = json.loads(file.read_text())
    file.write_text(json.dumps([kept | {"taken": "yesterday"}]))
    assert not Measurements(tmp_path, "a pair").newest_first


@pytest.mark.parametrize("page", ["tune", "past", "whatif", "sweep-field"])
async def test_a_line_that_wraps_goes_on_where_it_began(make_app: MakeApp, page: str) -> None:
    """Regression: the second line of the finding began a cell left of the first."""
    app = make_app()
    async with app.run_test(size=(44, 40)) as pilot:
        await answered(pilot)
        await SHOWN[page](app, pilot)
        await settled(pilot)
        wrapped = 0
        for part in app.screen.query("#lab-finding, #past-words, #whatif-finding, #whatif-notes, #lab-notes"):
            rows = screen_text(app).splitlines()[part.region.y : part.region.bottom]
            assert {len(row) - len(row.lstrip()) for row in rows if row} <= {1}, (part.id, rows)
            wrapped = max(wrapped, len(rows))
        assert wrapped > 1


async def test_without_a_drafter_there_is_nothing_to_tune(make_app: MakeApp) -> None:
    app = make_app(FakeSession(draft_block=0))
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await pilot.press("f8")
        await shows(pilot, "no drafter is loaded, so there is nothing to tune")
        await pilot.press("escape")
        app.chat.open_page("whatif")
        await shows(pilot, "No drafter is loaded")


LONG_LABEL = "tree 22, p_min 0.25, tree T 0.7"


@asynccontextmanager
async def a_table(make_app: MakeApp) -> AsyncIterator[tuple[DFlashApp, Pilot[int], widgets.DataTable]]:
    """An empty table on the chat's screen."""
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        table = widgets.DataTable()
        await app.chat.mount(table)
        yield app, pilot, table


async def test_a_refilled_table_is_as_wide_as_its_cells_at_once(make_app: MakeApp) -> None:
    """Regression: after Esc stopped a tuning it was as narrow as its headings, as Textual measures rows when idle."""
    async with a_table(make_app) as (_, _, table):
        for _ in range(2):
            table.clear(columns=True)
            table.fill(("", "setting"), {"0": ("★", LONG_LABEL)})
            assert [column.content_width for column in table.ordered_columns] == [1, len(LONG_LABEL)]


async def test_a_refilled_table_has_the_colors_of_another_theme(make_app: MakeApp) -> None:
    async with a_table(make_app) as (app, pilot, table):
        found = set()
        for theme in ("textual-light", "textual-dark"):
            app.theme = theme
            await pilot.pause()
            table.fill(("", "setting"), {"0": ("█", "budget 4")}, colors={"0": {0: "primary"}})
            found.add(table.get_row("0")[0].style)
        assert len(found) == 2
