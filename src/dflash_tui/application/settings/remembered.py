"""Small facts kept for the next start: the tour was seen, the inspector is hidden."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from dflash_core.damaged import DAMAGED
from dflash_core.errors import InputError
from dflash_core.files import read_input, write_whole

MAX_BYTES = 1 << 16

Thing = Literal["tour seen", "parameters unfolded", "inspector hidden", "drawer open"]


class Remembered:
    """A file in the data folder. If it cannot be read or written, nothing is remembered: these facts are not vital."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "remembered.json"
        self._things: set[str] = set()
        with suppress(OSError, InputError, *DAMAGED):
            self._things = msgspec.json.decode(read_input(self._path, MAX_BYTES), type=set[str])

    def __contains__(self, thing: Thing) -> bool:
        return thing in self._things

    def put(self, thing: Thing, value: bool) -> None:
        """Remember a fact, or forget it."""
        before = set(self._things)
        self._things = before | {thing} if value else before - {thing}
        if self._things == before:
            return
        with suppress(OSError):
            write_whole(self._path, msgspec.json.encode(sorted(self._things)))
