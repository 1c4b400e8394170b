"""Footers are exact: every key that one names has an effect in that state, and the effect of Enter is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from dflash_core.errors import DFlashError
from dflash_tui.app import DFlashApp
from dflash_tui.screens import pages
from dflash_tui.screens.experiments import TuneScreen
from dflash_tui.screens.models import ModelsScreen
from dflash_tui.screens.plan import PlanScreen
from dflash_tui.screens.steps import StepsScreen
from dflash_tui.screens.tour import TourScreen
from dflash_tui.widgets.dialogs import ConfirmScreen, KeyHints
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.key_line import KeyLine

from .fake import FakeSession
from .gallery import SHOWN, home
from .scenes import answered
from .support import ask, idle, loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]

NAMED = {"Enter": "enter", "Esc": "escape", "←": "left", "→": "right", "↑": "up", "↓": "down"}
REFUSALS = ("no ", "nothing", "not ", "an answer is", "an experiment is", "wait ")
EVERYWHERE = {"f1", "f2", "f3", "f4", "f8", "ctrl+o", "ctrl+t"}  # of the chat; they are pressed in one state
EMPTY = ("enter", "Send")  # of the prompt: the word stays while one types
STATES = (
    "chosen", "params", "params-all", "tree", "found", "steps", "steps-text", "steps-calibration", "chats",
    "chats-found", "past", "whatif", "sweep", "sweep-asked", "ab", "explain", "tour", "models", "get", "plan", "full",
    "confirm", "one-line",
)  # fmt: skip
ALWAYS = {"params", "past", "tour", "plan"}


def named(app: DFlashApp) -> list[tuple[tuple[str, ...], str]]:
    """The keys that the screen names, those of one entry together, and what it says of them."""
    lines = [*app.screen.query(KeyLine)]
    found: list[tuple[tuple[str, ...], str]] = []
    for one in lines[-1].hints if lines else ():
        arrows = {"← →": ("left", "right")}.get(one.shown, (one.key,))
        found.append((arrows, one.label))
    for hints in app.screen.query(KeyHints):
        found += [(tuple(NAMED.get(key, key) for key in keys.split()), what) for keys, what in hints.hints]
    return found


def state(app: DFlashApp) -> tuple[object, ...]:
    return app.screen, app.focused, screen_text(app), app.chat.state.knobs


def refused(app: DFlashApp) -> bool:
    return any(one.text.lower().startswith(REFUSALS) for one in app.screen.query(Flash))


@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in ALWAYS else pytest.mark.full) for one in STATES])
@pytest.mark.parametrize("size", [(80, 24), pytest.param((200, 60), marks=pytest.mark.full)])
async def test_what_a_footer_names_does_something(make_app: MakeApp, name: str, size: tuple[int, int]) -> None:
    app = make_app(FakeSession())
    async with app.run_test(size=size) as pilot:
        await answered(pilot)
        await stand(app, pilot, name)
        pairs = named(app)
        assert pairs
        keys = {key for keys, _ in pairs for key in keys}
        for pressed, what in pairs:
            if pressed[0] in EVERYWHERE - {"f1"} and name != "chosen":
                continue
            did = []
            for key in pressed:
                await stand(app, pilot, name)
                before = state(app)
                await pilot.press(key)
                await worked(pilot)
                did.append(state(app) != before and not refused(app))
            assert any(did) or (pressed[0], what) == EMPTY, (name, pressed, what, screen_text(app))
        await stand(app, pilot, name)
        enter, actions = app.screen.active_bindings.get("enter"), app.screen.active_bindings
        same = {key for key in keys & set(actions) if enter and actions[key].binding.action == enter.binding.action}
        if not same:
            assert not isinstance(app.focused, TextArea)
            before = state(app)
            await pilot.press("enter")
            await settled(pilot)
            assert state(app) == before, f"{name}: what Enter does is not named"


async def stand(app: DFlashApp, pilot: Pilot[int], name: str) -> None:
    await home(app, pilot)
    await SHOWN[name](app, pilot)
    await worked(pilot)


async def worked(pilot: Pilot[int]) -> None:
    """Wait for what the screen has its workers do, such as a plan, and until that is drawn."""
    app = pilot.app
    await wait_until(pilot, lambda: all(one.is_finished for one in app.workers if one.node is app.screen))
    await settled(pilot)


def footer(app: DFlashApp) -> str:
    return screen_text(app).splitlines()[-1].strip()


async def test_steps_name_the_keys_of_the_view_and_the_turns_there_are(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await app.push_screen(StepsScreen(app.chat.parts))
        await wait_until(pilot, lambda: footer(app) == "F1 Help  Esc Back")
        await pilot.press("escape")
        for text in ("one", "two"):
            await ask(pilot, text)
            await idle(pilot)
        await app.push_screen(StepsScreen(app.chat.parts))
        ends = "x Export  F1 Help  Esc Back"
        await wait_until(pilot, lambda: footer(app) == f"← → Step  Tab View  , Older  r Left out  a Taken  {ends}")
        await pilot.press("comma", "tab")
        await wait_until(pilot, lambda: footer(app) == f"← → Step  Tab View  . Newer  c Colour  {ends}")
        await pilot.press("tab")
        await wait_until(pilot, lambda: footer(app) == f"← → Step  Tab View  . Newer  s All  {ends}")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("chats", "n New  F1 Help  Esc Back"),
        ("whatif", "F1 Help  Esc Back"),
        ("requests", "c Store prompts  F1 Help  Esc Back"),
    ],
)
async def test_a_page_without_rows_names_no_keys_of_rows(make_app: MakeApp, name: str, keys: str) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await app.push_screen(pages.page(name, app.chat.parts, ""))
        await wait_until(pilot, lambda: footer(app) == keys)


@pytest.mark.parametrize(("key", "screen"), [("f8", TuneScreen), ("ctrl+o", None), ("f3", None)])
async def test_a_key_that_the_tour_speaks_of_ends_it_and_does_that(
    make_app: MakeApp, key: str, screen: type[object] | None
) -> None:
    """Regression: the key did nothing, although the tour said "F8 finds the best"."""
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await wait_until(pilot, lambda: footer(app).startswith("Enter Tour"))
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, TourScreen))
        await pilot.press("right", "right", key)
        await wait_until(pilot, lambda: not any(isinstance(one, TourScreen) for one in app.screen_stack))
        if key == "f3":
            await wait_until(pilot, lambda: app.chat.has_class("-drawer") and app.chat.inspector.active == "stats")
        else:
            await wait_until(pilot, lambda: app.screen is not app.chat)
            assert screen is None or isinstance(app.screen, screen)
            await pilot.press("escape")
        await wait_until(pilot, lambda: "Enter Tour" not in footer(app))


async def test_models_name_what_is_possible(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.chat.open_page("models")
        await wait_until(pilot, lambda: footer(app) == "Enter Load  F5 Memory  Ctrl+S Save  F1 Help  Esc Back")
        await pilot.press(*"no such")
        await wait_until(pilot, lambda: footer(app) == "F1 Help  Esc Whole list")
        await pilot.press("escape", *"qwen3-4b")
        await wait_until(pilot, lambda: footer(app) == "Enter Get  F5 Memory  F1 Help  Esc Whole list")
        app.screen.query_one("#models-target", Input).value = "/m.gguf"
        await wait_until(pilot, lambda: app.screen.query_one("#models-draft").region.area > 0)
        await pilot.press("tab")
        await wait_until(pilot, lambda: app.focused is not None and app.focused.id == "models-draft")
        await wait_until(pilot, lambda: footer(app).startswith("Enter Load"))
        await pilot.press("enter")
        await shows(pilot, "/m.gguf")
        assert isinstance(app.screen, ModelsScreen)


async def test_a_dialog_has_the_keys_of_the_page_below(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for page, keys in ((app.chat, "Enter Tour"), (ModelsScreen(app.chat.parts, only="qwen3-4b"), "Enter Get")):
            if page is not app.chat:
                await app.push_screen(page)
            await wait_until(pilot, lambda keys=keys: footer(app).startswith(keys))
            below = app.screen.query_one(KeyLine)
            await app.push_screen(ConfirmScreen("A question", "yes", "no"))
            await shows(pilot, "A question")
            assert below.render().plain == ""
            assert screen_text(app).splitlines()[-1].strip() == ""
            await pilot.press("escape")
            await wait_until(pilot, lambda keys=keys: footer(app).startswith(keys))


async def test_the_first_start_says_what_esc_takes(make_app: MakeApp) -> None:
    app = make_app(first_run=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        await wait_until(pilot, lambda: footer(app).endswith("Esc Demo pair"))


async def test_a_plan_that_cannot_be_made_offers_nothing_to_change(make_app: MakeApp) -> None:
    def refuses() -> object:
        raise DFlashError("m.gguf: not a GGUF file")

    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await app.push_screen(PlanScreen(app.chat.parts, None, None, refuses))  # type: ignore[arg-type]
        await shows(pilot, "not a GGUF file")
        assert app.screen.query_one(KeyHints).hints == (("Esc", "back"),)


async def test_completions_say_what_enter_takes(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("slash", "t")
        await wait_until(pilot, lambda: footer(app).startswith("Enter Send"))
        await pilot.press("down")
        await wait_until(pilot, lambda: footer(app).startswith("Enter Take"))
        await pilot.press("enter")
        await wait_until(pilot, lambda: footer(app).startswith("Enter Send") and app.chat.prompt.text.startswith("/t"))
