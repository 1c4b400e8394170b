"""Fetching a pair on a thread: what the hub says of it, then, once that is agreed to, its files."""

from __future__ import annotations

import time
from pathlib import Path

from dflash_tui.chat.background import Background
from dflash_tui.hub.catalogue import Pair
from dflash_tui.hub.fetch import CancelledError, Wanted, check_room, fetch, here, kept, wanted

STALE_S = 5.0  # a speed is that of about so long


class Fetching(Background):
    """`start` asks the hub. With `files` there, `go` fetches them; `stop` leaves, and what is here stays."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        super().__init__("dflash-get")
        self.pair, self.folder = pair, folder
        self.files: list[Wanted] = []
        self.ready = False  # the files are known and have room
        self.started = False
        self.done = 0  # bytes that are here, of all files
        self.said = ""
        self._marks: list[tuple[float, int]] = []

    @property
    def size(self) -> int:
        return sum(one.size for one in self.files)

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at the present speed; None where there is none."""
        if len(self._marks) < 2 or self._marks[-1][1] <= self._marks[0][1]:
            return None
        (begun, first), (now, last) = self._marks[0], self._marks[-1]
        return (self.size - self.done) * (now - begun) / (last - first)

    @property
    def speed(self) -> float:
        """Bytes a second."""
        if len(self._marks) < 2:
            return 0.0
        (begun, first), (now, last) = self._marks[0], self._marks[-1]
        return (last - first) / max(now - begun, 1e-6)

    @property
    def fetched(self) -> bool:
        return self.over and self.started and self.error is None and not self.stopping

    @property
    def kept(self) -> str:
        """What there is of it, for who leaves."""
        return kept(self.files, self.folder)

    def go(self) -> None:
        """Fetch."""
        self.started = True
        self.wake()

    def work(self) -> None:
        files = wanted(self.pair)
        self.done = sum(here(one, self.folder) for one in files)
        self.files = files
        check_room(files, self.folder)
        self.ready = True
        self.wait()
        before = 0
        for one in files:
            if self.stopping:
                return
            self._before = before
            fetch(one, self.folder, self._told)
            before += one.size
        self.done = self.size

    def _told(self, file: str, here: int, size: int, said: str) -> None:
        if self.stopping:
            raise CancelledError("cancelled")
        self.said = f"{file}: {said}" if said else file
        if said:
            return
        self.done, now = self._before + here, time.monotonic()
        self._marks.append((now, self.done))
        while now - self._marks[0][0] > STALE_S and len(self._marks) > 2:
            del self._marks[0]
