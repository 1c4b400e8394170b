"""What was measured of each loaded pair, stored in the data folder: experiments, and the speed of plain decoding."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dflash_core.knobs import Knobs
from dflash_core.lab.results import PlainSpeed
from dflash_tui.application.json_store import JsonFile

MAX_MEASUREMENTS = 50  # measurements of a pair; older ones are dropped
ENOUGH_STEPS = 128
"""A measurement of this many steps is replaced by any newer one of as many: machines and programs change."""
What = Literal["tune", "sweep", "ab", "plain"]


class MeasuredRow(msgspec.Struct, frozen=True):
    """One setting, medians over `runs` runs: tok/s, tokens and ms per step. `mark`: now, auto, plain, best, or none.

    `against`: the paired difference from what the experiment compared with, as it was shown.
    """

    label: str
    knobs: Knobs
    tok_s: float
    acceptance: float
    step_ms: float
    runs: int
    mark: str = ""
    against: str = ""


class Measurement(msgspec.Struct, frozen=True):
    """One experiment. `words` is the result, as the screen showed it."""

    what: What
    taken: Annotated[datetime, msgspec.Meta(tz=True)]
    words: str
    rows: tuple[MeasuredRow, ...]


class Measurements:
    """Experiments on one pair, by its title when loaded, newest last."""

    def __init__(self, folder: Path, title: str) -> None:
        name = hashlib.sha256(title.encode(errors="replace")).hexdigest()[:16]
        self._file = JsonFile(folder / "measurements" / f"{name}.json", tuple[Measurement, ...])
        self._all = self._file.read() or ()

    @property
    def newest_first(self) -> tuple[Measurement, ...]:
        return self._all[::-1]

    def add(self, what: What, words: str, rows: Sequence[MeasuredRow]) -> None:
        """Store an experiment; if the disk refuses it, only until the app closes."""
        taken = datetime.now(UTC).replace(microsecond=0)
        self._all = (*self._all, Measurement(what, taken, words, tuple(rows)))[-MAX_MEASUREMENTS:]
        self._file.write(self._all)


class PlainSpeeds:
    """Speeds of plain decoding by title of the loaded pair."""

    def __init__(self, folder: Path) -> None:
        self._file = JsonFile(folder / "plain-speeds.json", dict[str, PlainSpeed])
        known = self._file.read() or {}
        self._known = {title: speed for title, speed in known.items() if _is_time(speed.taken)}

    def get(self, title: str) -> PlainSpeed | None:
        """The newest measurement of those with the most steps."""
        return self._known.get(title)

    def put(self, title: str, speed: PlainSpeed) -> bool:
        """Store a measurement, unless the known one has more steps; if the disk fails, only until the app closes."""
        known = self._known.get(title)
        if known is not None and _support(speed) < _support(known):
            return False
        self._known[title] = speed
        self._file.write(self._known)
        return True


def _support(speed: PlainSpeed) -> tuple[int, datetime]:
    """Which of two measurements is the better supported one: that of more steps, of equals the newer."""
    return min(speed.steps, ENOUGH_STEPS), datetime.fromisoformat(speed.taken).astimezone()


def when(taken: str, now: datetime) -> str:
    """A UTC time in local time: today 14:05, or 2026-01-31."""
    local = datetime.fromisoformat(taken).astimezone()
    today = local.date() == now.astimezone().date()
    return f"today {local:%H:%M}" if today else f"{local:%Y-%m-%d}"


def _is_time(taken: str) -> bool:
    try:
        datetime.fromisoformat(taken).astimezone()
    except (ValueError, OverflowError):
        return False
    return True
