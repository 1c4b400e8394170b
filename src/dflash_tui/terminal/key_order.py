"""Handles keys in the order in which they were pressed: a key that may move the focus is handled before the next one.

Textual sends a key to the widget that has the focus when the key arrives. If two keys come in one read, the second
would go to the widget whose focus the first is about to move.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from textual.app import App
from textual.dom import DOMNode
from textual.events import Key, Paste
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, TextArea

LONGEST_S = 0.5  # a key whose handling takes longer than this no longer delays the others


@runtime_checkable
class TakesText(Protocol):
    """A screen that sends typed or pasted text to one of its fields while another widget has the focus."""

    def take_text(self, event: Key | Paste) -> None: ...


def is_text(event: Key | Paste) -> bool:
    """Whether it is a paste or a key that types a character, which goes to the focus and does not move it."""
    if isinstance(event, Paste):
        return True
    return bool(event.is_printable and event.character and not event.key.startswith(("alt+", "ctrl+")))


def as_move(event: Key, moves: Mapping[str, Sequence[str]], screen: Screen[Any], focused: Widget | None) -> Key:
    """j and its like as the keys that they stand for, in lists and pages. Letters that are text stay so."""
    meant = moves.get(event.key)
    if meant is None or isinstance(focused, (Input, TextArea)):
        return event
    if is_text(event) and not getattr(screen, "LETTERS_MOVE", not isinstance(screen, TakesText)):
        return event
    bound = screen.active_bindings
    key = event.key if event.key in bound else next((one for one in meant if one in bound), event.key)
    return event if key == event.key else Key(key, None)


class KeyOrder:
    """Belongs to an app, whose `on_event` calls it for each key and paste."""

    def __init__(self, app: App[int]) -> None:
        self._app = app
        self._since = 0.0  # when the key that the others wait for was passed on; 0 if they wait for none
        self._waiting: deque[Key | Paste] = deque()

    def waits(self, event: Key | Paste) -> bool:
        """Hold an event back if an earlier key is still being handled."""
        if not self._since:
            return False
        late = time.monotonic() - self._since > LONGEST_S
        if late and not self._waiting:
            self._since = 0.0
            return False
        self._waiting.append(event)
        if late:
            self._over()
        return True

    def sent(self, event: Key | Paste, target: DOMNode) -> None:
        """An event was passed to `target`. If it may move the focus, the following ones wait for it."""
        # Enter in an editor delays text too: text typed after it must arrive before sent text may be given back.
        entered = isinstance(event, Key) and event.key == "enter" and isinstance(target, TextArea)
        if entered or is_text(event):
            return
        self._since = time.monotonic()
        # A key bubbles from its widget up to the app, whose bindings come last; this follows it.
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
        while self._waiting:
            self._app.post_message(self._waiting.popleft())
