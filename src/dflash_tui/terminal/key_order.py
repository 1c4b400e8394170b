"""Keys and pastes in the order in which they came, and as what they are.

Textual sends a key to the widget that has the focus when the key arrives. If two keys come in one read, the second
would go to the widget whose focus the first is about to move. Here a key that may move the focus is handled first.

To Textual's parser an escape inside a paste is a key: text of a coloured log would be lost, and a line end after it
would send the message. A paste without marks is many keys to it, and spaces other than the common one, joiners and
characters newer than Python's tables are keys that type nothing. Here all of these are pastes, which every field takes.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from textual._xterm_parser import XTermParser
from textual.app import App
from textual.dom import DOMNode
from textual.events import Key, Paste
from textual.message import Message
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
        self._next: Key | Paste | None = None  # the first of those that waited, on its way to `waits` again

    def waits(self, event: Key | Paste) -> bool:
        """Hold an event back if an earlier key is still being handled, or if earlier events are held back."""
        if event is self._next:
            self._next = None
            return False
        if self._since or self._waiting or self._next is not None:
            self._waiting.append(event)
            if time.monotonic() - self._since > LONGEST_S:
                self._over(self._since)
            return True
        return False

    def sent(self, event: Key | Paste, target: DOMNode) -> None:
        """An event was passed to `target`. If it may move the focus, the following ones wait for it."""
        # Enter in an editor delays text too: text typed after it must arrive before sent text may be given back.
        entered = isinstance(event, Key) and event.key == "enter" and isinstance(target, TextArea)
        if entered or is_text(event):
            self._over(self._since)
            return
        self._since = time.monotonic()
        # A key bubbles from its widget up to the app, whose bindings come last; this follows it.
        self._follow(target, self._since)

    def _follow(self, pump: MessagePump | None, since: float) -> None:
        while pump is not None and pump is not self._app:
            above = pump._parent
            if pump.call_later(self._follow, above, since):
                return
            pump = above
        if not self._app.call_later(self._over, since):
            self._over(since)

    def _over(self, since: float) -> None:
        """The key that was passed on at `since` is handled, or takes too long: the next one comes, before new ones."""
        if since == self._since:
            self._since = 0.0
            if self._waiting and self._next is None:
                self._next = self._waiting.popleft()
                self._app.post_message(self._next)


BEGIN, END = "\x1b[200~", "\x1b[201~"
_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|[\x00\x1b]"
)
_TEXT = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*")  # with tabs and line ends
_LINE_END = re.compile(r"[^\r\n][\r\n]")
_NEXT_LINE = re.compile(r"[^\r\n][\r\n]+[^\r\n]")

ESC = "\x1b"
# After these two characters more may belong to the same key: the arrows, the function keys, the mouse.
_LONGER = {ESC + "[", ESC + "O"}


class PasteParser(XTermParser):
    """Makes one event of each paste, without control sequences, even if it arrives in many pieces.

    Alt+K is sent as Esc and k. Textual takes the two for one key only if a pause follows; if another key comes first,
    it writes ^k. Here two such characters complete the key at once.

    A terminal that does not mark pastes sends one as keys, many at once. A read of several characters with a line end
    among them is collected until a pause or a single key: with text after a line end it is a paste, otherwise keys.
    """

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._paste: list[str] | None = None  # the part of a paste that has arrived
        self._tail = ""  # after that, a possible start of the end marker
        self._sequence = ""  # the part of a key that has arrived after Esc
        self._burst = ""  # text without marks that came at once, which may go on
        self._fed = False  # input has come since the last tick

    def feed(self, data: str) -> Iterator[Message]:
        """Events of `data`; "" ends the stream."""
        self._fed = True
        yield from map(_as_text, self._fed_with(data))

    def tick(self) -> Iterator[Message]:
        """Called after each read, and where none comes for 0.1 s."""
        if not self._fed:
            yield from self._end_burst()
        self._fed = False
        yield from map(_as_text, super().tick())

    def _fed_with(self, data: str) -> Iterator[Message]:
        if not data:
            yield from self._end_burst()
            yield from super().feed(data)
        while data:
            if self._paste is None:
                typed, begin, data = data.partition(BEGIN)
                yield from self._typed(typed)
                if not begin:
                    return
                yield from self._end_burst()
                self._paste = []
            pasted, end, rest = (self._tail + data).partition(END)
            if not end:
                sure = max(len(pasted) - len(END) + 1, 0)
                self._paste.append(pasted[:sure])
                self._tail = pasted[sure:]
                return
            text = "".join([*self._paste, pasted])
            self._paste, self._tail, data = None, "", rest
            yield Paste(_CODES.sub("", text))

    def _typed(self, text: str) -> Iterator[Message]:
        """Events of input that is not marked as pasted."""
        if self._timeout_time is None:
            head = _TEXT.match(text)[0]  # type: ignore[index]  # it matches anything
            if len(head) > 1 and (self._burst or _LINE_END.search(head)):
                self._burst += head
                text = text[len(head) :]
        if text:
            yield from self._end_burst()
        at = 0
        while at < len(text):
            if self._timeout_time is None:  # outside of a sequence
                escape = text.find(ESC, at)
                end = len(text) if escape < 0 else escape + 1
                yield from super().feed(text[at:end])
                at, self._sequence = end, ESC
                continue
            if text[at] == ESC and len(self._sequence) == 2:
                yield from self._pause()
            yield from super().feed(text[at])
            self._sequence = ESC if text[at] == ESC else self._sequence + text[at]
            if len(self._sequence) == 2 and self._sequence not in _LONGER:
                yield from self._pause()
            at += 1

    def _pause(self) -> Iterator[Message]:
        """End an open sequence as a pause would."""
        if self._timeout_time is not None:
            self._timeout_time = 0.0
            yield from super().tick()

    def _end_burst(self) -> Iterator[Message]:
        """Events of the text that came at once: nothing more follows."""
        burst, self._burst = self._burst, ""
        if _NEXT_LINE.search(burst):
            yield Paste(burst)
        elif burst:
            yield from super().feed(burst)


def _as_text(event: Message) -> Message:
    """A typed character that Python does not call printable, as a paste: fields would ignore such a key."""
    typed = event.character if isinstance(event, Key) else None
    if typed is None or len(typed) != 1 or typed.isprintable() or unicodedata.category(typed) in ("Cc", "Cs"):
        return event
    return Paste(typed)


def take_pastes() -> None:
    """Patch Textual's drivers of real terminals to read with a PasteParser. The drivers have no option for it."""
    for name in ("linux_driver", "win32"):
        try:
            driver = import_module(f"textual.drivers.{name}")
        except ImportError:  # the driver of another platform
            continue
        if getattr(driver, "XTermParser", None) is XTermParser:
            driver.XTermParser = PasteParser  # type: ignore[attr-defined]
