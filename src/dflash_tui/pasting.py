"""Pastes, taken out of what a terminal sends before Textual reads it: to its parser an escape inside a paste is a key,
so text of a coloured log would be lost, and a line end behind it would send the message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module

from textual._xterm_parser import XTermParser
from textual.events import Paste
from textual.message import Message

BEGIN, END = "\x1b[200~", "\x1b[201~"
_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|[\x00\x1b]"
)


class PasteParser(XTermParser):
    """Makes one event of each paste, without control sequences, in however many pieces it arrives."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._paste: list[str] | None = None  # what has arrived of one
        self._tail = ""  # behind that, what may be the beginning of its end

    def feed(self, data: str) -> Iterator[Message]:
        """Events of `data`; "" ends the stream."""
        if not data:
            yield from super().feed(data)
        while data:
            if self._paste is None:
                typed, begin, data = data.partition(BEGIN)
                if typed:
                    yield from super().feed(typed)
                if not begin:
                    return
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


def take_pastes() -> None:
    """Have Textual's drivers of real terminals read with a PasteParser. They offer no other way to choose one."""
    for name in ("linux_driver", "win32"):
        try:
            driver = import_module(f"textual.drivers.{name}")
        except ImportError:  # of another platform
            continue
        if getattr(driver, "XTermParser", None) is XTermParser:
            driver.XTermParser = PasteParser  # type: ignore[attr-defined]
