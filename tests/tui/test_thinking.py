"""The control of thinking: off and on, or the levels that the model's template knows; what a level adds is shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from dflash_core.answer import Reread
from dflash_core.errors import TemplateError
from dflash_core.knobs import Knobs
from dflash_core.text.reasoning import Reasoning
from dflash_tui.app import DFlashApp
from dflash_tui.screens.chat import NO_THINKING
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.params import ParamsPanel
from dflash_tui.widgets.strip import StatusStrip

from .fake import FakeSession
from .scenes import send
from .support import ask, idle, loaded, shows, wait_until

MakeApp = Callable[..., DFlashApp]
BRIEF, LONG = "Reasoning effort is set to low. Be short.", "Reasoning effort is set to xhigh. Take time."
LEVELS = ("low", "medium", "xhigh")
QWEN38 = Reasoning(LEVELS, LEVELS, (BRIEF, "", LONG), preserves=True)


def strip(app: DFlashApp) -> str:
    return app.chat.query_one(StatusStrip).render().plain


async def test_the_key_goes_through_the_levels(make_app: MakeApp) -> None:
    session = FakeSession(reasoning=QWEN38)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        assert "think off" in strip(app)
        for level, says in (("low", BRIEF), ("medium", ""), ("xhigh", LONG), ("off", ""), ("low", BRIEF)):
            await pilot.press("ctrl+t")
            await shows(pilot, f"thinking {level} from the next turn" + (f"; the prompt gets: {says}" if says else ""))
            assert f"•think {level}" in strip(app) or level == "off"
        await send(pilot, "hi")
        await idle(pilot)
        assert session.asked[-1][1] == Knobs(thinking=True, reasoning_effort="low")
        assert "· think low" in strip(app)
        await shows(pilot, "tok · low")
        await ask(pilot, "/think xhigh")
        await wait_until(pilot, lambda: app.chat.state.knobs == Knobs(thinking=True, reasoning_effort="xhigh"))


async def test_the_row_has_the_levels(make_app: MakeApp) -> None:
    app = make_app(FakeSession(reasoning=QWEN38))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        panel = app.chat.query_one(ParamsPanel)
        await pilot.press("f2")
        panel.row("thinking").focus()
        await shows(pilot, "‹off› low medium xhigh")  # there is room for one blank between them, so they are one line
        assert panel.row("preserve_thinking").display
        for key, level in (("right", "low"), ("space", "medium"), ("right", "xhigh"), ("right", "xhigh")):
            await pilot.press(key)
            await wait_until(pilot, lambda level=level: QWEN38.level(app.chat.state.knobs) == level)
            assert panel.row("thinking").value == level
            await shows(pilot, f"‹{level}›")
        await pilot.press("backspace")
        await wait_until(pilot, lambda: not app.chat.state.knobs.thinking)


async def test_levels_are_kept_in_presets(make_app: MakeApp) -> None:
    app = make_app(FakeSession(reasoning=QWEN38))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        for command in ("/think low", "/set preserve_thinking off", "/preset save brief", "/reset", "/preset brief"):
            await ask(pilot, command)
        expected = Knobs(thinking=True, reasoning_effort="low", preserve_thinking="off")
        await wait_until(pilot, lambda: app.chat.state.knobs == expected)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/think high", "write /think low or /think medium or /think xhigh or /think off"),
        ("/set reasoning_effort high", "the model's template refuses it; expected low, medium, xhigh"),
        ("/set reasoning_effort hard", "reasoning_effort=hard: expected low, medium, high, xhigh"),
    ],
)
async def test_a_level_that_the_template_refuses(make_app: MakeApp, command: str, says: str) -> None:
    app = make_app(FakeSession(reasoning=QWEN38))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, command)
        await shows(pilot, says)
        assert app.chat.state.knobs == Knobs()


async def test_a_template_of_the_old_kind_has_on_and_off(make_app: MakeApp) -> None:
    app = make_app(FakeSession(reasoning=Reasoning()))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        panel = app.chat.query_one(ParamsPanel)
        await pilot.press("f2")
        panel.row("thinking").focus()
        await shows(pilot, "on ‹off›")
        assert not panel.row("preserve_thinking").display
        for on in (True, False):
            await pilot.press("ctrl+t")
            await shows(pilot, f"thinking {'on' if on else 'off'} from the next turn")
            assert app.chat.state.knobs.thinking == on
        app.chat.prompt.focus()
        await ask(pilot, "/set reasoning_effort low")
        await shows(pilot, "reasoning_effort has no effect: the model's template does not read it")
        app.chat.prompt.text = ""
        await ask(pilot, "/think low")
        await shows(pilot, "write /think on or /think off")


async def test_a_choice_that_changes_nothing_says_so(make_app: MakeApp) -> None:
    app = make_app(FakeSession(thinking_notes={True: "thinking on changes nothing"}))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+t")
        await shows(pilot, "thinking on changes nothing")
        await pilot.press("ctrl+t")
        await shows(pilot, "thinking off from the next turn")


async def test_the_next_prompt_is_shown_as_the_model_gets_it(make_app: MakeApp) -> None:
    session = FakeSession(reasoning=QWEN38)
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "hello")
        await idle(pilot)
        await ask(pilot, "/think low")
        await ask(pilot, "/prompt")
        await shows(pilot, "The next prompt · thinking low", f"<system>{BRIEF}", "<user>hello")
        await pilot.press("escape")
        session.refuse = TemplateError("the chat template failed, line 3: no")
        await ask(pilot, "/prompt")
        await shows(pilot, "the chat template failed, line 3: no")


async def test_a_smaller_tree_is_one_change(make_app: MakeApp) -> None:
    """The budget that is set ends the program's choice; the strip says so where it shows the budget."""
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+j")
        await wait_until(pilot, lambda: app.chat.state.knobs.mode == "tree")
        assert "•tree 21" in strip(app)
        assert "more" not in strip(app)


