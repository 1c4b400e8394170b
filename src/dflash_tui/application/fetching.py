"""Fetching a pair on a thread: first its sizes from the hub, then, once the user agrees, its files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.memory import gib
from dflash_tui.application.background import Background
from dflash_tui.application.hub.catalogue import Pair
from dflash_tui.application.hub.files import FileRequest, check_disk, here, received

STALE_S = 5.0  # seconds over which a speed is measured
QUIET_S = 3.0  # seconds without a byte, after which a message is shown

State = Literal["asking", "ready", "waiting", "running", "ending", "stopped", "failed", "fetched"]

_WORDS = {
    "asking": "asking the hub for its size…", "waiting": "waits until another download is over", "ending": "ending…",
    "fetched": "complete and checked",
}  # fmt: skip


def about(left_s: float) -> str:
    """The remaining time in words, rounded to minutes."""
    minutes = round(left_s / 60)
    if minutes < 1:
        return "under a minute left"
    return f"{minutes // 60} h {minutes % 60} min left" if minutes >= 60 else f"{minutes} min left"


class Fetching(Background):
    """`start` asks the hub. Once `files` are known, `go` fetches them; `stop` ends it, and received bytes stay.

    `agreed`: the user has confirmed it, though it may have to wait for others. `others`: files that are being fetched
    into the same folder at the same time.
    """

    def __init__(self, pair: Pair, folder: Path) -> None:
        super().__init__("dflash-get")
        self.pair, self.folder = pair, folder
        self.others: Callable[[], Iterable[FileRequest]] = tuple
        self.files: list[FileRequest] = []
        self.ready = False  # the files are known and fit on the disk
        self.agreed = False
        self.going = False
        self.complete = False
        self.done = 0  # bytes on the disk, of all files
        self.file, self.message = "", ""
        self.began = 0.0  # when the user agreed
        self._heard = 0.0
        self._elsewhere = 0  # bytes on the disk of the files other than the current one
        self._marks: list[tuple[float, int]] = []

    @property
    def size(self) -> int:
        return sum(one.size for one in self.files)

    @property
    def percent(self) -> int:
        """How much of it is on the disk; 100 is all of it."""
        return 100 * self.done // max(self.size, 1)

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at the present speed; None if there is no speed yet."""
        speed = self.speed  # read once: the fetching thread may replace it meanwhile
        return (self.size - self.done) / speed if speed > 0 else None

    @property
    def speed(self) -> float:
        """Bytes a second."""
        marks = self._marks
        if len(marks) < 2:
            return 0.0
        (begun, first), (now, last) = marks[0], marks[-1]
        return (last - first) / max(now - begun, self._quiet_s - 1, 1e-6)

    @property
    def _quiet_s(self) -> float:
        """Seconds since the last sign of life of the fetching thread."""
        return time.monotonic() - self._heard if self._heard else 0.0

    @property
    def note(self) -> str:
        """Further words about a running download."""
        quiet = self._quiet_s
        return self.message or (f"nothing received for {quiet:.0f} s" if quiet > QUIET_S else "")

    @property
    def state(self) -> State:
        """The state of the download. `ending`: a stop was requested and the thread still runs."""
        if self.over:
            return "fetched" if self.complete else "stopped" if self.stopping or self.error is None else "failed"
        if self.stopping:
            return "ending"
        if not self.ready:
            return "asking"
        return "running" if self.going else "waiting" if self.agreed else "ready"

    @property
    def why(self) -> str:
        error = self.error
        return one_line(str(error) if isinstance(error, DFlashError) else f"{type(error).__name__}: {error}")

    @property
    def words(self) -> str:
        match state := self.state:
            case "running":
                left = about(seconds) if (seconds := self.left_s) is not None else ""
                return ", ".join(filter(None, (f"{self.percent} % of {gib(self.size)}", self.note or left)))
            case "stopped":
                return f"stopped; {self.received}"
            case "failed":
                return f"failed at {self.percent} %: {self.why}"
        return _WORDS.get(state, "")

    @property
    def received(self) -> str:
        """What is on the disk, for a user who leaves."""
        return received(self.files, self.folder)

    def go(self) -> None:
        self.going = True
        self.wake()

    def work(self) -> None:
        from dflash_tui.application.hub.fetch import fetch, requested_files  # huggingface_hub, which nothing else needs

        files = requested_files(self.pair, stop=self._stop)
        self.done = sum(here(one, self.folder) for one in files)
        self.files = files
        check_disk(files, self.folder, self.others())
        self.ready = True
        self.wait()
        if self.stopping:
            return
        check_disk(files, self.folder, self.others())  # it may have waited for a long time
        for one in files:
            self._elsewhere = sum(here(other, self.folder) for other in files if other is not one)
            fetch(one, self.folder, self._progress, stop=self._stop)
        self.done = self.size
        self.complete = True

    def _progress(self, file: str, here: int, size: int, message: str) -> None:
        self.file, self.message = file, message
        self._heard = now = time.monotonic()
        if message:
            self._marks = []  # a pause has no speed
            return
        self.done = self._elsewhere + here
        marks = [*self._marks, (now, self.done)]
        while now - marks[0][0] > STALE_S and len(marks) > 2:
            del marks[0]
        self._marks = marks  # replaced in one assignment: the app's thread reads it
