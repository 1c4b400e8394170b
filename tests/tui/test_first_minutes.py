"""The first five minutes: the page of an empty conversation, and the tour."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from textual.geometry import Offset, Region, Size
from textual.pilot import Pilot

from dflash_core.errors import FormatError
from dflash_tui.app import DFlashApp
from dflash_tui.screens.tour import STEPS, TourScreen, place
from dflash_tui.widgets.inspector import TabRow
from dflash_tui.widgets.transcript import EXAMPLES, WIDTH, Example, StartPage, _model
from support.grids import full

from .fake import FakeSession
from .scenes import answered, send
from .support import SIZES, idle, loaded, screen_text, shows, smallest, wait_until

MakeApp = Callable[..., DFlashApp]
Size2 = tuple[int, int]
OFFER = "New here? Enter begins a tour"
WORDS = ("A drafter is a small model", "Try one", "Model")


def start(app: DFlashApp) -> StartPage:
    return app.chat.transcript.start


# The page of an empty conversation


@pytest.mark.parametrize("title", ["", "demo pair Qwen3.5-demo Q8_0 + DFlash-b16 on the processor", "x" * 100])
@pytest.mark.parametrize("loading", [True, False])
def test_what_it_says_of_the_model_takes_no_line_more(title: str, *, loading: bool) -> None:
    lines = _model(title, loading=loading).plain.split("\n")
    assert max(map(cell_len, lines)) <= WIDTH


async def test_it_says_what_this_is_and_fits(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=SIZES[0]) as pilot:
        await loaded(pilot)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await shows(pilot, *WORDS, *EXAMPLES, "Qwen3.5-demo Q8_0 + DFlash-b16", OFFER)
            page, block = start(app).region, app.chat.query_one("#start").region
            assert page.contains_region(block), f"nothing of it is scrolled away: {size}"
            assert "…" not in screen_text(app).replace("Ask anything…", ""), size
            left, right = block.x - page.x, page.right - block.right
            assert abs(left - right) <= 2, f"in the middle: {size}"


async def test_it_goes_with_the_first_message_and_comes_back_with_ctrl_n(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot)
        assert not start(app).display
        await pilot.press("ctrl+n")
        await shows(pilot, "Last    ", *WORDS[1:], "F8 finds the best setting")
        assert OFFER not in screen_text(app), "who has sent a message needs no offer"


async def test_tab_goes_through_the_examples_which_can_be_edited(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for example in (*EXAMPLES, EXAMPLES[0]):
            await pilot.press("tab")
            assert app.chat.prompt.text == example
            await shows(pilot, f"▸ {example}")
        await pilot.press("backspace", "!", "tab")
        assert app.chat.prompt.text == f"{EXAMPLES[0][:-1]}!", "a text of one's own is not replaced"
        app.chat.prompt.focus()
        await pilot.press("enter")
        await idle(pilot)
        assert session.asked[0][0] == f"{EXAMPLES[0][:-1]}!"
        await pilot.press("tab")
        assert app.chat.prompt.text == "", "no examples where there is a conversation"


async def test_a_click_puts_an_example_into_the_prompt(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.click(".example", offset=(6, 0))
        await wait_until(pilot, lambda: app.chat.prompt.text == EXAMPLES[0])
        assert app.chat.prompt.has_focus


async def test_an_example_does_not_erase_what_was_typed(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.chat.prompt.insert("a long draft")
        await wait_until(pilot, lambda: app.chat.prompt.text == "a long draft")
        for example in range(2):
            await pilot.click(app.chat.query(Example)[example])
            await wait_until(pilot, lambda example=example: app.chat.prompt.text == EXAMPLES[example])
        await pilot.press("up")
        assert app.chat.prompt.text == "a long draft"
        assert app.chat.state.past.entries == ("a long draft",), "an example is none of it"


async def test_a_model_that_is_being_loaded_or_missing_is_said(make_app: MakeApp) -> None:
    go = threading.Event()

    def load(progress: object) -> FakeSession:
        go.wait(600)
        raise FormatError("model.gguf: no such file")

    app = make_app(load=load)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "is being loaded; what you send waits for it")
        await send(pilot, "/sweep budget=4,15")
        await shows(pilot, "the model is still being loaded; try again when it is ready")
        go.set()
        await shows(pilot, "none is loaded", "/models lists what is here, /get fetches one")


async def test_a_hostile_name_is_one_plain_line(make_app: MakeApp) -> None:
    app = make_app(FakeSession(title="\x1b[31mevil\n[bold]name[/bold] figure='x'\u202e " + "long " * 40))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await shows(pilot, "Model", "[bold]name[/bold] figure='x'")
        assert app.chat.query_one("#start-model").size.height == 2


@pytest.mark.parametrize("small", [(40, 12), full((60, 15)), (2, 60), (80, 1)])
async def test_small_terminals_scroll(make_app: MakeApp, small: Size2) -> None:
    app = make_app()
    async with app.run_test(size=small) as pilot:
        await loaded(pilot)
        await pilot.press("tab")
        assert app.chat.prompt.text == EXAMPLES[0]
        app.chat.prompt.text = ""
        app.chat.open_page("tour")
        for _ in STEPS:
            await pilot.pause()
            await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is app.chat)


# The tour


async def toured(pilot: Pilot[int], app: DFlashApp) -> TourScreen:
    app.chat.open_page("tour")
    await wait_until(pilot, lambda: isinstance(app.screen, TourScreen))
    await pilot.pause()
    assert isinstance(app.screen, TourScreen)
    return app.screen


def lit(app: DFlashApp) -> Region:
    found = list(app.chat.query(".-lit"))
    assert len(found) == 1
    return found[0].region


def apart(app: DFlashApp) -> bool:
    """The box is on the screen and hides nothing of what it points at. For a panel, it hides no panel's name either."""
    assert isinstance(app.screen, TourScreen)
    parts, box = [lit(app)], app.screen.query_one("#tour").region
    if app.chat.query(".panel.-lit"):
        parts.append(app.chat.query_one(TabRow).region)
    return bool(parts[0].area) and app.screen.region.contains_region(box) and not any(map(box.overlaps, parts))


