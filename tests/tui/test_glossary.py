"""What the figures mean: a sentence for each, and how a user gets to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dflash_core.knobs import CONTEXT, SPECS
from dflash_tui.app import DFlashApp
from dflash_tui.screens.explain import ExplainScreen, figures, parameter
from dflash_tui.screens.pages import PAGES as SCREENS
from dflash_tui.screens.pages import page
from dflash_tui.text.glossary import GLOSSARY, PAGES
from dflash_tui.widgets.inspector import TABS

from .scenes import answered
from .support import loaded, screen_text, shows, wait_until

MakeApp = Callable[..., DFlashApp]


def test_every_figure_is_explained_on_a_page() -> None:
    assert {name for page in PAGES.values() for name in page} == set(GLOSSARY)
    assert all(sentence[-1] != "." for sentence in GLOSSARY.values())


async def test_every_panel_and_page_explains_its_figures(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        scopes = {getattr(page(name, app.chat.parts, ""), "SCOPE", "") for name in SCREENS}
    assert {*TABS, *scopes} - {""} <= set(PAGES)


def test_a_parameter_is_explained_by_its_row_of_the_table() -> None:
    for spec in (*SPECS, CONTEXT):
        text = parameter(spec).plain
        assert text.startswith(f"{spec.help}.\nAllowed: {spec.allowed}; default {spec.show(spec.default)}. ")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_one_paragraph_of_its_figures(page: str) -> None:
    lines = figures(page).plain.split("\n")
    assert lines[: len(PAGES[page])] == [f"{name}: {GLOSSARY[name]}" for name in PAGES[page]]


async def test_a_question_mark_on_a_parameter_a_panel_and_in_the_empty_prompt(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        await pilot.press("f2", "question_mark")
        await shows(pilot, "drafting", "as many draft tokens as pay", "read on: docs/knobs.md")
        assert "dflash_core." not in screen_text(app)
        await pilot.press("escape", "f3", "question_mark")
        await shows(pilot, "What the figures here mean", "tokens of the answer per second", "tok/step: tokens that a")
        await pilot.press("end")
        await shows(pilot, "candidates: how likely")
        await pilot.press("question_mark")
        await wait_until(pilot, lambda: app.screen is app.chat)
        app.chat.prompt.focus()
        await pilot.press("question_mark")
        await shows(pilot, "What the figures here mean", "ctx: tokens that the conversation takes")
        await pilot.press("escape")
        assert app.chat.prompt.text == ""


async def test_in_a_prompt_with_text_it_is_a_character_and_typing_goes_on(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("w", "h", "y", "question_mark")
        assert app.chat.prompt.text == "why?"
        app.chat.prompt.text = ""
        await pilot.press("question_mark")
        await wait_until(pilot, lambda: app.screen is not app.chat)
        await pilot.press("q", "m")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert app.chat.prompt.text == "?qm", "nothing that was typed is lost"


async def test_a_panel_explains_its_figures_before_it_has_any(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f4", "question_mark")
        await shows(pilot, "path: the probability of a token")


async def test_a_page_explains_its_figures_and_a_page_without_any_says_so(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        app.chat.open_page("whatif")
        await pilot.press("tab", "question_mark")
        await shows(pilot, "estimate: tok/step that another budget")
        await pilot.press("escape")
        assert not isinstance(app.screen, ExplainScreen)


async def test_the_help_of_a_page_explains_its_figures_too(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        await pilot.press("f1", "end")
        await shows(pilot, "Figures", "thought for")
