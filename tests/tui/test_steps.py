"""The steps screen: scrubbing, turns, views, marks; each interaction, and its look at three sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from textual.widgets import Input

from dflash_core.knobs import Knobs
from dflash_core.record import TurnRecord, Turns
from dflash_tui.app import DFlashApp
from dflash_tui.application.engine_session import load_session
from dflash_tui.application.session import LoadRequest
from dflash_tui.screens.steps import StepsScreen
from dflash_tui.text.blocks import dotted
from dflash_tui.text.step_text import StepText, breaks, drawn, rejection_line, spans
from dflash_tui.widgets.dialogs import LineScreen
from dflash_tui.widgets.slider import Scrubber
from support.turns import DRAFTS, step_of, tree_of, turn_of

from .fake import FakeSession
from .scenes import scene, send
from .support import SIZES, bare_text, idle, leave, loaded, screen_text, settled, shows, smallest, wait_until

MakeApp = Callable[..., DFlashApp]
Snapshot = Callable[[str, str], None]

PICTURE = Path(__file__).parents[2] / "docs" / "steps.svg"
WORDS = {1: " a", 2: " b", 3: " c", 4: "one", 5: "two", 6: "three", 7: " the", 8: " end", 9: "\\n", 100: "Well"}
KNOBS = Knobs(drafting="tree 4", p_min=0.15)
STEPS = (
    step_of(tree_of((0, 0), (1, 0), (2, 0), (0, 1), accepted=(0, 1, 2)), bonus=8, knobs=KNOBS),
    step_of(tree_of((0, 0), (0, 1), (1, 0), (2, 0), accepted=(0, 2)), bonus=9, knobs=KNOBS),
    step_of(tree_of((0, 0), accepted=(0,)), bonus=3, knobs=KNOBS),
    step_of(tree_of((0, 0), (1, 0), (2, 0), accepted=(0, 1, 2, 3)), bonus=4, knobs=KNOBS.replace(budget=9)),
    step_of(tree_of((0, 0), accepted=(0, 1)), bonus=55, knobs=KNOBS),
)


def turn(prompt: str = "Why is it so?", steps: int = len(STEPS), thinking: int = 0) -> TurnRecord:
    def text(token: int) -> str:
        return WORDS.get(token, f" w{token}")

    return turn_of(STEPS[:steps], prompt=prompt, knobs=KNOBS, text=text, thinking_steps=thinking)


class Stored(FakeSession):
    """A session that has turns already."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.conversation.turns = Turns([turn("first", 2), turn("second", 5), turn("third", 0)])


def screen(app: DFlashApp) -> StepsScreen:
    assert isinstance(app.screen, StepsScreen)
    return app.screen


async def opened(pilot: object, app: DFlashApp) -> None:
    await loaded(pilot)  # type: ignore[arg-type]
    await pilot.press("alt+i")  # type: ignore[attr-defined]
    await wait_until(pilot, lambda: isinstance(app.screen, StepsScreen))  # type: ignore[arg-type]


async def test_going_through_the_steps(make_app: MakeApp) -> None:
    app = make_app(Stored())
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, app)
        await shows(pilot, "turn 3/3", "❯ third", "this turn has no step: its first token was its last")
        steps = screen(app)
        assert steps._record is not None
        steps._record = replace(steps._record, pieces=())
        steps.draw()
        await shows(pilot, "this turn has no step: it ended before its first token")
        await pilot.press("comma")
        await shows(pilot, "turn 2/3", "step 1/5", "3 tokens · 3 positions drafted · 4 nodes verified · 2 accepted")
        for key, step in (
            ("right", 2),
            ("right_square_bracket", 3),
            ("left", 2),
            ("end", 5),
            ("right", 5),
            ("home", 1),
        ):
            await pilot.press(key)
            await shows(pilot, f"step {step}/5")
        await pilot.press("shift+right")
        await shows(pilot, "step 5/5")
        await pilot.press("comma", "comma")
        await shows(pilot, "turn 1/3", "step 1/2")
        await pilot.press("full_stop")
        await shows(pilot, "turn 2/3", "step 1/5")
        await leave(pilot)


async def test_the_mouse_finds_a_step(make_app: MakeApp) -> None:
    app = make_app(Stored())
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, app)
        await pilot.press("comma")
        await shows(pilot, "step 1/5")
        scrubber = screen(app).query_one(Scrubber)
        for step in (4, 1, 5, 2):
            assert await pilot.click(scrubber, offset=(len(scrubber._label) + step - 1, 0))
            await shows(pilot, f"step {step}/5")


