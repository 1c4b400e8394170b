"""The lab's screens over the demo pair: every interaction, and that the conversation is not affected."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from dflash_core.demo import demo_draft, demo_draft_path, demo_target_path
from dflash_core.engine import Engine, load_pair
from dflash_core.events import StageTimes, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.lab.results import ExperimentProgress
from dflash_core.lab.whatif import Acceptance, StepTimes
from dflash_tui.app import DFlashApp
from dflash_tui.application.amounts import counted
from dflash_tui.application.engine_session import EngineSession
from dflash_tui.screens import experiment
from dflash_tui.screens.chat import ChatScreen
from dflash_tui.screens.experiment import ExperimentScreen
from dflash_tui.screens.experiments import ABScreen, SweepScreen
from dflash_tui.screens.lab import LabScreen
from dflash_tui.screens.whatif import WhatIfScreen
from dflash_tui.widgets.dialogs import LineScreen
from dflash_tui.widgets.flash import Flash
from support.measured import PAIR, report_of, sweep_of
from support.turns import step_of, tree_of

from .fake import FakeSession
from .scenes import send
from .support import SIZES, bare_text, idle, leave, loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]
Snapshot = Callable[[str, str], None]
Size = tuple[int, int]
QUESTION = "Tell me a story about a fox."
# What auto picks goes by times, and may be no draft at all. Answers are short, as every experiment gives several.
KNOBS = Knobs(drafting="tree 8", max_tokens=8)
TIMED = (2, 4)  # budgets whose steps are timed, beside the turn's own
DOCS = Path(__file__).parents[2] / "docs"


@cache
def engine() -> Engine:
    return load_pair(demo_target_path(), demo_draft_path(), context_length=1024)


def demo(_: object) -> EngineSession:
    engine().reset()
    return EngineSession(engine(), "demo pair", KNOBS, ())


@cache
def engine_of_two() -> Engine:
    return load_pair(demo_target_path(), demo_draft("dflash2+mtp"), context_length=1024)


def two_drafters(_: object) -> EngineSession:
    engine_of_two().reset()
    return EngineSession(engine_of_two(), "demo pair", KNOBS, ())


@pytest.fixture
def app(make_app: MakeApp) -> DFlashApp:
    """The app over the demo pair, with short answers."""
    return make_app(load=demo, knobs=KNOBS)


async def asked(pilot: Pilot[int], question: str = QUESTION) -> None:
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await loaded(pilot)
    before = len(app.chat.transcript.turns)
    await send(pilot, question)
    await wait_until(pilot, lambda: len(app.chat.transcript.turns) > before)
    await wait_until(pilot, lambda: not app.chat.state.busy)


async def opened(pilot: Pilot[int], command: str, screen: type[LabScreen]) -> LabScreen:
    """Type a command and wait for its screen, and for what it starts."""
    await send(pilot, command)
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, screen))
    found = pilot.app.screen
    assert isinstance(found, screen)
    await wait_until(pilot, lambda: begun(found))
    await finished(pilot)
    return found


def begun(screen: LabScreen) -> bool:
    """Whether an experiment has begun, which happens after the screen is drawn, or the screen says why not."""
    none = isinstance(screen, WhatIfScreen) and bool(text_of(screen, "#whatif-finding"))
    return screen._then is not None or bool(said(screen)) or none


async def finished(pilot: Pilot[int]) -> None:
    """Wait for the end of the experiment, which has begun or is about to."""
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await pilot.pause(0.1)
    await wait_until(pilot, lambda: app.chat.state.experiment is None)
    await pilot.pause()  # what came of it is drawn


async def started(pilot: Pilot[int]) -> ExperimentScreen:
    """Wait until some runs are in."""
    app = pilot.app
    assert isinstance(app, DFlashApp)

    def some() -> bool:
        screen = app.screen
        return isinstance(screen, ExperimentScreen) and bool(screen.experiment and screen.experiment.result.trials)

    await wait_until(pilot, some)
    assert isinstance(app.screen, ExperimentScreen)
    return app.screen


def said(screen: LabScreen) -> str:
    return screen.query_one(Flash).text


def text_of(screen: LabScreen, selector: str) -> str:
    return str(screen.query_one(selector, Static).content)


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


# The screens as text: figures made by hand.


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


def timed(nodes: int) -> StepEvent:
    """A step whose time follows from its number of nodes."""
    return step_of(tree_of(*((0, 0) for _ in range(nodes))), stages=StageTimes(verify=10 + nodes * 0.2))


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
