"""What the app's tests share: waiting for a state instead of for a time, and the screen as text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rich.cells import cell_len
from textual._context import visible_screen_stack
from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip

from dflash_tui.app import DFlashApp
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.key_line import KeyLine

from .fake import FakeSession

SIZES = ((80, 24), (120, 40), (200, 60))  # of a terminal
# For tests of behaviour, in place of the fixture `size`: the smallest size; with `full` each.
smallest = pytest.mark.parametrize(
    "size",
    [
        pytest.param(size, id=f"{size[0]}x{size[1]}", marks=pytest.mark.full if turn else ())
        for turn, size in enumerate(SIZES)
    ],
)
HANGS_S = 600.0  # as long as only a hang takes: other work may keep the machine busy


async def wait_until(pilot: Pilot[int], predicate: Callable[[], bool], every: float = 0.02) -> None:
    """Let the app run until `predicate` holds; fail with the screen as text when it does not, or with the app's error.

    It sleeps `every` so many seconds between the checks, as what is waited for mostly comes from a thread."""
    end = time.monotonic() + HANGS_S
    while not predicate():
        if time.monotonic() > end:
            raise AssertionError(f"waited {HANGS_S:.0f} s in vain; the screen:\n{screen_text(pilot.app)}")
        if pilot.app._exception is not None:
            raise pilot.app._exception
        await asyncio.sleep(every)
    await pilot.pause()


async def shows(pilot: Pilot[int], *texts: str) -> None:
    """Wait until the screen has all of `texts`; a notice may have them over several lines."""

    def seen(text: str) -> bool:
        notices = [one.text for one in pilot.app.screen.query(Flash) if one.display]
        return any(text in shown for shown in (screen_text(pilot.app), *notices))

    for text in texts:
        await wait_until(pilot, lambda text=text: seen(text), every=0.06)  # each check draws the screen


def chat(pilot: Pilot[int]) -> DFlashApp:
    assert isinstance(pilot.app, DFlashApp)
    return pilot.app


async def loaded(pilot: Pilot[int]) -> None:
    app = chat(pilot)
    await wait_until(pilot, lambda: app.chat.state.session is not None)


async def idle(pilot: Pilot[int]) -> None:
    """Wait for the end of the running turn."""
    app = chat(pilot)
    await wait_until(pilot, lambda: not app.chat.state.busy)


async def leave(pilot: Pilot[int]) -> None:
    """Esc on a page: back to the chat."""
    app = chat(pilot)
    await pilot.press("escape")
    await wait_until(pilot, lambda: app.screen is app.chat)


async def ask(pilot: Pilot[int], text: str) -> None:
    """Type a message and send it, as a user does. All but the last character comes at once, as Pilot waits per key."""
    app = chat(pilot)
    prompt = app.chat.prompt
    prompt.focus()
    await pilot.pause()
    prompt.insert(text[:-1])
    await pilot.press(_key(text[-1]), "enter")
    await taken(pilot)


async def taken(pilot: Pilot[int]) -> None:
    """Wait until the decoder's thread has received the sent message, if it can receive it now."""
    running = chat(pilot).chat.state.turn.running
    if running is not None:
        await wait_until(pilot, lambda: running.turn is not None or running.over)


def _key(character: str) -> str:
    names = {" ": "space", ".": "full_stop", "/": "slash", "?": "question_mark", ",": "comma", "_": "underscore"}
    return names.get(character, character)


def strips_of(app: App[Any]) -> list[Strip]:
    """The screen's rows, with what a dialog is over. Textual knows that only where it draws a frame itself."""
    visible_screen_stack.set(app._background_screens)
    return app.screen._compositor.render_strips()


def screen_text(app: App[Any]) -> str:
    """The screen's rows as text, trailing spaces cut."""
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips_of(app)) + "\n"


ATTRIBUTES = (("reverse", "r"), ("underline", "u"), ("bold", "b"), ("italic", "i"), ("strike", "s"), ("dim", "d"))


def bare_text(app: App[Any]) -> str:
    """The screen without its colors: each row, and under it the row's text attributes where it has any.

    Fails where a cell still has a color: NO_COLOR must be set before the app is made.
    """
    rows = []
    for strip in strips_of(app):
        text, marks = "", ""
        for segment in strip:
            style = segment.style
            text += segment.text
            mark = next((letter for name, letter in ATTRIBUTES if style is not None and getattr(style, name)), " ")
            marks += mark * cell_len(segment.text)
            for color in (style.color, style.bgcolor) if style is not None else ():
                triplet = color.triplet if color is not None else None
                assert triplet is None or max(triplet) - min(triplet) <= 2, f"a color in {segment.text!r}: {color}"
        rows.append(text.rstrip())
        if marks.strip():
            rows.append("~" + marks.rstrip())
    return "\n".join(rows) + "\n"


async def settled(pilot: Pilot[int], text_of: Callable[[App[Any]], str] = screen_text) -> str:
    """The screen's text once it has stopped changing; a busy machine paints late."""
    last = ""
    for _ in range(40):
        await pilot.pause(0.05)
        text = text_of(pilot.app)
        # The line of keys is updated a few times a second.
        if text == last and all(line.hints == line._drawn for line in pilot.app.screen.query(KeyLine)):
            return text
        last = text
    return last


def contents(session: FakeSession) -> list[str]:
    return [message.content for message in session.conversation.messages]


async def says(pilot: Pilot[int], session: FakeSession, text: str, answer: str) -> None:
    """Run one turn that gives this answer."""
    session.answer = answer
    await ask(pilot, text)
    await idle(pilot)
    await wait_until(pilot, lambda: contents(session)[-1] == answer)


@asynccontextmanager
async def talking(
    make_app: Callable[..., DFlashApp],
    *turns: tuple[str, str],
    size: tuple[int, int] = (120, 40),
    notifications: bool = False,
) -> AsyncIterator[tuple[DFlashApp, Pilot[int], FakeSession]]:
    """An app with a loaded pair that has had these turns, a question and its answer each."""
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=size, notifications=notifications) as pilot:
        await loaded(pilot)
        for question, answer in turns:
            await says(pilot, session, question, answer)
        yield app, pilot, session
