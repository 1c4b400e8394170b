"""Faults that users met in the app, each as they met it."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.color import Color
from textual.events import Key, Paste
from textual.widgets import Input

from dflash_core.errors import ContextError
from dflash_core.knobs import Knobs
from dflash_core.lab.results import ExperimentProgress
from dflash_tui.app import DFlashApp
from dflash_tui.application.session import Loader, LoadRequest
from dflash_tui.application.settings.config import user_file
from dflash_tui.screens.lab import CurveView
from dflash_tui.screens.models import ModelsScreen
from dflash_tui.screens.palette import Palette
from dflash_tui.screens.whatif import WhatIfScreen
from dflash_tui.text.bars import LINE
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.knob_row import KnobRow, PresetRow
from dflash_tui.widgets.prompt import Prompt
from dflash_tui.widgets.strip import TitleRow
from support.grids import full

from .fake import FakeSession, loader
from .gallery import ab, sweep, whatif
from .scenes import send
from .support import ask, idle, leave, loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]


def burst(app: DFlashApp, *keys: str) -> None:
    """Keys that arrive in one read of the terminal: nothing is drawn or waited for between them."""
    for key in keys:
        app.post_message(Key(key, key if len(key) == 1 else None))


@pytest.mark.parametrize(("paste", "first"), [(True, True), (False, True), (True, False)])
async def test_a_path_over_the_list_of_models_is_kept(
    make_app: MakeApp, tmp_path: Path, *, paste: bool, first: bool
) -> None:
    """The path was ignored, because the list had the focus; Enter then took the demo pair and remembered that."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    asked: list[LoadRequest] = []

    def loaders(request: LoadRequest) -> Loader:
        asked.append(request)
        return loader(FakeSession())

    app = make_app(first_run=first, loaders=loaders)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        if not first:
            await send(pilot, "/load")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        if paste:
            app.post_message(Paste(str(model)))
        else:
            for character in str(model):
                app.post_message(Key("slash" if character == "/" else character, character))
        await wait_until(pilot, lambda: app.screen.query_one("#models-target", Input).value == str(model))
        await pilot.press("enter")
        await wait_until(pilot, lambda: bool(asked))
        assert asked[-1].target == model
        await wait_until(pilot, lambda: user_file().exists())
        assert f'target = "{model}"' in user_file().read_text()


async def test_arrows_stay_in_the_parameters(make_app: MakeApp) -> None:
    """Up went on into the tabs, Down past the end into the prompt, where the next keys were typed."""
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("f2", *["up"] * 6)
        assert isinstance(app.focused, PresetRow)
        burst(app, *["down"] * 40)
        await wait_until(pilot, lambda: app.focused is not None and app.focused.id == "params-more")
        await pilot.press("enter")
        burst(app, *["down"] * 60)
        await pilot.press("down")
        assert isinstance(app.focused, KnobRow)
        assert app.focused.spec.name == "context"
        await pilot.press("4", "0")
        assert app.chat.prompt.text == ""


