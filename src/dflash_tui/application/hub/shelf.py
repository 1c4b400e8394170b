"""A disk cache of headers and pairings: a file that has not changed is not opened again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from dflash_core.damaged import DAMAGED
from dflash_core.errors import InputError
from dflash_core.files import read_input, write_whole
from dflash_core.user_folders import user_folder
from dflash_tui.application.hub.header import ModelHeader

VERSION = 2  # of the cached fields, and of what is refused in a header; a file of another version is not used
MAX_ENTRIES = 4_000  # entries; the oldest are dropped first
MAX_BYTES = 1 << 24


class _Cache(msgspec.Struct):
    version: int
    headers: dict[str, ModelHeader]
    pairs: dict[str, str]


class Shelf:
    """`headers` by key of the file; `pairs` by both keys: why they are not compatible, "" if they are. A cache file
    that cannot be read or written only costs time."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or user_folder("cache") / "models.json"
        cache = _Cache(VERSION, {}, {})
        with suppress(OSError, InputError, *DAMAGED):
            found = msgspec.json.decode(read_input(self._path, MAX_BYTES), type=_Cache)
            cache = found if found.version == VERSION else cache
        self.headers, self.pairs = cache.headers, cache.pairs
        self._before = (len(self.headers), len(self.pairs))

    def keep(self) -> None:
        """Write new entries, completely or not at all."""
        if (len(self.headers), len(self.pairs)) == self._before:
            return
        headers, pairs = dict(list(self.headers.items())[-MAX_ENTRIES:]), dict(list(self.pairs.items())[-MAX_ENTRIES:])
        with suppress(OSError, UnicodeEncodeError):
            write_whole(self._path, msgspec.json.encode(_Cache(VERSION, headers, pairs)))
        self._before = (len(self.headers), len(self.pairs))