async def test_more_steps_than_columns(make_app: MakeApp) -> None:
    session = Stored()
    session.conversation.turns = Turns([turn_of([STEPS[0]] * 500)])
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, app)
        scrubber = screen(app).query_one(Scrubber)
        columns = scrubber._columns
        for column in (0, 7, columns - 1):
            await pilot.click(scrubber, offset=(len(scrubber._label) + column, 0))
            await pilot.pause()
            assert (scrubber.step - 1) * columns // 500 == column
        await pilot.press("end")
        await shows(pilot, "step 500/500")


async def test_what_the_target_drew_instead(make_app: MakeApp) -> None:
    app = make_app(Stored())
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, app)
        await pilot.press("comma")
        await shows(pilot, "◆ the target drew ␣end: the drafter's rank 2, p .35, over budget")
        await pilot.press("right", "right")
        await shows(
            pilot, "◆ the target drew ␣c: the drafter's rank 3, p .05, under p_min", "◆p", "drafting tree 4 p_min 0.15"
        )
        await pilot.press("right")
        await shows(pilot, "◆ the target drew one after the last draft", "drafting tree 9", "• changed in mid-turn")
        await pilot.press("right")
        await shows(pilot, "◆ the target drew ␣w55: not among the drafter's 3 candidates there")


async def test_left_out_and_taken_only(make_app: MakeApp) -> None:
    app = make_app(Stored())
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, app)
        await pilot.press("comma")
        await shows(pilot, "✓", "✗", "◆b", "two", " b ", " p ")
        await pilot.press("r")
        await wait_until(pilot, lambda: "two" not in screen_text(app).split("Text by")[0])
        assert "◆b" not in screen_text(app)
        await shows(pilot, "✗   .30")
        await pilot.press("a")
        await wait_until(pilot, lambda: "✗   .30" not in screen_text(app))
        await shows(pilot, "✓   .60")


async def test_views_one_two_and_three(make_app: MakeApp) -> None:
    app = make_app(Stored())
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, app)
        await pilot.press("comma")
        for text in ("✓ taken", "Text by depth", "Calibration  5 steps of this turn", "✓ taken"):
            await shows(pilot, text)
            assert sum(view in screen_text(app) for view in ("✓ taken", "Text by", "Calibration")) == 1
            await pilot.press("v")
        await pilot.resize_terminal(120, 40)
        await shows(pilot, "✓ taken", "Text by depth")
        await pilot.resize_terminal(200, 60)
        await shows(pilot, "✓ taken", "Text by depth", "Calibration")
        await pilot.press("s")
        await shows(pilot, "7 steps of the newest 3 turns")
        await pilot.press("c")
        await shows(pilot, "Text by step")


async def test_an_export_is_confirmed_on_the_page(make_app: MakeApp, tmp_path: Path) -> None:
    """Regression: the notice was in the chat, which the page covers."""
    app = make_app(Stored())
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, app)
        await pilot.press("comma", "x")
        await wait_until(pilot, lambda: isinstance(app.screen, LineScreen))
        app.screen.query_one(Input).value = str(tmp_path / "my.csv")
        await pilot.press("enter")
        await shows(pilot, "written: ", "turn 2/3")
        assert "tree" in (tmp_path / "my.csv").read_text()


