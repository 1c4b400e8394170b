"""Small facts kept for the next start: the tour was seen, the inspector is hidden."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Literal

from dflash_core.files import write_whole

Thing = Literal["tour seen", "parameters unfolded", "inspector hidden", "drawer open"]


class Remembered:
    """A file in the data folder. If it cannot be read or written, nothing is remembered: these facts are not vital."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "remembered.json"
        self._things: set[str] = set()
        with suppress(OSError, ValueError):
            found = json.loads(self._path.read_text(encoding="utf-8"))
            self._things = {one for one in found if isinstance(one, str)} if isinstance(found, list) else set()

    def __contains__(self, thing: Thing) -> bool:
        return thing in self._things

    def put(self, thing: Thing, value: bool) -> None:
        """Remember a fact, or forget it."""
        before = set(self._things)
        self._things = before | {thing} if value else before - {thing}
        if self._things == before:
            return
        with suppress(OSError):
            write_whole(self._path, json.dumps(sorted(self._things)).encode())
