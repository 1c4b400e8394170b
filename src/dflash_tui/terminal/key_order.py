"""Keys in the order in which they were pressed: one that may move the focus is done before the next is handed on.

Textual hands a key to what has the focus when the key arrives. Of keys that come in one read, the second would go where
the first has just led away from.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Protocol, runtime_checkable

from textual.app import App
from textual.dom import DOMNode
from textual.events import Key, Paste
from textual.message_pump import MessagePump
from textual.widgets import TextArea

LONGEST_S = 0.5  # a key that takes longer than this to be handled no longer holds back the others


@runtime_checkable
class TakesText(Protocol):
    """A screen that turns to a field of its own for text that is typed or pasted while something else has the focus."""

    def take_text(self, event: Key | Paste) -> None: ...


def is_text(event: Key | Paste) -> bool:
    """A key that types a character, or a paste: it goes where the focus is and moves it nowhere."""
    if isinstance(event, Paste):
        return True
    return bool(event.is_printable and event.character and not event.key.startswith(("alt+", "ctrl+")))


class KeyOrder:
    """Belongs to an app, whose `on_event` asks it about each key and paste."""

    def __init__(self, app: App[int]) -> None:
        self._app = app
        self._since = 0.0  # when the key was handed on that the others wait for; 0 where they wait for none
        self._held: deque[Key | Paste] = deque()

    def waits(self, event: Key | Paste) -> bool:
        """Keep an event for later, if an earlier key is still on its way."""
        if not self._since:
            return False
        late = time.monotonic() - self._since > LONGEST_S
        if late and not self._held:
            self._since = 0.0
            return False
        self._held.append(event)
        if late:
            self._over()
        return True

    def sent(self, event: Key | Paste, target: DOMNode) -> None:
        """An event was handed on to `target`; the following ones wait for it where it may move the focus."""
        # Enter in an editor is text too. What is typed after it must be there before the sent text may be given back.
        entered = isinstance(event, Key) and event.key == "enter" and isinstance(target, TextArea)
        if entered or is_text(event):
            return
        self._since = time.monotonic()
        # A key goes up from its widget to the app, whose bindings come last; this goes after it.
        self._follow(target)

    def _follow(self, pump: MessagePump | None) -> None:
        while pump is not None and pump is not self._app:
            above = pump._parent
            if pump.call_later(self._follow, above):
                return
            pump = above
        if not self._app.call_later(self._over):
            self._since = 0.0

    def _over(self) -> None:
        self._since = 0.0
        while self._held:
            self._app.post_message(self._held.popleft())
