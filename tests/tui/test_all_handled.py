"""What Pilot waits for, on a machine that gives the tests hardly any processor time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dflash_tui.app import DFlashApp

from .support import shows, talking

MakeApp = Callable[..., DFlashApp]


async def test_a_key_is_handled_and_drawn_when_pilot_goes_on(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.all_handled.SLEEP_GRANULARITY", 0)  # a process that gets no time meanwhile
    async with talking(make_app, ("one", "answer one")) as (app, pilot, _):
        await pilot.press("alt+e")
        assert app.chat.prompt.text == "one"
        await pilot.press("escape", "f1")
        await shows(pilot, "Esc closes")
        await pilot.press("escape")
        await shows(pilot, "answer one")