@smallest
async def test_each_step_shows_its_part_and_the_box_hides_none_of_it(make_app: MakeApp, size: Size2) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await answered(pilot)
        before = screen_text(app), app.chat.inspector.active, app.chat.classes
        await send(pilot, "/tour")
        await wait_until(pilot, lambda: isinstance(app.screen, TourScreen))
        for step in STEPS:
            await shows(pilot, step.title)
            await wait_until(pilot, lambda: apart(app))
            assert app.chat.query_one(".-lit").id == step.part
            await pilot.press("right")
        await wait_until(pilot, lambda: app.screen is app.chat)
        await pilot.pause()
        assert (screen_text(app), app.chat.inspector.active, app.chat.classes) == before
        assert not app.chat.query(".-lit")


async def test_back_and_esc(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await toured(pilot, app)
        await pilot.press("left", "enter", "enter")
        await shows(pilot, STEPS[2].title)
        assert app.chat.has_class("-drawer"), "it opens what it explains"
        await pilot.press("left")
        await shows(pilot, STEPS[1].title)
        await pilot.press("right", "escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert not app.chat.has_class("-drawer")
        assert app.chat.prompt.has_focus


async def test_it_is_offered_once_and_typing_simply_goes_on(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await shows(pilot, OFFER)
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, TourScreen))
        await pilot.press("enter", "enter", "h", "i")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert app.chat.prompt.text == "hi", "what is typed ends the tour and is there"
        assert not app.chat.has_class("-drawer")
        app.chat.prompt.text = ""
        await pilot.press("enter")
        await pilot.pause()
        assert app.screen is app.chat
    again = make_app()
    async with again.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await shows(pilot, "explains figures   /tour")
        assert OFFER not in screen_text(again)


async def test_a_resize_in_its_middle(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(200, 60)) as pilot:
        await loaded(pilot)
        await toured(pilot, app)
        await pilot.press("enter", "enter", "enter")
        for size in ((80, 24), (120, 40), (50, 20), (80, 24)):
            await pilot.resize_terminal(*size)
            await shows(pilot, STEPS[3].title)
            if size[0] >= 80:
                await wait_until(pilot, lambda: apart(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert not app.chat.has_class("-drawer"), "as before the tour, in a narrow terminal"


async def test_an_answer_goes_on_under_it(make_app: MakeApp) -> None:
    session = FakeSession(gate=threading.Semaphore(3))
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "hello")
        await wait_until(pilot, lambda: app.chat.state.busy)
        await toured(pilot, app)
        await pilot.press("enter", "escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert app.chat.state.busy, "Esc ended the tour, not the answer"
        await toured(pilot, app)
        assert session.gate is not None
        session.gate.release(500)
        await idle(pilot)
        await shows(pilot, STEPS[0].title, "a bigger tree budget")


async def test_without_color_the_part_is_marked_too(make_app: MakeApp, no_color: None) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await toured(pilot, app)
        await pilot.press("enter")
        await pilot.pause(0.1)
        style = app.chat.get_style_at(10, app.chat.query_one("#strip").region.y)
        assert style.bold


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Region(100, 5, 20, 30), Offset(49, 16)),  # at its left
        (Region(0, 5, 40, 30), Offset(41, 16)),  # at its right
        (Region(0, 0, 120, 1), Offset(35, 1)),  # under it
        (Region(0, 35, 120, 5), Offset(35, 27)),  # over it
    ],
)
def test_where_the_box_stands(part: Region, expected: Offset) -> None:
    assert place(part, Size(50, 8), Size(120, 40)) == expected


def test_the_examples_are_three_plain_questions() -> None:
    assert len(EXAMPLES) == 3
    assert all(len(one) <= 62 for one in EXAMPLES)
