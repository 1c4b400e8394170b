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

MOST_BYTES = 16 * 2**20


class PlainSpeeds:
    """Speeds by title of the loaded pair. An unreadable file counts as nothing measured yet."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "plain-speeds.json"
        self._known: dict[str, PlainSpeed] = {}
        try:
            known = msgspec.json.decode(read_input(self._file, MOST_BYTES), type=dict[str, PlainSpeed])
            for speed in known.values():
                _local(speed.taken)
        except (OSError, InputError, *DAMAGED, ValueError, OverflowError):
            return
        self._known = known

    def get(self, title: str) -> PlainSpeed | None:
        """The newest measurement."""
        return self._known.get(title)

    def put(self, title: str, speed: PlainSpeed) -> None:
        """Store a measurement; if the disk refuses it, only until the app closes."""
        self._known[title] = speed
        with suppress(OSError):
            write_whole(self._file, msgspec.json.format(msgspec.json.encode(self._known)))


def when(taken: str, now: datetime) -> str:
    """A UTC time in local time: today 14:05, or 2026-01-31."""
    local = _local(taken)
    today = local.date() == now.astimezone().date()
    return f"today {local:%H:%M}" if today else f"{local:%Y-%m-%d}"


def _local(taken: str) -> datetime:
    """A UTC time in local time. Raises ValueError or OverflowError for text that is none."""
    return datetime.fromisoformat(taken).astimezone()