async def test_keys_that_come_with_f2_are_the_panels(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        burst(app, "f2", "space", "space", "right", "right", "down", "right")
        await wait_until(pilot, lambda: app.chat.state.knobs.budget == 24 and app.chat.state.knobs.p_min == 0.05)
        burst(app, "escape", "h", "i")
        await wait_until(pilot, lambda: app.chat.prompt.text == "hi")
        burst(app, "ctrl+o", "slash", "f", "o", "x")
        await wait_until(pilot, lambda: "chats" in type(app.screen).__name__.lower())
        await wait_until(pilot, lambda: app.screen.query_one("#chats-search", Input).value == "fox")


async def test_a_refused_message_leaves_the_figures_of_the_turn_before(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await pilot.press("f3")
        await shows(pilot, "tok/step")
        session.refuse = ContextError("the conversation has 99 tokens with this message and the context holds 32")
        await send(pilot, "/set budget 8")
        await send(pilot, "more")
        await wait_until(pilot, lambda: len(session.asked) == 2 and not app.chat.state.busy)
        await wait_until(pilot, lambda: app.chat.inspector.params_panel.row("drafting").staged)  # no turn ran with it
        await shows(pilot, "Last turn", "tok/step")
        assert "the prompt is being read" not in screen_text(app)


async def test_tab_in_steps_changes_what_is_shown_at_once(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await pilot.press("alt+i")
        await shows(pilot, "Text by depth", "← → Step")
        await pilot.press("tab")
        await shows(pilot, "✓ taken", "Calibration  24 steps")
        await pilot.press("tab")
        await shows(pilot, "✓ taken", "Text by depth")


async def test_the_footer_names_the_main_action_and_only_what_is_possible(make_app: MakeApp) -> None:
    session = FakeSession(gate=threading.Semaphore(1000))
    app = make_app(session)

    def footer() -> str:
        return screen_text(app).splitlines()[-1]

    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        assert "Stop" not in footer(), "nothing runs"
        while session.gate is not None and session.gate.acquire(blocking=False):
            pass
        await ask(pilot, "hi")
        await wait_until(pilot, lambda: "Esc Stop" in footer() or "esc Stop" in footer())
        assert session.gate is not None
        session.gate.release(1000)
        await idle(pilot)
        await wait_until(pilot, lambda: "Stop" not in footer())
        await pilot.press("f2")
        await wait_until(pilot, lambda: "Change" in footer() and "Close" in footer())
        await pilot.press("escape", "ctrl+o")
        await wait_until(pilot, lambda: "Open" in footer())
        await pilot.press("escape")
        for page, names in (("sweep", ("Run",)), ("ab", ("Run",)), ("whatif", ("Use",))):
            app.chat.open_page(page)
            await wait_until(pilot, lambda names=names: all(name in footer() for name in names))
            await leave(pilot)


async def test_what_was_for_the_next_turn_is_not_said_in_it(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+t")
        await shows(pilot, "thinking on from the next turn")
        await send(pilot, "hi")
        await idle(pilot)
        assert "from the next turn" not in screen_text(app)


@pytest.mark.parametrize("second", ["first", "second"])
async def test_a_notice_that_comes_while_another_fades_stays(make_app: MakeApp, second: str) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.animation_level = "full"
        flash = app.chat.query_one(Flash)
        flash.say("first")
        flash._fade()
        assert app.animator.is_being_animated(flash.styles, "opacity")
        flash.say(second)
        assert not app.animator.is_being_animated(flash.styles, "opacity")
        await pilot.pause()
        assert (flash.text, flash.display, flash.styles.opacity) == (second, True, 1.0)


async def test_choosing_a_message_and_a_scrollbar_move_no_text(make_app: MakeApp) -> None:
    text = "one two three four five six seven eight nine ten " * 8
    app = make_app(FakeSession(answer=text))
    async with app.run_test(size=(80, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        before = await settled(pilot)
        lines = [line.strip(" ▌") for line in before.splitlines() if "two three" in line]
        await pilot.press("alt+up")
        chosen = [line.strip(" ▌") for line in (await settled(pilot)).splitlines() if "two three" in line]
        assert chosen == lines
        await pilot.press("escape")
        for number in range(2, 5):  # until there is a scrollbar
            await send(pilot, "again")
            await wait_until(pilot, lambda number=number: len(app.chat.transcript.turns) == number)
            await idle(pilot)
        assert app.chat.transcript.max_scroll_y > 0
        app.chat.transcript.scroll_home(animate=False)
        after = [line.rstrip("▁▂▃▄▅▆▇█ ").strip(" ▌") for line in (await settled(pilot)).splitlines()]
        assert [line for line in after if "two three" in line][: len(lines)] == lines


async def test_a_block_of_code_is_seen_while_it_is_written(make_app: MakeApp) -> None:
    gate = threading.Semaphore(6)
    code = "".join(f"value_{number} = {number}\n" for number in range(40))
    app = make_app(FakeSession(answer=f"```python\n{code}```\n", gate=gate))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "hi")
        await shows(pilot, "python", "value_0 = 0")
        answer = app.chat.transcript.answer
        assert answer is not None
        assert answer.text.count("```") == 1, "the block is still open"
        gate.release(1000)
        await idle(pilot)


@pytest.mark.parametrize("width", [50, full(80)])
async def test_what_stands_for_another_branch_is_not_cut_in_a_word(make_app: MakeApp, width: int) -> None:
    app = make_app(FakeSession(answer="short"))
    async with app.run_test(size=(width, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await pilot.press("alt+up")
        await wait_until(pilot, lambda: "Alt+C copies it" in app.chat.query_one(Flash).text)
        assert "versions" not in app.chat.query_one(Flash).text, "there is one"
        await pilot.press("escape", "ctrl+r")
        await idle(pilot)
        lines = (await settled(pilot)).splitlines()
        line = next(line for line in lines if "▶ answer 1/2" in line)
        assert line.rstrip().endswith(("tree", "…")), line
        await pilot.press("alt+up")
        await wait_until(pilot, lambda: "Alt+← Alt+→ other versions" in app.chat.query_one(Flash).text)


async def test_the_gauge_is_that_of_the_conversation_on_the_screen(make_app: MakeApp) -> None:
    """It kept its value after Ctrl+N and when another conversation was opened."""
    app = make_app()

    def used() -> int:
        return app.chat.query_one(TitleRow).context[0]

    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await wait_until(pilot, lambda: used() > 0)
        first = used()
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: used() == 0)
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: "chats" in type(app.screen).__name__.lower())
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is app.chat and used() == first)


async def test_memory_is_not_amber_because_the_context_is_full(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        row = app.chat.query_one(TitleRow)
        await wait_until(pilot, lambda: row.memory is not None)
        row.context = (900, 0, 1000)
        title = row.render()
        warned = [title.plain[span.start : span.end] for span in title.spans if "warning" in str(span.style)]
        assert len(warned) == 1
        assert "ctx 900" in warned[0]
        assert "mem" not in warned[0]


async def test_an_estimate_has_points_only_where_it_ran(make_app: MakeApp) -> None:
    """A point stood at budgets whose steps were timed in other turns, and the row of what just ran had no time."""
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await whatif(app, pilot)
        screen = app.screen
        assert isinstance(screen, WhatIfScreen)
        signs = {mark.x: mark.sign for mark in screen.query_one("#whatif-length", CurveView)._marks}
        assert screen.curve is not None
        current = screen.curve.current
        assert screen.curve.measured, "steps of other budgets have been timed"
        assert {x for x, sign in signs.items() if sign != LINE} == {current}
        row = next(line for line in screen_text(app).splitlines() if f"◆ {current}" in line)
        assert "?" not in row
        axes = [screen.query_one(view, CurveView)._span for view in ("#whatif-speed", "#whatif-length")]
        assert axes[0] == axes[1]


async def test_esc_closes_an_estimate_that_is_not_there_yet(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Esc stopped the computation and left an empty page."""

    def endless(self: WhatIfScreen) -> Iterator[ExperimentProgress]:
        while True:
            time.sleep(0.01)
            yield ExperimentProgress(0, 1, None, "reading the session's step times")

    monkeypatch.setattr(WhatIfScreen, "_estimate_turn", endless)
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        app.chat.open_page("whatif")
        await shows(pilot, "reading the session's step times", "Esc Back")
        await leave(pilot)
        assert app.chat.state.experiment is None


async def test_shares_are_of_the_figures_beside_them(make_app: MakeApp) -> None:
    """Columns of a sweep and of A/B contradicted their percentages, and the settings held fixed were not shown."""
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await sweep(app, pilot)
        text = await settled(pilot)
        rows = [line.strip("★ ").split() for line in text.splitlines() if re.match(r"[★ ]*\d+ +\d+ +\d+–", line)]
        assert len(rows) == 4
        best = max(float(row[1]) for row in rows)
        for row in rows:
            share = round((float(row[1]) / best - 1) * 100)
            assert row[5] == ("best" if share == 0 else f"−{-share}"), row
        await shows(pilot, "fixed: drafting tree, p_min 0, temperature 0")
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        await ab(app, pilot)
        text = await settled(pilot)
        shares = re.findall(r"([+−]\d+) % ", text)
        assert set(shares) == {"+26"}, "one estimator says one thing"
        assert "6 of 6 paired runs" in text
        assert "?" not in text


async def test_the_palette_has_the_themes_colors(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for theme in ("dflash-night", "dflash-paper"):
            app.theme = theme
            await pilot.press("ctrl+p")
            await wait_until(pilot, lambda: isinstance(app.screen, Palette))
            await settled(pilot)
            surface = Color.parse(app.theme_variables["surface"])
            frame = app.screen.query_one("#--container")
            assert frame.styles.background == surface
            assert frame.visible
            assert 0 < frame.region.y < frame.region.bottom < app.size.height, "a frame with all its sides"
            await pilot.press("escape")
            await wait_until(pilot, lambda: app.screen is app.chat)


async def test_text_before_a_stray_closing_tag_is_reasoning(make_app: MakeApp) -> None:
    app = make_app(FakeSession(answer="First I look at it. Then I count.\n</think>\n\nIt is seven.\n"))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        answer = app.chat.transcript.answer
        assert answer is not None
        assert answer.text == "It is seven.\n"
        assert answer.thinking.text == "First I look at it. Then I count."
        await shows(pilot, "It is seven.", "▶ thinking")
        assert "First I look" not in screen_text(app)


async def test_an_answer_about_tags_is_an_answer(make_app: MakeApp) -> None:
    text = "Models write:\n\n```\nreasoning\n</think>\nanswer\n```\n"
    app = make_app(FakeSession(answer=text))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        assert app.chat.transcript.answer is not None
        assert app.chat.transcript.answer.text == text


async def test_versions_of_a_message_are_not_counted_twice(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        for _ in range(3):
            await pilot.press("ctrl+r")
            await idle(pilot)
        await pilot.press("ctrl+o")
        await shows(pilot, "2 messages")


async def test_a_slow_key_holds_back_no_text(make_app: MakeApp) -> None:
    """Keys wait for one that may move the focus, and for no longer than it takes."""
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        burst(app, *"ab", "left", "c", "f2", "escape", "d", "home", "e", "ctrl+t", "f")
        await wait_until(pilot, lambda: app.chat.prompt.text == "efacdb")
        assert app.chat.state.knobs == Knobs(thinking=True)
        assert isinstance(app.focused, Prompt)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["ask", "--set", "bugdet=9", "hi"], "unknown parameter 'bugdet'; did you mean budget?"),
        (["ask", ""], "no prompt; give words as an argument or on standard input"),
        (["ask", "\u200b\u2060\ufeff"], "nothing to read in the prompt"),
        (["ask", "--file", "notes.md", ""], "no prompt; give words beside the files"),
        (["ask", "--no-such"], "unrecognized arguments: --no-such"),
        (["sweep"], "the following arguments are required"),
        (["sweep", "budget=4"], "sweep: expected one of --prompt TEXT"),
        (["bench", "--samples", "2"], "bench: --samples draws from a file of prompts"),
        (["conversations", "export", "x", "y"], "dflash-tui conversations export --help shows"),
    ],
)
def test_a_refused_command_line_is_one_line(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dflash_tui.cli.command_line import main

    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert why in err
    assert err.count("\n") == 1
    assert "--help shows" in err
    assert err.count(f"{words[0]}: ") <= 1, "the command is named once"


async def test_a_message_without_width_stays_in_the_prompt(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(100, 24)) as pilot:
        await loaded(pilot)
        app.chat.prompt.text = "\u200b\u2060 \ufe0f"
        await pilot.press("enter")
        await shows(pilot, "there is nothing to read in the message")
        assert not session.asked


def test_sentences_that_no_reader_understood_are_gone() -> None:
    code = "".join(path.read_text() for path in (Path(__file__).parents[2] / "src" / "dflash_tui").rglob("*.py"))
    for sentence in (
        "load what is under the cursor; of what", "If the budget were another", "that dflash2 drafted of the last turn",
        "changes nothing with the any", "later steps begin elsewhere", "among the settings of a tuning",
        "brings most here", "oldest 1 turn", "To the places",
    ):  # fmt: skip
        assert sentence.lower() not in code.lower(), sentence
