"""Answers that cannot be drawn: one whose text does not render, and one that has left the screen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dflash_tui.app import DFlashApp
from dflash_tui.application import log
from dflash_tui.application.figures.meter import Meter
from dflash_tui.widgets.markdown import Streamed

from .fake import FakeSession
from .scenes import send
from .support import idle, loaded, shows, wait_until

MakeApp = Callable[..., DFlashApp]


@pytest.mark.parametrize("where", ["feed", "finish"])
async def test_a_message_that_does_not_render_is_shown_as_it_is(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    whole = getattr(Streamed, where)

    async def fails(self: Streamed, *text: str) -> None:
        if where == "feed" and self._raw is None:
            self.text += text[0]
        if self._raw is None and (where == "finish" or len(self.text) > 20):
            raise RuntimeError("a fault of the renderer")
        await whole(self, *text)

    monkeypatch.setattr(Streamed, where, fails)
    app = make_app(FakeSession(answer="Some **text** that nobody can render, of a few words."))
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await send(pilot, "hi")
        await shows(pilot, "cannot be rendered (RuntimeError)", "Some **text** that nobody can render, of a few words.")
        await idle(pilot)
        assert app.is_running
        monkeypatch.undo()
        await send(pilot, "again")
        await wait_until(pilot, lambda: len(app.chat.transcript.turns) == 2)
        await idle(pilot)


@pytest.mark.parametrize("leaving", ["the answer is removed", "the app ends"])
async def test_an_answer_that_leaves_the_screen_is_no_fault(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, leaving: str
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(log.LOG, "error", lambda message, **_: logged.append(message))
    app = make_app(FakeSession(answer="Some text."))
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await send(pilot, "hi")
        await idle(pilot)
        answer = await app.chat.transcript.turns[-1].add_answer(app.chat.state.knobs)
        with monkeypatch.context() as ending:
            if leaving == "the app ends":
                ending.setattr(app, "_exit", True)  # what quitting does first; widgets go later
            else:
                answer.remove()
            await answer.add("A paragraph.\n\nAnd one more.\n\n", "", Meter())
            await answer.end(Meter(), None, "failed")
            await answer.fail("it failed", "try again")
    assert logged == []
