"""Every figure on every screen leads to one explanation and to one function.

Nothing here lists figures: the screens are drawn, and each number on them is asked for its key.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, Markdown, TextArea

from dflash_core.knobs import CONTEXT, SPECS, Knobs
from dflash_core.lab import candidates
from dflash_core.lab.grid import Arm
from dflash_core.limits import Limits
from dflash_core.turn_stats import FoundRow
from dflash_tui.app import DFlashApp
from dflash_tui.screens.experiment import TuneScreen
from dflash_tui.screens.lab import LabScreen
from dflash_tui.screens.whatif import WhatIfScreen
from dflash_tui.text.glossary import GLOSSARY, QUOTED, reading, told
from dflash_tui.text.knob_terms import MORE
from dflash_tui.text.terms import TERMS
from dflash_tui.widgets.drawn import leaves, lines
from dflash_tui.widgets.inspector import TABS
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.streamed import Streamed

from .fake import FakeSession
from .scenes import answered
from .support import idle, loaded, screen_text, shows, wait_until
from .test_every_key import DIALOGS, PAGE_OPENERS
from .test_lab import KNOBS, asked, demo, finished, opened

WRITTEN = (Markdown, TextArea, Input, Streamed, KeyLine)  # what a user or a model wrote, and keys
_WORD = re.compile(r"[^\s,;:()|│·\[\]‹›]+")
_NUMBER = re.compile(r"\d")
_NAME = re.compile(r"[^\W\d_]{2}|^[FfTQ]\d|^/|^@|^~?/")  # Qwen3.6, F8, /full, 8k.gguf: letters make it a name


def unexplained(screen: Screen[object]) -> Iterator[str]:
    """The numbers on a screen without a key or with an unknown one, each with its line."""
    for widget in leaves(screen):
        if any(isinstance(one, WRITTEN) for one in (widget, *widget.ancestors)):
            continue
        for line in lines(widget):
            text = "".join(piece for piece, _ in line)
            keys = [key for piece, key in line for _ in piece]
            for word in _WORD.finditer(text):
                if not _NUMBER.search(word[0]) or _NAME.search(word[0]):
                    continue
                key = next((keys[at] for at in range(word.start(), word.end()) if text[at].isdigit()), "")
                if key not in GLOSSARY and key != QUOTED:
                    where = f"{type(widget).__name__}#{widget.id}"
                    yield f"{where}: {word[0]!r} has {key or 'no key'!r} in {text.strip()!r}"


MakeApp = Callable[..., DFlashApp]


@pytest.fixture
def app(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> DFlashApp:
    """The demo pair with short answers; a tuning tries few settings."""

    def few(now: Knobs, limits: Limits) -> list[Arm]:
        now = now.replace(max_tokens=6)
        knobs = [now.replace(mode="chain", budget=7), now.replace(mode="tree", policy="fixed", budget=15, p_min=0.1)]
        arms = [Arm(candidates.label(one), one) for one in knobs]
        return [Arm("auto", now, "now"), Arm("plain", now.replace(mode="ar"), "plain"), *arms]

    monkeypatch.setattr(candidates, "arms", few)
    monkeypatch.setattr("dflash_core.lab.candidates.around", lambda *_: [])
    return make_app(load=demo, knobs=KNOBS)


WIDE = (200, 60)
FOUND = (FoundRow("spine 1", 120, 0.91, 0.88, 0.86), FoundRow("copied", 14, 0.5, 0.42, 0.36))


async def settled(pilot: Pilot[int]) -> list[str]:
    await pilot.pause(0.05)
    return list(dict.fromkeys(unexplained(pilot.app.screen)))


def explained(missing: list[str]) -> None:
    if missing:
        pytest.fail("figures without an explanation:\n" + "\n".join(dict.fromkeys(missing)), pytrace=False)


async def test_the_chat(make_app: MakeApp) -> None:
    app = make_app(FakeSession(found=FOUND))
    missing: list[str] = []
    async with app.run_test(size=WIDE) as pilot:
        await loaded(pilot)
        missing += await settled(pilot)
        for text in ("first", "second"):
            await pilot.press("ctrl+t")
            await answered(pilot, text)
            await pilot.press("alt+t")
            missing += await settled(pilot)
        await pilot.press("ctrl+r")
        await idle(pilot)
        app.chat.tuning.set(budget=9, seed=4)
        app.chat.inspector.params_panel.unfold(True)
        missing += await settled(pilot)
        for name in TABS:
            app.chat.inspector.enter(name)
            missing += await settled(pilot)
        await pilot.press("ctrl+f", "t", "e")
        missing += await settled(pilot)
    explained(missing)


def some_done(screen: TuneScreen) -> bool:
    return screen.result is not None and len(screen.result.trials) > 1


async def test_every_page_and_dialog(app: DFlashApp) -> None:
    """As each opens after a turn of the demo pair."""
    missing: list[str] = []
    async with app.run_test(size=WIDE) as pilot:
        await asked(pilot)
        for opener in (*PAGE_OPENERS.values(), *DIALOGS.values()):
            screen = opener(app)
            await app.push_screen(screen)
            if isinstance(screen, TuneScreen):
                await wait_until(pilot, partial(some_done, screen))
                screen.action_back()  # what is done is kept and shown
            await finished(pilot)
            missing += await settled(pilot)
            await wait_until(pilot, lambda: app.chat.state.experiment is None)  # only the page checks it
            while app.screen is not app.chat:
                await app.pop_screen()
    explained(missing)


LAB = (
    ("/sweep budget=4,12 repeats=1", ""), ("/sweep budget=2,12 p_min=0,0.9 repeats=1", ""), ("/ab repeats=1", ""),
    ("/whatif", "e"), ("/past", ""),
)  # fmt: skip


@pytest.mark.parametrize("pages", [LAB[:1], pytest.param(LAB[1:], marks=pytest.mark.full)], ids=["sweep", "others"])
async def test_what_the_lab_measures(
    app: DFlashApp, monkeypatch: pytest.MonkeyPatch, pages: tuple[tuple[str, str], ...]
) -> None:
    monkeypatch.setattr(WhatIfScreen, "budgets", (4, 16, 22))
    missing: list[str] = []
    async with app.run_test(size=WIDE) as pilot:
        await asked(pilot)
        for command, keys in pages:
            await opened(pilot, command, LabScreen)
            missing += await settled(pilot)
            for key in keys:
                await pilot.press(key)
                await finished(pilot)
                missing += await settled(pilot)
            await pilot.press("escape")
            await wait_until(pilot, lambda: app.screen is app.chat)
    explained(missing)


def test_every_term_has_a_key_of_its_own() -> None:
    assert len(GLOSSARY) == len(TERMS) + len(SPECS) + 1


def test_a_term_has_a_function_and_a_sentence() -> None:
    for term in GLOSSARY.values():
        module, _, path = term.source.partition(":")
        found: object = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name, None)
        assert callable(found) or isinstance(found, property), term.source
        assert term.sentence[-1] != ".", term.key
        assert len(term.sentence) <= 110 or term.part == "parameters", term.key


def test_every_parameter_is_in_it_with_the_text_of_its_row() -> None:
    assert set(MORE) == {spec.name for spec in (*SPECS, CONTEXT)}
    for spec in (*SPECS, CONTEXT):
        assert GLOSSARY[spec.name].sentence == spec.help


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("130 tok/s with 22 draft tokens", ["speed", "nodes"]),
        ("tree 8, p_min 0.1: 27 tok/s", ["budget", "p_min", "speed"]),
        ("Qwen3.6-27B in Q4_K_M, F8 and v1.2 are names", []),
        ("+3.1 % (9 of 10 pairs)", ["difference", "pairs"]),
    ],
)
def test_a_sentence_is_read_by_its_units(text: str, keys: list[str]) -> None:
    parts = told(text)
    assert "".join(part for part, _ in parts) == text
    assert [style.split("'")[1] for _, style in parts if style] == keys


async def test_a_number_without_a_key_is_seen(make_app: MakeApp) -> None:
    """The walk can fail: any text with a bare number on any screen."""
    app = make_app()
    async with app.run_test(size=WIDE) as pilot:
        await loaded(pilot)
        assert await settled(pilot) == []
        await app.chat.mount(Static("warp 9.5 engaged", id="bare"), before=0)
        assert await settled(pilot) == ["Static#bare: '9.5' has 'no key' in 'warp 9.5 engaged'"]


# How an explanation is reached


async def test_a_question_mark_on_a_parameter_a_panel_and_in_the_empty_prompt(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        await pilot.press("f2", "question_mark")
        await shows(pilot, "tree budget", "draft tokens that a target pass verifies", "read on: docs/drafters.md")
        assert "dflash_core." not in screen_text(app)
        await pilot.press("escape", "f3", "question_mark")
        await shows(pilot, "What the figures here mean", "tokens of the answer per second")
        await pilot.press("down")
        await shows(pilot, "tok/step: tokens that a step brings")
        await pilot.press("question_mark")
        await wait_until(pilot, lambda: app.screen is app.chat)
        app.chat.prompt.focus()
        await pilot.press("question_mark")
        await shows(pilot, "What the figures here mean")
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
        await pilot.press("h", "m")
        await wait_until(pilot, lambda: app.screen is app.chat)
        assert app.chat.prompt.text == "?hm", "nothing that was typed is lost"


def test_what_to_read_about_each_term_is_there() -> None:
    """A document of this repository, and one of its headings; no name of the source."""
    root = Path(__file__).parents[2]
    for key in GLOSSARY:
        document, heading = reading(key).split(", ", 1)
        text = (root / document).read_text(encoding="utf-8").replace("`", "")
        assert any(line.lstrip("#") == f" {heading}" for line in text.splitlines() if line.startswith("#")), key
    assert reading("budget") == "docs/drafters.md, How many drafts: auto"
    assert reading("context") == "docs/fits.md, How it is computed"


async def test_a_click_on_a_figure_explains_it(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        row = next(at for at, line in enumerate(screen_text(app).splitlines()) if "tok/step  │ auto" in line)
        await pilot.click(offset=(3, row))
        await shows(pilot, "tokens of the answer per second")
        await pilot.press("escape")
        await pilot.click(offset=(60, row - 4))
        await pilot.pause()
        assert app.screen is app.chat, "there is no figure"


async def test_where_there_is_no_figure_it_says_so(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f4", "question_mark")
        await shows(pilot, "no figures here yet")
