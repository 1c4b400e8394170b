"""The states of the app that snapshots and pictures show. `scene` is what the README's picture is made of."""

from __future__ import annotations

from textual.pilot import Pilot

from dflash_tui.app import DFlashApp

from .support import idle, loaded, shows, taken, wait_until

QUESTION = "Explain tree verification in two lines and show the walk."
STORIES = ("Hello! What can you do?", "Tell me a story about a fox.")
RATES = (180.0, 240.0, 262.0, 301.0, 298.0, 312.0, 287.0, 305.0, 322.0, 310.0, 316.0, 308.0)


async def send(pilot: Pilot[int], text: str) -> None:
    """Send a message without typing it key by key."""
    app = pilot.app
    assert isinstance(app, DFlashApp)
    app.chat.prompt.text = text
    app.chat.prompt.focus()
    await pilot.press("enter")
    await taken(pilot)


async def answered(pilot: Pilot[int], text: str = QUESTION) -> None:
    """One question and its whole answer, with the figures that depend on the clock replaced."""
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await loaded(pilot)
    await send(pilot, text)
    await wait_until(pilot, lambda: bool(app.chat.transcript.turns))
    await idle(pilot)
    still(app)
    await pilot.pause()


def still(app: DFlashApp) -> None:
    """Give the sparkline of speeds fixed values."""
    meter = app.chat.state.turn.meter
    if meter is not None:
        meter.rates.clear()
        meter.rates.extend(RATES)
    app.chat.gauges.draw()


async def scene(pilot: Pilot[int], questions: tuple[str, ...] = STORIES) -> None:
    """The README's picture: a short conversation, beside the figures of its last turn. Nothing in it is made up."""
    app = pilot.app
    assert isinstance(app, DFlashApp)
    await wait_until(pilot, lambda: app.chat.state.session is not None)
    for number, question in enumerate(questions, 1):
        await send(pilot, question)
        await wait_until(pilot, lambda number=number: len(app.chat.transcript.turns) == number)
        await wait_until(pilot, lambda: not app.chat.state.busy)
    await shows(pilot, "tok/s", "accepted by depth")