async def test_a_turn_that_has_just_been_written(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot, app)
        await shows(pilot, "No turn yet")
        await pilot.press("right", "comma", "v", "c", "r", "a", "s", "pagedown", "escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        await send(pilot, "hi")
        await idle(pilot)
        await wait_until(pilot, lambda: not app.chat.state.busy)
        await send(pilot, "/steps")
        await shows(pilot, "turn 1/1", "❯ hi")


def test_text_is_cut_at_its_tokens() -> None:
    record = turn(thinking=2)
    found = spans(record)
    assert "".join(span.text for span in found) == f"{record.thinking}\n\n{record.text}"
    assert [(span.text, span.step, span.depth) for span in found[:6]] == [
        ("Well", 0, 0), (" a", 1, 1), ("one", 1, 2), (" end\n\n", 1, 0), (" b", 2, 1), ("\\n", 2, 0),
    ]  # fmt: skip


def test_a_name_and_its_value_are_on_one_line() -> None:
    assert dotted(["tree_temperature 1.00", "temperature 0.00"], 35, " ") == [
        "tree_temperature 1.00",
        "temperature 0.00",
    ]


def test_tokens_that_show_nothing_cost_no_text() -> None:
    from dataclasses import replace

    record = turn()
    pieces = [replace(piece, text=piece.text.replace(" end", "é")) for piece in record.pieces]
    changed = replace(record, pieces=tuple(pieces), texts=record.texts | {8: "\\xc3"})
    assert "".join(span.text for span in spans(changed)) == changed.text


@pytest.mark.parametrize("width", [8, 13, 40])
def test_lines_are_as_wide_as_they_may_be(width: int) -> None:
    text = "a few words\nand a verylongwordindeed, 宽字符 too\n\n  indented  twice " * 3
    found = breaks(text, width)
    assert found == sorted(set(found))
    parts = [text[a:b] for a, b in zip([0, *found], [*found, len(text)])]
    assert "".join(parts) == text
    from rich.cells import cell_len

    for part in parts:
        assert cell_len(part.rstrip()) <= width
        assert "\n" not in part[:-1]


@pytest.mark.parametrize("width", [10, 30])
def test_the_drawn_text_is_the_text(width: int) -> None:
    record = turn()
    text = StepText(record, width)
    for by in ("depth", "step"):
        plain = text.drawn(2, by).plain  # type: ignore[arg-type]
        assert plain.replace("\n", "") == record.text.replace("\n", "")
        assert all(len(line.rstrip()) <= width for line in plain.splitlines())
    lines = text.drawn(1, "depth").plain.splitlines()
    for step in range(1, 6):
        start = next(span.text for span in spans(record) if span.step == step)
        assert start.strip("\n").split()[0][:3] in lines[text.line_of(step)]


def test_every_node_is_joined_to_the_one_above_it() -> None:
    chain = tree_of((0, 0), (1, 0), (2, 0), accepted=(0, 1))
    lines = [line.split()[0] for line in drawn(step_of(chain), str, 40).plain.splitlines()[1:]]
    assert lines == ["100", "└┬1", "│4", "╰7"]
    branched = tree_of((0, 0), (1, 0), (1, 1), (2, 0), (0, 1))
    lines = [line[:10].rstrip() for line in drawn(step_of(branched), str, 40).plain.splitlines()[1:]]
    assert lines == ["100", "├ 1", "│ ├┬4", "│ │╰7", "│ └ 5", "└ 2"]


def test_every_node_is_on_a_line_of_its_own() -> None:
    for step in STEPS:
        bare = drawn(step, str, 60).plain.splitlines()
        assert len(bare) == 1 + len(step.tree.tokens)
        full = drawn(step, str, 60, left_out=True).plain.splitlines()
        assert len(full) >= len(bare)
        taken = drawn(step, str, 60, taken_only=True).plain.splitlines()
        assert len(taken) == 2 + step.accepted_depth
        assert all(len(line) <= 60 for line in full)


def test_a_step_without_drafts() -> None:
    from dflash_core.events import StepDrafts

    plain = step_of(tree_of(), bonus=5, drafts=StepDrafts())
    assert rejection_line(plain, str) == "the target drew 5"
    assert DRAFTS.tokens


async def test_its_look(make_app: MakeApp, snapshot: Snapshot) -> None:
    app = make_app(Stored())
    async with app.run_test(size=SIZES[0]) as pilot:
        await opened(pilot, app)
        await pilot.press("comma", "right")
        for size, views in zip(
            SIZES, (("tree", "text", "calibration"), ("tree", "calibration"), ("all",)), strict=True
        ):
            await pilot.resize_terminal(*size)
            for view in views:
                snapshot(f"{size[0]}x{size[1]}-steps-{view}", await settled(pilot))
                await pilot.press("v")


@smallest
@pytest.mark.usefixtures("no_color")
async def test_its_look_without_color(make_app: MakeApp, snapshot: Snapshot, size: tuple[int, int]) -> None:
    app = make_app(Stored())
    async with app.run_test(size=size) as pilot:
        await opened(pilot, app)
        await pilot.press("comma", "right", "v")
        snapshot(f"bare-{size[0]}x{size[1]}-steps", await settled(pilot, bare_text))


async def test_picture_of_the_readme(make_app: MakeApp, request: pytest.FixtureRequest) -> None:
    """A turn of the demo pair. Written with `--update-snapshots` or where it is missing; otherwise only tried."""
    app = make_app(load=partial(load_session, LoadRequest()))
    async with app.run_test(size=(120, 40)) as pilot:
        await scene(pilot, ("Write a function that reverses a list.",))
        await pilot.press("alt+i")
        await shows(pilot, " 1/", "✓", "◆", "Text by depth")
        await pilot.press("right")
        await settled(pilot)
        svg = app.export_screenshot(title="dflash-tui")
    assert svg.startswith("<svg")
    if request.config.getoption("--update-snapshots", default=False) or not PICTURE.exists():
        PICTURE.write_text(svg, encoding="utf-8")


@pytest.mark.parametrize("size", [(40, 12), (50, 16)])
async def test_the_smallest_terminal_shows_steps(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(Stored())
    async with app.run_test(size=size) as pilot:
        await opened(pilot, app)
        await pilot.press("comma", "right")
        await shows(pilot, "step 2/5", "Well")
        await pilot.press("v")
        await shows(pilot, "Text by depth")
        await pilot.press("v")
        await shows(pilot, "Calibration")