async def test_an_answer_that_comes_back_has_thought_as_long_as_before(make_app: MakeApp) -> None:
    """Regression: the tags were counted in an answer that came back, but not while it was new."""
    app = make_app(FakeSession(thinking="It is about foxes, then.", answer="A fox.\n"), Knobs(thinking=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+t")
        await shows(pilot, NO_THINKING)
        await ask(pilot, "hi")
        await idle(pilot)
        await wait_until(pilot, lambda: bool(app.chat.state.conversation.resumable))
        answer = app.chat.transcript.answer
        assert answer is not None
        assert answer.report is not None
        before = answer.thinking.line.title
        stats = answer.report.stats
        tagged = replace(stats, thinking=replace(stats.thinking, tokens=stats.thinking.tokens + 2))
        await answer.end(app.chat.state.turn.meter, replace(answer.report, stats=tagged), "")  # type: ignore[arg-type]
        assert f"· {tagged.thinking.tokens} tok" in answer.thinking.line.title
        app.chat.say(NO_THINKING)
        await pilot.press("alt+t")
        assert not app.chat.query_one(Flash).display, "it is no longer true"
        await app.chat.parts.conversation.open(app.chat.state.conversation.resumable)
        await wait_until(pilot, lambda: app.chat.transcript.answer not in (None, answer))
        again = app.chat.transcript.answer
        assert again is not None
        assert again.thinking.line.title == before


@pytest.mark.parametrize("how", ["alt+n", "/answer"])
async def test_the_answer_can_be_asked_for_while_the_model_thinks(make_app: MakeApp, how: str) -> None:
    gate = threading.Semaphore(0)
    app = make_app(FakeSession(gate=gate, thinking="so and so on " * 200, knobs=Knobs(thinking=True)))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+n")
        await shows(pilot, "no answer is being written")
        assert "Answer now" not in pilot.app.screen.query_one(KeyLine).render().plain
        await ask(pilot, "/set thinking on")
        await send(pilot, "hi")
        gate.release(3)
        await wait_until(pilot, lambda: app.chat.state.turn.reasoning)
        await wait_until(pilot, lambda: "Answer now" in pilot.app.screen.query_one(KeyLine).render().plain)
        await (pilot.press(how) if how == "alt+n" else ask(pilot, how))
        await shows(pilot, "thinking is closed after this step")
        gate.release(4)
        await wait_until(pilot, lambda: bool(app.chat.transcript.turns[-1].answers[-1].text))
        await pilot.press("alt+n")
        await shows(pilot, "the answer is being written already")
        gate.release(1000)
        await idle(pilot)
        report = app.chat.state.turn.report
        assert report is not None
        assert len(report.thinking) < 200
        assert report.text.startswith("Speculative decoding")


@pytest.mark.parametrize("change", ["/set preserve_thinking off", "/system Be brief.", "/think low"])
async def test_a_change_that_makes_it_read_again_says_so_before_it_counts(make_app: MakeApp, change: str) -> None:
    app = make_app(FakeSession(reasoning=QWEN38, reread=Reread(60_123, 60_200, "keep thinking changed")))
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "/set preserve_thinking on")  # nothing to read yet
        await send(pilot, "hi")
        await idle(pilot)
        await ask(pilot, change)
        await shows(pilot, "the next message reads about 60,123 tokens again: keep thinking changed")
        assert "the next turn" in app.chat.query_one(Flash).text
