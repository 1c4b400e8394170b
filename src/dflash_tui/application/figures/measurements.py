"""Measurements of each loaded pair: tunings, sweeps, comparisons, stored in the data folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dflash_core.damaged import DAMAGED
from dflash_core.drafting import upgraded
from dflash_core.errors import InputError, KnobError
from dflash_core.files import read_input, write_whole
from dflash_core.knobs import Knobs
from dflash_tui.application.log import LOG

MAX_BYTES = 16 * 2**20
MAX_MEASUREMENTS = 50  # measurements of a pair; older ones are dropped
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
    """Measurements of one pair, by its title when loaded, newest last. An unreadable file counts as none."""

    def __init__(self, folder: Path, title: str) -> None:
        name = hashlib.sha256(title.encode(errors="replace")).hexdigest()[:16]
        self._file = folder / "measurements" / f"{name}.json"
        self._all: tuple[Measurement, ...] = ()
        try:
            data = upgraded(read_input(self._file, MAX_BYTES))
            self._all = msgspec.json.decode(data, type=tuple[Measurement, ...])
        except FileNotFoundError:
            pass
        except (OSError, InputError, *DAMAGED, KnobError, ValueError) as error:
            LOG.warning("%s: %s; nothing of it is used", self._file, error)

    @property
    def newest_first(self) -> tuple[Measurement, ...]:
        return self._all[::-1]

    def add(self, what: What, words: str, rows: Sequence[MeasuredRow]) -> None:
        """Store an experiment; if the disk refuses it, only until the app closes."""
        taken = datetime.now(UTC).replace(microsecond=0)
        self._all = (*self._all, Measurement(what, taken, words, tuple(rows)))[-MAX_MEASUREMENTS:]
        try:
            write_whole(self._file, msgspec.json.encode(self._all))
        except OSError as error:
            LOG.warning("%s cannot be written: %s", self._file, error.strerror)
