"""The last measured speed of plain decoding of each loaded pair, stored in the data folder."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from dflash_core.damaged import DAMAGED
from dflash_core.errors import InputError
from dflash_core.files import read_input, write_whole
from dflash_core.lab.plain import PlainSpeed

MAX_BYTES = 16 * 2**20
ENOUGH_STEPS = 128
"""A measurement of so many steps is replaced by any newer one of as many: machines and programs change."""


class PlainSpeeds:
    """Speeds by title of the loaded pair. An unreadable file counts as nothing measured yet."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "plain-speeds.json"
        self._known: dict[str, PlainSpeed] = {}
        try:
            known = msgspec.json.decode(read_input(self._file, MAX_BYTES), type=dict[str, PlainSpeed])
            for speed in known.values():
                _local(speed.taken)
        except (OSError, InputError, *DAMAGED, ValueError, OverflowError):
            return
        self._known = known

    def get(self, title: str) -> PlainSpeed | None:
        """The newest measurement of those with the most steps."""
        return self._known.get(title)

    def put(self, title: str, speed: PlainSpeed) -> bool:
        """Store a measurement, unless the known one has more steps; if the disk refuses it, only until the app
        closes."""
        known = self._known.get(title)
        if known is not None and _support(speed) < _support(known):
            return False
        self._known[title] = speed
        with suppress(OSError):
            write_whole(self._file, msgspec.json.format(msgspec.json.encode(self._known)))
        return True


def _support(speed: PlainSpeed) -> tuple[int, datetime]:
    """Which of two measurements is the better supported one: that of more steps, of equals the newer."""
    return min(speed.steps, ENOUGH_STEPS), _local(speed.taken)


def when(taken: str, now: datetime) -> str:
    """A UTC time in local time: today 14:05, or 2026-01-31."""
    local = _local(taken)
    today = local.date() == now.astimezone().date()
    return f"today {local:%H:%M}" if today else f"{local:%Y-%m-%d}"


def _local(taken: str) -> datetime:
    """A UTC time in local time. Raises ValueError or OverflowError for text that is none."""
    return datetime.fromisoformat(taken).astimezone()
