"""Short notices, stored so that the user can read them again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime

CAPACITY = 200


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice and its time."""

    text: str
    at: datetime
    error: bool = False

    def line(self) -> str:
        return f"{self.at:%H:%M:%S}  {'✗ ' if self.error else ''}{self.text}"


class Notices:
    """The newest `CAPACITY` notices since the start of the app."""

    def __init__(self) -> None:
        self._notices: deque[Notice] = deque(maxlen=CAPACITY)

    def keep(self, text: str, *, error: bool = False) -> None:
        """Add a notice; if it repeats the last one, replace that."""
        if self._notices and self._notices[-1].text == text:
            self._notices.pop()
        self._notices.append(Notice(text, datetime.now(), error))

    def page(self) -> str:
        """All of them, the newest first."""
        return "\n".join(one.line() for one in reversed(self._notices)) or "No notices yet."
