"""Small facts that were shown and have faded: kept, to be read again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime

KEPT = 200


@dataclass(frozen=True, slots=True)
class Notice:
    """What was said, and when."""

    text: str
    at: datetime
    error: bool = False

    def line(self) -> str:
        return f"{self.at:%H:%M:%S}  {'✗ ' if self.error else ''}{self.text}"


class Notices:
    """What was said since the app began, the newest `KEPT`."""

    def __init__(self) -> None:
        self._kept: deque[Notice] = deque(maxlen=KEPT)

    def keep(self, text: str, *, error: bool = False) -> None:
        """Add one; of the same fact said again at once, the newest is enough."""
        if self._kept and self._kept[-1].text == text:
            self._kept.pop()
        self._kept.append(Notice(text, datetime.now(), error))

    def page(self) -> str:
        """All of them, the newest first."""
        return "\n".join(one.line() for one in reversed(self._kept)) or "Nothing was said yet."
