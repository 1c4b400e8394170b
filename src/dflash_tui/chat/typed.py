"""Typing: it focuses the prompt, and shows completions and the number of tokens of the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from textual.events import Key, Paste
from textual.timer import Timer
from textual.widgets import Input, TextArea

from dflash_tui.application.mentions import MentionError, files, offers
from dflash_tui.application.new_file import here
from dflash_tui.application.session import SessionLike
from dflash_tui.chat.controller import Controller
from dflash_tui.chat.gauges import Gauges
from dflash_tui.text.commands import is_command
from dflash_tui.widgets.completions import Completion, Completions

PAUSE_S = 0.25  # pause in typing, in seconds, before the tokens are counted
COUNTED = 40_000  # characters that are tokenized; the count of a longer text is extrapolated from these


def about(session: SessionLike, text: str) -> int:
    """The number of tokens of a text, to show; that of a long text is extrapolated from its beginning."""
    part = session.count(text[:COUNTED])
    return part if len(text) <= COUNTED else round(part * len(text) / COUNTED)


@dataclass(eq=False)
class Typed(Controller):
    _gauges: Gauges
    _complete: Callable[[str], list[Completion]]  # of a slash command
    _counting: Timer | None = None

    def changed(self) -> None:
        text = self.prompt.text
        self.screen.query_one(Completions).show(self._complete(text) or self._files(text))
        if self._counting is not None:
            self._counting.stop()
        self._counting = self.screen.set_timer(PAUSE_S, self._count)

    def take(self, event: Key | Paste) -> None:
        """Focus the prompt for text that was typed or pasted elsewhere, unless the focused widget uses the text.

        Called before the event reaches the focused widget, so that all of a fast input arrives in the prompt.
        """
        screen = self.screen
        focused = screen.focused
        if isinstance(focused, (Input, TextArea)):
            return
        if isinstance(event, Key):
            if not event.is_printable or not event.character or event.key.startswith("alt+"):
                return
            if focused is not None and focused.check_consume_key(event.key, event.character):
                return
            if event.key in screen.active_bindings:
                return
        screen.set_focus(self.prompt)

    def _files(self, text: str) -> list[Completion]:
        prompt = self.prompt
        if prompt.cursor_location != prompt.document.end:
            return []
        return [Completion(one.text, one.label, one.about) for one in offers(text, here())]

    async def _count(self) -> None:
        """Count the tokens of the text being typed, on another thread."""
        session, text, whole = self.state.session, self.prompt.text, self.prompt.whole
        if session is None or is_command(text):
            self._gauges.typed(0)
            return

        def count() -> int:
            sent = whole
            with suppress(MentionError):
                sent += files(text, here())
            return about(session, sent)

        self._gauges.typed(await asyncio.to_thread(count) if text.strip() else 0)
