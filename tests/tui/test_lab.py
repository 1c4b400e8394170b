"""Sweeps and A/B over the demo pair: every interaction, and that the conversation is not affected."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.widgets import DataTable, Input, Static

from dflash_tui.app import DFlashApp
from dflash_tui.application.amounts import counted
from dflash_tui.screens import experiment
from dflash_tui.screens.chat import ChatScreen
from dflash_tui.screens.experiments import ABScreen, SweepScreen
from dflash_tui.screens.lab import LabScreen
from dflash_tui.widgets.dialogs import LineScreen
from dflash_tui.widgets.flash import Flash

from .lab_pair import (
    KNOBS,
    asked,
    demo,
    engine,
    finished,
    opened,
    said,
    started,
)
from .scenes import send
from .support import loaded, screen_text, shows, wait_until

MakeApp = Callable[..., DFlashApp]


@pytest.fixture
def app(make_app: MakeApp) -> DFlashApp:
    """The app over the demo pair, with short answers."""
    return make_app(load=demo, knobs=KNOBS)


class TestSweep:
    async def test_one_parameter(self, app: DFlashApp) -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            screen = await opened(pilot, "/sweep budget 4..12:8 repeats=2", SweepScreen)
            assert isinstance(screen, SweepScreen)
            result = screen.result
            assert result is not None
            assert result.complete
            assert len(result.trials) == 4
            assert result.prompts == ("the last prompt",)
            assert screen.query_one(DataTable).row_count == 2
            await shows(pilot, "4 runs: 1 prompt, 2 repeats")
            await shows(pilot, "tok/s by tree budget")
            await pilot.press("up", "up", "enter")
            await pilot.pause()
            assert app.chat.state.knobs.budget == 4

    async def test_two_parameters_and_the_best(self, app: DFlashApp) -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            screen = await opened(pilot, "/sweep budget=2,12 p_min=0,0.9 repeats=1", SweepScreen)
            assert isinstance(screen, SweepScreen)
            await shows(pilot, "tok/s: tree budget ↓, p_min →")
            app.chat.tuning.set(budget=60, p_min=0.5)
            await pilot.press("a")
            assert (app.chat.state.knobs.budget, app.chat.state.knobs.p_min) in [(2, 0), (2, 0.9), (12, 0), (12, 0.9)]

    async def test_cancel_keeps_what_is_done_and_a_new_line_runs_anew(
        self, app: DFlashApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(experiment, "REDRAW_S", 0)  # the last whole run is shown before the end
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            await send(pilot, "/sweep budget=4,12 repeats=50")
            screen = await started(pilot)
            await wait_until(pilot, lambda: "so far: only runs" in screen_text(app))
            await pilot.press("escape")
            await finished(pilot)
            assert isinstance(app.screen, SweepScreen)
            assert screen.result is not None
            done = len(screen.result.trials)
            assert 0 < done < 100
            assert not screen.result.complete
            assert said(screen) == f"cut short after {counted(done, 'run')}"
            await shows(pilot, "cut short: only runs")
            await pilot.press("e")
            field = screen.query_one("#lab-what", Input)
            assert field.has_focus
            field.value = "budget=4 repeats=1"
            await pilot.press("enter")
            await finished(pilot)
            assert screen.result is not None
            assert len(screen.result.trials) == 1
            await pilot.press("escape")
            await wait_until(pilot, lambda: isinstance(app.screen, ChatScreen))
            await send(pilot, "/sweep budget=4,12 repeats=50")
            await started(pilot)
            await pilot.press("ctrl+c")
            await finished(pilot)

    async def test_what_is_stopped_while_it_warms_up_says_so(self, app: DFlashApp) -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await loaded(pilot)
            screen = SweepScreen(app.chat.parts)
            await app.push_screen(screen)
            screen.begin(iter(()), screen._ended)
            screen.draw()
            await shows(pilot, "stopped before anything was measured", "each setting three times")

    async def test_the_next_turn_is_what_it_would_have_been(self, make_app: MakeApp, tmp_path: Path) -> None:
        # Under policy=auto the lengths of steps depend on times, so two runs could not be compared.
        knobs = KNOBS

        async def answered(folder: str, *experiments: str) -> tuple[object, ...]:
            app = make_app(load=demo, knobs=knobs, data_dir=tmp_path / folder)
            async with app.run_test(size=(120, 40)) as pilot:
                await asked(pilot)
                held = engine().session.length
                for command in experiments:
                    await opened(pilot, command, LabScreen)
                    await pilot.press("escape")
                    await wait_until(pilot, lambda: isinstance(app.screen, ChatScreen))
                    # The experiment's own thread restores the session, perhaps after its screen is closed.
                    await wait_until(pilot, lambda: engine().session.length == held)
                    assert app.chat.state.session is not None
                    assert len(app.chat.state.session.turns) == 1
                await asked(pilot, "And what happened then?")
                report = app.chat.state.turn.report
                assert report is not None
                return report.tokens, report.stats.lengths, report.stats.reused_tokens

        plain = await answered("plain")
        experiments = ("/sweep budget=1,12 repeats=1", "/ab repeats=1", "/whatif")
        assert await answered("disturbed", *experiments) == plain

    async def test_a_file_of_prompts(self, app: DFlashApp, tmp_path: Path) -> None:
        path = tmp_path / "two prompts.txt"
        path.write_text("Hello!\nWhat is 1 + 2?\n")
        async with app.run_test(size=(120, 40)) as pilot:
            await loaded(pilot)
            screen = await opened(pilot, f"/sweep budget=4,12 repeats=1 prompts='{path}'", SweepScreen)
            assert isinstance(screen, SweepScreen)
            assert screen.result is not None
            assert screen.result.prompts == ("line 1", "line 2")

    async def test_export(self, app: DFlashApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            screen = await opened(pilot, "/sweep budget=4,12 repeats=1", SweepScreen)
            (tmp_path / "mine.csv").write_text("kept")
            last = "sweep.csv"

            async def export(name: str, message: str) -> None:
                nonlocal last
                await pilot.press("x")
                await wait_until(pilot, lambda: isinstance(app.screen, LineScreen))
                field = app.screen.query_one(Input)
                assert field.value == last, "what was typed is offered again"
                field.value = last = name if name.startswith("~") else str(tmp_path / name)
                await pilot.press("enter")
                await wait_until(pilot, lambda: app.screen is screen)
                await wait_until(pilot, lambda: message in said(screen))

            for name, message in (
                ("out.json", "out.json"), ("out.png", "out.png"), ("out.doc", "ends in .json"),
                ("mine.csv", "exists already; give another name"), ("~no-such-user/out.csv", "cannot be written"),
            ):  # fmt: skip
                await export(name, message)
            assert len(json.loads((tmp_path / "out.json").read_text())["trials"]) == 2
            assert (tmp_path / "mine.csv").read_text() == "kept"
            assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
            assert sorted(one.suffix for one in tmp_path.glob("out.*")) == [".json", ".png"]

            def broken(result: object, format: str) -> bytes:
                raise ValueError("no font")

            with monkeypatch.context() as patch:  # a fault of the library that draws ends the export alone
                patch.setattr("dflash_core.lab.export.draw", broken)
                await export("broken.svg", "ValueError: no font; the trace is in")
            assert "no font" in (app.chat.state.past.folder / "last-error.txt").read_text()

            # The app's own curve needs no matplotlib; an export that does says so, and keeps what was measured.
            for name in [one for one in sys.modules if one.startswith("matplotlib.")]:
                monkeypatch.delitem(sys.modules, name)
            monkeypatch.setitem(sys.modules, "matplotlib", None)
            screen.draw()
            assert screen.query_one("#lab-curve").display
            await export("none.svg", 'pip install "dflash-tui[plots]"')
            await export("none.csv", "written")
            assert not [*tmp_path.glob("broken.*"), *tmp_path.glob("none.svg")]
            assert (tmp_path / "none.csv").exists()

    async def test_refused_at_the_prompt(self, app: DFlashApp) -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            for command, message in (
                ("/sweep budget 4..300", "expected 1 to 256"),
                ("/sweep bugdet 4", "did you mean budget"),
                ("/sweep budget=4 repeats=0", "expected a whole number from 1"),
                ("/ab seed=0", "both settings are the same"),
                ("/ab mode=forest", "expected auto, tree, chain, plain"),
            ):
                await send(pilot, command)
                await wait_until(pilot, lambda message=message: message in app.chat.query_one(Flash).text)
                assert isinstance(app.screen, ChatScreen)
                assert app.chat.prompt.text == command, "what was typed stays, to be mended"
                app.chat.prompt.text = ""

    async def test_refused_on_the_screen(self, app: DFlashApp) -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await loaded(pilot)
            screen = await opened(pilot, "/sweep budget=4,12", SweepScreen)
            assert "no prompt yet" in said(screen)
            field = screen.query_one("#lab-what", Input)
            for text, message in (
                ("mode=ar,tree budget=4", "plain has no size"),
                ("budget=4 prompts=none.jsonl", "cannot be read"),
                ("budget=4 p_min=0 top_k=1", "expected one or two"),
            ):
                field.value = text
                field.focus()
                await pilot.press("enter")
                await pilot.pause()
                assert message in said(screen)
            await pilot.press("escape")
            await wait_until(pilot, lambda: isinstance(app.screen, ChatScreen))

    async def test_from_the_palette(self, app: DFlashApp) -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            await app.chat.run_action("open('sweep')")
            await pilot.pause()
            assert isinstance(app.screen, SweepScreen)
            assert app.screen.query_one("#lab-what", Input).has_focus
            assert app.chat.state.experiment is None
            await pilot.press(*"=4", "enter")
            await pilot.pause()
            assert "=4: expected NAME=VALUES" in said(app.screen)


class TestAgainst:
    async def test_the_tree_against_the_chain(self, app: DFlashApp) -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            screen = await opened(pilot, "/ab repeats=2", ABScreen)
            assert isinstance(screen, ABScreen)
            text = screen_text(app)
            assert "A  drafting=chain" in text
            assert "B  drafting=tree" in text
            assert "only 2 paired runs, 6 needed" in text
            assert "both answers are the same, 8 tokens" in text
            assert screen.result is not None
            assert [trial.setting for trial in screen.result.trials] == [0, 1, 1, 0]
            await pilot.press("up", "up", "enter")
            assert app.chat.state.knobs.mode == "chain"
            await pilot.press("down", "enter")
            assert app.chat.state.knobs.mode == "tree"
            await pilot.press("enter")
            assert said(screen) == "that is already the current setting"

    async def test_answers_that_differ_are_marked(self, app: DFlashApp) -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await asked(pilot)
            screen = await opened(pilot, "/ab max_tokens=8 | max_tokens=5 repeats=1", ABScreen)
            await shows(pilot, "the answers differ (8 and 5 tokens)")
            content = screen.query_one("#lab-a", Static).content
            marked = [content.plain[span.start : span.end] for span in content.spans if "underline" in str(span.style)]  # type: ignore[union-attr]
            assert marked
            assert content.plain.endswith(marked[-1])  # type: ignore[union-attr]
